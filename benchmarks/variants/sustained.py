"""Plans of linear_many for products of a layer, and cuBLASLt, for as long as the board's power decides.

Run on a GPU from the repository root, under a minute for one model and two sizes:
python3 -m benchmarks.variants.sustained OUT.json [7b 3b] [512 1216 2048 …]
Each case is a chain over rotating weights that is replayed without a pause. A board at its limit of power swings by
10 % for a tenth of a second after any change, so all cases of a product take turns, each time in another order, and
their medians count. cuBLASLt's time has SiLU·mul or the sum with the residual in it. What would be chosen is tried,
with bands of other heights too, and those plans that the guess of many_plans ranks first among tiles large enough to
take little energy. The best of each product come last.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import cupy as cp

from benchmarks.variants.check import LIMIT
from benchmarks.variants.layer_products import FLOPS_PER_US, Product, layers
from benchmarks.variants.many import Chain, guess, label, wrong
from benchmarks.variants.table import Table
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.linear_many import unit
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.many_plans import ManyPlan, Shared, plan_for, plans

SIZES = (1216, 2048)
LARGE = ((2, 2, 192), (2, 2, 176), (2, 2, 160), (3, 1, 192), (2, 1, 256))
"""Tiles that read little for what they multiply."""
TRIED: tuple[tuple[Shared, int], ...] = (("rows", 3), ("tokens", 2), ("nothing", 1))
"""How many plans of which kind, the cheapest by the guess."""
ROUNDS, SECONDS = 6, 0.1
LIBRARY = "cuBLASLt"
REPLAY_US, AHEAD = 5e3, 2
"""Of one replay of a chain, about; and how many are enqueued."""


def candidates(product: Product, multiprocessors: int) -> list[ManyPlan]:
    """What would be chosen first, then the others, each once."""
    chosen = plan_for(product.m, product.n, product.k, multiprocessors)
    found = [chosen]
    if chosen is not None:
        whole = ceil_div(product.m, chosen.tokens * (2 if chosen.shared == "rows" else 1))
        found += [replace(chosen, band=height) for height in (whole, ceil_div(whole, 2), ceil_div(whole, 4))]
    large = [plan for plan in plans(product.m, product.n, multiprocessors) if plan.tile in LARGE]
    ranked = sorted(large, key=partial(guess, product))
    for kind, count in TRIED:
        found += [plan for plan in ranked if plan.shared == kind][:count]
    return list(dict.fromkeys(plan for plan in found if plan is not None))


class Replays:
    """A captured chain of launches that runs without a pause: another one always waits behind it."""

    def __init__(self, launches: Sequence[Callable[[], None]], total: int) -> None:
        cp.cuda.Device().synchronize()  # what the caller prepared on other streams
        self._total, self._stream = total, cp.cuda.Stream(non_blocking=True)
        with self._stream:
            launches[0]()
            self._stream.synchronize()
            self._stream.begin_capture()
            for i in range(total):
                launches[i % len(launches)]()
            self._graph = self._stream.end_capture()

    def us(self) -> float:
        """Microseconds of a launch, over SECONDS."""
        start, last = cp.cuda.Event(), cp.cuda.Event()
        waiting: deque[cp.cuda.Event] = deque()
        replays, end = 0, time.perf_counter() + SECONDS
        start.record(self._stream)
        while time.perf_counter() < end:
            while len(waiting) < AHEAD:
                self._graph.launch(self._stream)
                waiting.append(cp.cuda.Event(disable_timing=True))
                waiting[-1].record(self._stream)
                replays += 1
            while waiting and waiting[0].done:
                waiting.popleft()
        last.record(self._stream)
        last.synchronize()
        return float(cp.cuda.get_elapsed_time(start, last)) * 1e3 / (replays * self._total)


def compare(table: Table, device: CudaDevice, gemm: Gemm, product: Product) -> str:
    """cuBLASLt, then each plan; what is told of the best."""
    tried = candidates(product, device.multiprocessors)
    errors = list(wrong(device, gemm, product, tried))
    chain = Chain(device, gemm, product)
    total = max(4, int(REPLAY_US / (product.operations / FLOPS_PER_US)))
    cases: dict[str, tuple[Replays, str]] = {}

    def add(variant: str, run: Callable[[cp.ndarray], None], note: str) -> None:
        cases[variant] = Replays([partial(run, weight) for weight in chain.weights], total), note

    add(LIBRARY, chain.library, "")
    for plan, error in zip(tried, errors, strict=True):
        if error < LIMIT:
            add(label(plan), partial(chain.ours, plan), f", guess {guess(product, plan):.0f}")
        else:
            table.add(product.case, label(plan), 0.0, f"error {error:.1e} FAIL")
    seen: dict[str, list[float]] = {variant: [] for variant in cases}
    order, draw = list(cases), random.Random(0)
    for _ in range(ROUNDS):
        draw.shuffle(order)
        for variant in order:
            seen[variant].append(cases[variant][0].us())
    found: list[tuple[float, str]] = []
    for variant, (_, note) in cases.items():
        us = statistics.median(seen[variant])
        table.add(product.case, variant, us, f"{product.rate(us)}{note}")
        found.append((us, f"{variant}, {us:.1f} us, {product.rate(us)}"))
    library = found[0][0]
    us, told = min(found)
    return f"{product.case}: {told}, {us / library:.1%} of cuBLASLt's"


def main() -> None:
    began = time.monotonic()
    table = Table(Path(sys.argv[1]))
    device, gemm = CudaDevice(0, CubinCache(default_cache())), Gemm()
    products = [product for found in layers(sys.argv[2:], SIZES).values() for product in found]
    device.build(
        tuple(
            dict.fromkeys(
                unit(True, plan, product.epilogue)
                for product in products
                for plan in candidates(product, device.multiprocessors)
            )
        )
    )
    best = []
    for product in products:
        best.append(compare(table, device, gemm, product))
        cp.get_default_memory_pool().free_all_blocks()
    print(*best, f"{time.monotonic() - began:.0f} s in all", sep="\n", flush=True)


if __name__ == "__main__":
    main()
