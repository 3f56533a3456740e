"""Speed over HTTP beside the engine's own: the same work offline and through `llmrs serve`, random weights.

    python -m benchmarks.bench_http OUT.json [--device cuda] [qwen2.5-7b qwen2.5-0.5b | tiny]

64 streams at once, 256 tokens in and 128 out, 256 requests of random ids, greedy. Offline: the engine's own loop
in a process of its own, 64 rows. Over HTTP: the server with the engine in its child, the load generator of
`llmrs bench serve` in this process. Targets: 90 % of the engine's tokens a second for the 7B and 50 % for the
0.5B; where tokens come one by one, a median time between them at most 10 % above the engine's step (the 0.5B's are faster
than a client takes them, and share events).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.random_model import random_model
from benchmarks.watched_server import NAME, Setup, Watched
from llmrs_cli.engine import Request, SamplingParams, open_engine
from llmrs_cli.engine.api import Engine
from llmrs_cli.engine.backends.registry import open_backend
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.server.load import Plan, bodies, run

STREAMS, CONTEXT = 64, 512
SHARES = {"qwen2.5-7b": 0.9, "qwen2.5-0.5b": 0.5}
"""Of the engine's tokens a second, at least."""
VLLM = {"qwen2.5-7b": 8034.0, "qwen2.5-0.5b": 21173.0}
"""Tokens a second of vLLM 0.24.0's offline engine at the same work on one H200."""
MOST_ITL, ONE_BY_ONE = 1.1, 1.1
"""Of the engine's median time between two tokens, at most, if an event brings so many on average."""


def plan_of(vocab: int, requests: int, seed: int) -> Plan:
    return Plan(
        NAME,
        vocab,
        prompts=requests,
        input_tokens=256,
        output_tokens=128,
        concurrency=STREAMS,
        seed=seed,
    )


# -- the engine alone --------------------------------------------------------------------------------------


def engine_alone(folder: Path, device: str, requests: int) -> dict[str, float]:
    """The figures of the engine's own loop."""
    engine = open_engine(open_checkpoint(folder), open_backend(device), context=CONTEXT, rows=STREAMS)
    try:
        work(engine, plan_of(engine.vocab, STREAMS, seed=1))
        return work(engine, plan_of(engine.vocab, requests, seed=2))
    finally:
        engine.close()


def work(engine: Engine, plan: Plan) -> dict[str, float]:
    for i, body in enumerate(bodies(plan)):
        params = SamplingParams(max_tokens=body["max_tokens"], ignore_eos=True)
        engine.submit(Request(f"{plan.seed}-{i}", tuple(body["prompt"]), params))
    began, tokens, last, gaps = time.perf_counter(), 0, dict[str, float](), list[float]()
    while engine.has_work:
        events, now = engine.step(), time.perf_counter()
        for event in events:
            if event.request_id in last:
                gaps.append(now - last[event.request_id])
            last[event.request_id] = now
            tokens += len(event.tokens)
    return {
        "tok_s": round(tokens / (time.perf_counter() - began), 1),
        "median_itl_ms": round(1e3 * statistics.median(gaps), 3),
        "median_step_ms": round(1e3 * statistics.median(t.total for t in engine.stats().recent), 3),
    }


# -- over HTTP -----------------------------------------------------------------------------------------------


async def over_http(folder: Path, device: str, requests: int) -> dict[str, Any]:
    setup = Setup(str(folder), device, rows=STREAMS, context=CONTEXT)
    with Watched(setup) as server:
        began = time.monotonic()
        await server.ready()
        start = time.monotonic() - began
        vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        await run(server.target, plan_of(vocab, STREAMS, seed=1), lambda done, whole: None)
        await server.look()
        before = server.cpu_seconds()
        figures = await run(server.target, plan_of(vocab, requests, seed=2), lambda done, whole: None)
        spent = server.cpu_seconds() - before
        window = await server.look()
    return {
        "tok_s": round(figures["output_throughput"], 1),
        "failed": figures["failed"],
        "seconds_to_ready": round(start, 2),
        "tokens_a_piece": round(figures["total_output_tokens"] / figures["pieces"], 3),
        "server_us_a_token": round(1e6 * spent / figures["total_output_tokens"], 2),
        "loop_lag_p99_ms": window["loop_lag_p99_ms"],
        **{
            f"{kind}_{name}_ms": round(figures[f"{kind}_{name}_ms"], 3)
            for name in ("ttft", "itl", "tpot")
            for kind in ("median", "p99")
        },
    }


def compare(name: str, device: str, requests: int) -> dict[str, Any]:
    with random_model(name) as folder:
        command = [sys.executable, "-m", "benchmarks.bench_http", "--engine", str(folder)]
        alone = subprocess.run(
            [*command, "--device", device, "--requests", str(requests)], stdout=subprocess.PIPE, check=True
        )
        engine = json.loads(alone.stdout.splitlines()[-1])
        http = asyncio.run(over_http(folder, device, requests))
    share = http["tok_s"] / engine["tok_s"]
    itl = http["median_itl_ms"] / engine["median_itl_ms"]
    return {
        "model": name,
        "engine": engine,
        "http": http,
        "share_of_engine": round(share, 3),
        "itl_of_engine": round(itl, 3),
        "vllm_offline_tok_s": VLLM.get(name),
        "met": not http["failed"]
        and share >= SHARES.get(name, 0.0)
        and (itl <= MOST_ITL or http["tokens_a_piece"] > ONE_BY_ONE),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", type=Path, default=Path("http.json"))
    parser.add_argument("models", nargs="*", default=list(SHARES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--engine", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.engine:
        print(json.dumps(engine_alone(given.engine, given.device, given.requests)))
        return 0
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m " + " ".join(["benchmarks.bench_http", *sys.argv[1:]]),
        "machine": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "device": given.device,
        "method": f"{STREAMS} streams, 256 + 128 tokens, {given.requests} requests, random bf16 weights, greedy",
        "records": (records := list[dict[str, Any]]()),
    }
    for name in given.models:
        records.append(compare(name, given.device, given.requests))
        print(json.dumps(records[-1], indent=1), flush=True)
        given.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(record["met"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
