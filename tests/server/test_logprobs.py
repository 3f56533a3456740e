"""Scores as OpenAI's endpoints and vLLM's write them: JSON without infinities, and no alternative lost."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.server.logprobs import FLOOR, chat_logprobs, completion_logprobs, finite, prompt_logprobs
from llmrs_cli.text.events import LogProb


def score(data: bytes, logprob: float = -0.5, *top: LogProb, token: int = 1) -> LogProb:
    return LogProb(token, data.decode(errors="replace"), data, logprob, top)


scores = st.builds(
    score,
    st.binary(min_size=1, max_size=4),
    st.floats(max_value=0, allow_nan=False),
    token=st.integers(0, 99),
)


@pytest.mark.parametrize(("given", "told"), [(-1.5, -1.5), (0.0, 0.0), (-math.inf, FLOOR), (math.nan, FLOOR)])
def test_what_json_cannot_hold_is_the_floor(given: float, told: float) -> None:
    assert finite(given) == told


@given(st.lists(scores, max_size=4))
def test_every_score_can_be_written_as_strict_json(told: list[LogProb]) -> None:
    for body in (chat_logprobs(told), completion_logprobs(told), prompt_logprobs([None, *told])):
        json.dumps(body, allow_nan=False)


def test_a_chat_s_scores_have_bytes_and_alternatives_in_order() -> None:
    best = score(b"a", -0.1), score(b"\xf0\x9f", -2.0), score(b"\xf0\x9f", -3.0)
    (entry,) = chat_logprobs([score(b"a", -0.1, *best)])["content"]
    assert (entry["token"], entry["bytes"], entry["logprob"]) == ("a", [97], -0.1)
    assert [other["bytes"] for other in entry["top_logprobs"]] == [[97], [240, 159], [240, 159]]
    assert [other["logprob"] for other in entry["top_logprobs"]] == [-0.1, -2.0, -3.0]


def test_a_completion_s_scores_are_parallel_lists() -> None:
    told = completion_logprobs([score(b"ab", -1.0, score(b"x", -2.0)), score(b"c", -math.inf)], offset=7)
    assert told == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-1.0, FLOOR],
        "top_logprobs": [{"x": -2.0}, {}],
        "text_offset": [7, 9],
    }


def test_parts_of_characters_are_keyed_by_their_bytes() -> None:
    tops = score(b"\xf0", -1.0), score(b"\xf1", -2.0)
    told = completion_logprobs([score(b"\xf0", -1.0, *tops)])
    assert told["top_logprobs"] == [{"bytes:\\xf0": -1.0, "bytes:\\xf1": -2.0}]


def test_nothing_predicts_the_first_token_of_an_echo() -> None:
    told = completion_logprobs([score(b"a", math.nan), score(b"b", -1.0)])
    assert told["token_logprobs"] == [None, -1.0]
    assert told["top_logprobs"][0] is None


def test_prompt_scores_are_keyed_by_token() -> None:
    own = score(b"a", -3.0, score(b"b", -0.5, token=2), token=1)
    assert prompt_logprobs([None, own]) == [
        None,
        {"1": {"logprob": -3.0, "decoded_token": "a"}, "2": {"logprob": -0.5, "decoded_token": "b"}},
    ]
