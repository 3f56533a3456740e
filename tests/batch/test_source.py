"""Formats of an input and the rows of a run in it."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from llmrs_cli.batch.columns import Template
from llmrs_cli.batch.records import Ask, Row, Shape
from llmrs_cli.batch.source import Format, Source
from llmrs_cli.errors import ModelError, RequestError, UsageError

JSON = b'{"id":1,"prompt":"a"}\n{"id":2,"prompt":"b"}\n'


def rows(data: bytes, name: str | None = None, **options: Any) -> list[Row]:
    source = Source(None if name is None else Path(name), **options)
    return [row for _, row in source.rows(io.BufferedReader(io.BytesIO(data)))]


def said(row: Row) -> Any:
    """The prompt, or the code of the error."""
    if isinstance(row.ask, RequestError):
        return row.ask.code
    assert row.ask.messages is not None
    return row.ask.messages[0]["content"]


@pytest.mark.parametrize(
    ("data", "name", "prompts"),
    [
        (JSON, None, ["a", "b"]),
        (JSON, "x.jsonl", ["a", "b"]),
        (b"\xef\xbb\xbf \n" + JSON, None, ["a", "b"]),
        (b"Why?\n\nWhen?", None, ["Why?", "When?"]),
        (b"Why?\n", "x", ["Why?"]),
        (b"{not json", "x.txt", ["{not json"]),
        (b"Why?\n", "x.jsonl", ["invalid_json"]),
        (b"Why?\n", "x.JSON.gz", ["invalid_json"]),
        (b"prompt,n\nhi,7\n", "x.csv", ["hi"]),
        (b"prompt\tn\nhi\t7\n", "x.tsv.zst", ["hi"]),
        (b"", None, []),
        (b"a\xe2\x80\xa8b\r\n\xff\n", "x.txt", ["a\u2028b", "invalid_utf8"]),
    ],
)
def test_a_format_is_known_by_name_or_first_character(
    data: bytes, name: str | None, prompts: list[str]
) -> None:
    assert [said(row) for row in rows(data, name)] == prompts


@pytest.mark.parametrize(
    "pack", [gzip.compress, zstd.compress, lambda x: gzip.compress(x[:20]) + gzip.compress(x[20:])]
)
def test_compressed_inputs_are_known_by_their_first_bytes(pack: Any) -> None:
    assert [said(row) for row in rows(pack(JSON))] == ["a", "b"]


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_stream_is_one_sentence(pack: Any, damage: str) -> None:
    data = pack(bytes(range(256)) * 40)
    data = data[: len(data) // 2] if damage == "cut" else data[:-12] + bytes(12)
    with pytest.raises(ModelError, match="stream is"):
        rows(data, format=Format.TEXT)


def test_lines_of_text_have_their_number_as_id() -> None:
    assert [dict(row.ids) for row in rows(b"a\n\nb\n")] == [{"id": 1}, {"id": 3}]


def test_a_template_makes_prompts_of_columns() -> None:
    (row,) = rows(b"id,text,temperature\n7,good,hot\n", "x.csv", template=Template("Judge {text}"))
    assert (said(row), row.ids, row.extras) == (
        "Judge good",
        {"id": "7"},
        {"text": "good", "temperature": "hot"},
    )
    (row,) = rows(
        b'{"key":"k","text":"good","temperature":0.5}\n', template=Template("Judge {text}"), id_field="key"
    )
    assert isinstance(row.ask, Ask)
    assert (said(row), row.ids, row.ask.options) == ("Judge good", {"id": "k"}, {"temperature": 0.5})
    assert said(rows(b'{"text":"a","temprature":1}\n', template=Template("{text}"))[0]) == "unknown_field"
    assert said(rows(b'{"other":"a"}\n', template=Template("{text}"))[0]) == "no_column"


def test_what_cannot_be_at_all_is_refused_before_the_first_row() -> None:
    with pytest.raises(UsageError, match="no column 'prompt'.*--prompt-template .* such as '{text}'"):
        rows(b"text\nhi\n", "x.csv")
    with pytest.raises(UsageError, match="columns"):
        rows(b"hi\n", "x.txt", template=Template("{text}"))


@pytest.mark.parametrize(
    ("format", "codes"),
    [
        (Format.OPENAI, ["unknown_field", "unknown_field", "unknown_field", None]),
        (Format.MESSAGES, ["no_prompt", None, "no_prompt", "no_prompt"]),
        (Format.PROMPT, [None, "no_prompt", None, "no_prompt"]),
    ],
)
def test_a_format_that_is_named_holds_for_every_row(format: Format, codes: list[str | None]) -> None:
    data = b"""{"prompt":"a"}
{"messages":[{"role":"user","content":"a"}]}
{"prompt_token_ids":[1]}
{"custom_id":"a","url":"/v1/completions","body":{"prompt":"a"}}
"""
    found = rows(data, format=format)
    assert [row.ask.code if isinstance(row.ask, RequestError) else None for row in found] == codes
    assert (found[-1].shape is Shape.COMPLETION) is (format is Format.OPENAI)


def test_shards_and_limits_number_their_own_rows() -> None:
    data = b"".join(b"line %d\n" % n for n in range(7))
    source = Source(None, Format.TEXT, shard=(2, 3), limit=2)
    found = [(number, row.index) for number, row in source.rows(io.BufferedReader(io.BytesIO(data)))]
    assert found == [(0, 1), (1, 4)]


def test_equal_rows_have_equal_digests() -> None:
    a, b, c = rows(b"a\nb\na\n")
    assert a.digest == c.digest != b.digest


def test_zstd_without_its_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "backports", None)
    with pytest.raises(UsageError, match="zstd"):
        rows(zstd.compress(JSON))
