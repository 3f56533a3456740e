"""Properties of reading an input: shards, limits, compression, formats and lines change which rows, never what they are."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrs_cli.batch.lines import Line, read_lines
from llmrs_cli.batch.lock import OutputLock
from llmrs_cli.batch.records import Ask, Row
from llmrs_cli.batch.results import encode
from llmrs_cli.batch.sink import PipeSink, is_plain, open_input
from llmrs_cli.batch.source import Format, Source
from llmrs_cli.batch.window import Pool
from llmrs_cli.errors import ModelError, RequestError, UsageError

TEXTS = st.lists(st.text(max_size=8), max_size=12)
RECORDS = st.lists(
    st.fixed_dictionaries({"prompt": st.text(max_size=8)}, optional={"x": st.integers()}), max_size=12
)


def rows(data: bytes, source: Source | None = None) -> list[tuple[int, Row]]:
    return list((source or Source(None, Format.JSONL)).rows(io.BufferedReader(io.BytesIO(data))))


def written(records: list[dict[str, Any]]) -> bytes:
    return b"".join(encode(record).encode() + b"\n" for record in records)


@given(RECORDS, st.integers(1, 5))
def test_shards_share_the_rows_out(records: list[dict[str, Any]], parts: int) -> None:
    data = written(records)
    whole = [row for _, row in rows(data)]
    shards = [
        [row for _, row in rows(data, Source(None, Format.JSONL, shard=(part, parts)))]
        for part in range(1, parts + 1)
    ]
    assert sorted(row.index for shard in shards for row in shard) == [row.index for row in whole]
    for part, shard in enumerate(shards):
        assert shard == whole[part::parts], "a row is the same in its shard"


@given(RECORDS, st.integers(0, 15), st.integers(1, 3))
def test_a_limit_takes_the_first_rows_of_a_shard(
    records: list[dict[str, Any]], limit: int, parts: int
) -> None:
    data = written(records)
    whole = rows(data, Source(None, Format.JSONL, shard=(1, parts)))
    assert rows(data, Source(None, Format.JSONL, shard=(1, parts), limit=limit)) == whole[:limit]
    assert [number for number, _ in whole] == list(range(len(whole)))


@settings(max_examples=40)
@given(RECORDS, st.sampled_from([gzip.compress, zstd.compress]))
def test_a_compressed_input_has_the_same_rows(records: list[dict[str, Any]], pack: Any) -> None:
    data = written(records)
    assert rows(pack(data)) == rows(data)


@given(RECORDS)
def test_what_we_write_we_read(records: list[dict[str, Any]]) -> None:
    found = [row for _, row in rows(written(records))]
    assert [row.extras for row in found] == [{k: v for k, v in r.items() if k == "x"} for r in records]
    for row, record in zip(found, records, strict=True):
        assert isinstance(row.ask, Ask) and row.ask.messages is not None
        assert row.ask.messages[0]["content"] == record["prompt"]


@given(RECORDS)
def test_a_table_and_lines_of_json_ask_the_same(records: list[dict[str, Any]]) -> None:
    records = [{"prompt": r["prompt"].replace("\r", " ").replace("\x00", " ")} for r in records]
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([["prompt"], *([r["prompt"]] for r in records)])
    table = rows(text.getvalue().encode("utf-8", "surrogatepass"), Source(None, Format.CSV))
    lines = rows(written(records))
    assert [said(row) for _, row in table] == [said(row) for _, row in lines]


def said(row: Row) -> Any:
    if isinstance(row.ask, RequestError):
        return row.ask.code
    assert row.ask.messages is not None
    return row.ask.messages[0]["content"]


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_any_bytes_are_rows_of_text_or_errors_with_their_line(lines: list[bytes]) -> None:
    data = b"\n".join(line.replace(b"\n", b"") for line in lines)
    if data.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return
    found = [row for _, row in rows(data, Source(None, Format.TEXT))]
    numbers = [row.line for row in found]
    assert numbers == sorted(set(numbers))
    assert [row.index for row in found] == list(range(len(found)))
    for row in found:
        if isinstance(row.ask, RequestError):
            assert row.ask.code == "invalid_utf8"
        else:
            assert row.ids == {"id": row.line}


@given(st.text(max_size=20))
def test_an_error_names_what_is_wrong_without_repeating_all_of_it(name: str) -> None:
    data = json.dumps({"custom_id": "a", "url": "/v1/chat/completions", f"bodi{name * 40}": 1, "body": {}})
    ((_, row),) = rows(data.encode())
    assert isinstance(row.ask, RequestError)
    assert len(row.ask.message) < 200
    assert row.ask.message.endswith((".", "?"))
    assert "\n" not in row.ask.message


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=10))
def test_blank_lines_are_kept_where_they_are_asked_for(lines: list[bytes]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    found = list(read_lines(io.BytesIO(data), 100, blank=True))
    assert [line.number for line in found] == list(range(1, len(lines) + 1))
    wanted = [line.removesuffix(b"\r") for line in lines]
    if wanted:
        first = lines[0].removeprefix(b"\xef\xbb\xbf").removesuffix(b"\r")
        assert [line.data for line in found] == [first, *wanted[1:]]


# -- files ---------------------------------------------------------------------------------------------


def test_an_input_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b'{"prompt":"a"}\n')
    for _ in range(2):
        with open_input(path) as stream:
            assert len(rows(stream.read())) == 1


def test_an_input_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelError, match=r"Cannot read .*secret.*: Permission denied\."):
        open_input(tmp_path / "secret")


def test_lines_go_into_a_pipe_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert not is_plain(path)
        with PipeSink(path) as sink:
            for text in ("one", "zwölf"):
                sink.write(text)
                assert os.read(reader, 100) == text.encode() + b"\n"
    finally:
        os.close(reader)


def test_a_file_that_is_to_be_new_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old old old")
    with PipeSink(path, new=True) as sink:
        sink.write("new")
    assert path.read_text() == "new\n"
    assert is_plain(path) and is_plain(tmp_path / "none yet")


def test_a_sink_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot write .*out.*: No such file"):
        PipeSink(tmp_path / "none" / "out", new=True)
    with pytest.raises(UsageError, match="Cannot write"):
        PipeSink(tmp_path / "missing")


# -- locks ---------------------------------------------------------------------------------------------


def test_a_file_system_without_locks_does_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(file: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("llmrs_cli.batch.lock.fcntl.flock", unsupported)
    with OutputLock(tmp_path / "out"):
        assert (tmp_path / "out.lock").read_text() == f"{os.getpid()}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_file_was_removed_in_between_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last owner removes it between our opening and our locking."""
    path = tmp_path / "out.lock"
    opened: list[int] = []
    usual = os.open

    def opening(name: Any, *how: Any) -> int:
        file = usual(name, *how)
        opened.append(file)
        if len(opened) == 1:
            path.unlink()
        return file

    monkeypatch.setattr("llmrs_cli.batch.lock.os.open", opening)
    with OutputLock(tmp_path / "out"):
        monkeypatch.undo()
        assert len(opened) == 2
        assert path.read_text() == f"{os.getpid()}\n"
        with pytest.raises(UsageError):
            OutputLock(tmp_path / "out")


