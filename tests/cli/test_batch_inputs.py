"""Inputs of a batch that are unusual: every odd line is one row, very long lines, pipes that are files by name."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.batch.lines import MAX_LINE
from tests.cli.conftest import MakeLadder, Run

PATIENCE = 60
GOOD = b'{"id":"%d","prompt":"Hi"}'
REQUEST = b'{"custom_id":"%s","url":"%s","body":{"messages":[{"role":"user","content":"Hi"}]}}'

ODD: list[tuple[bytes, str | None]] = [
    (b"\xef\xbb\xbf" + GOOD % 1, None),
    (GOOD % 2 + b"\r", None),
    (b'{"id":"x","prompt":"a\xff"}', "invalid_utf8"),
    (b'{"id":"y","prompt":"a\\ud800"}', "invalid_text"),
    (b'{"id":"z","prompt":"a","temperature":NaN}', "invalid_json"),
    (b"[]", "invalid_json"),
    (b'"text"', "invalid_json"),
    (b"\x00", "invalid_json"),
    (b'{"id":"n"}', "no_prompt"),
    (b'{"id":1.5,"prompt":"a"}', "invalid_value"),
    (GOOD % 1, "duplicate_id"),
    (b'{"id":1,"prompt":"another id than \'1\'"}', None),
    (REQUEST % (b"c", b"/v1/embeddings"), "invalid_request"),
    (REQUEST % (b"d", b"/v1/chat/completions"), None),
    (REQUEST % (b"d", b"/v1/chat/completions"), "duplicate_id"),
    (b'{"id":"p","prompt":"a","temprature":1}', "unknown_field"),
    (GOOD % 3, None),
]
"""Lines, each with the code of its error; None: it is answered."""


def errors_of(lines: list[str]) -> list[Any]:
    """For each output line its line of the input and the code, None if it is an answer."""
    found = (json.loads(line)["error"] for line in lines)
    return [error and (error["line"], error["code"]) for error in found]


def test_every_odd_line_is_exactly_one_row_with_its_number(
    llmrs: Run, ladder: MakeLadder, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(
        b"\n \t\r\n\n".join(line for line, _ in ODD)
    )  # two blank lines after each; none at the end
    result = llmrs("batch", str(source), "-m", ladder(), "-t", "0")
    assert result.exit_code == 3
    assert errors_of(result.stdout.splitlines()) == [
        code and (3 * number + 1, code) for number, (_, code) in enumerate(ODD)
    ]


@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbf", b"\r\n\n\r\n"])
@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.txt"])
def test_an_input_without_rows_is_done(
    llmrs: Run, ladder: MakeLadder, tmp_path: Path, data: bytes, name: str
) -> None:
    (tmp_path / name).write_bytes(data)
    out = tmp_path / "out"
    result = llmrs("batch", str(tmp_path / name), "-o", str(out), "-m", ladder())
    assert (result.exit_code, out.read_bytes()) == (0, b""), result.stderr


def test_a_line_over_the_limit_is_an_error_row_and_the_next_one_runs(
    llmrs: Run, ladder: MakeLadder, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    with source.open("wb") as file:
        file.write(GOOD % 1 + b"\n")
        file.write(b'{"prompt":"' + b"a " * (32 * 2**20) + b'"}\n')  # 64 MiB
        file.write(b'{"id":"2","prompt":"Hi","note":"' + b"x" * (MAX_LINE - 40) + b'"}\n')
    result = llmrs("batch", str(source), "-m", ladder(), "-t", "0")
    assert result.exit_code == 3
    lines = result.stdout.splitlines()
    assert errors_of(lines) == [None, (2, "line_too_long"), None]
    assert len(json.loads(lines[2])["note"]) == MAX_LINE - 40


# -- named pipes ----------------------------------------------------------------------------------------


class Beside:
    """Does something in a thread, and says what came of it."""

    def __init__(self, task: Callable[[], Any]) -> None:
        self._result: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._result.append(task()), daemon=True)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(PATIENCE)
        (result,) = self._result
        return result


@pytest.fixture
def pipes(tmp_path: Path) -> tuple[Path, Path]:
    """Two named pipes, for the input and the output."""
    for name in ("in", "out"):
        os.mkfifo(tmp_path / name)
    return tmp_path / "in", tmp_path / "out"


def test_named_pipes_in_and_out_answer_row_by_row(
    llmrs: Run, ladder: MakeLadder, pipes: tuple[Path, Path]
) -> None:
    """Each answer can be read before the next row is written, as a program does that asks and waits."""
    source, out = pipes

    def talk() -> list[str]:
        with out.open() as answers, source.open("w") as questions:
            said = []
            for number in range(3):
                questions.write(json.dumps({"id": number, "prompt": "Hi"}) + "\n")
                questions.flush()
                said.append(answers.readline())
            questions.write("{")  # and dies in the middle of a line
            questions.close()
            return [*said, answers.read()]

    other = Beside(talk)
    result = llmrs("batch", str(source), "-o", str(out), "-m", ladder(), "-t", "0", "--format", "jsonl")
    *answers, last = map(json.loads, other.result())
    assert [(row["id"], row["text"]) for row in answers] == [(n, "Hello world") for n in range(3)]
    assert (last["error"]["line"], last["error"]["code"]) == (4, "invalid_json")
    assert (result.exit_code, result.stdout) == (3, "")
    assert sorted(path.name for path in out.parent.iterdir()) == ["in", "out"], "no journal, no lock"


def test_a_reader_that_leaves_ends_the_run_quietly(
    llmrs: Run, ladder: MakeLadder, pipes: tuple[Path, Path], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt":"Hi","note":"' + "x" * 70_000 + '"}\n' + '{"prompt":"Hi"}\n' * 50)

    def read_one() -> bytes:
        with pipes[1].open("rb") as answers:
            return answers.read(10)

    other = Beside(read_one)
    result = llmrs("batch", str(rows), "-o", str(pipes[1]), "-m", ladder(), "-q")
    assert other.result().startswith(b'{"index":0')
    assert (result.exit_code, result.stderr) == (141, "")


@pytest.mark.parametrize("option", ["--resume", "--retry-failed"])
def test_what_keeps_nothing_cannot_be_resumed(llmrs: Run, pipes: tuple[Path, Path], option: str) -> None:
    result = llmrs("batch", "-", "-o", str(pipes[1]), option, "-m", "./none", stdin='{"prompt":"Hi"}\n')
    assert (result.exit_code, "Only a file can be resumed" in result.stderr) == (2, True)


def test_what_can_be_read_once_is_not_looked_at_before_and_that_is_said(
    llmrs: Run, pipes: tuple[Path, Path]
) -> None:
    for source in ("-", str(pipes[0])):
        result = llmrs("batch", source, "--dry-run", "-m", "./none", stdin='{"prompt":"Hi"}\n')
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Only a file can be looked at before a run." in result.stderr
