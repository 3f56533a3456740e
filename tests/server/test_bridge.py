"""What gathers between two looks of a request, and the clock of its waits."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrs_cli.engine.types import FinishReason, Request, TokenEvent, TokenLogprob
from llmrs_cli.server import bridge
from llmrs_cli.server.bridge import Answers, ClientGone, Clock
from llmrs_cli.server.pace import Pace
from llmrs_cli.text.generate import GenerateOptions
from tests.helpers.bench import Bench
from tests.helpers.byte_tokenizer import byte_ids

LETTERS = byte_ids("abcdefghij")


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from(LETTERS), max_size=3).map(tuple), min_size=1, max_size=6), st.data())
def test_however_events_gather_the_same_is_told(rounds: list[tuple[int, ...]], data: st.DataObject) -> None:
    looks = data.draw(st.sets(st.integers(0, len(rounds) - 1)))
    most = data.draw(st.integers(1, 20))
    ids = tuple(id for tokens in rounds for id in tokens)

    def script(request: Request) -> list[TokenEvent]:
        last = len(rounds) - 1
        return [
            TokenEvent(request.id, tokens, cached_tokens=3, finish=FinishReason.LENGTH if i == last else None)
            for i, tokens in enumerate(rounds)
        ]

    async def scene(patched: pytest.MonkeyPatch) -> None:
        patched.setattr(bridge, "MAX_EVENTS", most)
        bench = Bench(script, at_once=False)
        engine, options = bench.service.engine, GenerateOptions(max_tokens=60, n=2)
        answers = Answers(60.0, Pace())
        for prompt in ([1, 2], [3]):
            answers.begin(engine, prompt, options, "")
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

    with pytest.MonkeyPatch.context() as patched:
        asyncio.run(scene(patched))


@given(st.integers(1, 40), st.integers(0, 400), st.integers(0, 20), st.integers(1, 3))
@settings(max_examples=30)
def test_however_much_has_come_a_turn_works_on_little(tokens: int, prompt: int, width: int, n: int) -> None:
    """Scores of a long prompt, and of tokens that gathered: each piece is small, and together they are all."""

    def score(token: int) -> TokenLogprob:
        return TokenLogprob(token, -1.0, tuple((token + k, -1.0 - k) for k in range(width)))

    def scored(request: Request) -> Iterator[TokenEvent]:
        scores = (None, *map(score, range(prompt)))
        yield TokenEvent(request.id, (5,), (score(5),), scores)
        for i in range(tokens):
            last = FinishReason.LENGTH if i == tokens - 1 else None
            yield TokenEvent(request.id, (i,), (score(i),), finish=last)

    async def scene() -> None:
        bench = Bench(scored)
        answers = Answers(60.0, Pace())
        options = GenerateOptions(max_tokens=60, n=n, logprobs=width, prompt_logprobs=width)
        answers.begin(bench.service.engine, [1, 2], options, "")
        drawn: dict[int, list[int]] = {}
        read: dict[int, list[int | None]] = {}
        while batch := await answers.news():
            scores = [score for _, event in batch for score in (*event.logprobs, *event.prompt_logprobs)]
            assert sum(1 + len(score.top) for score in scores if score) <= 2 * bridge.PORTION
            for _, event in batch:
                assert [score.token for score in event.logprobs] == list(event.token_ids)
                drawn.setdefault(event.choice, []).extend(event.token_ids)
                read.setdefault(event.choice, []).extend(
                    None if score is None else score.token for score in event.prompt_logprobs
                )
        assert answers.finished
        assert drawn == {choice: [5, *range(tokens)] for choice in range(n)}
        assert read == {choice: [None, *range(prompt)] for choice in range(n)}
        answers.cancel()

    asyncio.run(scene())


def unread(events: int, alternatives: int | None) -> tuple[bool, int]:
    """An answer of so many tokens that nobody reads: whether it was ended, and bytes that were held for it."""

    def scored(request: Request) -> Iterator[TokenEvent]:
        for i in range(events):
            token = 1000 + i % 60_000
            top = tuple((token + k, -0.001 * (i + k)) for k in range(alternatives or 0))
            scores = () if alternatives is None else (TokenLogprob(token, -0.5 * i, top),)
            last = FinishReason.LENGTH if i == events - 1 else None
            yield TokenEvent(request.id, (token,), scores, finish=last)

    async def scene() -> tuple[bool, int]:
        bench = Bench(scored, at_once=False)
        answers = Answers(60.0, Pace())
        answers.begin(bench.service.engine, [1, 2], GenerateOptions(max_tokens=60), "")
        tracemalloc.start()
        for _ in range(events):
            bench.engine.play()
            if bench.engine.aborted:
                break
            await asyncio.sleep(0)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        gone = bool(bench.engine.aborted)
        if gone:
            with pytest.raises(ClientGone):
                await answers.news()
        else:
            told = 0
            while batch := await answers.news():
                told += sum(len(event.token_ids) for _, event in batch)
            assert told == events
        answers.cancel()
        return gone, held

    return asyncio.run(scene())


@pytest.mark.parametrize(("events", "alternatives"), [(40_000, None), (12_000, 0), (1_500, 20)])
def test_what_nobody_reads_is_held_up_to_a_megabyte(events: int, alternatives: int | None) -> None:
    gone, held = unread(events, alternatives)
    assert gone
    assert held < 2.5 * 2**20


@pytest.mark.parametrize(("events", "alternatives"), [(20_000, None), (5_000, 0), (300, 20)])
def test_less_than_that_is_there_for_whoever_reads_at_last(events: int, alternatives: int | None) -> None:
    assert not unread(events, alternatives)[0]


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
