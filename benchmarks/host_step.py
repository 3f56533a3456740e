"""What a step costs on the host: planning, staging, launching, reading, committing; with a GPU that only pretends.

Run from the repository root: python3 -m benchmarks.host_step [OUT.json]
The engine, the scheduler, the runner and the CUDA backend's staging are the real ones; recorded graphs and
kernels do nothing and the driver is not there, so these are the microseconds of our own Python.
"""

from __future__ import annotations

import cProfile
import json
import platform
import pstats
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmrs_cli.engine.api import Engine, open_engine
from llmrs_cli.engine.loop import EngineThread
from llmrs_cli.engine.model.spec import ModelSpec, from_config
from llmrs_cli.engine.types import Request, SamplingParams, TokenEvent
from llmrs_cli.engine.weights.random import random_checkpoint
from tests.helpers.fake_cuda import cuda_backend

PROMPT, WARM, STEPS = 256, 40, 300
ROWS = (1, 64, 256)
PARTS = ("plan", "launch", "wait", "commit")


def spec() -> ModelSpec:
    """As deep as the 0.5B, and small enough for memory that is not there."""
    return from_config(
        {
            "model_type": "qwen2",
            "architectures": ["Qwen2ForCausalLM"],
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 24,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": 1024,
            "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
        {},
    )


@contextmanager
def engine_of(rows: int) -> Iterator[Engine]:
    with cuda_backend() as backend:
        backend.device.computes = False
        engine = open_engine(random_checkpoint(spec()), backend, context=1024, rows=rows)
        engine._clock = time.thread_time  # other processes do not count
        yield engine
        engine.close()


def requests(rows: int) -> list[Request]:
    params = SamplingParams(max_tokens=WARM + STEPS + 200, ignore_eos=True, temperature=0.8, top_p=0.95)
    return [Request(f"r{i}", tuple((i * 7 + j) % 90 for j in range(PROMPT)), params) for i in range(rows)]


def decode(rows: int, profiled: bool = False) -> dict[str, float]:
    """Median microseconds of the parts of a decode step."""
    with engine_of(rows) as engine:
        for request in requests(rows):
            engine.submit(request)
        while len(engine.stats().recent) < WARM or engine.stats().recent[-1].tokens > rows:
            engine.step()
        profile = cProfile.Profile()
        if profiled:
            profile.enable()
        began = time.thread_time()
        for _ in range(STEPS):
            engine.step()
        seconds = time.thread_time() - began
        if profiled:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(32)
        recent = engine.stats().recent
        found = {part: round(statistics.median(getattr(t, part) for t in recent) * 1e6, 1) for part in PARTS}
        return found | {"step": round(seconds / STEPS * 1e6, 1)}


def threaded(rows: int) -> float:
    """Microseconds a step through EngineThread, its queue and its sinks."""
    with engine_of(rows) as engine:
        done, left = threading.Event(), rows

        def sink(event: TokenEvent) -> None:
            nonlocal left
            left -= event.finish is not None
            if not left:
                done.set()

        with EngineThread(lambda: engine) as thread:
            steps = WARM + STEPS + 200
            began = time.perf_counter()
            for request in requests(rows):
                thread.submit(request, sink)
            done.wait()
            return round((time.perf_counter() - began) / steps * 1e6, 1)


def main() -> None:
    if sys.argv[1:2] == ["--profile"]:
        decode(int(sys.argv[2]), profiled=True)
        return
    found: dict[str, Any] = {
        "what": "host microseconds of a decode step, sampled, without a driver; medians of 300 steps",
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "rows": {str(rows): decode(rows) | {"threaded step": threaded(rows)} for rows in ROWS},
    }
    print(json.dumps(found, indent=1))
    for out in sys.argv[1:2]:
        Path(out).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
