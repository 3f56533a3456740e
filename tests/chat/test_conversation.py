"""A conversation as a value: messages, summaries, what is forgotten, and the JSON form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.chat.conversation import Conversation, Turn, from_json
from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import UsageError

STOP, ABORT, LENGTH = FinishReason.STOP, FinishReason.ABORT, FinishReason.LENGTH
texts = st.text(max_size=20)
ended = st.builds(Turn, texts, texts, texts)
cut = st.builds(
    Turn,
    texts,
    texts,
    texts,
    st.sampled_from([ABORT, LENGTH]),
    st.lists(st.integers(0, 1000)).map(tuple),
)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    turns = tuple(draw(st.lists(ended | cut, max_size=5)))
    summed = draw(st.integers(0, len(turns)))
    summary = draw(texts) if summed else None
    return Conversation(draw(st.none() | texts), turns, summary, summed)


@given(conversations())
def test_json_and_back_is_the_same(conversation: Conversation) -> None:
    assert from_json(json.loads(json.dumps(conversation.to_json()))) == conversation


@given(conversations(), st.integers(0, 7))
def test_forgetting_keeps_what_came_before(conversation: Conversation, count: int) -> None:
    count = min(count, len(conversation.turns))
    left = conversation.without(count)
    assert left.turns == conversation.turns[: len(conversation.turns) - count]
    assert left.summed <= len(left.turns)
    assert (left.summary is None) == (left.summed == 0)


def test_a_summary_stands_for_the_first_turns() -> None:
    talk = Conversation("S", (Turn("a", "1"), Turn("b", "2")), "They met.", 1)
    assert talk.messages() == [
        {"role": "system", "content": "S\n\nSummary of the conversation so far:\nThey met."},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "2"},
    ]


def test_turns_that_are_left_out_are_not_sent() -> None:
    talk = Conversation(None, (Turn("a", "1"), Turn("b", "2")))
    assert [message["content"] for message in talk.messages(1)] == ["b", "2"]


def test_another_model_gets_no_tokens() -> None:
    talk = Conversation(None, (Turn("a", "1", "", ABORT, (1, 2)),)).without_ids()
    assert (talk.turns[0].ids, talk.turns[0].cut) == ((), True)


GOOD: dict[str, Any] = Conversation("S", (Turn("a", "b"),)).to_json()


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        GOOD | {"turns": None},
        GOOD | {"turns": [{}]},
        GOOD | {"turns": [{"question": 1, "answer": "x"}]},
        GOOD | {"turns": [{"question": "a", "answer": "b", "finish": "never"}]},
        GOOD | {"turns": [{"question": "a", "answer": "b", "ids": ["x"]}]},
        GOOD | {"system": 3},
        GOOD | {"summed": 2},
        GOOD | {"summed": -1},
    ],
)
def test_what_is_no_session_is_refused_in_words(value: object) -> None:
    with pytest.raises(UsageError, match="damaged"):
        from_json(value)


def test_a_session_of_another_version_is_refused() -> None:
    with pytest.raises(UsageError, match="another version"):
        from_json(GOOD | {"llmrs_session": 2})
