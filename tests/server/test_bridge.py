"""What gathers between two looks of a request, and the clock of its waits."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from llmrs_cli.engine.types import FinishReason, Request, TokenEvent
from llmrs_cli.server.bridge import Answers, Clock
from llmrs_cli.server.pace import Pace
from llmrs_cli.text.generate import GenerateOptions
from tests.helpers.bench import Bench
from tests.helpers.byte_tokenizer import byte_ids

LETTERS = byte_ids("abcdefghij")


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from(LETTERS), max_size=3).map(tuple), min_size=1, max_size=6), st.data())
def test_however_events_gather_the_same_is_told(rounds: list[tuple[int, ...]], data: st.DataObject) -> None:
    looks = data.draw(st.sets(st.integers(0, len(rounds) - 1)))
    ids = tuple(id for tokens in rounds for id in tokens)

    def script(request: Request) -> list[TokenEvent]:
        last = len(rounds) - 1
        return [
            TokenEvent(request.id, tokens, cached_tokens=3, finish=FinishReason.LENGTH if i == last else None)
            for i, tokens in enumerate(rounds)
        ]

    async def scene() -> None:
        bench = Bench(script, at_once=False)
        engine, options = bench.service.engine, GenerateOptions(max_tokens=60, n=2)
        answers = Answers(engine, [[1, 2], [3]], options, "", 60.0, Pace())
        seen: dict[tuple[int, int], list[int]] = {}
        for i in range(len(rounds)):
            bench.engine.play()
            for index, event in await answers.news() if i in looks else ():
                seen.setdefault((index, event.choice), []).extend(event.token_ids)
        for index, event in await answers.news():
            seen.setdefault((index, event.choice), []).extend(event.token_ids)
        assert answers.finished
        assert await answers.news() == []
        assert seen == {(index, choice): list(ids) for index in (0, 1) for choice in (0, 1)}
        assert answers.usage().cached_tokens == 6
        answers.cancel()

    asyncio.run(scene())


def test_a_clock_goes_off_once_a_wait_is_too_long_and_never_between_waits() -> None:
    async def scene() -> list[str]:
        told: list[str] = []
        over = asyncio.Event()

        def ran_out() -> None:
            told.append("ran out")
            over.set()

        clock = Clock(0.02, ran_out)
        await asyncio.sleep(0.06)
        told.append("nobody waited")
        clock.start()
        await over.wait()
        return told

    assert asyncio.run(scene()) == ["nobody waited", "ran out"]


def test_a_clock_that_is_stopped_stays_silent() -> None:
    async def scene() -> list[str]:
        told: list[str] = []
        clock = Clock(0.01, lambda: told.append("ran out"))
        clock.start()
        clock.stop()
        await asyncio.sleep(0.03)
        return told

    assert asyncio.run(scene()) == []
