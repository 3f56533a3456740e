"""Products of a layer with many tokens, each timed as a busy GPU runs it: what many.py and packed_many.py share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.chain import chain_us
from benchmarks.qwen_shapes import MODELS, linears
from benchmarks.variants.table import Table
from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.many_plans import ManyEpilogue

COLD_BYTES, CHAIN_US, FLOPS_PER_US = 200e6, 20e3, 7e8
"""Weights of a chain, and its length at about so many operations."""


@dataclass(frozen=True, slots=True)
class Product:
    """One linear of a layer of a model, of M tokens."""

    name: str
    m: int
    n: int
    k: int
    epilogue: ManyEpilogue

    @property
    def case(self) -> str:
        return f"{self.name} M={self.m} {self.epilogue} {self.n} x {self.k}"

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k

    def rate(self, us: float) -> str:
        """Of a product that took so long; nothing if it was not timed."""
        return f"{self.operations / us / 1e6:.0f} TFLOP/s" if us else ""

    def us(self, run: Callable[[Any], None], weights: Sequence[Any]) -> float:
        """Microseconds of `run`, in a chain over rotating weights that is long enough for the clock of a busy GPU."""
        total = max(4, int(CHAIN_US / (self.operations / FLOPS_PER_US)))
        return chain_us([partial(run, weight) for weight in weights], total)

    def tell(self, table: Table, variant: str, us: float, guess: float, error: float, limit: float) -> None:
        """A plan's line."""
        verdict = f"error {error:.1e} {'ok' if error < limit else 'FAIL'}"
        table.add(self.case, variant, us, f"{self.rate(us)} guess {guess:.0f}, {verdict}")


def copies(nbytes: int) -> int:
    """How many matrices of so many bytes no cache holds, two at least."""
    return max(2, ceil_div(int(COLD_BYTES), nbytes))


def layers(arguments: Sequence[str], sizes: Sequence[int]) -> dict[tuple[str, int], list[Product]]:
    """Products by model and M, of those among the arguments: by default the 7B at `sizes`."""
    return {
        (name, m): [Product(name, m, n, k, kind) for n, k, kind in linears(name) if kind != "logits"]
        for name in [a for a in arguments if a in MODELS] or ["7b"]
        for m in [int(a) for a in arguments if a.isdigit()] or sizes
    }
