"""`llmrs rm` and `llmrs prune`: nothing goes without a yes, and only what was named."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from llmrs_cli.errors import ExitCode
from tests.cli.conftest import Run
from tests.cli.test_list import put_built_in
from tests.helpers.fake_hub import FakeHub, FakeRepo, Fault
from tests.helpers.screen import ScreenSession


def listed(llmrs: Run) -> list[str]:
    return [entry["name"] for entry in json.loads(llmrs("list", "--json").stdout)]


def test_without_a_terminal_a_yes_must_be_typed(llmrs: Run, online: FakeHub) -> None:
    llmrs("pull", "a/b")
    result = llmrs("rm", "a/b", stdin="y\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "-y" in result.stderr
    assert listed(llmrs) == ["a/b"]


def test_yes_removes_what_was_named_and_nothing_else(llmrs: Run, online: FakeHub) -> None:
    online.repos["c/d"] = FakeRepo(dict(online.repos["a/b"].files))
    llmrs("pull", "a/b", "c/d")
    result = llmrs("rm", "-y", "a/b", "a/b")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("llmrs: Removed 'a/b', ")
    assert listed(llmrs) == ["c/d"]


def test_a_dry_run_only_says_what_would_go(llmrs: Run, online: FakeHub) -> None:
    llmrs("pull", "a/b")
    lines = llmrs("rm", "-n", "a/b").stdout.splitlines()
    assert [lines[0].split(), lines[1].split()[0]] == [["NAME", "SIZE", "COMMITS", "COPIES"], "a/b"]
    (report,) = json.loads(llmrs("rm", "-n", "a/b", "--json").stdout)
    assert (report["repo"], report["commits"], report["removed"]) == ("a/b", 1, False)
    assert listed(llmrs) == ["a/b"]
    (report,) = json.loads(llmrs("rm", "-y", "a/b", "--json", "-q").stdout)
    assert report["removed"] is True and report["size"] > 0
    assert listed(llmrs) == []


def test_an_unfinished_download_can_be_removed(llmrs: Run, online: FakeHub) -> None:
    online.fail("/lfs/", Fault(cut_after=2000), *[Fault(status=503)] * 9)
    llmrs("pull", "a/b")
    assert llmrs("rm", "-y", "a/b").exit_code == 0
    assert listed(llmrs) == []


def test_the_built_in_model_can_be_removed(llmrs: Run, online: FakeHub, tmp_path: Path) -> None:
    put_built_in(tmp_path / "llmrs")
    assert llmrs("rm", "-y", "smollm2-135m").exit_code == 0
    assert listed(llmrs) == []


def test_nothing_goes_if_one_of_the_names_is_wrong(llmrs: Run, online: FakeHub) -> None:
    llmrs("pull", "a/b")
    assert llmrs("rm", "-y", "a/b", "c/d").exit_code == ExitCode.MODEL
    assert listed(llmrs) == ["a/b"]


@pytest.mark.parametrize(
    ("name", "status"), [("a/b@main", 2), ("a/b/m.gguf", 2), ("smollm2-135m", 5), ("qwen3-4b", 5), ("x", 5)]
)
def test_what_cannot_be_removed_is_one_sentence(llmrs: Run, online: FakeHub, name: str, status: int) -> None:
    llmrs("pull", "a/b")
    result = llmrs("rm", "-y", name)
    assert (result.exit_code, result.stdout) == (status, "")
    assert len(result.stderr.splitlines()) == 2
    assert listed(llmrs) == ["a/b"]


def test_folders_of_the_user_are_never_removed(llmrs: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    for path in (tmp_path / "thesis", tmp_path / "m.gguf"):
        assert llmrs("rm", "-y", str(path)).exit_code == 2
        assert path.exists()


@pytest.mark.parametrize(("key", "status", "left"), [("y", 0, []), ("n", 1, ["a/b"]), ("", 1, ["a/b"])])
def test_on_a_terminal_one_is_asked(
    llmrs: Run, online: FakeHub, key: str, status: int, left: list[str]
) -> None:
    llmrs("pull", "a/b")
    with ScreenSession(["rm", "a/b"], dict(os.environ)) as session:
        session.wait_for("Remove a/b (")
        session.press(key + "\r")
        assert session.end() == status
    assert listed(llmrs) == left


def test_a_name_of_ones_own_stays_when_its_model_goes(llmrs: Run, online: FakeHub) -> None:
    llmrs("pull", "a/b")
    llmrs("alias", "set", "mine", "a/b")
    assert llmrs("rm", "-y", "mine").exit_code == 0
    assert listed(llmrs) == []
    assert llmrs("rm", "-y", "mine").exit_code == ExitCode.MODEL
    assert "mine" in llmrs("alias").stdout


def test_a_cache_that_is_a_link_is_left_to_its_owner(llmrs: Run, online: FakeHub, tmp_path: Path) -> None:
    llmrs("pull", "a/b")
    folder = tmp_path / "hf" / "hub" / "models--a--b"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    result = llmrs("rm", "-y", "a/b")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "is a link" in result.stderr
    assert listed(llmrs) == ["a/b"]


def test_the_end_of_input_is_no_yes(llmrs: Run, online: FakeHub) -> None:
    llmrs("pull", "a/b")
    with ScreenSession(["rm", "a/b"], dict(os.environ)) as session:
        session.wait_for("[y/N]")
        session.press("\x04")
        assert session.end() == 1
    assert listed(llmrs) == ["a/b"]


# -- prune --------------------------------------------------------------------------------------------


@pytest.fixture
def moved(llmrs: Run, online: FakeHub, tmp_path: Path) -> FakeHub:
    """a/b fetched, moved on, and fetched again; all of it long ago."""
    llmrs("pull", "a/b")
    old = online.repos["a/b"]
    config = json.loads(old.files["config.json"])
    online.repos["a/b"] = FakeRepo({**old.files, "config.json": json.dumps({**config, "x": 1}).encode()})
    llmrs("pull", "a/b")
    long_ago = time.time() - 86400
    for path in (tmp_path / "hf").rglob("*"):
        os.utime(path, (long_ago, long_ago), follow_symlinks=False)
    return online


def test_prune_takes_the_superseded_commit_and_leaves_the_model(llmrs: Run, moved: FakeHub) -> None:
    seen = json.loads(llmrs("prune", "-n", "--json").stdout)
    assert {entry["why"] for entry in seen["leftovers"]} == {"superseded commit", "content of no commit"}
    assert (seen["removed"], seen["size"] > 0) == (False, True)
    lines = llmrs("prune", "-n").stdout.splitlines()
    assert lines[0].split() == ["WHY", "SIZE", "PATH"] and len(lines) == len(seen["leftovers"]) + 1
    result = llmrs("prune", "-y")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("llmrs: Removed ")
    (entry,) = json.loads(llmrs("list", "--json").stdout)
    assert entry["commit"] == moved.repos["a/b"].commit and entry["path"] is not None
    assert "nothing to remove" in llmrs("prune").stderr


def test_prune_wants_a_yes_too(llmrs: Run, moved: FakeHub) -> None:
    assert llmrs("prune", stdin="y\n").exit_code == 2
    assert len(json.loads(llmrs("list", "--json").stdout)) == 2


def test_prune_asks_on_a_terminal(llmrs: Run, moved: FakeHub) -> None:
    with ScreenSession(["prune"], dict(os.environ)) as session:
        session.wait_for("leftovers, ")
        session.press("y\r")
        assert session.end() == 0
    assert len(json.loads(llmrs("list", "--json").stdout)) == 1


def test_prune_takes_the_work_of_a_fetch_that_was_killed(llmrs: Run, environment: Path) -> None:
    work = environment / ".cache" / "llmrs" / "models" / ".fetch-abc"
    work.mkdir(parents=True)
    (work / "half.whl").write_bytes(b"PK" * 50)
    os.utime(work, (0, 0))
    assert json.loads(llmrs("prune", "-y", "--json", "-q").stdout)["size"] == 100
    assert not work.exists()


def test_a_download_under_way_is_not_pruned(llmrs: Run, online: FakeHub) -> None:
    online.fail("/lfs/", Fault(cut_after=2000), *[Fault(status=503)] * 9)
    llmrs("pull", "a/b")
    assert json.loads(llmrs("prune", "-n", "--json", "-q").stdout)["leftovers"] == []


def test_du_tells_what_prune_would_free(llmrs: Run, moved: FakeHub) -> None:
    freed = json.loads(llmrs("prune", "-n", "--json").stdout)["size"]
    assert json.loads(llmrs("du", "--json").stdout)["leftovers"] == freed > 0
    assert "'llmrs prune' would free" in llmrs("du").stderr
