"""The program as a process: pipes that close, full disks, locales, signals, bytes that are no text.

Each test starts Python, so there are few; what needs no process is tested beside them through `CliRunner`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import MakeLadder
from tests.helpers.byte_tokenizer import byte_ids, piece_ids
from tests.helpers.ladder import TOP

ABC, DE = piece_ids()["abc"], piece_ids()["de"]
POSIX = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PATIENCE = 60


def start(*args: str | bytes, env: dict[str, str] | None = None, **streams: Any) -> subprocess.Popen[bytes]:
    """Begin `llmrs` with arguments; streams are pipes unless given."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen(
        [sys.executable, "-m", "llmrs_cli", *args], env={**os.environ, **(env or {})}, **pipes
    )


def finish(process: subprocess.Popen[bytes], stdin: bytes | None = None) -> tuple[int, bytes, str]:
    """Status, stdout and stderr of a process that ends by itself."""
    out, err = process.communicate(stdin, timeout=PATIENCE)
    said = (err or b"").decode()
    assert "Traceback" not in said
    return process.returncode, out, said


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def endless(ladder: MakeLadder) -> str:
    """A model that says "abcdeabcde…" until it is stopped."""
    return ladder("abc", "de", table={DE: {ABC: TOP}})


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from llmrs_cli.__main__ import start

class Impatient:
    def find_spec(self, name, path, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Impatient())
start()
"""


def test_ctrl_c_while_the_program_is_still_loading_is_quiet() -> None:
    run = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, timeout=PATIENCE)
    assert (run.returncode, run.stdout, run.stderr) == (-signal.SIGINT, b"", b"")


def test_a_pipe_that_closes_ends_the_answer_quietly(endless: str) -> None:
    process = start("chat", endless, "-p", "Hi", "-t", "0")
    assert process.stdout is not None
    assert process.stdout.read(5) == b"abcde"
    process.stdout.close()
    process.stdout = None
    status, _, said = finish(process)
    assert status == 141
    assert "Exception" not in said


def test_a_full_disk_is_one_sentence(ladder: MakeLadder) -> None:
    if not Path("/dev/full").exists():
        pytest.skip(reason="needs /dev/full to play a full disk")
    with Path("/dev/full").open("wb") as full:
        status, _, said = finish(start("chat", ladder(), "-p", "Hi", "-t", "0", "-q", stdout=full))
    assert status == 1
    assert said == "llmrs: No space is left to write the output.\n       Free some and try again.\n"


def test_answers_and_files_are_utf8_in_the_posix_locale(ladder: MakeLadder, tmp_path: Path) -> None:
    model = ladder("é", *byte_ids("😊"), "<|im_end|>")
    assert finish(start("chat", model, "-p", "é", "-t", "0", env=POSIX))[:2] == (0, "é😊\n".encode())
    source, output = tmp_path / "ä.jsonl", tmp_path / "ö.jsonl"
    source.write_bytes(json.dumps({"prompt": "ü", "note": "ü"}, ensure_ascii=False).encode())
    names = [os.fsencode(source), b"-o", os.fsencode(output)]
    assert finish(start("batch", *names, "-m", model, "-t", "0", env=POSIX))[0] == 0
    row = json.loads(output.read_bytes())
    assert (row["text"], row["note"]) == ("é😊", "ü")


def test_an_argument_that_is_not_utf8_is_refused() -> None:
    status, out, said = finish(start("chat", "any", "-p", b"a\xff"))
    assert (status, out) == (2, b"")
    assert "not UTF-8" in said


def test_no_input_at_all_is_no_question() -> None:
    assert finish(start("chat"))[:2] == (0, b"")


def test_waiting_for_stdin_is_said_after_a_moment(ladder: MakeLadder) -> None:
    process = start("chat", ladder(), "-p", "Hi", "-t", "0", stdin=subprocess.PIPE)
    assert process.stderr is not None
    assert b"--no-stdin" in process.stderr.readline()
    status, out, _ = finish(process, b"more")
    assert (status, out) == (0, b"Hello world\n")


def test_an_interrupted_answer_ends_with_a_newline_and_130(endless: str) -> None:
    process = start("chat", endless, "-p", "Hi", "-t", "0")
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 5)
    process.send_signal(signal.SIGINT)
    status, rest, _ = finish(process)
    assert status == 130
    assert re.fullmatch(rb"abc(deabc)*(de)?\n", first + rest)
