"""MODEL arguments: what each means, what is refused, and that a path never becomes a download."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import LlmrsError, ModelError, UsageError
from llmrs_cli.hub.aliases import ALIASES, BUILT_IN, Alias
from llmrs_cli.hub.names import looks_like_path, nearest, parse_model


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "repo"),
    [
        ("qwen2.5-3b", "Qwen/Qwen2.5-3B-Instruct"),
        ("Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct"),
        ("qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen2.5-14b-awq", "Qwen/Qwen2.5-14B-Instruct-AWQ"),
        ("qwen2.5-7b-instruct-awq", "Qwen/Qwen2.5-7B-Instruct-AWQ"),
        ("qwen3-0.6b", "Qwen/Qwen3-0.6B"),
        ("qwen3-8b-awq", "Qwen/Qwen3-8B-AWQ"),
        ("llama3.2-1b", "meta-llama/Llama-3.2-1B-Instruct"),
        ("llama3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"),
        ("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct"),
    ],
)
def test_an_alias_means_the_instruction_tuned_model(text: str, repo: str) -> None:
    name = parse_model(text)
    assert (name.kind, name.repo, name.revision, name.text) == ("repo", repo, None, text)


def test_the_promised_aliases_are_there() -> None:
    qwen25 = [
        f"qwen2.5-{size}{kind}" for size in ("0.5b", "1.5b", "3b", "7b", "14b") for kind in ("", "-awq")
    ]
    qwen3 = [f"qwen3-{size}" for size in ("0.6b", "1.7b", "4b", "8b")]
    rest = ["llama3.2-1b", "llama3.2-3b", "llama3.1-8b", "smollm2-135m", "smollm2-360m", "smollm2-1.7b"]
    assert set(qwen25 + qwen3 + rest) <= set(ALIASES)
    assert "qwen3-0.6b-awq" not in ALIASES, "the publisher has no such repository"


def test_only_the_llamas_are_gated() -> None:
    assert {name for name, alias in ALIASES.items() if alias.gated} == {
        "llama3.1-8b",
        "llama3.2-1b",
        "llama3.2-3b",
    }


def test_the_built_in_model_is_one_file_and_no_repository() -> None:
    name = parse_model(BUILT_IN)
    assert (name.kind, name.repo, name.file) == ("built-in", None, "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.mark.parametrize(
    ("text", "repo", "file", "revision"),
    [
        ("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-3B-Instruct", None, None),
        ("a/b@v1.0", "a/b", None, "v1.0"),
        ("a/b@refs/pr/3", "a/b", None, "refs/pr/3"),
        ("a/b-GGUF/b.Q4_K_M.gguf", "a/b-GGUF", "b.Q4_K_M.gguf", None),
        ("a/b/c.gguf@main", "a/b", "c.gguf", "main"),
        ("qwen2.5-3b@abc123", "Qwen/Qwen2.5-3B-Instruct", None, "abc123"),
    ],
)
def test_repositories_may_name_a_file_and_a_revision(
    text: str, repo: str, file: str | None, revision: str | None
) -> None:
    name = parse_model(text)
    assert (name.kind, name.repo, name.file, name.revision) == ("repo", repo, file, revision)


@pytest.mark.parametrize("text", ["my model", "./my model/", "Qwen/Qwen2.5"])
def test_an_existing_folder_wins_over_everything(text: str) -> None:
    Path(text).mkdir(parents=True)
    name = parse_model(text)
    assert (name.kind, name.path, name.repo) == ("folder", Path(text), None)


def test_a_folder_under_home_may_be_written_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    assert parse_model("~/m").path == tmp_path / "m"


def test_an_existing_gguf_file_is_itself() -> None:
    Path("a.GGUF").touch()
    assert parse_model("a.GGUF").kind == "file"


def test_another_file_is_refused() -> None:
    Path("weights.bin").touch()
    with pytest.raises(ModelError, match=r"is a file, but not a \.gguf one"):
        parse_model("weights.bin")


@pytest.mark.parametrize(
    "text",
    ["./nosuch", "/nosuch/x", "~/nosuch", "nosuch/", "C:\\models\\qwen", "a\\b", "~nobody-here/x"],
)
def test_a_missing_path_is_not_found_and_never_a_repository(text: str) -> None:
    with pytest.raises(ModelError, match="Model folder not found"):
        parse_model(text)


def test_a_missing_gguf_path_is_called_a_file() -> None:
    with pytest.raises(ModelError, match="Model file not found"):
        parse_model("./nosuch.gguf")


@pytest.mark.parametrize("text", ["Why is the sky blue?", "hello world", "two\nlines", "word " * 2000])
def test_a_prompt_in_place_of_a_model_suggests_the_flag(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_model(text)
    assert (caught.value.hint or "").startswith("For a prompt, type: -p ")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("qwen2.5-3", "qwen2.5-3b"),
        ("qwen2.5:7b", "qwen2.5-7b"),
        ("qwen25-7b", "qwen2.5-7b"),
        ("llama-3.2-1b", "llama3.2-1b"),
        ("smollm2-135", "smollm2-135m"),
    ],
)
def test_an_unknown_name_suggests_the_nearest_alias(text: str, guess: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse_model(text)
    assert caught.value.hint == f"Did you mean {guess!r}?"


def test_a_name_like_nothing_says_where_the_names_are() -> None:
    with pytest.raises(ModelError) as caught:
        parse_model("zzzz")
    assert "'llmrs alias list'" in (caught.value.hint or "")
    assert nearest("zzzz") is None


@pytest.mark.parametrize("text", ["a/b@", "a/b@../x", "a/b@x..y", "a/b@-x", "a/b@x//y", "a/b@" + "x" * 300])
def test_a_revision_that_is_no_revision_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a revision"):
        parse_model(text)


@pytest.mark.parametrize("text", ["a--b/c", "a/b..c", "a/b.git"])
def test_a_name_that_the_hub_gives_to_no_repository_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="is not a repository name"):
        parse_model(text)


@pytest.mark.parametrize("text", ["", "\ud800", "a\x1b[31m", "x" * 5000])
def test_text_that_can_be_no_name_is_refused_without_echoing_controls(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_model(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@given(st.text(max_size=40))
def test_no_text_gives_anything_but_a_name_or_our_error(text: str) -> None:
    try:
        name = parse_model(text)
    except LlmrsError as error:
        assert error.message.isprintable()
    else:
        assert (name.repo is None) == (name.kind != "repo")
        if name.repo is not None:
            assert not looks_like_path(text)
            assert name.repo.count("/") == 1 and ".." not in name.repo and "\\" not in name.repo


@pytest.mark.parametrize("alias", ALIASES.values(), ids=lambda alias: alias.name)
def test_every_alias_describes_a_model_completely(alias: Alias) -> None:
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    assert all(isinstance(alias.config[key], int) for key in sizes)
    assert (
        ("quantization_config" in alias.config) == alias.name.endswith("-awq") == alias.repo.endswith("-AWQ")
    )
