"""Attention by blocks of their own for each sequence, against rotation and decode attention in two kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from llmrs_cli.kernels import attend_decode as decode
from llmrs_cli.kernels import attend_few as few
from llmrs_cli.kernels.attend_few import FewPlan, Rotation, attend_few, default_plan
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.rope_store import rope_store
from tests.gpu.halves import TYPES, cp, error, halves, rounding, widened

CONTEXTS = (1, 63, 64, 65, 300, 1000, 17, 16, 129)
EPS = 1e-6
BLOCKS = 13
"""Of decode attention."""
Result = tuple[Any, tuple[Any, Any]]
"""(out, (keys, values))"""


def on_device(values: Any) -> Any:
    return cp.asarray(np.asarray(values, np.int32))


@dataclass
class Case:
    """One step of sequences over random pages; those of context 0 are padding."""

    bf16: bool
    contexts: Sequence[int]
    heads: int
    kv_heads: int
    d: int
    normed: bool = False
    window: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.d + self.heads)
        count, d = len(self.contexts), self.d
        pages = [-(-context // 64) for context in self.contexts]
        cut = np.cumsum([0, *pages])
        tables = np.full((count, max(pages)), -1, np.int32)
        order = rng.permutation(cut[-1])
        for row, own in enumerate(pages):
            tables[row, :own] = order[cut[row] : cut[row + 1]]
        self.newest = np.maximum(np.array(self.contexts) - 1, 0)
        self.slots = np.where(
            np.array(self.contexts) > 0,
            tables[np.arange(count), self.newest // 64] * 64 + self.newest % 64,
            -1,
        )
        bits = rng.standard_normal((2, cut[-1], self.kv_heads, 64, d))
        self.caches = halves(bits[0], self.bf16)[0], halves(bits[1], self.bf16)[0]
        width = (self.heads + 2 * self.kv_heads) * d
        self.qkv, _ = halves(rng.standard_normal((count, width)) * 2, self.bf16)
        angles = np.outer(np.arange(max(self.contexts) + 1), 1e4 ** -(np.arange(d // 2) * 2 / d))
        self.table = cp.asarray(np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))
        norms = rng.uniform(0.5, 2, (2, d)).astype(np.float32)
        self.norms = (cp.asarray(norms[0]), cp.asarray(norms[1])) if self.normed else (None, None)
        chunk = decode.chunk_pages(int(cut[-1]), max(pages), max(BLOCKS // self.kv_heads, 1))
        self.fixed = (
            on_device(tables), on_device(range(count)), on_device(self.contexts), on_device(range(count + 1)),
            on_device([*cut, chunk]),
        )  # fmt: skip

    def out(self) -> Any:
        return cp.full((len(self.contexts), self.heads * self.d), 0x7FFF, cp.uint16)

    def apart(self, device: CudaDevice) -> Result:
        """What two kernels give."""
        count, out = len(self.contexts), self.out()
        caches = self.caches[0].copy(), self.caches[1].copy()
        q = cp.zeros((count, self.heads, self.d), cp.uint16)
        rope_store(
            device, self.bf16, self.qkv, on_device(self.newest), on_device(self.slots), self.table, self.norms, EPS,
            q, *caches,
        )  # fmt: skip
        width = self.heads // self.kv_heads * (self.d + decode.EXTRA)
        partials = cp.full((decode.partial_slots(BLOCKS, count, self.kv_heads), width), np.nan, cp.float32)
        arrivals = cp.zeros(count * self.kv_heads, cp.int32)
        decode.attend_decode(
            device, self.bf16, q, *caches, *self.fixed, out, partials, arrivals,
            blocks=BLOCKS, scale=self.d**-0.5, window=self.window,
        )  # fmt: skip
        return out, caches

    def inside(self, device: CudaDevice, plan: FewPlan, **how: Any) -> Result:
        """What the one gives."""
        caches, out = (self.caches[0].copy(), self.caches[1].copy()), self.out()
        attend_few(
            device, self.bf16, self.qkv, *caches, *self.fixed, out, plan=plan, scale=self.d**-0.5,
            window=self.window, rotation=Rotation(self.table, self.norms[0], self.norms[1], EPS), **how,
        )  # fmt: skip
        return out, caches

    def agrees(self, wanted: Result, found: Result) -> None:
        lives = np.array(self.contexts) > 0
        outs = [widened(side[0], self.bf16) for side in (found, wanted)]
        assert error(outs[0][lives], outs[1][lives]) < 2 * rounding(self.bf16)
        assert np.isnan(outs[0][~lives]).all()
        for ours, theirs, before in zip(found[1], wanted[1], self.caches, strict=True):
            assert error(widened(ours, self.bf16), widened(theirs, self.bf16)) < rounding(self.bf16)
            assert ((ours != before).any(axis=(1, 3)) == (theirs != before).any(axis=(1, 3))).all()


def plans(device: CudaDevice, d: int) -> list[FewPlan]:
    little = device.shared_limit < 160 << 10
    if not few.serves(d, little):
        pytest.skip(reason="this GPU has too little shared memory for heads of this size")
    return [default_plan(d, blocks, little) for blocks in few.sizes(d, device.loader.arch, little)]


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "d"),
    [(28, 4, 128), (14, 2, 64), (4, 4, 96), (16, 1, 32), (6, 2, 128), (16, 2, 64), (8, 4, 96), (5, 1, 128)],
)
@pytest.mark.parametrize(("normed", "window"), [(False, 0), (True, 0), (True, 70)])
def test_one_kernel_does_what_two_do(
    device: CudaDevice, bf16: bool, heads: int, kv_heads: int, d: int, normed: bool, window: int
) -> None:
    case = Case(bf16, CONTEXTS, heads, kv_heads, d, normed, window)
    wanted = case.apart(device)
    for plan in plans(device, d):
        case.agrees(wanted, case.inside(device, plan))


@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(28, 4, 128), (16, 2, 128), (14, 2, 64), (12, 3, 96)])
@pytest.mark.parametrize("count", [33, 64, 100])
def test_many_sequences_of_any_length(
    device: CudaDevice, heads: int, kv_heads: int, d: int, count: int
) -> None:
    """More of them than run at once, too; one that has nothing, here and there."""
    rng = np.random.default_rng(count)
    contexts = [0 if i % 13 == 5 else int(rng.integers(1, 701)) for i in range(count)]
    for i, at in enumerate((15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513)):
        contexts[i] = at
    case = Case(True, contexts, heads, kv_heads, d)
    wanted = case.apart(device)
    for plan in plans(device, d):
        case.agrees(wanted, case.inside(device, plan, late=True))


def test_a_context_longer_than_pages_looked_up_at_once(device: CudaDevice) -> None:
    case = Case(True, (9000, 40, 4100), 4, 2, 64)
    wanted = case.apart(device)
    for plan in (*plans(device, 64), FewPlan(1, warps=8), FewPlan(1, stages=3)):
        case.agrees(wanted, case.inside(device, plan))


def test_sequences_that_are_not_counted_are_left_alone(device: CudaDevice) -> None:
    case = Case(True, (40, 300, 0, 0), 14, 2, 64)
    wanted = case.apart(device)
    for plan in plans(device, 64):
        case.agrees(wanted, case.inside(device, plan, count=2))


@pytest.mark.parametrize("bf16", TYPES)
def test_what_decodes_before_the_first_prompt_is_not_rotated(device: CudaDevice, bf16: bool) -> None:
    """Two that decode, a prompt of three tokens, one more that decodes, a token of padding."""
    rng = np.random.default_rng(5)
    heads, kv_heads, d, tokens = 4, 2, 64, 7
    qkv, _ = halves(rng.standard_normal((tokens, (heads + 2 * kv_heads) * d)), bf16)
    positions, slots = on_device([9, 70, 0, 1, 2, 5, 0]), on_device([9, 70, 128, 129, 130, 197, -1])
    table = cp.asarray(rng.standard_normal((80, d)).astype(np.float32))
    found = []
    for first_tile in (None, on_device([0, 0, 0, 1, 1, 1])):
        q = cp.full((tokens, heads, d), 0x7FFF, cp.uint16)
        keys, values = (cp.full((4, kv_heads, 64, d), 0x7FFF, cp.uint16) for _ in range(2))
        rope_store(device, bf16, qkv, positions, slots, table, (None, None), EPS, q, keys, values, first_tile)
        found.append((q, keys.swapaxes(1, 2).reshape(256, -1), values.swapaxes(1, 2).reshape(256, -1)))
    (q, *stored), (few_q, *few_stored) = found
    assert (few_q[2:] == q[2:]).all() and (few_q[:2] == 0x7FFF).all()
    for whole, part in zip(stored, few_stored, strict=True):
        assert (part[128:] == whole[128:]).all() and (part[:128] == 0x7FFF).all()
        assert (whole[[9, 70]] != 0x7FFF).any()
