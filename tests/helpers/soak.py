"""Long loads on one engine, and what must hold of them: nobody fails, nothing grows, nothing leaks.

The loads are functions of an engine (or of how to open one) and of their size, so that a small one runs anywhere
and a large one where there is a GPU and time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.random import Generator

from llmrs_cli.engine.api import Engine
from llmrs_cli.engine.types import FinishReason, Request, SamplingParams

Tokens = dict[str, list[int]]
Measure = Callable[[], int]
"""Bytes held now."""


@dataclass
class Watch:
    """Bytes that something holds, looked at now and then."""

    measure: Measure
    seen: list[int] = field(default_factory=list)

    def look(self) -> None:
        self.seen.append(self.measure())

    @property
    def growth(self) -> int:
        """From a third of the looks on, when everything is warm, to the last."""
        return self.seen[-1] - self.seen[len(self.seen) // 3]


def resident_bytes() -> int:
    """Host memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def mixed(draw: Generator, vocab: int, count: int, longest: int, tag: str) -> Iterator[Request]:
    """Requests of log-normal lengths up to `longest` tokens, half of them sampled."""
    lengths = np.clip(np.exp(draw.normal(np.log(longest) / 2, 1.0, count)), 1, longest * 3 // 4).astype(int)
    for i, length in enumerate(lengths.tolist()):
        answer = int(draw.integers(1, max(2, longest // 16)))
        params = SamplingParams(answer, temperature=0.8 * (i % 2), seed=i, ignore_eos=True)
        yield Request(f"{tag}{i}", tuple(draw.integers(0, vocab, length).tolist()), params)


def answer_all(
    engine: Engine, requests: Sequence[Request], look: Callable[[], None] = lambda: None
) -> Tokens:
    """Tokens of every request; no more than twice the rows wait at a time. `look` is called every 64 steps."""
    waiting = list(reversed(requests))
    found: Tokens = {request.id: [] for request in requests}
    open_, steps = 0, 0
    while waiting or open_:
        while waiting and open_ < 2 * engine.limits.rows:
            engine.submit(waiting.pop())
            open_ += 1
        for event in engine.step():
            found[event.request_id] += event.tokens
            assert event.error is None, event.error
            open_ -= event.finish is not None
        steps += 1
        if steps % 64 == 0:
            look()
    assert engine.stats().blocks_used == 0
    engine.check()
    return found


def step_for_long(engine: Engine, steps: int, look: Callable[[], None]) -> None:
    """Keep every row busy for so many steps with ever new short requests."""
    draw, number, open_ = np.random.default_rng(1), 0, 0
    for step in range(steps):
        while open_ < engine.limits.rows:
            prompt = tuple(draw.integers(0, engine.vocab, int(draw.integers(1, 40))).tolist())
            params = SamplingParams(int(draw.integers(1, 60)), seed=number, temperature=0.5, ignore_eos=True)
            engine.submit(Request(f"s{number}", prompt, params))
            number, open_ = number + 1, open_ + 1
        for event in engine.step():
            assert event.error is None, event.error
            open_ -= event.finish is not None
        if step % 100 == 0:
            look()
    while engine.has_work:
        engine.step()
    assert engine.stats().blocks_used == 0
    engine.check()


def abort_at_random(engine: Engine, aborts: int, survivors: Sequence[Request]) -> Tokens:
    """Tokens of `survivors` while others come and are aborted at any time, until `aborts` of them were.

    After each abort the pool holds what the requests that are left hold: nothing waits to be freed.
    """
    draw, number, aborted = np.random.default_rng(2), 0, 0
    alive: list[str] = []
    found: Tokens = {request.id: [] for request in survivors}
    ends: dict[str, FinishReason] = {}
    for request in survivors:
        engine.submit(request)
    while aborted < aborts or engine.has_work:
        while aborted < aborts and len(alive) + len(found) < 2 * engine.limits.rows:
            prompt = tuple(draw.integers(0, engine.vocab, int(draw.integers(1, 100))).tolist())
            engine.submit(Request(f"x{number}", prompt, SamplingParams(200, seed=number, ignore_eos=True)))
            alive.append(f"x{number}")
            number += 1
        for _ in range(min(int(draw.integers(0, 4)), aborts - aborted, len(alive))):
            before = engine.stats().blocks_used
            engine.abort(alive.pop(int(draw.integers(0, len(alive)))))
            assert engine.stats().blocks_used <= before
            aborted += 1
        if aborted >= aborts:
            for name in alive:
                engine.abort(name)
            alive.clear()
        for event in engine.step():
            if event.request_id in found:
                found[event.request_id] += event.tokens
            if event.finish is not None:
                ends[event.request_id] = event.finish
        alive = [name for name in alive if name not in ends]
        engine.check()
    assert len(ends) == number + len(found)
    assert engine.stats().blocks_used == 0
    return found


def at_block_edges(draw: Generator, vocab: int, count: int, block: int, salt: bool) -> list[Request]:
    """Requests that share prefixes in families, with lengths about block edges; `salt`: none is shared."""
    families = [draw.integers(0, vocab, 5 * block).tolist() for _ in range(max(1, count // 20))]
    requests = []
    for i in range(count):
        family = families[int(draw.integers(0, len(families)))]
        length = int(draw.integers(1, 5)) * block + int(draw.integers(-1, 2))
        own = draw.integers(0, vocab, int(draw.integers(0, 3))).tolist()
        params = SamplingParams(8, logprobs=1, ignore_eos=True)
        requests.append(Request(f"e{i}", (*family[:length], *own), params, salt=str(i) if salt else ""))
    return requests


def answers_with_logprobs(engine: Engine, requests: Sequence[Request]) -> dict[str, list[tuple[int, float]]]:
    """Every token with its log-probability, to the bit."""
    found: dict[str, list[tuple[int, float]]] = {request.id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for event in engine.step():
            assert event.error is None, event.error
            found[event.request_id] += [(entry.token, entry.logprob) for entry in event.logprobs]
    return found
