"""Load for a server and the figures of it, under the names that `vllm bench serve` gives them.

TTFT is from sending to the first piece; ITL the gap between pieces, pooled over requests; TPOT is
(E2EL - TTFT) / (tokens - 1) of a request of at least two tokens; E2EL is from sending to the last byte.
Arrivals are Poisson at a rate, or gamma with a burstiness other than 1, or all at once.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from llmrs_cli.server.load_client import Answer, Target, complete

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent, and how."""

    model: str
    vocab: int
    """Prompts are random ids below this."""
    prompts: int = 1000
    input_tokens: int = 1024
    output_tokens: int = 128
    range_ratio: float = 0.0
    """Lengths vary evenly by this share either way."""
    rate: float = math.inf
    """Requests a second; infinite: all at once."""
    burstiness: float = 1.0
    concurrency: int | None = None
    seed: int = 0
    goodput: Mapping[str, float] | None = None
    """ttft, tpot, e2el → milliseconds that a good request stays under."""


def bodies(plan: Plan) -> list[dict[str, Any]]:
    """The requests, a function of the plan alone; greedy, and each of exactly its length."""
    rng = random.Random(plan.seed)

    def length(mean: int) -> int:
        spread = int(mean * plan.range_ratio)
        return max(1, rng.randint(mean - spread, mean + spread))

    return [
        {
            "model": plan.model,
            "prompt": [rng.randrange(plan.vocab) for _ in range(length(plan.input_tokens))],
            "max_tokens": length(plan.output_tokens),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for _ in range(plan.prompts)
    ]


def gaps(plan: Plan) -> list[float]:
    """Seconds between arrivals."""
    if math.isinf(plan.rate):
        return [0.0] * plan.prompts
    rng = random.Random(plan.seed + 1)
    scale = 1 / (plan.rate * plan.burstiness)
    return [rng.gammavariate(plan.burstiness, scale) for _ in range(plan.prompts)]


async def run(target: Target, plan: Plan, done: Callable[[int, int], None]) -> dict[str, Any]:
    """Send everything and measure; `done` gets requests answered and requests in all."""
    room = asyncio.Semaphore(plan.concurrency or plan.prompts)
    answered = 0

    async def one(body: Mapping[str, Any]) -> Answer:
        nonlocal answered
        async with room:
            answer = await complete(target, body, len(body["prompt"]))
        answered += 1
        done(answered, plan.prompts)
        return answer

    requests = bodies(plan)
    began = time.monotonic()
    tasks = []
    for body, gap in zip(requests, gaps(plan), strict=True):
        tasks.append(asyncio.create_task(one(body)))
        await asyncio.sleep(gap)
    answers = await asyncio.gather(*tasks)
    return report(plan, answers, time.monotonic() - began)


def report(plan: Plan, answers: Sequence[Answer], duration: float) -> dict[str, Any]:
    """vLLM's result object."""
    good = [answer for answer in answers if answer.error is None]
    inputs, outputs = sum(a.prompt_tokens for a in good), sum(a.tokens for a in good)
    figures: dict[str, Any] = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": plan.model,
        "tokenizer_id": plan.model,
        "num_prompts": plan.prompts,
        "request_rate": "inf" if math.isinf(plan.rate) else plan.rate,
        "burstiness": plan.burstiness,
        "max_concurrency": plan.concurrency,
        "duration": duration,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / duration,
        "request_goodput": _goodput(plan, good, duration),
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
        "max_output_tokens_per_s": _busiest_second(good),
        "max_concurrent_requests": _most_at_once(answers),
        "pieces": sum(len(a.arrivals) for a in good),
    }
    for name, values in series(good).items():
        figures |= _spread(name, values)
    return figures


def series(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """Milliseconds of every kind."""
    return {
        "ttft": [1000 * (a.arrivals[0] - a.began) for a in answers if a.arrivals],
        "tpot": [_tpot(a) for a in answers if a.tokens > 1 and a.arrivals],
        "itl": [1000 * (b - a) for x in answers for a, b in zip(x.arrivals, x.arrivals[1:], strict=False)],
        "e2el": [1000 * (a.ended - a.began) for a in answers],
    }


def _tpot(answer: Answer) -> float:
    return 1000 * (answer.ended - answer.arrivals[0]) / (answer.tokens - 1)


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    figures = {
        f"mean_{name}_ms": statistics.fmean(ordered),
        f"median_{name}_ms": statistics.median(ordered),
        f"std_{name}_ms": statistics.pstdev(ordered),
    }
    return figures | {f"p{p}_{name}_ms": percentile(ordered, p) for p in PERCENTILES}


def percentile(ordered: Sequence[float], p: float) -> float:
    """Linear between neighbours, as NumPy's default."""
    at = (len(ordered) - 1) * p / 100
    low, high = math.floor(at), math.ceil(at)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _goodput(plan: Plan, answers: Sequence[Answer], duration: float) -> float | None:
    """Requests a second that met every limit; None without limits."""
    if not plan.goodput:
        return None
    limits = plan.goodput

    def is_good(answer: Answer) -> bool:
        own = {name: (values or [0.0])[0] for name, values in series([answer]).items()}
        return all(own[name] <= limit for name, limit in limits.items())

    return sum(map(is_good, answers)) / duration


def _busiest_second(answers: Sequence[Answer]) -> float:
    """Tokens in the best whole second, each request's spread evenly over its pieces."""
    counts: dict[int, float] = {}
    for answer in answers:
        for moment in answer.arrivals:
            second = int(moment)
            counts[second] = counts.get(second, 0.0) + answer.tokens / len(answer.arrivals)
    return max(counts.values(), default=0.0)


def _most_at_once(answers: Sequence[Answer]) -> int:
    changes = sorted([(a.began, 1) for a in answers] + [(a.ended, -1) for a in answers])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most
