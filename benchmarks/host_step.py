"""What a step costs on the host, and what lies before a prompt's first launch; with a GPU that only pretends.

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
LONG, PROMPTS = 1200, 60
"""Tokens of a prompt that comes to an idle engine, and how many such are timed."""
EMPTIED = 48 << 20
"""Bytes that are written before each of them, since the host's caches hold other things by then."""
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
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
        {},
    )


@contextmanager
def engine_of(rows: int) -> Iterator[Engine]:
    with cuda_backend() as backend:
        backend.device.computes = False
        engine = open_engine(random_checkpoint(spec()), backend, context=2048, rows=rows)
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


def first() -> dict[str, float]:
    """Median microseconds from a prompt's submit to the launch of its body, and until its first step is launched."""
    with engine_of(ROWS[-1]) as engine:
        backend: Any = engine._runner._backend  # type: ignore[attr-defined]
        run, launches = backend.run, list[float]()

        def timed(*asked: Any) -> Any:
            launches.append(time.thread_time())
            return run(*asked)

        backend.run = timed
        params, found, junk = SamplingParams(max_tokens=2, temperature=0.8), [], bytearray(EMPTIED)
        for i in range(PROMPTS):
            request = Request(f"r{i}", tuple((i * 331 + j * 31) % 1024 for j in range(LONG)), params)
            junk[:] = bytes(EMPTIED)
            launches.clear()
            times = [time.thread_time()]
            engine.submit(request)
            times.append(time.thread_time())
            engine.step()
            times += launches[0], time.thread_time()
            found.append([(time - times[0]) * 1e6 for time in times[1:]])
            while engine.has_work:
                engine.step()
        names = "submitted", "body launched", "step launched"
        return {
            name: round(statistics.median(column), 1)
            for name, column in zip(names, zip(*found[PROMPTS // 4 :], strict=True), strict=True)
        }


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
        "what": "host microseconds without a driver: of a decode step, sampled, medians of 300 steps; and since submit,"
        " of a prompt that comes to an idle engine and cold caches",
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        f"first step of {LONG} tokens": first(),
        "rows": {str(rows): decode(rows) | {"threaded step": threaded(rows)} for rows in ROWS},
    }
    print(json.dumps(found, indent=1))
    for out in sys.argv[1:2]:
        Path(out).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
