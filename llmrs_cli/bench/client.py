"""Requests of random tokens through an engine's thread, and when each of their tokens came.

Times are seconds of one monotonic clock. A prompt is drawn anew for every request, so no prefix is shared
unless it is asked for.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

import numpy as np
from numpy.random import Generator

from llmrs_cli.engine.loop import EngineThread
from llmrs_cli.engine.types import Request, SamplingParams, TokenEvent
from llmrs_cli.errors import EngineFault


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: lengths in tokens, and when it arrives."""

    prompt: tuple[int, ...]
    answer: int
    at: float = 0.0
    """Seconds after the start of the run."""


@dataclass(slots=True)
class Answer:
    """When the tokens of one request came."""

    submitted: float
    times: list[float] = field(default_factory=list)
    cached: int = 0

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.submitted

    @property
    def gaps(self) -> Iterator[float]:
        """Seconds between two tokens."""
        return (after - before for before, after in pairwise(self.times))


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that one load gave."""

    answers: Sequence[Answer]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(len(answer.times) for answer in self.answers)

    @property
    def rate(self) -> float:
        """Generated tokens a second."""
        return self.tokens / self.seconds

    @property
    def per_token(self) -> float:
        """Seconds a token after the first: median over the requests."""
        return statistics.median(
            (answer.times[-1] - answer.times[0]) / (len(answer.times) - 1)
            for answer in self.answers
            if len(answer.times) > 1
        )

    @property
    def first(self) -> float:
        """Seconds to the first token: median over the requests."""
        return statistics.median(answer.first for answer in self.answers)


_numbers = count()


def asks(draw: Generator, vocab: int, number: int, prompt: int, answer: int) -> list[Ask]:
    """`number` requests of equal lengths, all at once."""
    return [Ask(random_prompt(draw, vocab, prompt), answer) for _ in range(number)]


def random_prompt(draw: Generator, vocab: int, length: int) -> tuple[int, ...]:
    """Token ids."""
    return tuple(draw.integers(0, vocab, length).tolist())


def serve(engine: EngineThread, work: Iterable[Ask], temperature: float = 0.0, top_p: float = 1.0) -> Run:
    """Submit each request at its time and wait for all. Raises EngineFault if one ends with an error."""
    listed = list(work)
    left, done = len(listed), threading.Event()
    errors: list[str] = []
    answers: list[Answer] = []

    def ask(one: Ask, number: int) -> None:
        answer = Answer(time.perf_counter())
        answers.append(answer)

        def sink(event: TokenEvent) -> None:
            nonlocal left
            now = time.perf_counter()
            answer.times.extend([now] * len(event.tokens))
            if event.finish is not None:
                answer.cached = event.cached_tokens
                left -= 1
                if event.error is not None:
                    errors.append(event.error)
                if not left:
                    done.set()

        params = SamplingParams(
            one.answer, temperature=temperature, top_p=top_p, seed=number, ignore_eos=True
        )
        engine.submit(Request(f"bench-{number}", one.prompt, params), sink)

    began = time.perf_counter()
    for one in listed:
        wait = one.at - (time.perf_counter() - began)
        if wait > 0:
            time.sleep(wait)
        ask(one, next(_numbers))
    done.wait()
    seconds = time.perf_counter() - began
    if errors:
        raise EngineFault(errors[0])
    return Run(answers, seconds)


def percentile(values: Iterable[float], share: float) -> float:
    """The value that `share` of them do not exceed; 0 of none."""
    found = np.fromiter(values, float)
    return float(np.quantile(found, share)) if found.size else 0.0
