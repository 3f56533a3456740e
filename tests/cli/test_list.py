"""`llmrs list` and `llmrs du`: what is on this machine, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

from llmrs_cli.errors import ExitCode
from llmrs_cli.hub.aliases import ALIASES, BUILT_IN
from tests.cli.conftest import Run
from tests.helpers.fake_hub import FakeHub, Fault


def put_built_in(cache: Path, size: int = 1000) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models" / str(ALIASES[BUILT_IN].file)).write_bytes(b"x" * size)


def test_an_empty_machine_says_what_to_do(llmrs: Run) -> None:
    result = llmrs("list")
    assert (result.exit_code, result.stdout.split()) == (0, ["NAME", "SIZE", "COMMIT", "REVISION", "STATE"])
    assert "llmrs pull" in result.stderr
    assert llmrs("list", "--json").stdout == "[]\n"


def test_models_are_listed_with_size_commit_and_branch(llmrs: Run, online: FakeHub, tmp_path: Path) -> None:
    put_built_in(tmp_path / "llmrs")
    llmrs("pull", "a/b")
    commit = online.repos["a/b"].commit
    lines = [line.split() for line in llmrs("list").stdout.splitlines()]
    assert lines[1] == ["smollm2-135m", "1.0", "kB", "built-in"]
    assert (lines[2][0], lines[2][-2:]) == ("a/b", [commit[:12], "main"])
    assert llmrs("ls").stdout == llmrs("list").stdout


def test_json_has_bytes_and_full_commits(llmrs: Run, online: FakeHub) -> None:
    path = llmrs("pull", "a/b", "-q").stdout.rstrip()
    (entry,) = json.loads(llmrs("list", "--json").stdout)
    here = sum(file.stat().st_size for file in Path(path).iterdir())
    assert entry == {
        "name": "a/b",
        "kind": "repository",
        "repo": "a/b",
        "commit": online.repos["a/b"].commit,
        "revisions": ["main"],
        "path": path,
        "size": here,
        "unfinished": 0,
    }


def test_an_unfinished_download_is_shown_as_such(llmrs: Run, online: FakeHub) -> None:
    online.fail("/lfs/", Fault(cut_after=2000), *[Fault(status=503)] * 9)
    assert llmrs("pull", "a/b").exit_code == ExitCode.NETWORK
    line = llmrs("list").stdout.splitlines()[1]
    assert line.endswith("not whole, 2.0 kB unfinished")
    (entry,) = json.loads(llmrs("list", "--json").stdout)
    assert (entry["path"], entry["unfinished"]) == (None, 2000)


def test_a_branch_with_a_wicked_name_cannot_touch_the_terminal(
    llmrs: Run, online: FakeHub, tmp_path: Path
) -> None:
    llmrs("pull", "a/b")
    refs = next((tmp_path / "hf").rglob("refs"))
    (refs / "\x1b]0;gone\x07\x1b[2Jx\ny").write_text(online.repos["a/b"].commit)
    shown = llmrs("list").stdout
    assert "\x1b" not in shown and "\x07" not in shown
    assert len(shown.splitlines()) == 2
    (entry,) = json.loads(llmrs("list", "--json").stdout)
    assert "\x1b]0;gone\x07\x1b[2Jx\ny" in entry["revisions"]


# -- du -----------------------------------------------------------------------------------------------


def test_du_adds_up(llmrs: Run, online: FakeHub, tmp_path: Path) -> None:
    put_built_in(tmp_path / "llmrs")
    llmrs("pull", "a/b")
    report = json.loads(llmrs("du", "--json").stdout)
    sizes = {entry["what"]: entry["size"] for entry in report["entries"]}
    assert sizes["cache: models"] == 1000
    assert sizes["a/b"] >= sum(
        len(data) for name, data in online.repos["a/b"].files.items() if name == "model.safetensors"
    )
    assert report["total"] == sum(sizes.values())
    assert report["leftovers"] == 0 and report["disk_free"] > 0


def test_du_for_people_ends_with_the_total(llmrs: Run, online: FakeHub) -> None:
    llmrs("pull", "a/b")
    result = llmrs("du")
    lines = result.stdout.splitlines()
    assert (lines[0].split(), lines[-1].split()[0]) == (["WHAT", "SIZE", "PATH"], "total")
    assert any(line.startswith("a/b ") for line in lines)
    assert "free on the disk" in result.stderr


def test_content_that_two_commits_share_counts_once(llmrs: Run, online: FakeHub) -> None:
    llmrs("pull", "a/b")
    once = json.loads(llmrs("du", "--json").stdout)["total"]
    online.repos["a/b"].tags |= {"v1": "1" * 40, "1" * 40: "1" * 40}
    llmrs("pull", "a/b@v1")
    assert len(json.loads(llmrs("list", "--json").stdout)) == 2
    assert json.loads(llmrs("du", "--json").stdout)["total"] - once < 1000


def test_du_counts_our_own_caches_and_state(llmrs: Run, environment: Path) -> None:
    for folder, size in ((".cache/llmrs/simd", 300), (".local/state/llmrs/sessions", 50)):
        (environment / folder).mkdir(parents=True)
        (environment / folder / "x").write_bytes(b"x" * size)
    report = json.loads(llmrs("du", "--json").stdout)
    assert {entry["what"]: entry["size"] for entry in report["entries"]} == {"cache: simd": 300, "state": 50}


def test_du_on_a_fresh_machine_is_zero(llmrs: Run) -> None:
    report = json.loads(llmrs("du", "--json").stdout)
    assert (report["entries"], report["total"]) == ([], 0)
