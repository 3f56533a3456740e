"""Measures an engine with random token ids, and the memory it reads from. No command line here.

One run submits `batch` prompts at once: prefill ends with the last first token, decode is what follows. The
share is the weights' bytes, read once a step, over the bandwidth of a plain loop in the same process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.random import Generator

from llmrs_cli.cli.bandwidth import threads
from llmrs_cli.engine.api import Engine
from llmrs_cli.engine.types import Request, SamplingParams
from llmrs_cli.errors import EngineFault

READ_BYTES = 1 << 28
"""Size of the array that is read and copied: more than any cache holds."""
REPEATS = 5
SHAPES: Mapping[str, tuple[int, int]] = {"cpu": (1024, 5), "cuda": (4096, 4)}
"""Hidden size and layers of the model of `achieved`: weights of 150 MB and of 1.9 GB."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the engine at once."""

    batch: int
    prompt: int
    """Tokens of each prompt."""
    answer: int
    """Tokens of each answer, at least 2."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second, summed over the batch."""

    prefill: float
    decode: float


def measure(engine: Engine, load: Load, repeats: int, draw: Generator) -> Rates:
    """Medians of `repeats` runs after one that is thrown away."""
    runs = [_run(engine, load, draw) for _ in range(repeats + 1)][1:]
    return Rates(
        statistics.median(run.prefill for run in runs), statistics.median(run.decode for run in runs)
    )


def _run(engine: Engine, load: Load, draw: Generator) -> Rates:
    params = SamplingParams(max_tokens=load.answer, ignore_eos=True)
    began = time.perf_counter()
    waiting = set()
    for i in range(load.batch):
        request = Request(f"bench-{i}", tuple(draw.integers(0, engine.vocab, load.prompt).tolist()), params)
        engine.submit(request)
        waiting.add(request.id)
    early = _step_until(engine, waiting)
    first = time.perf_counter()
    while engine.has_work:
        engine.step()
    ended = time.perf_counter()
    late = load.batch * load.answer - early
    return Rates(load.batch * load.prompt / (first - began), late / (ended - first))


def _step_until(engine: Engine, waiting: set[str]) -> int:
    """Step until every request of `waiting` has a token; the number of tokens that all had by then."""
    tokens = 0
    while waiting:
        for event in engine.step():
            if event.error is not None:
                raise EngineFault(event.error)
            tokens += len(event.tokens)
            if event.tokens:
                waiting.discard(event.request_id)
    return tokens


def achieved(device: str) -> float:
    """Bytes a second that a backend reads while it decodes one answer of a random model larger than its caches.

    Raises DoesNotFitError where there is no room for it.
    """
    from llmrs_cli.engine import open_engine
    from llmrs_cli.engine.backends.registry import open_backend, parse_device
    from llmrs_cli.engine.model.spec import from_config
    from llmrs_cli.engine.weights.random import random_checkpoint

    checkpoint = random_checkpoint(from_config(_model(*SHAPES[parse_device(device)[0]]), None))
    load = Load(1, 2, 12)
    with closing(open_engine(checkpoint, open_backend(device), context=64, rows=1)) as engine:
        rates = measure(engine, load, 1, np.random.default_rng(0))
    return rates.decode * checkpoint.bytes_a_step


def _model(hidden: int, layers: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 128,
        "num_key_value_heads": hidden // 512,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
    }


def bandwidth_of(device: str) -> float:
    """Bytes a second that a plain loop moves in the memory that `device` computes from."""
    from llmrs_cli.engine.backends.registry import parse_device

    kind, index = parse_device(device)
    return device_bandwidth(index) if kind == "cuda" else host_bandwidth(threads())


def host_bandwidth(threads: int) -> float:
    """Bytes a second that a plain loop moves on the host: the better of reading and copying."""
    data = np.ones(READ_BYTES // 4, np.int32)  # written, so that it is memory of its own
    target = np.empty_like(data)
    edges = [len(data) * i // threads for i in range(threads + 1)]
    slices = [slice(*pair) for pair in pairwise(edges)]

    def read(part: slice) -> None:
        data[part].max()

    def copy(part: slice) -> None:
        np.copyto(target[part], data[part])

    with ThreadPoolExecutor(threads) as pool:
        reading = _best(lambda: list(pool.map(read, slices)))
        copying = _best(lambda: list(pool.map(copy, slices)))
    return max(data.nbytes / reading, 2 * data.nbytes / copying)


def _best(loop: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs after a first one."""
    loop()
    times: list[float] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        loop()
        times.append(time.perf_counter() - began)
    return min(times)


def device_bandwidth(index: int) -> float:
    """Bytes a second that GPU `index` moves in a plain copy."""
    import cupy

    with cupy.cuda.Device(index):
        source = cupy.zeros(READ_BYTES, cupy.uint8)
        target = cupy.empty_like(source)

        def copy() -> None:
            cupy.copyto(target, source)
            cupy.cuda.runtime.deviceSynchronize()

        return 2 * READ_BYTES / _best(copy)
