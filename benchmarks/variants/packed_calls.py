"""Gate and up of few tokens, timed as `llmrs bench kernels` does and as a chain of benchmarks.variants.packed: what differs.

Run on a GPU from the repository root: python3 -m benchmarks.variants.packed_calls OUT.json [7b] [1 8]
The kernel is the same. The chain gives all its launches one residual and one norm, which stay in the cache; `bench` has one
of each for every layer, and comes after a while of reading files, in which a GPU's clock falls. Rows go from the one to the
other, a difference at a time; `rested` sleeps before it is timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cupy as cp

from benchmarks.bench_packed import GROUP, matrices, read_us
from benchmarks.chain import chain_us
from benchmarks.qwen_shapes import MODELS
from benchmarks.variants.table import Table
from llmrs_cli.bench.clock import ChainClock
from llmrs_cli.engine.backends.cuda import CudaBackend
from llmrs_cli.engine.backends.cuda_packed import PackedLinear
from llmrs_cli.engine.backends.cuda_results import CudaHidden
from llmrs_cli.engine.backends.handles import Geometry, LayerWeights
from llmrs_cli.kernels.marlin_layout import Layout

CHAIN, BENCH = 28, 8
"""Layers of a chain, and those that `llmrs bench kernels` loads of a model of 7 billion weights."""
REST = 3.0
"""Seconds without work."""
EPS = 1e-6
Call = Callable[[], None]


def layer(name: str, gate_up: PackedLinear, norm: Any) -> LayerWeights:
    """One of which only gate and up are run."""
    _, _, heads, kv_heads, d, *_ = MODELS[name]
    return LayerWeights(
        Geometry(heads, kv_heads, d, EPS), norm, gate_up, None, None, gate_up, norm, gate_up, gate_up
    )


def call(backend: CudaBackend, hidden: CudaHidden, one: LayerWeights) -> Call:
    def run() -> None:
        backend.norm_gate_up(hidden, one)

    return run


def rested(calls: Sequence[Call]) -> float:
    """Microseconds by the clock of `llmrs bench`, after a rest."""
    cp.cuda.Device().synchronize()
    time.sleep(REST)
    return clocked(calls)


def clocked(calls: Sequence[Call]) -> float:
    """The same while the GPU is warm."""
    return ChainClock().seconds(calls) * 1e6


def rows(
    backend: CudaBackend, name: str, held: Sequence[PackedLinear], m: int
) -> list[tuple[str, Callable[[Sequence[Call]], float], list[Call]]]:
    """(label, how it is timed, calls), from the chain's way to bench's."""
    c = MODELS[name][0]
    norms = [cp.ones(c, cp.float32) for _ in held]
    hidden = [CudaHidden(cp.random.standard_normal((m, c), dtype=cp.float32)) for _ in held]

    def calls(count: int, own_norm: bool, own_residual: bool) -> list[Call]:
        made: list[Call] = []
        for i in range(count):
            one = layer(name, held[i], norms[i if own_norm else 0])
            made.append(call(backend, hidden[i if own_residual else 0], one))
        return made

    return [
        ("a chain", chain_us, calls(CHAIN, False, False)),
        ("a norm each", chain_us, calls(CHAIN, True, False)),
        ("a residual each", chain_us, calls(CHAIN, False, True)),
        ("both", chain_us, calls(CHAIN, True, True)),
        ("both, few layers", chain_us, calls(BENCH, True, True)),
        ("both, few layers, clock of bench", clocked, calls(BENCH, True, True)),
        ("the same, rested", rested, calls(BENCH, True, True)),
        ("the same again", clocked, calls(BENCH, True, True)),
        ("a chain, rested", rested, calls(CHAIN, False, False)),
        ("a chain again", chain_us, calls(CHAIN, False, False)),
    ]


def main() -> None:
    table, words = Table(Path(sys.argv[1])), sys.argv[2:]
    sizes = [int(word) for word in words if word.isdigit()] or [1, 8]
    for name in [word for word in words if word in MODELS] or ["7b"]:
        c, f = MODELS[name][0], MODELS[name][5]
        backend = CudaBackend(0)
        backend._bf16, backend._units.groups = False, {GROUP}
        units = matrices(Layout(2 * f, c, GROUP), CHAIN)
        floor = read_us(backend.device, units)
        table.add(f"{name} gate_up read", "read_all", floor)
        held = [PackedLinear(matrix, None, None, False, "random") for matrix in units]
        for m in sizes:
            for label, timed, calls in rows(backend, name, held, m):
                us = timed(calls)
                table.add(f"{name} gate_up M={m}", label, us, f"{floor / us:.0%} of a read")
        backend.close()


if __name__ == "__main__":
    main()
