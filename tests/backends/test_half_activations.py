"""What float16 activations do to logits, whatever the weights: where the bounds of the GPU's tests come from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Array, Floats, StepArrays
from llmrs_cli.engine.backends.handles import Geometry, KvLayer, RopeTable, Vector
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from tests.conftest import DATA
from tests.helpers.naive import forced_logits
from tests.helpers.tolerances import OUTLIER_LOGITS, token_errors

DRAWS = 6
LARGEST = 65504


class HalfBackend(ReferenceBackend):
    """The reference with float16 activations; a hair on each value chooses which way ties and near-ties go."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self.saturated = 0

    def _half(self, x: Array) -> Array:
        near = x * (1 + 1e-6 * self._draw.standard_normal(x.shape))
        self.saturated += int((np.abs(near) > LARGEST).sum())
        return np.clip(near, -LARGEST, LARGEST).astype(np.float16).astype(np.float32)

    def rms_norm(self, x: Array, weight: Vector, eps: float) -> Array:
        return self._half(super().rms_norm(x, weight, eps))

    def split_heads(self, qkv: Array, geometry: Geometry) -> tuple[Array, Array, Array]:
        return super().split_heads(self._half(qkv), geometry)

    def rope(self, x: Array, positions: Array, table: RopeTable) -> Array:
        return self._half(super().rope(x, positions, table))

    def attention(self, q: Array, kv: KvLayer, step: StepArrays, geometry: Geometry) -> Array:
        return self._half(super().attention(q, kv, step, geometry))

    def silu_mul(self, gate_up: Array) -> Array:
        return self._half(super().silu_mul(gate_up) / 16) * 16


def logits(name: str, backend: ReferenceBackend) -> list[Floats]:
    """Of every token of the sequences that the GPU's tests take."""
    checkpoint = open_checkpoint(DATA / "golden" / "checkpoints" / name)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, checkpoint.spec.vocab, n).tolist() for n in (1, 5, 64, 65, 130)]
    model = load_model(checkpoint, backend)
    return forced_logits(backend, model, sequences, [*map(len, sequences)], checkpoint.spec.vocab)


def spread(name: str) -> tuple[float, float]:
    """The error of the worst sequence of some draws, and that of the median token of the worst draw."""
    right = logits(name, ReferenceBackend())
    worst, median = 0.0, 0.0
    for seed in range(DRAWS):
        backend = HalfBackend(seed)
        found = logits(name, backend)
        assert backend.saturated == 0
        pairs = list(zip(found, right, strict=True))
        worst = max(worst, *(float(np.linalg.norm(f - r) / np.linalg.norm(r)) for f, r in pairs))
        tokens: NDArray[np.float64] = np.concatenate([token_errors(f, r) for f, r in pairs])
        median = max(median, float(np.median(tokens)))
    return worst, median


def test_a_gate_of_massive_weights_magnifies_half_ulps_of_its_input() -> None:
    """So no kernel, however exact its products, could be held to the bound of other checkpoints there."""
    worst, median = spread("tiny-qwen2-outliers-awq-g128")
    assert 2e-2 < worst < OUTLIER_LOGITS["tiny-qwen2-outliers-awq-g128"]
    assert median < 2e-3


def test_outliers_alone_magnify_them_less() -> None:
    worst, median = spread("tiny-qwen2-outliers-fp16-v4")
    assert 2e-3 < worst < OUTLIER_LOGITS["tiny-qwen2-outliers-fp16-v4"]
    assert median < 5e-4


@pytest.mark.parametrize("name", ["tiny-qwen2-awq-g128", "tiny-llama-awq-g64-skip"])
def test_other_models_keep_to_a_few_thousandths(name: str) -> None:
    assert max(spread(name)) < 3e-3
