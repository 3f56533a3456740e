"""Where rows come from: which format an input has, and the rows of a run in it.

A format is what the user says, else what the name says (`.txt`, `.csv`, `.tsv`, `.jsonl`, before an ending
of compression), else what the first character says: `{` or `[` begins JSON, anything else is text.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from llmrs_cli.batch.columns import PROMPT, Table, Template
from llmrs_cli.batch.compression import decompressed, plain_name
from llmrs_cli.batch.decode import text_of
from llmrs_cli.batch.lines import Line, read_lines
from llmrs_cli.batch.records import Kind, Row, RowReader
from llmrs_cli.errors import RequestError, UsageError


class Format(StrEnum):
    """Formats of an input."""

    AUTO = "auto"
    JSONL = "jsonl"
    OPENAI = "openai"
    MESSAGES = "messages"
    PROMPT = "prompt"
    TEXT = "text"
    CSV = "csv"
    TSV = "tsv"


_BY_NAME = {
    ".txt": Format.TEXT,
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
}
_PEEK = 4096


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be read of an input."""

    path: Path | None
    """None: stdin."""
    format: Format = Format.AUTO
    template: Template | None = None
    id_field: str | None = None
    shard: tuple[int, int] = (1, 1)
    """(i, N): every Nth row, from the i-th on."""
    limit: int | None = None
    """Rows at most."""

    def rows(self, stream: io.BufferedReader) -> Iterator[tuple[int, Row]]:
        """The rows of this run, numbered from 0. Reads the beginning: UsageError if the input as a whole is
        of no use."""
        part, parts = self.shard
        own = islice(self._rows(stream), part - 1, None, parts)
        return enumerate(islice(own, self.limit))

    def _rows(self, stream: io.BufferedReader) -> Iterator[Row]:
        data = decompressed(stream)
        format = self._format_of(data)
        if format in (Format.CSV, Format.TSV):
            return self._table_rows(data, tabs=format is Format.TSV)
        if format is Format.TEXT:
            self._refuse_template()
            reader = RowReader(id_field=self.id_field)
            return (reader.read(line, _text_record) for line in read_lines(data))
        kind = Kind.AUTO if format is Format.JSONL else Kind(format)
        reader = RowReader(kind, template=self.template, id_field=self.id_field)
        return (reader.read(line) for line in read_lines(data))

    def _format_of(self, data: BinaryIO) -> Format:
        if self.format is not Format.AUTO:
            return self.format
        if self.path is not None and (named := _BY_NAME.get(plain_name(self.path).suffix.lower())):
            return named
        start = data.peek(_PEEK)[:_PEEK] if isinstance(data, io.BufferedReader) else b""
        first = start.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
        return Format.JSONL if first in (b"{", b"[", b"") else Format.TEXT

    def _refuse_template(self) -> None:
        if self.template is not None:
            raise UsageError(
                "A line of text has no columns for --prompt-template.", hint="Say --format csv if it has."
            )

    def _table_rows(self, data: BinaryIO, *, tabs: bool) -> Iterator[Row]:
        template = self.template or Template(f"{{{PROMPT}}}")
        table = Table(data, tabs=tabs)
        table.require([*template.columns, *([self.id_field] if self.id_field else [])])
        reader = RowReader(template=template, is_table=True, id_field=self.id_field)
        return (reader.read(line, partial(_given, record)) for line, record in table.records())


def _given(found: dict[str, Any] | RequestError, line: Line) -> dict[str, Any]:
    if isinstance(found, RequestError):
        raise found
    return found


def _text_record(line: Line) -> dict[str, Any]:
    """One line of text is one prompt; its number is its id."""
    return {"id": line.number, "prompt": text_of(line)}
