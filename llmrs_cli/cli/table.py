"""Columns of text for people. The same on a terminal and in a pipe: no colour, nothing cut, one row a line.

Programs take `--json` instead.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from llmrs_cli.cli.control import clean

GAP = "  "


def table(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> Iterator[str]:
    """`rows` of equal length as aligned lines; the columns `right` end flush. Cells may hold anything."""
    shown = [[cell(text) for text in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        padded = (
            _padded(text, width, flush=number in right)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield GAP.join(padded).rstrip()


def cell(text: str) -> str:
    """Untrusted text on one line, without control sequences."""
    return clean(text).replace("\n", " ").replace("\t", " ")


def _padded(text: str, width: int, *, flush: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if flush else text + space


def _width(text: str) -> int:
    """Cells that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
