"""Tables as rows: CSV and TSV records, and templates that make a prompt of columns.

CSV is RFC 4180 with a header line: fields may be quoted and then hold commas, quotes and line ends. TSV has
no quoting: one line is one record. Every record is bounded as a line of JSON is.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from llmrs_cli.batch.decode import text_of
from llmrs_cli.batch.lines import MAX_LINE, Line, read_lines
from llmrs_cli.errors import RequestError, UsageError, quoted

PROMPT = "prompt"
"""The column that is a row's prompt where no template says otherwise."""
_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class Template:
    """A text with `{column}` places; `{{` and `}}` stand for braces."""

    def __init__(self, text: str) -> None:
        """UsageError if a brace stands alone."""
        self.text = text
        for match in _PLACE.finditer(text):
            if match[0] in "{}" or match[1] == "":
                raise UsageError(
                    f"The template has a lone brace at character {match.start() + 1}.",
                    hint="Write {{ or }} for a brace, {column} for a column.",
                )
        self.columns = tuple(dict.fromkeys(m[1] for m in _PLACE.finditer(text) if m[1]))
        """Names in the order of their first place."""

    def fill(self, record: Mapping[str, Any]) -> str:
        """The prompt of one record. RequestError if it lacks a column or has no text for it."""

        def put(match: re.Match[str]) -> str:
            return match[0][0] if match[1] is None else _as_text(record, match[1])

        return _PLACE.sub(put, self.text)


def _as_text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        what = "has no" if value is None else "has no text for the"
        raise RequestError(f"The row {what} column {quoted(name)}.", code="no_column", param=name)
    return str(value)


class Table:
    """Reads the header of a table; then `records` are the others."""

    def __init__(self, stream: BinaryIO, *, tabs: bool) -> None:
        """UsageError if the header cannot be read or two columns have one name."""
        csv.field_size_limit(MAX_LINE)
        self._lines = _TableLines(stream)
        if tabs:
            self._cells = csv.reader(self._lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        else:
            self._cells = csv.reader(self._lines)
        header = next(self._read(), None)
        cells = [] if header is None else header[1]
        if isinstance(cells, RequestError):
            raise UsageError(f"The header of the table cannot be read: {cells.message}")
        self.columns = cells
        """Names, in order; none if the table is empty."""
        twice = [name for name in cells if cells.count(name) > 1]
        if twice:
            raise UsageError(f"Two columns of the table are named {quoted(twice[0])}.")

    def require(self, names: Sequence[str]) -> None:
        """UsageError unless each of `names` is a column; a table that is empty has nothing to lack."""
        for name in names:
            if self.columns and name not in self.columns:
                hint = f"Its columns are {', '.join(map(quoted, self.columns[:20]))}."
                if name == PROMPT:
                    hint += f" --prompt-template makes a prompt of them, such as '{{{self.columns[0]}}}'."
                raise UsageError(f"The table has no column {quoted(name)}.", hint=hint)

    def records(self) -> Iterator[tuple[Line, dict[str, Any] | RequestError]]:
        """For each record its first line with the bytes of all, and its cells by column."""
        for line, cells in self._read():
            yield line, cells if isinstance(cells, RequestError) else self._named(cells)

    def _named(self, cells: list[str]) -> dict[str, Any] | RequestError:
        if len(cells) != len(self.columns):
            message = f"The record has {len(cells)} cells; the header has {len(self.columns)}."
            return RequestError(message, code="invalid_csv")
        return dict(zip(self.columns, cells, strict=True))

    def _read(self) -> Iterator[tuple[Line, list[str] | RequestError]]:
        while True:
            self._lines.begin()
            cells: list[str] | RequestError
            try:
                cells = next(self._cells)
            except StopIteration:
                return
            except csv.Error as error:
                cells = RequestError(f"The record is not CSV: {error}.", code="invalid_csv")
            except RequestError as error:
                cells = error
            if cells != []:
                yield self._lines.record(), cells


class _TableLines:
    """Lines for the csv module, which asks for more while a quote is open; remembers those of one record."""

    def __init__(self, stream: BinaryIO) -> None:
        self._lines = read_lines(stream, blank=True)
        self._record: list[Line] = []

    def begin(self) -> None:
        """What follows is another record."""
        self._record = []

    def record(self) -> Line:
        """The lines since `begin`, as one."""
        return Line(self._record[0].number, b"\n".join(line.data or b"" for line in self._record))

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._record.append(line)
        return text_of(line) + "\n"
