"""The server alone: tokens a second through HTTP, before an engine that computes nothing.

    python -m benchmarks.http_parent [--out benchmarks/http-parent.json] [--streams 64] [--tokens 1024]

A stub stands where the engine's process is (`stub_engine`); everything else is the server as it is: pipe,
decoding to text (Qwen2.5's tokenizer), server-sent events, HTTP over loopback. One run with tokens as fast as
the pipe takes them, and one at a pace of `--step-ms`, as a small model on a large GPU gives them. The cost of a
token is the CPU time of the server's process; the client runs beside it. Each three times.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.watched_server import NAME, Setup, Watched
from llmrs_cli.server.load import Plan, run
from tests.helpers.tiny_model import TinyModel, write_tiny

QWEN = Path(__file__).parent.parent / "tests/data/tokenizers/qwen2.5"


ROUNDS = 3
WORDS = 100_000
"""Ids that stand for text in Qwen's vocabulary."""


def write_model(folder: Path) -> None:
    """A checkpoint with Qwen's real tokenizer; its weights are only there to be opened."""
    write_tiny(folder, TinyModel(vocab=151_936, hidden=16, ffn=32, layers=1, heads=2, kv_heads=1, tied=True))
    with gzip.open(QWEN / "tokenizer.json.gz") as packed:
        (folder / "tokenizer.json").write_bytes(packed.read())
    shutil.copy(QWEN / "tokenizer_config.json", folder)


async def measure(folder: Path, plan: Plan, step_ms: float) -> dict[str, Any]:
    command = (sys.executable, "-m", "benchmarks.stub_engine", str(step_ms), str(WORDS))
    with Watched(Setup(str(folder), command=command)) as server:
        await server.ready()
        await run(server.target, replace(plan, prompts=plan.prompts // 4, seed=99), lambda done, whole: None)
        before = server.cpu_seconds()
        figures = await run(server.target, plan, lambda done, whole: None)
        spent = server.cpu_seconds() - before
    tokens = figures["total_output_tokens"]
    return {
        "tok_s": round(figures["output_throughput"], 1),
        "failed": figures["failed"],
        "server_us_a_token": round(spent / tokens * 1e6, 2),
        "server_cpu_share": round(spent / figures["duration"], 3),
        "tok_s_of_a_whole_core": round(tokens / spent, 1),
        "tokens_a_piece": round(tokens / figures["pieces"], 2),
        "median_itl_ms": round(figures["median_itl_ms"], 3),
        "p99_itl_ms": round(figures["p99_itl_ms"], 3),
        "median_ttft_ms": round(figures["median_ttft_ms"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--step-ms", type=float, default=2.9)
    given = parser.parse_args()
    plan = Plan(
        NAME,
        150_000,
        prompts=4 * given.streams,
        input_tokens=256,
        output_tokens=given.tokens,
        concurrency=given.streams,
    )
    with tempfile.TemporaryDirectory(prefix="llmrs-") as name:
        write_model(Path(name))

        def rounds(step_ms: float) -> list[dict[str, Any]]:
            return [asyncio.run(measure(Path(name), plan, step_ms)) for _ in range(ROUNDS)]

        report = {
            "date": time.strftime("%Y-%m-%d"),
            "command": "python -m " + " ".join(["benchmarks.http_parent", *sys.argv[1:]]),
            "cores": len(os.sched_getaffinity(0)),
            "load_before": round(os.getloadavg()[0], 2),
            "streams": given.streams,
            "as fast as it goes": rounds(0.0),
            f"a step every {given.step_ms:g} ms": rounds(given.step_ms),
        }
    print(json.dumps(report, indent=1))
    if given.out:
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
