"""The loads that a model is measured under; each a function from a workplace to figures by name.

Names of figures end in their unit. Every one is the median of some runs after one that is thrown away, which
compiles, records and chooses; prompts are random and never repeated, so no prefix is found in the cache
except where it is the point.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.random import Generator

from llmrs_cli.bench.busy import watch
from llmrs_cli.bench.client import Ask, Run, asks, percentile, random_prompt, serve
from llmrs_cli.bench.workplace import Workplace
from llmrs_cli.engine.loop import EngineThread

Figures = dict[str, Any]
GREEDY: Mapping[str, float] = {}
SAMPLED: Mapping[str, float] = {"temperature": 0.8, "top_p": 0.95}
SYSTEM, ASKED = 2048, 32
"""Tokens of a shared system prompt, and of what follows it."""
LONG = 32_768
BESIDE = (64, 128, 192, 320, 448)
"""Prompt tokens beside the decoding rows of a step."""
OFFERED = 0.7
"""Of what the engine can take at most: the rate at which requests arrive in `mixed`."""
REST = 0.5
"""Seconds without work before a request of one who thinks between two questions: a GPU that has been at its limit
of power is faster after them."""


def single(place: Workplace) -> Figures:
    """One request at a time: 256 tokens in, 128 out; and the first token after 256 and 1,200, of the latter after a
    rest and right behind each other."""
    short, long = place.scaled(256), place.scaled(1200)
    answer = place.scaled(128, 3)
    draw = _draw()
    with place.engine(1, long + answer) as engine:
        runs = _repeated(place, engine, lambda: asks(draw, engine.vocab, 1, short, answer))
        rested, busy = _rested_and_busy(place, engine, lambda: asks(draw, engine.vocab, 1, long, 2))
    return {
        "prompt_tokens": short,
        "answer_tokens": answer,
        "token_ms": _median(run.per_token for run in runs) * 1e3,
        "first_token_ms": _median(run.first for run in runs) * 1e3,
        f"first_token_{long}_ms": _median(run.first for run in rested) * 1e3,
        f"first_token_{long}_busy_ms": _median(run.first for run in busy) * 1e3,
    }


def throughput(place: Workplace) -> Figures:
    """256 requests at once, 256 in, 128 out: at most 64 of them running, and all of them."""
    number = place.scaled(256, 4)
    return {
        f"running_{rows}": _crowd(place, rows, number)
        for rows in dict.fromkeys((max(1, number // 4), number))
    }


def budget(place: Workplace) -> Figures:
    """256 requests, 64 of them running, under several budgets of tokens a step: which one lets prompts ride along best."""
    number = place.scaled(256, 4)
    rows = max(1, number // 4)
    return {
        f"tokens_{rows + prompts}": {
            "tokens_per_s": _crowd(place, rows, number, rows + prompts)["tokens_per_s"]
        }
        for prompts in dict.fromkeys(place.scaled(prompts) for prompts in BESIDE)
    }


def _crowd(place: Workplace, rows: int, number: int, tokens: int | None = None) -> Figures:
    prompt, answer, draw = place.scaled(256), place.scaled(128, 3), _draw()
    with place.engine(rows, prompt + answer, tokens) as engine, watch(place.backend) as device:
        runs = _repeated(
            place, engine, lambda: asks(draw, engine.vocab, number, prompt, answer), device.start
        )
        busy = device.seconds()
        steps = [step for step in engine.stats().recent if step.tokens]
    found: Figures = {
        "requests": number,
        "prompt_tokens": prompt,
        "answer_tokens": answer,
        "tokens_per_s": _median(run.rate for run in runs),
        "first_token_p99_ms": percentile((a.first for a in runs[-1].answers), 0.99) * 1e3,
        "step_host_ms": {
            part: _median(getattr(step, part) for step in steps) * 1e3
            for part in ("plan", "launch", "wait", "commit")
        },
    }
    if busy is not None:
        found["device_busy"] = busy / runs[-1].seconds
    return found


def prefill(place: Workplace) -> Figures:
    """16 prompts of 2,048 tokens at once, one token each: after a rest, and right behind each other."""
    number, prompt, draw = place.scaled(16, 2), place.scaled(2048), _draw()
    with place.engine(number, prompt + 2) as engine:
        rested, busy = _rested_and_busy(place, engine, lambda: asks(draw, engine.vocab, number, prompt, 1))
    return {
        "requests": number,
        "prompt_tokens": prompt,
        "tokens_per_s": _median(number * prompt / run.seconds for run in rested),
        "busy_tokens_per_s": _median(number * prompt / run.seconds for run in busy),
    }


def mixed(place: Workplace) -> Figures:
    """Prompts of 32 to 2,048 tokens and answers of 16 to 512, log-normal; all at once, then as they arrive (Poisson)."""
    number, draw = place.scaled(256, 8), _draw()
    longest = place.scaled(2048) + place.scaled(512)
    with place.engine(min(number, 256), longest) as engine:
        serve(engine, mixture(place, draw, engine.vocab, number))
        crowd = serve(engine, mixture(place, draw, engine.vocab, number))
        rate = OFFERED * number / crowd.seconds
        paced = serve(engine, mixture(place, draw, engine.vocab, number, rate))
    return {
        "requests": number,
        "at_once_tokens_per_s": crowd.rate,
        "arrivals_per_s": rate,
        "tokens_per_s": paced.rate,
        "first_token_p50_ms": percentile((a.first for a in paced.answers), 0.5) * 1e3,
        "first_token_p99_ms": percentile((a.first for a in paced.answers), 0.99) * 1e3,
        "gap_p50_ms": percentile((gap for a in paced.answers for gap in a.gaps), 0.5) * 1e3,
        "gap_p99_ms": percentile((gap for a in paced.answers for gap in a.gaps), 0.99) * 1e3,
    }


def mixture(place: Workplace, draw: Generator, vocab: int, number: int, rate: float = 0.0) -> list[Ask]:
    """Requests of log-normal lengths; with a `rate`, their gaps are exponential."""

    def lengths(low: int, high: int) -> list[int]:
        middle, spread = np.log(np.sqrt(low * high)), np.log(high / low) / 4
        typical = np.clip(np.exp(draw.normal(middle, spread, number)), low, high)
        return [place.scaled(int(length)) for length in typical]

    at = np.cumsum(draw.exponential(1 / rate, number)) if rate else np.zeros(number)
    prompts, answers = lengths(32, 2048), lengths(16, 512)
    return [
        Ask(random_prompt(draw, vocab, prompt), answer, float(when))
        for prompt, answer, when in zip(prompts, answers, at, strict=True)
    ]


def sampled(place: Workplace) -> Figures:
    """Drawing with temperature 0.8 and top-p 0.95 against greedy, for one request and for 64."""
    prompt, answer, draw = place.scaled(256), place.scaled(128, 3), _draw()
    found: Figures = dict(SAMPLED)
    for rows in dict.fromkeys((1, place.scaled(64))):
        with place.engine(rows, prompt + answer) as engine:

            def work(engine: EngineThread = engine, rows: int = rows) -> list[Ask]:
                return asks(draw, engine.vocab, rows, prompt, answer)

            greedy = _median(run.rate for run in _repeated(place, engine, work))
            drawn = _median(run.rate for run in _repeated(place, engine, work, sampling=SAMPLED))
        found[f"rows_{rows}"] = {
            "greedy_tokens_per_s": greedy,
            "sampled_tokens_per_s": drawn,
            "sampled_share": drawn / greedy,
        }
    return found


def long(place: Workplace) -> Figures:
    """One request at a context of 32k tokens, or the model's own where that is shorter."""
    answer = place.scaled(128, 3)
    prompt = min(place.scaled(LONG), place.longest) - answer
    draw = _draw()
    with place.engine(1, prompt + answer) as engine:
        runs = _repeated(place, engine, lambda: asks(draw, engine.vocab, 1, prompt, answer))
    first = _median(run.first for run in runs)
    return {
        "prompt_tokens": prompt,
        "answer_tokens": answer,
        "first_token_ms": first * 1e3,
        "prefill_tokens_per_s": prompt / first,
        "token_ms": _median(run.per_token for run in runs) * 1e3,
    }


