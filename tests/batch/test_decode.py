"""Strict JSON: an object that every reader reads alike, or a reason why it is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.decode import MAX_DEPTH, decode, text_of
from llmrs_cli.batch.lines import Line
from llmrs_cli.errors import RequestError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


def read(text: str | bytes) -> dict[str, Any]:
    return decode(Line(1, text.encode() if isinstance(text, str) else text))


def nested(depth: int, opening: str = "[") -> str:
    """An object whose deepest level is `depth`."""
    closing = {"[": "]", '{"a":': "}"}[opening]
    return '{"a":' + opening * (depth - 1) + ("1" if opening != "[" else "") + closing * (depth - 1) + "}"


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5), st.booleans())
def test_an_object_is_what_was_written(record: dict[str, Any], readable: bool) -> None:
    assert read(json.dumps(record, ensure_ascii=not readable)) == record


@given(VALUES.filter(lambda value: not isinstance(value, dict)))
def test_what_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(RequestError, match="not an object"):
        read(json.dumps(value))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_the_depth_is_bounded_exactly(opening: str) -> None:
    assert read(nested(MAX_DEPTH, opening))
    with pytest.raises(RequestError, match="nested too deeply"):
        read(nested(MAX_DEPTH + 1, opening))


def test_brackets_in_texts_are_no_depth() -> None:
    assert read(json.dumps({"a": "[{" * 5000}))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"a":NaN}', "NaN is not a JSON number"),
        ('{"a":-Infinity}', "-Infinity is not a JSON number"),
        ('{"a":1e400}', "1e400 is out of range"),
        ('{"a":{"b":1,"b":2}}', "the key 'b' stands twice"),
        ('{"a":1,}', "at character"),
        ("{'a':1}", "at character 2"),
        ("", "at character 1"),
    ],
)
def test_what_readers_would_read_differently_is_refused_with_the_place(text: str, part: str) -> None:
    with pytest.raises(RequestError) as error:
        read(text)
    assert part in error.value.message
    assert error.value.code == "invalid_json"


@given(st.binary(max_size=40))
def test_any_bytes_are_an_object_or_a_refusal(data: bytes) -> None:
    try:
        assert isinstance(read(data), dict)
    except RequestError as error:
        assert error.code in ("invalid_json", "invalid_utf8")


def test_a_byte_that_is_no_utf8_is_named() -> None:
    with pytest.raises(RequestError, match="not UTF-8 at byte 2"):
        text_of(Line(1, b"ab\xff"))
    with pytest.raises(RequestError, match="longer than 16 MiB"):
        text_of(Line(1, None))
