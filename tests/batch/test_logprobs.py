"""Log-probabilities as they are written: three forms, exact bytes, and nothing that JSON does not know."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from llmrs_cli.batch.logprobs import LEAST, logprobs_field
from llmrs_cli.batch.records import Shape
from llmrs_cli.batch.results import encode
from llmrs_cli.text.events import LogProb


def score(data: bytes, logprob: float, *top: LogProb) -> LogProb:
    return LogProb(data[0], data.decode(errors="replace"), data, logprob, top)


A, B = score(b"a", -0.5), score(b"b", -1.5)


def read_strictly(line: str) -> Any:
    """What a reader makes of it that takes RFC 8259 at its word."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(line, parse_constant=refuse)


def test_chats_and_flat_rows_have_a_list_of_alternatives() -> None:
    entry = score(b"a", -0.5, A, B)
    written = [
        {
            "token": "a",
            "id": 97,
            "logprob": -0.5,
            "bytes": [97],
            "top_logprobs": [
                {"token": "a", "id": 97, "logprob": -0.5, "bytes": [97]},
                {"token": "b", "id": 98, "logprob": -1.5, "bytes": [98]},
            ],
        }
    ]
    assert logprobs_field(Shape.FLAT, [entry]) == written
    assert logprobs_field(Shape.CHAT, [entry]) == {"content": written}


def test_completions_have_columns() -> None:
    assert logprobs_field(Shape.COMPLETION, [score(b"a", -0.5, A, B), B]) == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -1.5],
        "top_logprobs": [{"a": -0.5, "b": -1.5}, {}],
    }


@pytest.mark.parametrize("shape", [Shape.FLAT, Shape.CHAT])
def test_pieces_of_characters_stay_apart_with_their_bytes(shape: Shape) -> None:
    """Five bytes that decode to the same replacement character are five alternatives."""
    parts = [score(bytes([0xF0 + i]), -1.0 - i) for i in range(5)]
    found = logprobs_field(shape, [score(b"\xf0", -1.0, *parts)])
    (entry,) = found["content"] if shape is Shape.CHAT else found
    assert [other["bytes"] for other in entry["top_logprobs"]] == [[0xF0 + i] for i in range(5)]
    assert {other["token"] for other in entry["top_logprobs"]} == {"\ufffd"}


def test_pieces_of_characters_have_names_of_their_own_in_completions() -> None:
    parts = [score(bytes([0xF0, i]), -1.0 - i) for i in range(3)]
    found = logprobs_field(Shape.COMPLETION, [score(b"\xf0", -1.0, *parts, A)])
    assert found["tokens"] == ["bytes:\\xf0"]
    assert list(found["top_logprobs"][0]) == [*(f"bytes:\\xf0\\x0{i}" for i in range(3)), "a"]


@pytest.mark.parametrize("shape", list(Shape))
def test_an_excluded_alternative_has_the_least_finite_value(shape: Shape) -> None:
    never = score(b"b", -math.inf)
    line = encode({"logprobs": logprobs_field(shape, [score(b"a", 0.0, A, never), never])})
    assert read_strictly(line) == json.loads(line)
    assert line.count(f"{LEAST}") >= 2
