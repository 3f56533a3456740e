"""The reference by hand: a few numbers a person can check, and what it alone promises.

`test_ops` compares it with loops in float64; here conventions are pinned by numbers instead.
"""

from __future__ import annotations

import numpy as np
import pytest

from llmrs_cli.engine.arrays import Floats
from llmrs_cli.engine.backends import reference
from llmrs_cli.engine.backends.base import RowLimits
from llmrs_cli.engine.backends.handles import Geometry
from llmrs_cli.engine.backends.reference import CanonicalLinear, ReferenceBackend, attend_last
from llmrs_cli.engine.weights.packed import Dense, Weight
from tests.helpers import naive_ops
from tests.helpers.canonical import dense, packed4, packed8
from tests.helpers.steps import batch, greedy

BACKEND = ReferenceBackend()


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    # mean(3², 4²) = 12.5; eps 3.5 makes it 16.
    got = BACKEND.rms_norm(floats(3, 4)[None], BACKEND.prepare_vector(Dense(floats(1, 2))), 3.5)
    assert got.tolist() == [[0.75, 2.0]]


def test_rope_rotates_the_halves_of_a_head() -> None:
    # Position 1 turns by 90 degrees: (a, b) → (-b, a) for the pairs (1, 3) and (2, 4).
    table = BACKEND.prepare_rope(floats(1, 1, 0, 0).reshape(2, 2), floats(0, 0, 1, 1).reshape(2, 2))
    got = BACKEND.rope(floats(1, 2, 3, 4).reshape(1, 1, 4), np.array([1], np.int32), table)
    assert got.tolist() == [[[-3, -4, 1, 2]]]


def test_silu_mul_gates_the_second_half_by_the_first() -> None:
    gate, up = np.log(3.0), 4.0  # sigmoid(ln 3) = 3/4
    got = BACKEND.silu_mul(floats(gate, 0.0, up, 9.0)[None])
    assert got[0].tolist() == pytest.approx([np.log(3.0) * 0.75 * 4, 0.0])


def test_linear_is_x_times_the_transpose_plus_bias() -> None:
    weight = Dense(np.array([[1, 2], [3, 4], [5, 6]], np.float32))
    handle = BACKEND.prepare_linear([weight], [Dense(floats(0, 0, 100))], "test")
    assert BACKEND.linear(floats(10, 1)[None], handle).tolist() == [[12, 34, 156]]


def test_attention_weighs_values_by_the_softmax_of_scaled_scores() -> None:
    # D = 4, so scores are halved: q·k = (0, 2 ln 3) → weights 1/4 and 3/4.
    geometry = Geometry(heads=1, kv_heads=1, head_dim=4, eps=0)
    q = floats(1, 0, 0, 0).reshape(1, 1, 4)
    keys = np.zeros((2, 1, 4), np.float32)
    keys[1, 0, 0] = 2 * np.log(3)
    values = np.array([[[0, 0, 0, 8]], [[4, 0, 0, 0]]], np.float32)
    assert attend_last(q, keys, values, geometry)[0].tolist() == pytest.approx([3, 0, 0, 2])


def test_query_heads_share_the_key_head_of_their_group() -> None:
    geometry = Geometry(heads=4, kv_heads=2, head_dim=1, eps=0)
    values = floats(10, 20).reshape(1, 2, 1)
    got = attend_last(np.ones((1, 4, 1), np.float32), np.ones((1, 2, 1), np.float32), values, geometry)
    assert got.tolist() == [[10, 10, 20, 20]]


def test_a_sum_that_cancels_is_exact() -> None:
    """Float32 sums would lose the one: 1e8 has no room for it."""
    handle = BACKEND.prepare_linear([Dense(np.ones((1, 3), np.float32))], [None], "test")
    assert BACKEND.linear(floats(1e8, 1, -1e8)[None], handle).tolist() == [[1.0]]


def test_weights_are_widened_slab_by_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "SLAB_VALUES", 3 * 64)
    rng = np.random.default_rng(1)
    parts: list[Weight] = [packed4(rng, 7, 64, 32), dense(rng, 2, 64), packed8(rng, 4, 64)]
    handle = BACKEND.prepare_linear(parts, [None] * 3, "test")
    assert isinstance(handle, CanonicalLinear)
    assert [(first, len(slab)) for first, slab in handle.slabs()] == [
        (0, 3),
        (3, 3),
        (6, 1),
        (7, 2),
        (9, 3),
        (12, 1),
    ]
    x = rng.standard_normal((2, 64)).astype(np.float32)
    wanted = naive_ops.linear(x, parts, [None] * 3)
    assert BACKEND.linear(x, handle) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_a_table_may_have_several_parts() -> None:
    rng = np.random.default_rng(2)
    parts: list[Weight] = [dense(rng, 3, 8), packed8(rng, 5, 8)]
    table = BACKEND.prepare_linear(parts, [None, None], "test")
    ids = np.array([7, 0, 3, 2], np.int32)
    wanted = np.concatenate([naive_ops.values(part) for part in parts])[ids]
    assert BACKEND.embed_ids(table, ids).tolist() == wanted.tolist()


def test_a_linear_layer_copies_no_weights() -> None:
    weight = dense(np.random.default_rng(3), 4, 8, dtype="float16")
    handle = BACKEND.prepare_linear([weight], [None], "test")
    assert isinstance(handle, CanonicalLinear)
    assert handle.parts[0] is weight
    assert handle.note == "canonical Dense"


def test_long_chunks_attend_in_slices_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = Geometry(heads=2, kv_heads=1, head_dim=8, eps=0, window=6)
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((20, heads, 8)).astype(np.float32) for heads in (2, 1, 1))
    (kv,) = BACKEND.alloc_kv(1, 2, 1, 8)
    BACKEND.store_kv(k, v, kv, np.arange(20, dtype=np.int32))
    rows = BACKEND.open_rows(RowLimits(rows=1, context=20, vocab=2))
    rows.start(0, [1] * 20, greedy(prompt=20))
    rows.grant(0, 0, [0, 1])
    step = rows.begin(batch((0, 0, 20, False)))
    whole = BACKEND.attention(q, kv, step, geometry)
    monkeypatch.setattr(reference, "QUERY_SLICE", 7)
    assert BACKEND.attention(q, kv, step, geometry) == pytest.approx(whole, rel=1e-6, abs=1e-7)


def test_kv_bytes_are_what_is_allocated() -> None:
    layers = BACKEND.alloc_kv(layers=3, blocks=5, kv_heads=2, head_dim=8)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    assert held == 5 * BACKEND.kv_bytes(layers=3, kv_heads=2, head_dim=8)
