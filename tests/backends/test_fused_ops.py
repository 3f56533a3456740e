"""Fused ops of the fast backends against the reference's composition of primitives, and sampled tokens bit for bit.

Each op starts from the same inputs on both sides, so an error is that op's own. A last test compares whole
decoders; on the reference alone that is `engine/test_runner`'s business.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import RowSampling, StepArrays
from llmrs_cli.engine.backends.base import Backend, Hidden, RowLimits, Rows
from llmrs_cli.engine.backends.handles import LayerWeights, ModelWeights
from llmrs_cli.engine.backends.reference import ReferenceBackend
from tests.helpers.naive import solo_logits
from tests.helpers.steps import batch, greedy
from tests.helpers.tiny_weights import TinyShape, tiny_weights
from tests.helpers.tolerances import assert_close

CHUNKS = (3, 1, 16, 17)
"""Tokens of each sequence in the step, all of it prompt."""
SHAPES = [
    TinyShape(),
    TinyShape(packed=True, qkv_bias=False, heads=6, kv_heads=2, hidden=96, ffn=160, head_dim=32),
    TinyShape(permuted=True),
    TinyShape(qk_norm=True, window=5, head_dim=16, tied=True),
]


class Side:
    """One backend holding the model, in the middle of a step."""

    def __init__(self, backend: Backend, shape: TinyShape) -> None:
        self.backend, self.shape = backend, shape
        self.model: ModelWeights = tiny_weights(backend, shape)
        self.rows = start_rows(backend, shape)
        self.kv = backend.alloc_kv(shape.layers, 2 * len(CHUNKS), shape.kv_heads, shape.head_dim)
        self.step: StepArrays = self.rows.begin(batch(*((r, 0, n, True) for r, n in enumerate(CHUNKS))))

    @property
    def layer(self) -> LayerWeights:
        return self.model.layers[0]

    def hidden(self, seed: int = 1) -> Hidden:
        """The step's embedded tokens plus noise: what a layer in the middle may see."""
        hidden = self.backend.embed(self.model.embedding, self.step)
        noise = np.random.default_rng(seed).standard_normal((sum(CHUNKS), self.shape.hidden))
        self.backend.add_into(hidden.residual, noise.astype(np.float32))
        return hidden


def start_rows(backend: Backend, shape: TinyShape, states: list[RowSampling] | None = None) -> Rows:
    """One row per chunk, two blocks each."""
    rng = np.random.default_rng(2)
    rows = backend.open_rows(RowLimits(len(CHUNKS), 32, shape.vocab))
    for row, count in enumerate(CHUNKS):
        tokens = rng.integers(0, shape.vocab, count).tolist()
        rows.start(row, tokens, states[row] if states else greedy(prompt=count))
        rows.grant(row, 0, [2 * row + 1, 2 * row])
    return rows


@pytest.fixture(params=SHAPES, ids=["plain", "packed", "permuted", "norms and window"])
def sides(request: pytest.FixtureRequest, fast: Backend) -> tuple[Side, Side]:
    return Side(fast, request.param), Side(ReferenceBackend(), request.param)