def test_an_owner_that_left_no_number_is_another_process(tmp_path: Path) -> None:
    with OutputLock(tmp_path / "out"):
        (tmp_path / "out.lock").write_text("who?\n")
        with pytest.raises(UsageError, match="is being written by another process"):
            OutputLock(tmp_path / "out")


# -- what waits ----------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=30), st.integers(1, 12)
)
def test_nobody_is_overtaken_by_more_than_half_a_window(prompts: list[tuple[int, int]], window: int) -> None:
    """Whoever was read that long before the latest goes first."""
    pool: Pool[int] = Pool(window)
    waiting: list[int] = []
    for number, (kind, rest) in enumerate(prompts):
        pool.add(number, (kind,) * 130 + (rest,), number)
        waiting.append(number)
        if len(waiting) > window // 2:
            oldest = waiting[0]
            taken = pool.take()
            waiting.remove(taken)
            if number - oldest >= max(window // 2, 1):
                assert taken == oldest
    assert len(pool) == len(waiting)
    pool.clear()
    assert len(pool) == 0


def test_a_pool_that_was_cleared_takes_others() -> None:
    pool: Pool[str] = Pool(8)
    pool.add(0, (1, 2), "a")
    pool.clear()
    pool.add(1, (3,), "b")
    assert (pool.take(), len(pool)) == ("b", 0)


def test_a_line_that_was_too_long_has_no_bytes_to_be_counted() -> None:
    found = next(iter(read_lines(io.BytesIO(b"x" * 50), limit=10)))
    assert found == Line(1, None)
