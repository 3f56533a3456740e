"""An output file without a journal, read back: which rows it answers.

That is known where lines stand in input order and carry the row's index or ids. A last line that was cut is
left out. Anything that does not belong to the input is not ours to continue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from llmrs_cli.batch.compression import decompressed
from llmrs_cli.batch.delivery import Record
from llmrs_cli.batch.records import Row
from llmrs_cli.errors import ModelError, UsageError, quoted


def adopted(paths: Sequence[Path], rows: Iterable[tuple[int, Row]]) -> Iterator[Record]:
    """A record of each line of the outputs at `paths`, which stand in input order and share its rows.

    `rows` are those of the run, with their numbers. Raises UsageError at the first line of another origin.
    """
    with ExitStack() as stack:
        files = [_whole_lines(decompressed(stack.enter_context(path.open("rb")))) for path in paths]
        heads = [next(file, None) for file in files]
        for number, row in rows:
            for place, data in enumerate(heads):
                if data is not None and (record := _record(data, number, row)) is not None:
                    yield record
                    heads[place] = next(files[place], None)
                    break
            else:
                break
    for path, data in zip(paths, heads, strict=True):
        if data is not None:
            raise UsageError(
                f"{quoted(str(path))} does not answer this input, and there is no journal of it.",
                hint="Name another output, or --overwrite it.",
            )


def _whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    try:
        yield from (line for line in stream if line.endswith(b"\n"))
    except ModelError:  # a compressed stream that was cut
        return


def _record(data: bytes, number: int, row: Row) -> Record | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not _answers(found, row):
        return None
    usage = _usage(found)
    failed = found.get("error") is not None
    return Record(
        number,
        row.digest,
        failed,
        usage.get("prompt_tokens", 0),
        usage.get("completion_tokens", 0),
        data[:-1].decode(),
    )


def _answers(found: Mapping[str, Any], row: Row) -> bool:
    if "index" in found:
        same_ids = all(found.get(name) == value for name, value in row.ids.items())
        return found["index"] == row.index and same_ids
    return "response" in found and found.get("custom_id") == row.ids.get("custom_id")


def _usage(found: Mapping[str, Any]) -> Mapping[str, int]:
    holder: Any = found
    if "response" in found:
        holder = (found["response"] or {}).get("body") or {}
    return holder.get("usage") or {}
