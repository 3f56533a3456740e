"""Listings: what is believed, what is needed, and which hash a file must have."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.hf_api import ModelInfo
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import LlmrsError, ModelError
from llmrs_cli.hub.listing import (
    MALFORMED,
    Listing,
    RepoFile,
    is_weight,
    needed,
    parse_listing,
    weight_names,
)

COMMIT = "c" * 40


def listing(*names: str) -> Listing:
    return Listing("a/b", COMMIT, tuple(RepoFile(name, 1, "0" * 40) for name in names))


def names_of(files: tuple[RepoFile, ...]) -> list[str]:
    return [file.name for file in files]


def test_small_files_come_before_weights_and_nothing_else_comes() -> None:
    files = listing(
        "README.md",
        "model-00002-of-00002.safetensors",
        "tokenizer.json",
        "model-00001-of-00002.safetensors",
        "config.json",
        "model.safetensors.index.json",
        "consolidated.safetensors",
        "original/model.safetensors",
        "pytorch_model.bin",
        "onnx/model.onnx",
    )
    chosen = names_of(needed(files))
    assert chosen == [
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert [is_weight(name) for name in chosen] == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("listed", "weights"),
    [
        (["model.safetensors", "model-00001-of-00001.safetensors"], ["model.safetensors"]),
        (
            ["consolidated.00.safetensors", "model-00001-of-00001.safetensors"],
            ["model-00001-of-00001.safetensors"],
        ),
        (["weights.safetensors", "adapter_model.safetensors"], ["weights.safetensors"]),
        (["consolidated.safetensors"], []),
        (["sub/model.safetensors"], []),
    ],
)
def test_one_copy_of_the_weights_is_chosen(listed: list[str], weights: list[str]) -> None:
    assert weight_names(listed) == weights


def test_a_file_listed_twice_is_refused() -> None:
    with pytest.raises(ModelError, match="twice"):
        needed(listing("config.json", "model.safetensors", "config.json"))


def test_the_hash_of_a_small_file_is_the_one_that_git_gives_it(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"what is up, doc?")
    blob = subprocess.run(["git", "hash-object", str(path)], capture_output=True, text=True, check=True)
    assert RepoFile("x", 16, blob.stdout.strip()).is_content_of(path)
    assert RepoFile("x", 16, hashlib.sha256(path.read_bytes()).hexdigest()).is_content_of(path)
    assert not RepoFile("x", 16, "0" * 40).is_content_of(path)
    assert not RepoFile("x", 15, blob.stdout.strip()).is_content_of(path)
    assert not RepoFile("x", 16, blob.stdout.strip()).is_content_of(tmp_path / "y")


ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "rfilename": st.sampled_from(["config.json", "../x", "x", "model.safetensors", "", 7, None]),
        "size": st.sampled_from([0, 1, -1, 2**60, 1.5, "1", None]),
        "blobId": st.sampled_from(["0" * 40, "z" * 40, "0" * 64, "../../x", 3, None]),
        "lfs": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "sha256": st.sampled_from(["0" * 64, "../x", 1]),
                    "size": st.sampled_from([1, -1, None]),
                    "pointerSize": st.just(130),
                }
            ),
        ),
    },
)
CARD = st.one_of(
    st.none(),
    st.text(max_size=3),
    st.dictionaries(
        st.sampled_from(["license", "license_name"]),
        st.sampled_from(["mit", "other", "a\x1b[2Jb", "x" * 99, 5, None, ["mit"]]),
    ),
)
SIBLINGS = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(ENTRY, max_size=3))
ANSWER = st.fixed_dictionaries(
    {"sha": st.sampled_from([COMMIT, "main", None, "../x", 7]), "siblings": SIBLINGS, "cardData": CARD}
)


@given(ANSWER)
def test_any_answer_gives_a_checked_listing_or_an_error_that_is_expected(answer: dict[str, Any]) -> None:
    try:
        found = parse_listing("a/b", ModelInfo(id="a/b", **answer))  # type: ignore[no-untyped-call]
    except (LlmrsError, *MALFORMED):
        return
    assert found.commit == COMMIT
    assert found.licence in ("mit", "other", None)
    for file in found.files:
        assert file.size >= 0 and set(file.hash) <= set("0123456789abcdef")
        assert ".." not in file.name and len(file.hash) in (40, 64)
