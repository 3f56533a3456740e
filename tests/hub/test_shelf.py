"""What is on this machine: listed, checked, removed, tidied, without asking anybody."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir

from llmrs_cli.errors import LlmrsError, NetworkError
from llmrs_cli.hub.aliases import ALIASES, BUILT_IN
from llmrs_cli.hub.leftovers import find_leftovers, remove_leftovers
from llmrs_cli.hub.shelf import completions, damaged_files, kept_models, remove_repo
from tests.helpers.fake_hub import FakeRepo, Fault, fake_hub
from tests.hub.conftest import WEIGHTS, Locate

FILES = {"config.json": 23, "tokenizer.json": 2, "model.safetensors": len(WEIGHTS)}
LATER = 2 * 3600.0


@pytest.fixture
def hub_folder(tmp_path: Path) -> Path:
    """The Hub's cache of the tests that use `find`."""
    return tmp_path / "hf" / "hub"


def soon_settled(hub: Path, cache: Path) -> list[tuple[str, str]]:
    """Leftovers as they will be found two hours from now: (name, why)."""
    return [(left.path.name, left.why) for left in find_leftovers(hub, cache, now=time.time() + LATER)]


def test_an_empty_machine_has_nothing(tmp_path: Path) -> None:
    assert kept_models(tmp_path / "hub", tmp_path / "cache") == []
    assert find_leftovers(tmp_path / "hub", tmp_path / "cache") == []


def test_a_model_is_listed_with_commit_branch_path_and_size(
    find: Locate, small: FakeRepo, hub_folder: Path, tmp_path: Path
) -> None:
    with fake_hub({"a/b": small}) as hub:
        found = find(hub)
    (kept,) = kept_models(hub_folder, tmp_path)
    assert (kept.name, kept.repo, kept.commit, kept.revisions) == ("a/b", "a/b", small.commit, ("main",))
    assert (kept.path, kept.size, kept.partial) == (found.path, sum(FILES.values()), 0)


def test_an_aliased_repository_is_listed_by_its_alias(
    find: Locate, small: FakeRepo, hub_folder: Path, tmp_path: Path
) -> None:
    with fake_hub({"Qwen/Qwen3-0.6B": small}) as hub:
        find(hub, "qwen3-0.6b")
    (kept,) = kept_models(hub_folder, tmp_path)
    assert (kept.name, kept.repo) == ("qwen3-0.6b", "Qwen/Qwen3-0.6B")


def test_the_built_in_model_comes_first(
    find: Locate, small: FakeRepo, hub_folder: Path, tmp_path: Path
) -> None:
    file = ALIASES[BUILT_IN].file
    assert file is not None
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / file).write_bytes(b"GGUF")
    with fake_hub({"a/b": small}) as hub:
        find(hub)
    assert [kept.name for kept in kept_models(hub_folder, tmp_path)] == [BUILT_IN, "a/b"]


def test_an_unfinished_download_is_listed_and_can_be_removed(
    find: Locate, small: FakeRepo, hub_folder: Path, tmp_path: Path
) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", Fault(cut_after=5000), *[Fault(cut_after=0)] * 9)
        with pytest.raises(NetworkError):
            find(hub)
    (kept,) = kept_models(hub_folder, tmp_path)
    assert (kept.path, kept.partial) == (None, 5000)
    assert remove_repo(hub_folder, "a/b") >= 5000
    assert kept_models(hub_folder, tmp_path) == []


def test_two_commits_are_two_entries(find: Locate, small: FakeRepo, hub_folder: Path, tmp_path: Path) -> None:
    old = "1" * 40
    with fake_hub({"a/b": replace(small, tags={"v1": old})}) as hub:
        find(hub)
        find(hub, "a/b@v1")
    assert [(kept.commit, kept.revisions) for kept in kept_models(hub_folder, tmp_path)] == [
        (old, ("v1",)),
        (small.commit, ("main",)),
    ]


def test_removing_frees_everything_and_only_that(
    find: Locate, small: FakeRepo, hub_folder: Path, tmp_path: Path
) -> None:
    with fake_hub({"a/b": small, "a/c": small}) as hub:
        find(hub, "a/b")
        find(hub, "a/c")
    assert remove_repo(hub_folder, "a/b") >= sum(FILES.values())
    assert [kept.name for kept in kept_models(hub_folder, tmp_path)] == ["a/c"]
    assert scan_cache_dir(hub_folder).warnings == []
    assert remove_repo(hub_folder, "a/b") == 0


def test_a_link_to_somewhere_else_is_not_followed_when_removing(tmp_path: Path) -> None:
    elsewhere = tmp_path / "precious"
    elsewhere.mkdir()
    (elsewhere / "thesis.txt").touch()
    (tmp_path / "models--a--b").symlink_to(elsewhere)
    with pytest.raises(LlmrsError, match="is a link"):
        remove_repo(tmp_path, "a/b")
    assert (elsewhere / "thesis.txt").exists()