def values(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_norm_qkv_rope_store_then_attend(sides: tuple[Side, Side]) -> None:
    queries, mixed = [], []
    for side in sides:
        q = side.backend.norm_qkv_rope_store(
            side.hidden(), side.layer, side.kv[0], side.model.rope, side.step
        )
        queries.append(np.array(q))
        mixed.append(np.array(side.backend.attend(q, side.kv[0], side.step, side.layer.geometry)))
    assert_close("norm_qkv_rope_store", sides[0].backend.name, *queries)
    assert_close("attend", sides[0].backend.name, *mixed)


def test_project_add(sides: tuple[Side, Side]) -> None:
    results = []
    for side in sides:
        hidden = side.hidden()
        side.backend.project_add(values(3, sum(CHUNKS), side.layer.o.shape[1]), side.layer.o, hidden)
        side.backend.project_add(values(4, sum(CHUNKS), side.layer.down.shape[1]), side.layer.down, hidden)
        results.append(np.array(hidden.residual))
    assert_close("project_add", sides[0].backend.name, *results)


def test_norm_gate_up(sides: tuple[Side, Side]) -> None:
    results = [np.array(side.backend.norm_gate_up(side.hidden(), side.layer)) for side in sides]
    assert_close("norm_gate_up", sides[0].backend.name, *results)


def test_head(sides: tuple[Side, Side]) -> None:
    results = []
    for side in sides:
        model = side.model
        results.append(np.array(side.backend.head(side.hidden(), model.norm, model.eps, model.head)))
    assert results[0].dtype == np.float32
    assert_close("head", sides[0].backend.name, *results)


def test_the_chosen_tokens_go_on_in_arrays_of_their_own(sides: tuple[Side, Side]) -> None:
    for side in sides:
        hidden, mixed = side.hidden(), np.arange(len(side.hidden().residual) * 3.0).reshape(-1, 3)
        before = np.array(hidden.residual)
        chosen, attended = side.backend.choose(hidden, mixed, np.array([0, 2], np.int32))
        assert np.array_equal(chosen.residual, before[[0, 2]]) and np.array_equal(attended, mixed[[0, 2]])
        chosen.residual[...] = 7
        assert np.array_equal(hidden.residual, before)


def test_whole_decoder(sides: tuple[Side, Side]) -> None:
    ids = np.random.default_rng(5).integers(0, sides[0].shape.vocab, 37).tolist()
    got, wanted = (solo_logits(side.backend, side.model, ids, side.shape.vocab) for side in sides)
    assert_close("decoder", sides[0].backend.name, got, wanted)


# -- the sampler: equal logits give equal tokens, to the bit --------------------------------------------

SAMPLED = TinyShape(vocab=1000)
STATES = [
    greedy(),
    greedy(temperature=0.7, top_p=0.9, seed=2**63 + 5, choice=1),
    greedy(temperature=1.3, top_k=5, min_p=0.05, seed=3, repetition_penalty=1.3, logprobs=4),
    greedy(
        temperature=1.0,
        seed=4,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        bias_ids=np.array([3, 900], np.int32),
        bias_values=np.array([2.5, 4.0], np.float32),
        stop_ids=np.array([7, 8], np.int32),
        min_length=100,
        logprobs=1,
    ),
]


def draw(
    backend: Backend, logits: NDArray[np.float32], seed: int, mask: NDArray[np.uint32] | None
) -> list[object]:
    """Ids, flags and reported ids of one step; then the ids again as the next step's inputs."""
    states = [replace(state, seed=state.seed + seed) for state in STATES]
    rows = start_rows(backend, SAMPLED, states)
    step = rows.begin(batch(*((r, 0, n, True) for r, n in enumerate(CHUNKS))))
    draws = backend.fetch(backend.sample(logits, rows, step, mask))
    following = rows.begin(batch(*((r, n, 1, False) for r, n in enumerate(CHUNKS))))
    return [
        draws.ids.tolist(),
        draws.failed.tolist(),
        draws.top_ids.tolist(),
        np.array(following.ids).tolist(),
    ]


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("kind", ["smooth", "ties", "peaked", "broken"])
def test_sample_draws_the_reference_s_tokens(fast: Backend, kind: str, masked: bool) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        logits = (rng.standard_normal((len(CHUNKS), SAMPLED.vocab)) * 2.5).astype(np.float32)
        if kind == "ties":
            logits = np.round(logits)
        if kind == "peaked":
            logits *= 12
        if kind == "broken":
            logits[seed % 4, 17] = (np.nan, np.inf, -np.inf)[seed % 3]
            logits[(seed + 1) % 4] = -np.inf
        mask = rng.integers(0, 2**32, (len(CHUNKS), 32)).astype(np.uint32) if masked else None
        got = draw(fast, logits, seed, mask)
        assert got == draw(ReferenceBackend(), logits, seed, mask)
        assert got[0] == got[3]
