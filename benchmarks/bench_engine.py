"""End to end on a GPU with random weights: one request, many at once, first-token times, prefill.

Run from the repository root: python3 -m benchmarks.bench_engine OUT.json [7b 3b 0.5b]
Every figure goes through the engine's own API; weights are random bits in the real shapes.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

from benchmarks.chain import random_bits
from llmrs_cli.engine.api import Engine
from llmrs_cli.engine.backends.base import RowLimits
from llmrs_cli.engine.backends.cuda import CudaBackend
from llmrs_cli.engine.backends.cuda_linear import CudaLinear
from llmrs_cli.engine.backends.handles import Geometry, LayerWeights, ModelWeights
from llmrs_cli.engine.limits import EngineLimits
from llmrs_cli.engine.runner import Runner
from llmrs_cli.engine.scheduler import Scheduler
from llmrs_cli.engine.types import Request, SamplingParams

# C, layers, heads, kv heads, head size, F, vocabulary, tied
MODELS = {
    "7b": (3584, 28, 28, 4, 128, 18944, 152064, False),
    "3b": (2048, 36, 16, 2, 128, 11008, 151936, True),
    "0.5b": (896, 24, 14, 2, 64, 4864, 151936, True),
}


def linear(n: int, k: int, bias: bool = False) -> CudaLinear:
    weight = random_bits(n * k, 0.02).reshape(n, k)
    return CudaLinear(
        weight,
        cp.zeros(n, cp.float32) if bias else None,
        cp.zeros(n, cp.uint16) if bias else None,
        True,
        "random",
    )


def random_model(backend: CudaBackend, name: str, context: int) -> ModelWeights:
    c, layers, heads, kv_heads, d, f, vocab, tied = MODELS[name]
    backend._bf16 = True
    geometry = Geometry(heads, kv_heads, d, 1e-6)
    ones = cp.ones(c, cp.float32)
    angles = np.outer(np.arange(context + 1), 1e6 ** -(np.arange(d // 2) * 2 / d))
    rope = backend.prepare_rope(np.cos(angles), np.sin(angles))
    stack = tuple(
        LayerWeights(
            geometry=geometry,
            attention_norm=ones,
            qkv=linear((heads + 2 * kv_heads) * d, c, bias=True),
            q_norm=None,
            k_norm=None,
            o=linear(c, heads * d),
            mlp_norm=ones,
            gate_up=linear(2 * f, c),
            down=linear(c, f),
        )
        for _ in range(layers)
    )
    embedding = linear(vocab, c)
    return ModelWeights(embedding, rope, stack, ones, embedding if tied else linear(vocab, c), 1e-6)


def make_engine(
    backend: CudaBackend, model: ModelWeights, name: str, rows: int, context: int, busy: int = 256
) -> Engine:
    _, layers, _, kv_heads, d, _, vocab, _ = MODELS[name]
    blocks = rows * -(-context // backend.block_size) + 64
    limits = EngineLimits(rows, context, blocks, backend.block_size, max(busy, rows + 128), 8192)
    kv = backend.alloc_kv(layers, blocks, kv_heads, d)
    state = backend.open_rows(RowLimits(rows, context, vocab))
    return Engine(
        Scheduler(limits), Runner(backend, model, kv, state), vocab=vocab, lookahead=backend.lookahead
    )


def requests(count: int, prompt: int, answer: int, vocab: int, tag: str, **params: Any) -> list[Request]:
    rng = np.random.default_rng(abs(hash(tag)) % 2**32)
    return [
        Request(
            f"{tag}{i}",
            tuple(rng.integers(0, vocab, prompt).tolist()),
            SamplingParams(max_tokens=answer, ignore_eos=True, **params),
        )
        for i in range(count)
    ]


def serve(engine: Engine, work: Sequence[Request]) -> dict[str, Any]:
    """Submit all at once; seconds to the first token of the first request, to the end, tokens."""
    start = time.perf_counter()
    for request in work:
        engine.submit(request)
    first, tokens, steps = 0.0, 0, 0
    while engine.has_work:
        events = engine.step()
        steps += 1
        tokens += sum(len(event.tokens) for event in events)
        if tokens and not first:
            first = time.perf_counter() - start
    return {"first": first, "seconds": time.perf_counter() - start, "tokens": tokens, "steps": steps}


def host_times(engine: Engine) -> dict[str, float]:
    """Median milliseconds of the recent steps: planning, launching, waiting, committing."""
    recent = [timing for timing in engine.stats().recent if timing.tokens][-100:]
    return {
        part: round(statistics.median(getattr(timing, part) for timing in recent) * 1e3, 3)
        for part in ("plan", "launch", "wait", "commit", "total")
    }


def graph_times(backend: CudaBackend) -> dict[str, float]:
    """Milliseconds of one replay of each recorded body, by its key."""
    times = {}
    for key, (graph, _) in backend._graphs._graphs.items():
        stream = cp.cuda.get_current_stream()
        start, end = cp.cuda.Event(), cp.cuda.Event()
        graph.launch(stream)
        start.record(stream)
        for _ in range(5):
            graph.launch(stream)
        end.record(stream)
        end.synchronize()
        times[str(key)] = round(cp.cuda.get_elapsed_time(start, end) / 5, 3)
    return times


def bench(name: str) -> dict[str, Any]:
    backend = CudaBackend(0)
    vocab = MODELS[name][6]
    model = random_model(backend, name, 4096)
    out: dict[str, Any] = {"model": name}

    engine = make_engine(backend, model, name, 1, 2048)
    for repeat in range(4):
        run = serve(engine, requests(1, 256, 128, vocab, f"a{repeat}"))
        out["single_ms_per_token"] = (run["seconds"] - run["first"]) / 127 * 1e3
        out["ttft_256_ms"] = run["first"] * 1e3
    out["host_1"] = host_times(engine)
    for repeat in range(3):
        run = serve(engine, requests(1, 256, 128, vocab, f"s{repeat}", temperature=0.8, top_p=0.95))
        out["single_sampled_ms_per_token"] = (run["seconds"] - run["first"]) / 127 * 1e3
    for repeat in range(4):
        out["ttft_1200_ms"] = serve(engine, requests(1, 1200, 2, vocab, f"b{repeat}"))["first"] * 1e3
    print(out, flush=True)
    for rows in (64, 256):
        engine = make_engine(backend, model, name, rows, 512, busy=192)
        for repeat in range(2):
            run = serve(engine, requests(256, 256, 128, vocab, f"c{rows}{repeat}"))
        out[f"throughput_{rows}"] = run["tokens"] / run["seconds"]
        out[f"throughput_{rows}_steps"] = run["steps"]
        run = serve(engine, requests(rows, 8, 128, vocab, f"d{rows}"))
        out[f"decode_{rows}_step_ms"] = (run["seconds"] - run["first"]) / 127 * 1e3
        out[f"host_{rows}"] = host_times(engine)
        print(out, flush=True)
    engine = make_engine(backend, model, name, 16, 2112)
    for repeat in range(2):
        run = serve(engine, requests(16, 2048, 1, vocab, f"e{repeat}"))
    out["prefill_tok_s"] = 16 * 2048 / run["seconds"]
    out["graphs"] = graph_times(backend)
    print(out, flush=True)
    backend.close()
    return out


def main() -> None:
    records = []
    for name in sys.argv[2:] or list(MODELS):
        records.append(bench(name))
        gc.collect()
        cp.get_default_memory_pool().free_all_blocks()
        Path(sys.argv[1]).write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
