"""`llmrs pull`: what is fetched, what is said where, and what is refused before the first weight."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from llmrs_cli.cli import room
from llmrs_cli.cli.fetching import FetchBar, clock_text
from llmrs_cli.errors import ExitCode
from tests.cli.conftest import Run
from tests.cli.test_process import finish, start, wait_until
from tests.helpers.fake_hub import FakeHub, FakeRepo, Fault
from tests.helpers.screen import ScreenSession


def weights_asked(hub: FakeHub) -> list[str]:
    return [
        seen.path for seen in [*hub.seen, *hub.stored] if "safetensors" in seen.path or "lfs" in seen.path
    ]


def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: 1 << 20)


def test_the_path_goes_to_stdout_and_the_commit_is_said(llmrs: Run, online: FakeHub) -> None:
    result = llmrs("pull", "a/b")
    assert result.exit_code == 0, result.stderr
    path = Path(result.stdout.rstrip("\n"))
    assert (path / "model.safetensors").is_file()
    assert f"commit {online.repos['a/b'].commit[:12]}" in result.stderr
    assert "'a/b' is here" in result.stderr


def test_a_second_pull_fetches_nothing_and_works_offline(llmrs: Run, online: FakeHub) -> None:
    first = llmrs("pull", "a/b")
    sent = online.sent
    assert llmrs("pull", "a/b").stdout == first.stdout
    assert llmrs("pull", "a/b", "-q", env={"HF_HUB_OFFLINE": "1"}).stdout == first.stdout
    assert online.sent == sent


def test_several_models_as_json(llmrs: Run, online: FakeHub) -> None:
    online.repos["c/d"] = online.repos["a/b"]
    result = llmrs("pull", "a/b", "c/d", "--json", "-q")
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert [entry["repo"] for entry in report] == ["a/b", "c/d"]
    assert {entry["commit"] for entry in report} == {online.repos["a/b"].commit}


@pytest.mark.parametrize("typed", [["a/b@v1"], ["a/b", "--revision", "v1"]])
def test_a_revision_is_pinned(llmrs: Run, online: FakeHub, typed: list[str]) -> None:
    online.repos["a/b"].tags |= {"v1": "1" * 40, "1" * 40: "1" * 40}
    result = llmrs("pull", *typed, "-q")
    assert result.stdout.rstrip().endswith("1" * 40), result.stderr


def test_a_cut_download_goes_on_where_it_stood(
    llmrs: Run, online: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmrs_cli.hub.store.PAUSES", ())
    online.fail("/lfs/", Fault(cut_after=2000), Fault(status=503))
    assert llmrs("pull", "a/b").exit_code == ExitCode.NETWORK
    before = len(online.stored)
    assert llmrs("pull", "a/b").exit_code == 0
    assert "bytes=2000-" in [seen.range for seen in online.stored[before:]]


def test_a_name_of_ones_own_is_fetched_by_what_it_stands_for(llmrs: Run, online: FakeHub) -> None:
    assert llmrs("alias", "set", "mine", "a/b").exit_code == 0
    assert Path(llmrs("pull", "mine", "-q").stdout.rstrip()).is_dir()


def test_quiet_says_nothing_beside_the_path(llmrs: Run, online: FakeHub) -> None:
    result = llmrs("pull", "a/b", "-q")
    assert (result.stderr, result.stdout.count("\n")) == ("", 1)


def test_a_failed_pull_prints_no_half_of_json(llmrs: Run, online: FakeHub) -> None:
    result = llmrs("pull", "a/b", "c/d", "--json", "-q")
    assert (result.exit_code, result.stdout) == (ExitCode.MODEL, "")


def test_progress_is_drawn_on_a_terminal_and_never_in_a_pipe(llmrs: Run, online: FakeHub) -> None:
    online.fail("/lfs/", Fault(wait=1.0))
    with ScreenSession(["pull", "a/b"], dict(os.environ), columns=200) as session:
        session.wait_for("Fetching a/b")
        assert session.end() == 0
    assert b"\r\x1b[K" in session.raw
    assert session.text.count("Fetching") == 1, "the moving line is gone at the end"
    llmrs("rm", "-y", "a/b")
    online.fail("/lfs/", Fault(wait=1.0))
    piped = llmrs("pull", "a/b")
    assert "\x1b" not in piped.stderr and "\r" not in piped.stderr
    assert len(piped.stderr.splitlines()) == 2


# -- what is refused ----------------------------------------------------------------------------------


def test_an_address_with_a_password_is_refused_before_anybody_is_asked(
    llmrs: Run, online: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", online.endpoint.replace("://", "://user:1/@"))
    result = llmrs("pull", "a/b")
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.splitlines() == [
        f"llmrs: HF_ENDPOINT is not the address of a Hub: {online.endpoint.partition('://')[2]!r}.",
        "       It looks like https://host or http://host:port.",
    ]
    assert not online.seen


def test_what_does_not_fit_is_refused_before_the_first_weight(
    llmrs: Run, online: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    little_memory(monkeypatch)
    result = llmrs("pull", "a/b")
    assert (result.exit_code, result.stdout) == (ExitCode.DOES_NOT_FIT, "")
    assert weights_asked(online) == []
    assert llmrs("pull", "a/b", "--force").exit_code == 0, "for another machine"


def test_context_and_requests_count_before_the_download(llmrs: Run, online: FakeHub) -> None:
    result = llmrs("pull", "a/b", "--ctx", "2m", "--parallel", "4096")
    assert result.exit_code == ExitCode.DOES_NOT_FIT
    assert "4096 requests" in result.stderr and "--ctx" in result.stderr
    assert weights_asked(online) == []


def test_nothing_is_fetched_if_one_name_is_wrong(llmrs: Run, online: FakeHub) -> None:
    assert llmrs("pull", "a/b", "no-such-model").exit_code == ExitCode.MODEL
    assert online.seen == []


@pytest.mark.parametrize(
    ("args", "status"),
    [([], 2), (["."], 2), (["smollm2-135m", "--revision", "v1"], 2), (["a/nothing"], 5), (["a prompt"], 2)],
)
def test_what_cannot_be_fetched_is_one_sentence(
    llmrs: Run, online: FakeHub, args: list[str], status: int
) -> None:
    result = llmrs("pull", *args)
    assert (result.exit_code, result.stdout) == (status, "")
    assert len(result.stderr.splitlines()) <= 2


@pytest.mark.parametrize(
    ("where", "fault", "status"),
    [
        ("/api/models/", Fault(status=404), ExitCode.MODEL),
        ("/api/models/", Fault(status=429), ExitCode.NETWORK),
        ("/api/models/", Fault(status=500), ExitCode.NETWORK),
        ("/api/models/", Fault(body=b"<html>log in</html>"), ExitCode.NETWORK),
        ("/lfs/", Fault(flip=True), ExitCode.MODEL),
        ("/lfs/", Fault(status=503), ExitCode.NETWORK),
    ],
)
def test_a_hub_that_fails_has_its_status_and_one_sentence(
    llmrs: Run, online: FakeHub, where: str, fault: Fault, status: int
) -> None:
    online.fail(where, *[fault] * 20)
    result = llmrs("pull", "a/b", "-q")
    assert (result.exit_code, result.stdout) == (status, "")
    assert len(result.stderr.splitlines()) <= 2


def test_ctrl_c_stops_a_stalled_download_at_once(online: FakeHub) -> None:
    online.fail("/lfs/", Fault(wait=50))
    process = start("pull", "a/b", "-q")
    wait_until(lambda: bool(online.stored))
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, b"", "")


@pytest.mark.parametrize("gate", ["licence", "pending"])
def test_a_gated_model_is_refused_with_its_page_and_without_the_token(
    llmrs: Run, online: FakeHub, gate: str
) -> None:
    online.repos["a/b"].gate = gate
    online.tokens = frozenset({"hf_secret"})
    result = llmrs("pull", "a/b", env={"HF_TOKEN": "hf_secret"})
    assert (result.exit_code, result.stdout) == (ExitCode.ACCESS, "")
    assert f"{online.endpoint}/a/b" in result.stderr
    assert "hf_secret" not in result.stderr


# -- only looking -------------------------------------------------------------------------------------


def test_a_dry_run_lists_the_files_and_leaves_nothing(llmrs: Run, online: FakeHub, tmp_path: Path) -> None:
    result = llmrs("pull", "--dry-run", "a/b")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["FILE", "SIZE", "STATE"]
    assert any(line.startswith("model.safetensors") and line.endswith("to fetch") for line in lines)
    assert lines[-1].startswith("total to fetch")
    assert f"commit {online.repos['a/b'].commit[:12]}" in result.stderr
    assert weights_asked(online) == []
    assert not (tmp_path / "hf").exists()


def test_a_dry_run_knows_what_is_here(llmrs: Run, online: FakeHub) -> None:
    files = online.repos["a/b"].files
    (before,) = json.loads(llmrs("pull", "-n", "a/b", "--json").stdout)
    wanted = {entry["name"]: entry["size"] for entry in before["files"]}
    assert wanted == {name: len(files[name]) for name in wanted}
    assert before["missing"] == sum(wanted.values())
    llmrs("pull", "a/b")
    (after,) = json.loads(llmrs("pull", "-n", "a/b", "--json").stdout)
    assert (after["missing"], {entry["here"] for entry in after["files"]}) == (0, {True})
    assert "'a/b' is here, commit" in llmrs("pull", "-n", "a/b").stderr


def test_a_dry_run_says_what_does_not_fit(
    llmrs: Run, online: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    little_memory(monkeypatch)
    result = llmrs("pull", "-n", "a/b")
    assert result.exit_code == ExitCode.DOES_NOT_FIT
    assert "model.safetensors" in result.stdout
    assert llmrs("pull", "-n", "--force", "a/b").exit_code == 0


def test_a_dry_run_of_a_lone_gguf_file_knows_its_size(llmrs: Run, online: FakeHub) -> None:
    online.repos["c/d"] = FakeRepo({"m.Q4_0.gguf": b"GGUF" * 1000})
    result = llmrs("pull", "-n", "c/d", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)[0]["missing"] == 4000


def test_a_dry_run_of_the_built_in_model_asks_nobody(llmrs: Run) -> None:
    (report,) = json.loads(llmrs("pull", "-n", "smollm2-135m", "--json").stdout)
    assert report["missing"] == 98_362_432


# -- how progress looks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (5.4, "0:05"), (754, "12:34"), (3723, "1:02:03"), (-1, "0:00")]
)
def test_time_is_said_in_minutes(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


def test_progress_says_bytes_speed_and_time_without_what_was_there() -> None:
    now = iter([0.0, 2.0])
    drawn: list[str] = []
    bar = FetchBar("Fetching a/b", drawn.append, lambda: next(now))
    bar.update(600_000_000, 1_000_000_000)
    bar.update(800_000_000, 1_000_000_000)
    assert drawn == [
        "Fetching a/b: 600 MB of 1.0 GB",
        "Fetching a/b: 800 MB of 1.0 GB, 100 MB/s, 0:02 left",
    ]
