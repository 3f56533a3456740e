"""The journal of a run: every row that is done, on disk in one write, in the order in which rows finish.

    {"llmrs_journal": 1, "seed": …, "settings": …}
    CRC NUMBER DIGEST FAILED PROMPT-TOKENS COMPLETION-TOKENS OUTPUT-LINE

It is the truth about a run: the output file is made from it. A kill may leave half a line at the end, which
is cut off when the journal is opened again; a line whose checksum is wrong ends it as well. In memory there
are 16 bytes for each row.
"""

from __future__ import annotations

import json
import os
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from llmrs_cli.batch import durable
from llmrs_cli.batch.delivery import Record
from llmrs_cli.errors import UsageError, quoted

VERSION = 1
MAX_HEADER = 1 << 20
_MARK = "llmrs_journal"


class Journal:
    """One open journal; not safe between threads."""

    def __init__(self, path: Path) -> None:
        """Open the journal at `path` and repair its end. UsageError if the file is something else."""
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._readable = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._reader = open(self._readable, "rb", closefd=False)  # noqa: SIM115  # closed with the journal
        self.header = self._read_header()
        """What the run was started with."""
        self._offsets = array("q")
        """By number: where the row's record stands; 0 if there is none."""
        self._digests = array("Q")
        self.end = self._scan()
        """Bytes; records from here on are this process's own."""
        os.ftruncate(self._file, self.end)

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """A new journal, in the place of any that is there."""
        durable.write_file(path, encode_header(header))
        return cls(path)

    def append(self, record: Record) -> None:
        """Add a row that is done; OSError if the disk is full."""
        data = encode_record(record)
        durable.write_all(self._file, data)
        self._note(record, self.end)
        self.end += len(data)

    def sync(self) -> None:
        """Make what was appended safe against a loss of power."""
        durable.sync(self._file)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.offset(number) > 0

    def offset(self, number: int) -> int:
        """Where the record of a row stands, in bytes; 0 if it is not done."""
        return self._offsets[number] if number < len(self._offsets) else 0

    def digest(self, number: int) -> str:
        """Digest of the input of a row that is done."""
        return f"{self._digests[number]:016x}"

    def numbers(self) -> Iterator[int]:
        """Rows that are done, in ascending order."""
        return (number for number, offset in enumerate(self._offsets) if offset)

    def read(self, number: int) -> Record:
        """The record of a row that is done."""
        self._reader.seek(self.offset(number))
        record = decode_record(self._reader.readline())
        if record is None:
            raise OSError(f"The journal {quoted(str(self.path))} was changed while it was in use.")
        return record

    def records(self) -> Iterator[Record]:
        """Every row's latest record, in the order in which they finished."""
        self._reader.seek(0)
        self._reader.readline()
        while (offset := self._reader.tell()) < self.end:
            record = decode_record(self._reader.readline())
            assert record is not None
            here = self._reader.tell()
            if self.offset(record.number) == offset:
                yield record
                self._reader.seek(here)

    def keep(self, wanted: Callable[[Record], bool]) -> Journal:
        """A journal of only the `wanted` records, in the place of this one, which is closed."""
        new = self.path.with_name(self.path.name + durable.TEMPORARY)
        copy = Journal.create(new, self.header)
        try:
            for record in filter(wanted, self.records()):
                copy.append(record)
            copy.sync()
        finally:
            copy.close()
        durable.replace(new, self.path)
        kept = Journal(self.path)
        self.close()
        return kept

    def close(self) -> None:
        """Nothing is lost by not calling it."""
        self._reader.close()
        os.close(self._readable)
        os.close(self._file)

    def _read_header(self) -> dict[str, Any]:
        try:
            header = json.loads(self._reader.readline(MAX_HEADER))
            known = header[_MARK] == VERSION
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:
            self.close()
            raise UsageError(
                f"{quoted(str(self.path))} is no journal of this version.",
                hint="Move it away, or --overwrite.",
            )
        return dict(header)

    def _scan(self) -> int:
        """Find every record; returns where the good ones end."""
        offset = self._reader.tell()
        for data in self._reader:
            record = decode_record(data)
            if record is None:
                break
            self._note(record, offset)
            offset += len(data)
        return offset

    def _note(self, record: Record, offset: int) -> None:
        missing = record.number + 1 - len(self._offsets)
        if missing > 0:
            self._offsets.extend([0] * missing)
            self._digests.extend([0] * missing)
        self._offsets[record.number] = offset
        self._digests[record.number] = int(record.digest, 16)


def encode_header(header: Mapping[str, Any]) -> bytes:
    """The first line of a journal."""
    return json.dumps({_MARK: VERSION, **header}).encode() + b"\n"


def encode_record(record: Record) -> bytes:
    """One line."""
    numbers = f"{record.prompt_tokens} {record.completion_tokens}"
    body = f"{record.number} {record.digest} {record.failed:d} {numbers} {record.line}".encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode_record(data: bytes) -> Record | None:
    """What a line says; None if it is cut or damaged."""
    body = data[9:-1]
    if not data.endswith(b"\n") or data[:9] != b"%08x " % zlib.crc32(body):
        return None
    number, digest, failed, prompt, completion, line = body.split(b" ", 5)
    return Record(int(number), digest.decode(), failed == b"1", int(prompt), int(completion), line.decode())