@pytest.mark.parametrize("victim", ["model.safetensors", "tokenizer.json"])
def test_a_flipped_byte_is_found_without_the_network(
    find: Locate, small: FakeRepo, hub_folder: Path, victim: str
) -> None:
    with fake_hub({"a/b": small}) as hub:
        found = find(hub)
    assert dict(damaged_files(hub_folder, "a/b", small.commit)) == dict.fromkeys(FILES, False)
    path = (found.path / victim).resolve()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert dict(damaged_files(hub_folder, "a/b", small.commit)) == {
        **dict.fromkeys(FILES, False),
        victim: True,
    }


def test_completion_offers_what_is_here_first(
    find: Locate, small: FakeRepo, hub_folder: Path, tmp_path: Path
) -> None:
    with fake_hub({"q/z": small, "Qwen/Qwen3-8B": small}) as hub:
        find(hub, "q/z")
        find(hub, "qwen3-8b")
    names = completions(hub_folder, tmp_path, "q")
    assert names[:2] == ["q/z", "qwen3-8b"]
    assert names.count("qwen3-8b") == 1 and "qwen2.5-7b" in names
    assert completions(hub_folder, tmp_path, "llama3.1") == ["llama3.1-8b"]


def test_strange_things_in_the_cache_disturb_nothing(hub_folder: Path, tmp_path: Path) -> None:
    for name in ("models--x", "datasets--a--b", "models--a--b", "models--c--d/snapshots/zzz", ".locks"):
        (hub_folder / name).mkdir(parents=True)
    (hub_folder / "models--e--f").write_text("a file", encoding="utf-8")
    (hub_folder / "models--a--b" / "refs").mkdir()
    (hub_folder / "models--a--b" / "refs" / "main").write_bytes(b"\xff\xfe")
    assert kept_models(hub_folder, tmp_path) == []
    assert soon_settled(hub_folder, tmp_path) == []


# -- tidying ------------------------------------------------------------------------------------------


def test_a_superseded_commit_and_its_own_content_can_go(
    find: Locate, small: FakeRepo, hub_folder: Path, tmp_path: Path
) -> None:
    with fake_hub({"a/b": small}) as hub:
        find(hub)
        moved = FakeRepo({**small.files, "config.json": b'{"model_type": "qwen2"}'})
        hub.repos["a/b"] = moved
        found = find(hub)
        why = [why for _, why in soon_settled(hub_folder, tmp_path)]
        assert why == ["superseded commit", "content of no commit"]
        freed = remove_leftovers(find_leftovers(hub_folder, tmp_path, now=time.time() + LATER))
        assert freed == len(small.files["config.json"])
        assert [kept.commit for kept in kept_models(hub_folder, tmp_path)] == [moved.commit]
        assert find(hub, offline=True) == found
        assert scan_cache_dir(hub_folder).warnings == []


def test_a_commit_fetched_by_its_number_stays(
    find: Locate, small: FakeRepo, hub_folder: Path, tmp_path: Path
) -> None:
    with fake_hub({"a/b": small}) as hub:
        find(hub, f"a/b@{small.commit}")
    assert soon_settled(hub_folder, tmp_path) == []


def test_a_download_under_way_is_no_leftover(
    find: Locate, small: FakeRepo, hub_folder: Path, tmp_path: Path
) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", Fault(cut_after=5000), *[Fault(cut_after=0)] * 9)
        with pytest.raises(NetworkError):
            find(hub)
    assert find_leftovers(hub_folder, tmp_path) == []
    assert [why for _, why in soon_settled(hub_folder, tmp_path)] == ["unfinished download"]
    leftovers = find_leftovers(hub_folder, tmp_path, now=time.time() + LATER)
    assert remove_leftovers(leftovers) == 5000
    assert remove_leftovers(leftovers) == 0, "gone already"


def test_the_work_folder_of_a_killed_fetch_can_go(tmp_path: Path) -> None:
    work = tmp_path / "models" / ".fetch-abc"
    work.mkdir(parents=True)
    (work / "half.whl").write_bytes(b"PK" * 50)
    os.utime(work, (0, 0))
    (leftover,) = find_leftovers(tmp_path / "hub", tmp_path)
    assert (leftover.size, remove_leftovers([leftover])) == (100, 100)
    assert not work.exists()


def test_listing_imports_no_library_and_no_network_code() -> None:
    code = "import sys, llmrs_cli.hub.leftovers; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert not loaded & {
        "ssl",
        "http.client",
        "urllib.request",
        "asyncio",
        "huggingface_hub",
        "numpy",
        "click",
    }
