"""What a response counts: tokens of the thought, and how long the answer took, if that was asked for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrs_cli.engine.types import FinishReason
from tests.helpers.bench import Bench, Client
from tests.helpers.byte_tokenizer import ADDED, IM_END, byte_ids
from tests.helpers.fake_engine import reply

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "a secret"}]
THOUGHT = (ADDED["<think>"], *byte_ids("hm"), ADDED["</think>"])
ANSWER = (*THOUGHT, *byte_ids("\nso"), IM_END)


def cut(tokens: tuple[int, ...], at: set[int]) -> list[tuple[int, ...]]:
    """The tokens in pieces."""
    ends = [0, *sorted(at), len(tokens)]
    return [tokens[a:b] for a, b in zip(ends, ends[1:], strict=False) if a < b]


def answer(body: Any, tokens: tuple[int, ...], at: set[int], path: str = CHAT) -> tuple[Client, str]:
    """The response to `body`, and what was logged."""

    async def scene() -> tuple[Client, str]:
        bench = Bench(reply(*cut(tokens, at), finish=FinishReason.STOP), at_once=False)
        client = Client(body, path)
        task = bench.ask(client)
        await bench.until_asked()
        while not task.done():
            if bench.engine.busy:
                bench.engine.play()
            await asyncio.sleep(0.001)
        bench.service.close()
        return client, bench.log.getvalue()

    return asyncio.run(scene())


@settings(max_examples=25)
@given(at=st.sets(st.integers(1, len(ANSWER) - 1)))
def test_the_tokens_of_a_thought_are_counted_however_they_come(at: set[int]) -> None:
    whole, _ = answer({"messages": HI}, ANSWER, at)
    streamed, _ = answer(
        {"messages": HI, "stream": True, "stream_options": {"include_usage": True}}, ANSWER, at
    )
    assert whole.json["choices"][0]["message"] == {
        "role": "assistant",
        "content": "so",
        "reasoning_content": "hm",
    }
    assert whole.json["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(THOUGHT)}
    assert streamed.events[-1]["usage"] == whole.json["usage"]


@pytest.mark.parametrize("text", ["so", "<b>so", " so", "<thin"])
def test_an_answer_without_a_thought_has_none(text: str) -> None:
    whole, _ = answer({"messages": HI}, (*byte_ids(text), IM_END), {1, 2})
    assert whole.json["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_a_response_of_items_counts_them_too() -> None:
    whole, _ = answer({"input": "hi"}, ANSWER, {2}, "/v1/responses")
    assert whole.json["usage"]["output_tokens_details"] == {"reasoning_tokens": len(THOUGHT)}


BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": HI}, "/v1/completions": {"prompt": "hi"}}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_how_long_it_took_is_told_on_demand(path: str, stream: bool) -> None:
    body = {**BODIES[path], "stream": stream}
    silent, _ = answer(body, ANSWER, {2, 5}, path)
    told, _ = answer({**body, "timings": True}, ANSWER, {2, 5}, path)
    assert "timings" not in silent.text
    timings = (told.events[-1] if stream else told.json)["timings"]
    assert 0 <= timings["prepare_seconds"] <= timings["first_token_seconds"] <= timings["total_seconds"]
    assert timings["tokens_per_second"] > 0


def test_what_came_all_at_once_has_no_rate() -> None:
    told, _ = answer({"messages": HI, "timings": True}, ANSWER, set())
    assert told.json["timings"]["tokens_per_second"] is None


def test_the_log_has_the_figures_and_no_word_of_the_conversation() -> None:
    _, log = answer({"messages": HI}, ANSWER, {2})
    (line,) = log.splitlines()
    record = json.loads(line)
    assert record["completion_tokens"] == len(ANSWER)
    assert record["total_seconds"] >= record["first_token_seconds"] > 0
    assert "secret" not in log
    assert "so" not in json.dumps(list(record.values()))
