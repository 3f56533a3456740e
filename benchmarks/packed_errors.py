"""What exact codes are worth: ‖Δy‖ / ‖y‖ of 4-bit products whose weights are rounded in one way or another.

    python3 -m benchmarks.packed_errors [OUT.json]           our kernels on the CPU, from their CUDA source
    python3 -m benchmarks.bench_packed OUT.json              on a GPU, with times: its key "errors"

`Packed` is a matrix as its file means it; each of `ROUNDED` is what a kernel multiplies that feeds the tensor cores
with finished 16-bit weights, in NumPy. Their sums are float64, so what is seen is the weights' rounding alone. The
errors of our kernels are those of their float32 sums before anything is rounded; on a CPU these are sums of float32,
while a tensor core cuts off bits that do not matter much at these lengths.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.marlin_layout import Layout, pack
from llmrs_cli.kernels.packed4 import Packed4Matrix
from llmrs_cli.kernels.packed_large import TilePlan, packed_large, scratch_sizes
from llmrs_cli.kernels.packed_many import packed_many
from llmrs_cli.kernels.packed_many_plans import PackedManyPlan
from llmrs_cli.kernels.packed_small import StreamPlan, packed_small
from llmrs_cli.kernels.packed_wide import packed_wide
from llmrs_cli.kernels.packed_wide_plans import PackedWidePlan
from llmrs_cli.kernels.scratch import Scratch

Wide = NDArray[np.float64]


def narrow(values: NDArray[Any], bf16: bool) -> Wide:
    """To the nearest number of the 16-bit type."""
    single = np.asarray(values, np.float32)
    return np.asarray(bf16_to_f32(f32_to_bf16(single)) if bf16 else single.astype(np.float16), np.float64)


@dataclass(frozen=True, slots=True)
class Packed:
    """W = steps · scale, group by group."""

    steps: Wide
    """(N, K) code minus zero"""
    scales: Wide
    """(N, K / G) float16 values"""

    def values(self) -> Wide:
        """W (N, K)."""
        return self._times(self.scales)

    def rounded(self, bf16: bool) -> Wide:
        """Each weight rounded once: as our slabs for cuBLASLt hold them."""
        return narrow(self.values(), bf16)

    def rounded_twice(self, bf16: bool) -> Wide:
        """Scales in the type of the activations, then their products with codes: the way of Marlin's kernel, and of
        checkpoints whose scales are cast with all else."""
        return narrow(self._times(narrow(self.scales, bf16)), bf16)

    def _times(self, scales: Wide) -> Wide:
        group = self.steps.shape[1] // scales.shape[1]
        return self.steps * np.repeat(scales, group, axis=1)


ROUNDED: dict[str, Callable[[Packed, bool], Wide]] = {
    "code_times_scale_rounded": Packed.rounded,
    "scale_rounded_before": Packed.rounded_twice,
}


def error(found: NDArray[Any], wanted: Wide) -> float:
    """‖found − wanted‖ / ‖wanted‖."""
    return math.sqrt(float(((found - wanted) ** 2).sum() / (wanted**2).sum()))


def rounding_errors(weight: Packed, x: Wide, bf16: bool) -> dict[str, float]:
    """By kind of rounding, of products with (M, K) activations that are 16-bit already."""
    wanted = x @ weight.values().T
    return {name: error(x @ round_(weight, bf16).T, wanted) for name, round_ in ROUNDED.items()}


# -- our kernels, on a CPU that plays the GPU -----------------------------------------------------------------

ROWS, COLUMNS, GROUP = 144, 4864, 128
"""Of the matrix: as long sums as the longest of Qwen2.5-0.5B."""
KERNELS = {"packed_small": (1, 8), "packed_large": (16, 64), "packed_wide": (16, 64), "packed_many": (200,)}
"""Tokens of each; all but the last keep codes exact."""


def random_matrix(rng: np.random.Generator) -> tuple[Packed, Any]:
    """As a file means it, and its tiles as bytes: random codes and zeros with scales near 0.01."""
    shape = ROWS, COLUMNS // GROUP
    codes = rng.integers(0, 256, (ROWS, COLUMNS // 2), np.uint8)
    scales = rng.uniform(0.005, 0.015, shape).astype(np.float16)
    zeros = rng.integers(0, 16, shape).astype(np.uint8)
    q = np.stack([codes & 15, codes >> 4], axis=-1).reshape(ROWS, COLUMNS).astype(np.float64)
    weight = Packed(q - np.repeat(zeros, GROUP, axis=1), scales.astype(np.float64))
    return weight, pack(codes, scales, zeros, GROUP, COLUMNS)


def emulated(folder: Path) -> Iterator[dict[str, Any]]:
    """One record for each kernel, number of tokens, 16-bit type and mean of the activations."""
    from tests.helpers.emulate import EmulatedDevice, host
    from tests.helpers.launches import plain_maps

    device = EmulatedDevice(folder, hopper=True, together=True)
    rng = np.random.default_rng(0)
    weight, tiles = random_matrix(rng)
    matrix = Packed4Matrix(host(tiles.view(np.uint32)), Layout(ROWS, COLUMNS, GROUP))
    cases = [(name, m) for name, tokens in KERNELS.items() for m in tokens]
    for (name, m), bf16, mean in product(cases, (True, False), (0.0, 1.0)):
        values = (rng.standard_normal((m, COLUMNS)) + mean).astype(np.float32)
        bits = f32_to_bf16(values) if bf16 else values.astype(np.float16).view(np.uint16)
        out = host(np.zeros((m, ROWS), np.float32))
        with plain_maps():
            launch(name, device, bf16, matrix, host(bits), out, host)
        x = narrow(values, bf16)
        yield {
            "kernel": name,
            "type": "bf16" if bf16 else "f16",
            "mean": mean,
            "m": m,
            "error": error(out, x @ weight.values().T),
            **rounding_errors(weight, x, bf16),
        }


def launch(
    name: str, device: Any, bf16: bool, matrix: Packed4Matrix, x: Any, out: Any, host: Callable[..., Any]
) -> None:
    """out += x · Wᵀ in float32 by one of KERNELS."""
    add: Epilogue = "add"
    if name == "packed_small":
        packed_small(device, bf16, StreamPlan(3, warps=4, stages=2), add, matrix, out, x=x)
    elif name == "packed_large":
        plan = TilePlan(3, 64 if len(x) > 16 else 16, warps=8, stages=3, resident=1)
        partials, arrivals = scratch_sizes(plan, matrix.layout, len(x))
        scratch = Scratch(host(np.zeros(partials, np.float32)), host(np.zeros(arrivals, np.int32)))
        packed_large(device, bf16, plan, add, matrix, out, scratch, x=x)
    elif name == "packed_wide":
        packed_wide(device, bf16, PackedWidePlan(2, 64 if len(x) > 16 else 16, 1, 2), add, matrix, out, x=x)
    else:
        packed_many(device, bf16, PackedManyPlan(2, 2, 1, 64, "tokens", 1, band=2), "add", matrix, x, out)


def line(record: dict[str, Any]) -> str:
    return (
        f"{record['kernel']:12} {record['type']:4} mean {record['mean']:.0f} M={record['m']:<3} "
        f"{record['error']:.1e}, code · scale rounded {record['code_times_scale_rounded']:.1e}, "
        f"scale rounded before, as Marlin does, {record['scale_rounded_before']:.1e}"
    )


def main() -> None:
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "emulated"
        folder.mkdir()
        for record in emulated(folder):
            found.append(record)
            print(line(record), flush=True)
    shape = {"rows": ROWS, "columns": COLUMNS, "group": GROUP}
    record = {"machine": platform.platform(), "where": "emulated on a CPU", "matrix": shape, "errors": found}
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("packed-errors.json")
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
