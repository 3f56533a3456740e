"""JSON in and out: what is refused, and that no event can be split."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import RequestError
from llmrs_cli.server import sse
from llmrs_cli.server.sse import MAX_DEPTH, JsonList, decode_body, encode, encode_parts, event

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(values)
def test_what_is_written_reads_back_and_has_no_line_ends(value: Any) -> None:
    text = encode(value).decode()
    assert json.loads(text) == value
    assert len(text.splitlines()) == 1


@given(
    st.dictionaries(st.text(max_size=5), values, max_size=3),
    st.lists(st.lists(values, max_size=3), max_size=4),
)
def test_a_list_that_was_written_as_it_grew_reads_as_any_other(rest: Any, growth: list[list[Any]]) -> None:
    grown = JsonList()
    for items in growth:
        grown.add(items)
    told = {**rest, "choices": [{"list": grown, "a": 1}, {"list": grown}], "empty": {}}
    plain = [item for items in growth for item in items]
    same = {**rest, "choices": [{"list": plain, "a": 1}, {"list": plain}], "empty": {}}
    assert b"".join(encode_parts(told)) == encode(same)


@given(values)
def test_a_body_is_what_json_says(value: Any) -> None:
    assert decode_body(json.dumps(value).encode()) == value


@pytest.mark.parametrize("piece", [1, 2, 3, 50, sse.PIECE])
@pytest.mark.parametrize("nest", ["[%s]", '{"a": %s}', '[{"]": %s}]'])
def test_depth_is_counted_outside_of_strings_wherever_pieces_are_cut(
    nest: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "PIECE", piece)
    text, depth = r'"[[[{\"\\"', 0
    step = nest.replace('"]"', "").count("[") + nest.count("{")
    while depth + step <= MAX_DEPTH:
        text, depth = nest % text, depth + step
    decode_body(text.encode())
    with pytest.raises(RequestError, match="nested"):
        decode_body((nest % (nest % text)).encode())


@pytest.mark.parametrize(
    ("item", "parts"), [('"a"', 1), ('""', 1), (r'"\""', 1), (r'"[{\\"', 1), ("[]", 1), ('{"a": [1, 2]}', 3)]
)
def test_parts_have_a_greatest_number(item: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_PARTS", 31)
    whole = ", ".join([item] * (30 // parts))
    assert len(decode_body(f"[{whole}]".encode())) == 30 // parts
    with pytest.raises(RequestError, match="more than 31 strings, lists and objects"):
        decode_body(f'[{whole}, "one more"]'.encode())


def test_values_have_a_greatest_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_VALUES", 30)
    text = '"", ",,,,"'
    assert len(decode_body(f"[{text}{', 1' * 29}]".encode())) == 31
    with pytest.raises(RequestError, match="more than 30 values"):
        decode_body(f"[{text}{', 1' * 30}]".encode())


def test_an_event_is_one_line_and_a_blank_one() -> None:
    assert event({"a": "\n\u2028"}) == b'data: {"a":"\\n\\u2028"}\n\n'
    assert event({}, "ping") == b"event: ping\ndata: {}\n\n"


@pytest.mark.parametrize(
    "data", [b"", b" ", b"nul", b"NaN", b'"\\ud800"', b"1e999", b"{'a': 1}", b'{"a":1}x']
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError) as error:
        decode_body(data)
    assert error.value.code == "invalid_json"
