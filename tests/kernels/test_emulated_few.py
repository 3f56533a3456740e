"""Attention of a few sequences by clusters of blocks, run on the CPU from its CUDA source, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.kernels.attend_few import FewPlan, Rotation, attend_few
from tests.helpers.emulate import EmulatedDevice, host

CONTEXTS = (1, 0, 65, 600, 0)
"""Tokens of each sequence; those of none are padding, and the last one is not even asked for."""
KV_HEADS, GROUP, D, EPS = 1, 3, 32, 1e-5
HEADS = KV_HEADS * GROUP
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    return EmulatedDevice(tmp_path_factory.mktemp("emulated"), hopper=True, together=True)


def narrow(values: NDArray[Any]) -> NDArray[np.uint16]:
    return f32_to_bf16(values.astype(np.float32))


def wide(bits: NDArray[Any]) -> Floats:
    return bf16_to_f32(np.asarray(bits)).astype(np.float64)


class Case:
    """One step: a projected token a sequence over random pages."""

    def __init__(self, window: int, normed: bool) -> None:
        rng = np.random.default_rng(window + normed)
        self.window = window
        pages = [-(-c // 64) for c in CONTEXTS]
        self.tables = np.full((len(CONTEXTS), max(pages)), -1, np.int32)
        order = iter(rng.permutation(sum(pages)))
        for row, count in enumerate(pages):
            self.tables[row, :count] = [next(order) for _ in range(count)]
        self.first_page = np.array([*np.cumsum([0, *pages]), 1], np.int32)
        self.cache = narrow(rng.standard_normal((2, sum(pages), KV_HEADS, 64, D)))
        self.projected = narrow(rng.standard_normal((len(CONTEXTS), HEADS + 2 * KV_HEADS, D)))
        angles = np.outer(np.arange(max(CONTEXTS)), 100.0 ** -(np.arange(D // 2) * 2 / D))
        self.table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        self.norms = rng.uniform(0.5, 2, (2, D)).astype(np.float32) if normed else None

    def run(self, gpu: EmulatedDevice, plan: FewPlan) -> tuple[Floats, tuple[Any, Any]]:
        """What the kernel gives, and the caches after it."""
        count = len(CONTEXTS)
        keys, values = (host(part) for part in self.cache)
        out = host(np.full((count, HEADS * D), 0x7FC0, np.uint16))
        ids = np.arange(count + 1, dtype=np.int32)
        q_norm, k_norm = (None, None) if self.norms is None else (host(self.norms[0]), host(self.norms[1]))
        attend_few(
            gpu,
            True,
            host(self.projected.reshape(count, -1)),
            keys,
            values,
            host(self.tables),
            host(ids[:-1]),
            host(np.array(CONTEXTS, np.int32)),
            host(ids),
            host(self.first_page),
            out,
            plan=plan,
            scale=D**-0.5,
            count=count - 1,
            window=self.window,
            rotation=Rotation(host(self.table), q_norm, k_norm, EPS),
        )
        return wide(out).reshape(count, HEADS, D), (keys, values)

    def turned(self, heads: Floats, sequence: int, which: int) -> Floats:
        """Queries (0) or keys (1) of the newest token, as they are stored."""
        if self.norms is not None:
            heads = heads / np.sqrt((heads**2).mean(axis=-1, keepdims=True) + EPS) * self.norms[which]
        cosine, sine = np.split(self.table[CONTEXTS[sequence] - 1].astype(np.float64), 2)
        a, b = np.split(heads, 2, axis=-1)
        return wide(narrow(np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)))

    def parts(self, sequence: int) -> tuple[Floats, Floats, Floats]:
        q, k, v = np.split(wide(self.projected[sequence]), [HEADS, HEADS + KV_HEADS])
        return self.turned(q, sequence, 0), self.turned(k, sequence, 1), v

    def place(self, sequence: int, token: int) -> tuple[int, int]:
        return int(self.tables[sequence, token // 64]), token % 64

    def wanted(self, sequence: int, stored: tuple[Any, Any]) -> Floats:
        """Attention of a sequence over what the caches hold."""
        context = CONTEXTS[sequence]
        oldest = max(context - self.window, 0) if self.window else 0
        places = [self.place(sequence, t) for t in range(oldest, context)]
        keys, values = (np.stack([wide(part[page, :, at]) for page, at in places], axis=1) for part in stored)
        q = self.parts(sequence)[0].reshape(KV_HEADS, GROUP, D)
        scores = np.einsum("hgd,htd->hgt", q, keys) * D**-0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed: Floats = np.einsum("hgt,htd->hgd", weights, values).reshape(HEADS, D)
        return mixed


@pytest.mark.parametrize(
    ("window", "normed", "plan"),
    [
        (0, False, FewPlan(8)),
        (70, True, FewPlan(4, stages=3)),
        (0, True, FewPlan(2)),
        (70, False, FewPlan(1)),
        (0, False, FewPlan(1, warps=1)),  # more than 32 tiles for one
    ],
)
def test_blocks_attend_and_store_the_newest_token(
    gpu: EmulatedDevice, window: int, normed: bool, plan: FewPlan
) -> None:
    case = Case(window, normed)
    found, stored = case.run(gpu, plan)
    for sequence, context in enumerate(CONTEXTS):
        if not context:
            assert np.isnan(found[sequence]).all()
            continue
        page, at = case.place(sequence, context - 1)
        _, key, value = case.parts(sequence)
        assert np.abs(wide(stored[0][page, :, at]) - key).max() < 0.04
        assert (wide(stored[1][page, :, at]) == value).all()
        wanted = case.wanted(sequence, stored)
        assert np.linalg.norm(found[sequence] - wanted) / np.linalg.norm(wanted) < 8e-3
    changed = sum(
        (np.asarray(a) != b).any(axis=(1, 3)).sum() for a, b in zip(stored, case.cache, strict=True)
    )
    assert changed == 2 * sum(c > 0 for c in CONTEXTS)
