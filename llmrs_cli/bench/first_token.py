"""A process that opens a model, gives one token and says when it got how far: what `startup` starts.

    python -m llmrs_cli.bench.first_token PATH DEVICE

PATH is a model's folder or file. One line of JSON: seconds since this module began, by milestone, and how fast the weights went.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

BEGAN = time.perf_counter()
PROMPT = 256
BUS_BYTES = 1 << 28


def main(path: str, device: str) -> None:
    """Open, answer, report."""
    from llmrs_cli.bench.client import Ask, serve
    from llmrs_cli.engine.api import open_engine
    from llmrs_cli.engine.backends.registry import open_backend
    from llmrs_cli.engine.loop import EngineThread
    from llmrs_cli.engine.weights.checkpoint import open_checkpoint

    marks = {"imported_s": time.perf_counter() - BEGAN}
    checkpoint = open_checkpoint(Path(path))
    loading: list[float] = []

    def progress(_: int, __: int) -> None:
        loading.append(time.perf_counter() - BEGAN)

    prompt = min(PROMPT, checkpoint.spec.max_context // 2)
    with EngineThread(
        lambda: open_engine(checkpoint, open_backend(device), context=2 * prompt, rows=1, progress=progress)
    ) as engine:
        marks |= {"first_weight_s": loading[0], "last_weight_s": loading[-1]}
        marks["ready_s"] = time.perf_counter() - BEGAN
        serve(engine, [Ask(tuple(i % engine.vocab for i in range(prompt)), 1)])
        marks["first_token_s"] = time.perf_counter() - BEGAN
    if device.startswith("cuda"):
        marks["bus_gb_per_s"] = bus_rate() / 1e9
    size = sum(parameter.nbytes for parameter in checkpoint.parameters.values())
    print(json.dumps({**marks, "weight_bytes": size}), flush=True)


def bus_rate() -> float:
    """Bytes a second from pinned host memory to the GPU: the best of some copies."""
    import cupy

    target = cupy.empty(BUS_BYTES, cupy.uint8)
    source = cupy.cuda.alloc_pinned_memory(BUS_BYTES)
    times = []
    for _ in range(6):
        cupy.cuda.Device().synchronize()
        began = time.perf_counter()
        cupy.cuda.runtime.memcpyAsync(target.data.ptr, source.ptr, BUS_BYTES, 1, 0)
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - began)
    return BUS_BYTES / min(times)


if __name__ == "__main__":
    main(*sys.argv[1:])
