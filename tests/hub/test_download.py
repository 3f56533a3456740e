"""Transfers that go wrong: cuts, refusals, wrong bytes, servers without ranges, full disks, other processes.

Longer than most files: it is a list of faults, each against the same small repository.
"""

from __future__ import annotations

import errno
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from huggingface_hub import scan_cache_dir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrs_cli.errors import AccessError, LlmrsError, ModelError, NetworkError
from llmrs_cli.hub.access import HubAccess
from llmrs_cli.hub.cache import CachedRepo
from llmrs_cli.hub.listing import RepoFile
from llmrs_cli.hub.names import parse_model
from llmrs_cli.hub.store import locate
from tests.helpers.fake_hub import FakeHub, FakeRepo, Fault, fake_hub
from tests.helpers.told import Told
from tests.hub.conftest import WEIGHTS, Locate

CUT = len(WEIGHTS) // 3


def partials(tmp_path: Path) -> list[int]:
    """Sizes of what lies about unfinished."""
    return [path.stat().st_size for path in CachedRepo.of(tmp_path / "hf/hub", "a/b").unfinished()]


def assert_no_model(tmp_path: Path) -> None:
    """Nothing that any program would take for the model's weights."""
    snapshots = tmp_path / "hf/hub/models--a--b/snapshots"
    assert not list(snapshots.glob("*/model.safetensors"))
    assert not (tmp_path / "hf/hub/models--a--b/refs/main").exists()