def prefix(place: Workplace) -> Figures:
    """How much sooner an answer starts when its system prompt of 2,048 tokens is in the cache."""
    size, draw = place.backend.block_size, _draw()
    system = max(2 * size, place.scaled(SYSTEM))
    firsts: dict[str, list[float]] = {"cold": [], "hit": []}
    cached = 0
    with place.engine(2, system + ASKED + 2) as engine:
        for _ in range(place.repeats + 1):
            shared = random_prompt(draw, engine.vocab, system)
            for kind in firsts:
                run = serve(engine, [Ask((*shared, *random_prompt(draw, engine.vocab, ASKED)), 2)])
                firsts[kind].append(run.first)
                cached = run.answers[0].cached
    cold, hit = (statistics.median(firsts[kind][1:]) for kind in ("cold", "hit"))
    return {
        "shared_tokens": system,
        "cached_tokens": cached,
        "first_token_ms": cold * 1e3,
        "first_token_hit_ms": hit * 1e3,
        "times_sooner": cold / hit,
    }


def _draw() -> Generator:
    return np.random.default_rng()


def _repeated(
    place: Workplace,
    engine: EngineThread,
    work: Callable[[], list[Ask]],
    before_last: Callable[[], None] = lambda: None,
    sampling: Mapping[str, float] = GREEDY,
    rest: float = 0.0,
) -> list[Run]:
    """Runs after one that is thrown away, each after `rest` seconds; `before_last` is called before the last."""
    runs = []
    for number in range(place.repeats + 1):
        if number == place.repeats:
            before_last()
        time.sleep(rest)
        runs.append(serve(engine, work(), **sampling))
    return runs[1:]


def _rested_and_busy(
    place: Workplace, engine: EngineThread, work: Callable[[], list[Ask]]
) -> tuple[list[Run], list[Run]]:
    """Runs each of which comes after a rest, and runs right behind each other."""
    return _repeated(place, engine, work, rest=REST), _repeated(place, engine, work)


def _median(values: Any) -> float:
    return float(statistics.median(values))


SCENARIOS: dict[str, Callable[[Workplace], Figures]] = {
    "single": single,
    "throughput": throughput,
    "prefill": prefill,
    "mixed": mixed,
    "budget": budget,
    "sampled": sampled,
    "long": long,
    "prefix": prefix,
}
