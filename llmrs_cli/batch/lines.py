"""Lines of a JSON Lines stream: cut at line feeds alone, bounded in length, numbered as an editor would.

U+2028, U+0085 and a lone carriage return are ordinary characters of a line. A byte-order mark at the very
start, a carriage return before the line feed and blank lines are dropped; a last line needs no line feed.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

MAX_LINE = 16 * 2**20
"""Bytes of the longest line that is read."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line."""

    number: int
    """Counts from 1; blank lines count."""
    data: bytes | None
    """Without its end; None if it is longer than the limit."""


def read_lines(stream: BinaryIO, limit: int = MAX_LINE, *, blank: bool = False) -> Iterator[Line]:
    """The lines of `stream`, with `blank` also those that are; at most one of `limit` bytes is in memory."""
    number = 0
    while data := stream.readline(limit + 2):
        number += 1
        if number == 1:
            data = data.removeprefix(codecs.BOM_UTF8)
        whole = data.endswith(b"\n")
        data = data.removesuffix(b"\n").removesuffix(b"\r")
        if len(data) > limit:
            if not whole:
                _skip_line(stream)
            yield Line(number, None)
        elif blank or data.strip(b" \t\r"):
            yield Line(number, data)


def _skip_line(stream: BinaryIO) -> None:
    while (rest := stream.readline(1 << 20)) and not rest.endswith(b"\n"):
        pass
