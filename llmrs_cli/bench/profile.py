"""Where a decode step's time goes: op by op on the host, kernel by kernel on a GPU, with what lies between.

On a GPU no profiler is needed: the launches of a recorded step are cut after the first, the second and so on,
and each cut is timed as a graph of its own. What one more launch adds is its time, early start and overlap
with its neighbours included, so the parts add up to the whole.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from llmrs_cli.bench.client import random_prompt
from llmrs_cli.bench.clock import replayed
from llmrs_cli.bench.workplace import Workplace
from llmrs_cli.engine.api import Engine
from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.engine.types import Request, SamplingParams

OPS = ("embed", "norm_qkv_rope_store", "attend", "project_add", "norm_gate_up", "head", "sample")
STEPS = 20
WARM = 5
Parts = dict[str, list[float]]
"""Seconds of each call in a step, by name."""


def profile(place: Workplace, rows: int, prompt: int) -> dict[str, Any]:
    """A decode step of `rows` sequences after prompts of `prompt` tokens: microseconds by part."""
    engine = _decoding(place, rows, prompt)
    try:
        for _ in range(WARM):
            engine.step()
        step = _seconds_of_a_step(engine)
        parts = (
            _kernels(place.backend, engine) if place.backend.name == "cuda" else _ops(place.backend, engine)
        )
    finally:
        engine.close()
    launched = sum(map(sum, parts.values()))
    return {
        "rows": rows,
        "context": prompt,
        "step_us": step * 1e6,
        "launched_us": launched * 1e6,
        "between_us": (step - launched) * 1e6,
        "parts": [
            {
                "name": name,
                "calls": len(times),
                "us": sum(times) * 1e6,
                "each_us": statistics.median(times) * 1e6,
                "share": sum(times) / step,
            }
            for name, times in sorted(parts.items(), key=lambda item: -sum(item[1]))
        ],
    }


def _decoding(place: Workplace, rows: int, prompt: int) -> Engine:
    """An engine whose rows all have given a token."""
    answer = WARM + 2 * STEPS + 20
    engine = place.stepped(rows, prompt + answer + 2)
    draw = np.random.default_rng(0)
    waiting = set()
    for i in range(rows):
        ids = random_prompt(draw, engine.vocab, prompt)
        engine.submit(Request(f"p{i}", ids, SamplingParams(answer, ignore_eos=True)))
        waiting.add(f"p{i}")
    while waiting:
        waiting -= {event.request_id for event in engine.step() if event.tokens}
    return engine


def _seconds_of_a_step(engine: Engine) -> float:
    began = time.perf_counter()
    for _ in range(STEPS):
        engine.step()
    return (time.perf_counter() - began) / STEPS


# -- on the host --------------------------------------------------------------------------------------


def _ops(backend: Backend, engine: Engine) -> Parts:
    """Seconds of the fused ops of one step, a mean of some."""
    found: Parts = {}
    watched: Any = backend
    for name in OPS:
        setattr(watched, name, _timed(getattr(backend, name), found.setdefault(name, [])))
    try:
        for _ in range(STEPS):
            engine.step()
    finally:
        for name in OPS:
            delattr(watched, name)
    return {
        name: [sum(times[i :: len(times) // STEPS]) / STEPS for i in range(len(times) // STEPS)]
        for name, times in found.items()
    }


def _timed(op: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        result = op(*args, **named)
        times.append(time.perf_counter() - began)
        return result

    return call


# -- on a GPU -----------------------------------------------------------------------------------------


def _kernels(backend: Backend, engine: Engine) -> Parts:
    """Seconds that each launch of a step's recordings adds."""
    import cupy

    bodies: list[Callable[[], Any]] = []
    watched: Any = backend
    run = backend.run

    def keep(key: Hashable, body: Callable[[], Any]) -> Any:
        bodies.append(body)
        return run(key, body)

    watched.run = keep
    try:
        engine.step()
    finally:
        del watched.run
    cupy.cuda.Device().synchronize()
    found: Parts = {}
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for body in bodies:
            for name, seconds in marginal(stream, body, type(watched.device)):
                found.setdefault(name, []).append(seconds)
    return found


def marginal(stream: Any, body: Callable[[], Any], device: type) -> list[tuple[str, float]]:
    """Each launch of `body` with the time by which it makes the recording longer."""
    with _cut(device) as cut:
        body()
        names = list(cut.names)
        times = []
        for limit in range(len(names) + 1):
            cut.limit = limit
            cut.names.clear()
            times.append(replayed(stream, [body], 1))
    return [(name, times[i + 1] - times[i]) for i, name in enumerate(names)]


class _Cut:
    """Lets the first `limit` launches through."""

    def __init__(self) -> None:
        self.limit = 1 << 30
        self.names: list[str] = []

    def passes(self, name: str) -> bool:
        self.names.append(name)
        return len(self.names) <= self.limit


@contextmanager
def _cut(device: Any) -> Iterator[_Cut]:
    """Stand between launchers and the class of the device."""
    from llmrs_cli.kernels.gemm import Gemm

    cut = _Cut()
    launch, multiply = device.launch, Gemm.__call__

    def cut_launch(self: Any, kernel: Any, shape: Any, slots: bytes) -> None:
        if cut.passes(f"{kernel.unit.stem}.{kernel.name}"):
            launch(self, kernel, shape, slots)

    def cut_multiply(self: Any, bf16: bool, x: Any, weight: Any, *rest: Any, **named: Any) -> None:
        if cut.passes(f"cublaslt {x.shape[0]} x {weight.shape[0]} x {weight.shape[1]}"):
            multiply(self, bf16, x, weight, *rest, **named)

    other: Any = Gemm
    device.launch, other.__call__ = cut_launch, cut_multiply
    try:
        yield cut
    finally:
        device.launch, other.__call__ = launch, multiply
