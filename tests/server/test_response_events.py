"""Events of one response: whatever an answer holds, they are numbered, nested and add up to the whole of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.types import FinishReason
from llmrs_cli.server.faults import as_http
from llmrs_cli.server.responses import ResponseReply
from llmrs_cli.text.events import TextEvent, Usage
from llmrs_cli.text.reply import Part
from llmrs_cli.text.tools import ToolCall

USAGE = Usage(3, 5, 1)
CALL = ToolCall("f", '{"a": 1}')


class Parser:
    """Gives out the parts of a script, whatever it is pushed, and one at the end."""

    thought_tokens = 2

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = iter(parts)

    def push(self, text: str, tokens: Sequence[int] = ()) -> Part:
        return next(self._parts)

    def finish(self) -> Part:
        return next(self._parts)


def told(
    parts: Sequence[Part], finish: FinishReason = FinishReason.STOP, *, one_call: bool = False
) -> list[dict[str, Any]]:
    """Every event of an answer of so many parts, the last of which had been held back."""
    parser: Any = Parser(parts)
    reply = ResponseReply("m", parser, {"tools": []}, one_call=one_call)
    events: list[dict[str, Any]] = []
    for number in range(len(parts) - 1):
        last = number == len(parts) - 2
        events += reply.take(TextEvent(0, "x", (1,), finish_reason=finish if last else None))
    return [*events, reply.end(USAGE)]


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


words = st.sampled_from(["", "", "a", "né", " b"])
parts = st.lists(
    st.builds(Part, words, words, st.lists(st.just(CALL), max_size=2).map(tuple)), min_size=2, max_size=6
)
ends = st.sampled_from([FinishReason.STOP, FinishReason.LENGTH])


@given(parts, ends)
def test_events_are_numbered_and_those_of_an_item_stand_together(
    given_parts: list[Part], finish: FinishReason
) -> None:
    events = told(given_parts, finish)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds(events)[:2] == ["created", "in_progress"]
    assert kinds(events)[-1] == ("incomplete" if finish is FinishReason.LENGTH else "completed")
    indices = [event["output_index"] for event in events[2:-1]]
    assert indices[0] == 0 and all(after - before in (0, 1) for before, after in pairwise(indices))
    by_item = defaultdict(list)
    for event in events[2:-1]:
        by_item[event["output_index"]].append(event)
    for own in by_item.values():
        assert kinds(own)[0] == "output_item.added" and kinds(own)[-1] == "output_item.done"
        assert kinds(own).count("output_item.added") == kinds(own).count("output_item.done") == 1
        assert len({event.get("item_id") or event["item"]["id"] for event in own}) == 1


@given(parts, ends)
def test_what_is_told_bit_by_bit_is_the_whole_at_the_end(
    given_parts: list[Part], finish: FinishReason
) -> None:
    events = told(given_parts, finish)
    output = events[-1]["response"]["output"]
    assert [event["item"] for event in events if event["type"].endswith("output_item.done")] == output
    for index, item in enumerate(output):
        own = [event for event in events if event.get("output_index") == index]
        grown = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        if item["type"] == "function_call":
            assert grown == item["arguments"] == CALL.arguments
        else:
            (part,) = item["content"]
            assert grown == part["text"]
            assert [event["text"] for event in own if event["type"].endswith("_text.done")] == [grown]
            assert [event["part"] for event in own if event["type"].endswith("_part.done")] == [part]


@given(parts)
def test_nothing_of_an_answer_is_lost(given_parts: list[Part]) -> None:
    output = told(given_parts)[-1]["response"]["output"]

    def texts(kind: str) -> str:
        return "".join(item["content"][0]["text"] for item in output if item["type"] == kind)

    assert texts("reasoning") == "".join(part.reasoning for part in given_parts)
    assert texts("message") == "".join(part.content for part in given_parts)
    calls = [item for item in output if item["type"] == "function_call"]
    assert len(calls) == sum(len(part.calls) for part in given_parts)
    assert len({item["call_id"] for item in calls}) == len(calls)
    assert output, "an answer that says nothing is an empty message"


def test_an_item_that_was_told_does_not_change_afterwards() -> None:
    events = told([Part(content="a"), Part(content="b"), Part()])
    added = next(event for event in events if event["type"].endswith("output_item.added"))
    assert (added["item"]["status"], added["item"]["content"]) == ("in_progress", [])
    opened = next(event for event in events if event["type"].endswith("content_part.added"))
    assert opened["part"]["text"] == ""
    assert events[0]["response"]["output"] == []


def test_thoughts_words_and_calls_are_items_in_the_order_in_which_they_came() -> None:
    (_, *output) = told([Part("hm", "So", (CALL,)), Part("again", ""), Part()])[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "reasoning"]
    assert output[0]["content"] == [{"type": "output_text", "text": "So", "annotations": []}]
    assert output[2]["content"] == [{"type": "reasoning_text", "text": "again"}]


def test_where_calls_may_not_be_parallel_the_first_is_all() -> None:
    events = told([Part(calls=(CALL, CALL)), Part(calls=(CALL,)), Part(content="!")], one_call=True)
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["function_call", "message"]


def test_an_answer_cut_short_says_why_and_only_its_open_item_is_incomplete() -> None:
    response = told([Part("hm", "So"), Part()], FinishReason.LENGTH)[-1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


def test_usage_counts_thoughts_among_the_tokens() -> None:
    usage = told([Part(), Part()])[-1]["response"]["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 2}
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] == 8


def test_a_fault_in_the_middle_is_an_event_with_the_next_number() -> None:
    parser: Any = Parser([Part(content="a")])
    reply = ResponseReply("m", parser, {})
    events = list(reply.take(TextEvent(0, "a", (1,))))
    fault = reply.fault(as_http(RuntimeError("a secret")).body)
    assert (fault["type"], fault["sequence_number"]) == ("error", len(events))
    assert set(fault) == {"type", "sequence_number", "code", "message", "param"}
    assert "secret" not in fault["message"]
