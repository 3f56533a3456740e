"""Where a decode step's time goes: kernel by kernel on the GPU, and by function on the host.

Run on a GPU from the repository root: python3 -m benchmarks.profile_step 7b 1
Uses torch's profiler where torch is installed, only to read kernel times; llmrs itself needs no torch.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections import defaultdict
from typing import Any

from benchmarks.bench_engine import MODELS, make_engine, random_model, requests
from llmrs_cli.engine.backends.cuda import CudaBackend


def device_profile(engine: Any, steps: int) -> None:
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            engine.step()
        torch.cuda.synchronize()
    events = sorted(
        ((e.time_range.start, e.time_range.end, e.name) for e in profile.events() if e.time_range.end > 0),
        key=lambda e: e[0],
    )
    spans: dict[str, list[float]] = defaultdict(list)
    gaps: dict[str, list[float]] = defaultdict(list)
    last = None
    for start, end, name in events:
        spans[name[:60]].append(end - start)
        if last is not None:
            gaps[name[:60]].append(start - last)
        last = end
    print(f"device: {(events[-1][1] - events[0][0]) / steps:.1f} us a step")
    for name, times in sorted(spans.items(), key=lambda item: -sum(item[1]))[:16]:
        after = sorted(gaps[name])[len(gaps[name]) // 2] if gaps[name] else 0
        median = sorted(times)[len(times) // 2]
        print(
            f"  {sum(times) / steps:9.1f} us a step, {len(times) / steps:6.1f} launches, median {median:7.2f} us,"
            f" gap before {after:6.2f} us  {name}"
        )


def main() -> None:
    name, rows = sys.argv[1], int(sys.argv[2])
    backend = CudaBackend(0)
    model = random_model(backend, name, 4096)
    engine = make_engine(backend, model, name, rows, 1024)
    if rows > 1 and len(sys.argv) > 3 and sys.argv[3] == "mixed":
        engine = make_engine(backend, model, name, rows, 512, busy=192)
        for request in requests(4 * rows, 256, 128, MODELS[name][6], "m"):
            engine.submit(request)
        for _ in range(220):
            engine.step()
        steps = [(t.tokens, round(t.launch * 1e3, 2), round(t.wait * 1e3, 2)) for t in engine.stats().recent]
        print(steps[-40:])
        print(sorted(str(key) for key in backend._graphs._met))
        device_profile(engine, 20)
        return
    sampled = {"temperature": 0.8, "top_p": 0.95} if len(sys.argv) > 3 else {}
    for request in requests(rows, 256 if rows == 1 else 8, 400, MODELS[name][6], "p", **sampled):
        engine.submit(request)
    for _ in range(60):
        engine.step()
    device_profile(engine, 20)
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(100):
        engine.step()
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
    main()