def test_a_cut_transfer_goes_on_where_it_was_cut(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", Fault(cut_after=CUT), Fault(cut_after=CUT))
        found = find(hub)
        assert (found.path / "model.safetensors").read_bytes() == WEIGHTS
        assert [seen.range for seen in hub.stored] == [None, f"bytes={CUT}-", f"bytes={2 * CUT}-"]
        small_bytes = len(small.files["config.json"]) + len(small.files["tokenizer.json"])
        assert hub.sent == len(WEIGHTS) + small_bytes, "no byte comes twice"


def test_an_answer_of_unknown_length_that_ends_early_is_a_cut(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail(
            "/lfs/", *[Fault(cut_after=CUT, no_length=True)] * 2, *[Fault(cut_after=0, no_length=True)] * 5
        )
        with pytest.raises(NetworkError, match=r"'model.safetensors' was cut"):
            find(hub)
        assert hub.stored[2].range == f"bytes={2 * CUT}-"
        assert (find(hub).path / "model.safetensors").read_bytes() == WEIGHTS


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, len(WEIGHTS)), max_size=5), ranges=st.booleans())
def test_any_cuts_end_in_the_right_content(
    cuts: list[int], ranges: bool, small: FakeRepo, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", *[Fault(cut_after=cut, no_range=not ranges) for cut in cuts])
        access = HubAccess.from_environment(offline=False, env=hub.env(tmp_path_factory.mktemp("home")))
        found = locate(parse_model("a/b"), access, Told())
        assert (found.path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_transfer_that_never_gets_on_fails_after_a_few_tries(
    find: Locate, small: FakeRepo, tmp_path: Path
) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", Fault(cut_after=CUT), *[Fault(cut_after=0)] * 20)
        with pytest.raises(NetworkError, match=r"'model.safetensors' was cut"):
            find(hub)
        assert len(hub.stored) == 6
    assert_no_model(tmp_path)
    assert partials(tmp_path) == [CUT]


def test_the_next_run_takes_up_what_an_earlier_one_left(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", Fault(cut_after=CUT), *[Fault(cut_after=0)] * 5)
        with pytest.raises(NetworkError):
            find(hub)
        hub.stored.clear()
        find(hub)
        assert [seen.range for seen in hub.stored] == [f"bytes={CUT}-"]


def test_a_server_without_ranges_sends_all_of_it_again(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", Fault(cut_after=CUT), Fault(no_range=True))
        found = find(hub)
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_server_that_refuses_the_range_is_a_failure_not_a_loop(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", Fault(cut_after=CUT), Fault(status=416))
        with pytest.raises(NetworkError, match="status 416"):
            find(hub)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_busy_server_is_asked_again(find: Locate, small: FakeRepo, status: int) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", Fault(status=status), Fault(status=status, headers={"Retry-After": "0"}))
        hub.fail("config.json", Fault(status=status))
        found = find(hub)
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_wrong_bit_is_found_and_the_file_fetched_once_more(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", Fault(flip=True))
        found = find(hub)
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("path", ["/lfs/", "tokenizer.json"])
def test_content_that_stays_wrong_never_becomes_a_model(
    find: Locate, small: FakeRepo, tmp_path: Path, path: str
) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail(path, *[Fault(flip=True)] * 9)
        with pytest.raises(ModelError, match="arrives damaged"):
            find(hub)
    assert_no_model(tmp_path)
    assert partials(tmp_path) == []


@pytest.mark.parametrize(
    "fault",
    [
        Fault(body=b"<html>" + b"x" * 629),
        Fault(body=WEIGHTS + b"x"),
        Fault(body=WEIGHTS, headers={"Content-Encoding": "gzip"}),
    ],
    ids=["page", "longer", "encoded"],
)
def test_something_else_in_place_of_the_file_is_refused(
    find: Locate, small: FakeRepo, tmp_path: Path, fault: Fault
) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", fault)
        with pytest.raises(NetworkError, match=r"should bring 102 kB and brings"):
            find(hub)
    assert_no_model(tmp_path)


def test_a_refusal_of_a_file_is_not_tried_again(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/resolve/.*/config.json", Fault(status=403, headers={"X-Error-Code": "GatedRepo"}))
        with pytest.raises(AccessError):
            find(hub, token="")
        assert len([seen for seen in hub.seen if seen.path.endswith("config.json")]) == 1


@pytest.mark.parametrize("file", ["config.json", "/lfs/"])
def test_a_commit_that_vanishes_during_the_download_is_named(
    find: Locate, small: FakeRepo, tmp_path: Path, file: str
) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail(file, Fault(status=404, headers={"X-Error-Code": "RevisionNotFound"}))
        with pytest.raises(ModelError, match=f"has no revision '{small.commit}'"):
            find(hub)
    assert_no_model(tmp_path)


def test_redirects_in_a_circle_end(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        where = f"{hub.endpoint}/a/b/resolve/{small.commit}/config.json"
        hub.fail("config.json", *[Fault(status=302, headers={"Location": where})] * 50)
        with pytest.raises(NetworkError, match="in a circle"):
            find(hub)


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher:x", "http://[", "http://a b/"]
)
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_redirects_to_anything_but_http_are_not_followed(
    find: Locate, small: FakeRepo, tmp_path: Path, location: str, file: str
) -> None:
    headers = {"Location": location, "X-Repo-Commit": small.commit, "ETag": '"0"'}
    with fake_hub({"a/b": small}) as hub:
        hub.fail(f"/resolve/.*/{file}", *[Fault(status=302, headers=headers)] * 10)
        with pytest.raises(NetworkError, match="not safe to follow|was cut|is not a Hub's"):
            find(hub)
    assert_no_model(tmp_path)


def test_a_failure_ends_the_other_transfers(find: Locate, tmp_path: Path) -> None:
    files = {f"model-0000{n}-of-00004.safetensors": WEIGHTS + bytes([n]) for n in (1, 2, 3, 4)}
    repo = FakeRepo({**files, "config.json": b"{}"})
    with fake_hub({"a/b": repo}) as hub:
        hub.fail("model-00001", Fault(status=404, headers={"X-Error-Code": "EntryNotFound"}))
        hub.fail("model-0000[234]", *[Fault(wait=30)] * 3)
        with pytest.raises(ModelError, match="has no file"):
            find(hub)
    assert_no_model(tmp_path)


class FullDisk:
    """Files whose every write after the first `room` ones fails."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.open = Path.open

    def __call__(self, path: Path, mode: str = "r", *args: Any, **rest: Any) -> IO[Any]:
        file: IO[Any] = self.open(path, mode, *args, **rest)
        return _Failing(self, file) if mode in ("r+b", "wb") else file  # type: ignore[return-value]


class _Failing:
    def __init__(self, disk: FullDisk, file: IO[bytes]) -> None:
        self.disk, self.file, self.seek = disk, file, file.seek

    def __enter__(self) -> _Failing:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> int:
        self.disk.room -= 1
        if self.disk.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)


@pytest.mark.parametrize("room", range(4))
def test_a_disk_that_fills_up_is_one_sentence_and_the_next_run_goes_on(
    find: Locate, small: FakeRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    with fake_hub({"a/b": small}) as hub:
        with monkeypatch.context() as patch:
            disk = FullDisk(room)
            patch.setattr(Path, "open", lambda path, *args, **rest: disk(path, *args, **rest))
            with pytest.raises(LlmrsError, match=r"The disk of .* is full: .* needed, .* free") as caught:
                find(hub)
        assert caught.value.exit_code == 1
        assert str(tmp_path) in caught.value.message
        assert_no_model(tmp_path)
        assert (find(hub).path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_read_only_cache_is_one_sentence(find: Locate, small: FakeRepo, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "hub").write_text("in the way", encoding="utf-8")
    with fake_hub({"a/b": small}) as hub, pytest.raises(LlmrsError, match="Cannot write to"):
        find(hub)


# -- the shared cache ---------------------------------------------------------------------------------


def test_the_library_finds_in_the_cache_what_we_put_there(
    find: Locate, small: FakeRepo, tmp_path: Path
) -> None:
    with fake_hub({"a/b": small}) as hub:
        found = find(hub)
    scan = scan_cache_dir(tmp_path / "hf/hub")
    assert scan.warnings == []
    (repo,) = scan.repos
    (revision,) = repo.revisions
    assert (repo.repo_id, revision.commit_hash, set(revision.refs)) == ("a/b", small.commit, {"main"})
    assert revision.snapshot_path.resolve() == found.path.resolve()
    assert {file.file_name for file in revision.files} == {path.name for path in found.path.iterdir()}


@pytest.mark.parametrize("links", [True, False])
def test_the_one_way_into_the_cache_leaves_what_the_library_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def no_links(self: Path, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(Path, "symlink_to", no_links)
    commit, digest = "c" * 40, hashlib.sha256(WEIGHTS).hexdigest()
    cached, file = CachedRepo.of(tmp_path, "a/b"), RepoFile("model.safetensors", len(WEIGHTS), digest)
    cached.prepare(commit)
    cached.partial(file).write_bytes(WEIGHTS)
    for _ in range(2):  # entering again changes nothing
        cached.enter(commit, file)
    cached.remember("main", commit)
    scan = scan_cache_dir(tmp_path)
    assert scan.warnings == [] and cached.unfinished() == []
    ((revision,),) = [repo.revisions for repo in scan.repos]
    assert [(found.file_name, found.size_on_disk) for found in revision.files] == [(file.name, len(WEIGHTS))]
    assert revision.refs == {"main"}


SNAPSHOT = "import sys, huggingface_hub as h; print(h.snapshot_download('a/b', local_files_only=sys.argv[1] == 'local'))"


def library(hub: FakeHub, home: Path, mode: str) -> str:
    """Where the Hub's own library puts or finds the snapshot; in a process, as it reads its variables once."""
    run = subprocess.run(
        [sys.executable, "-c", SNAPSHOT, mode], env=hub.env(home), capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def test_we_and_the_library_use_each_others_downloads(find: Locate, small: FakeRepo, tmp_path: Path) -> None:
    small = FakeRepo({name: data for name, data in small.files.items() if "/" not in name})
    with fake_hub({"a/b": small}) as hub:
        theirs = library(hub, tmp_path, "online")
        hub.seen.clear()
        found = find(hub)
        assert str(found.path) == theirs
        assert [seen.path for seen in hub.seen] == ["/api/models/a/b", "/api/models/a/b/revision/main"]
        assert library(hub, tmp_path, "local") == theirs


CHILD = """
import sys, fcntl
from llmrs_cli.hub.access import HubAccess
from llmrs_cli.hub.names import parse_model
from llmrs_cli.hub.progress import Silent
from llmrs_cli.hub.store import locate
if sys.argv[1] == "no-locks":
    fcntl.flock = lambda *args: None
print(locate(parse_model("a/b"), HubAccess.from_environment(offline=False), Silent()).path)
"""


def child(hub: FakeHub, home: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, mode], env=hub.env(home), stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("mode", ["locks", "no-locks"])
def test_several_processes_end_with_one_good_copy(small: FakeRepo, tmp_path: Path, mode: str) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", *[Fault(cut_after=CUT)] * 3)
        children = [child(hub, tmp_path, mode) for _ in range(3)]
        places = {process.communicate(timeout=60)[0] for process in children}
    assert [process.returncode for process in children] == [0, 0, 0]
    (place,) = places
    assert (Path(place.strip()) / "model.safetensors").read_bytes() == WEIGHTS
    assert partials(tmp_path) == []
    assert scan_cache_dir(tmp_path / "hf/hub").warnings == []


def test_a_killed_download_leaves_no_model_and_is_taken_up(
    find: Locate, small: FakeRepo, tmp_path: Path
) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", Fault(cut_after=CUT), Fault(wait=60))
        process = child(hub, tmp_path, "locks")
        while len(hub.stored) < 2:
            assert process.poll() is None
        process.kill()
        process.communicate(timeout=60)
        assert_no_model(tmp_path)
        hub.stored.clear()
        assert (find(hub).path / "model.safetensors").read_bytes() == WEIGHTS
        assert [seen.range for seen in hub.stored] == [f"bytes={CUT}-"]
