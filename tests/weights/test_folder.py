"""A folder is there whole or not at all: after errors, failing disks, kills, and beside other writers."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.engine.weights.folder import lock_folder, new_folder
from llmrs_cli.errors import LlmrsError


def fill(part: Path) -> None:
    (part / "inner").mkdir()
    (part / "inner" / "a").write_text("a")
    (part / "b").write_text("b")


def make(target: Path) -> None:
    with lock_folder(target), new_folder(target) as part:
        fill(part)


def is_whole(target: Path) -> bool:
    return (target / "inner" / "a").read_text() + (target / "b").read_text() == "ab"


def left_over(parent: Path) -> list[str]:
    return [path.name for path in parent.iterdir()]


def test_a_folder_appears_under_its_name_with_usual_rights(tmp_path: Path) -> None:
    target = tmp_path / "x"
    with new_folder(target) as part:
        fill(part)
        assert not target.exists()
        assert part.parent == target.parent
    assert is_whole(target)
    assert left_over(tmp_path) == ["x"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o777 & ~mask


def test_an_empty_folder_may_be_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    make(tmp_path / "x")
    assert is_whole(tmp_path / "x")


def test_a_folder_with_content_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("mine")
    with pytest.raises(LlmrsError, match="cannot be put in place"):
        make(tmp_path / "x")
    assert left_over(tmp_path / "x") == ["mine"]
    assert left_over(tmp_path) == ["x"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), new_folder(tmp_path / "x") as part:
        fill(part)
        raise error
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_the_k_th_failure_of_the_disk_leaves_nothing_and_the_next_run_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Every sync and the rename fail once; only the sync of the parent comes too late to matter."""
    real: Any = getattr(os, call)
    for k in range(20):
        target, seen = tmp_path / f"{call}{k}", 0

        def failing(*arguments: Any, k: int = k) -> Any:
            nonlocal seen
            seen += 1
            if seen == k + 1:
                raise OSError(28, "No space left on device")
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            try:
                make(target)
            except (OSError, LlmrsError):
                assert not target.exists()
                assert not any("part" in name for name in left_over(tmp_path))
        if not target.exists():
            make(target)
        assert is_whole(target)
        if seen <= k:
            assert k == {"fsync": 5, "rename": 1}[call]
            return
    raise AssertionError("it never ended without a failure")


KILLED = """
import os, signal, sys
from pathlib import Path
from llmrs_cli.engine.weights.folder import lock_folder, new_folder
target = Path(sys.argv[1])
with lock_folder(target), new_folder(target) as part:
    (part / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "x"
    run = subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert not target.exists()
    assert any(".part-" in name for name in left_over(tmp_path))
    make(target)
    assert is_whole(target)
    assert left_over(tmp_path) == ["x"]


def test_a_second_writer_waits_and_says_so(tmp_path: Path) -> None:
    target, events = tmp_path / "x", []
    waits = threading.Event()

    def second() -> None:
        with lock_folder(target, waits.set):
            events.append("second")

    with lock_folder(target):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(20)
        events.append("first")
    thread.join(20)
    assert events == ["first", "second"]


def test_many_writers_take_turns_and_leave_no_lock(tmp_path: Path) -> None:
    inside, most = 0, 0
    guard = threading.Lock()

    def write() -> None:
        nonlocal inside, most
        for _ in range(20):
            with lock_folder(tmp_path / "x"):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (most, left_over(tmp_path)) == (1, [])


def test_without_locks_in_the_file_system_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: Any) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    make(tmp_path / "x")
    assert is_whole(tmp_path / "x")
