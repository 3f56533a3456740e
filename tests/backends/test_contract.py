"""What the base class promises of every backend, and what each must keep: sizes, memory, messages, names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrs_cli.engine.backends.base import (
    HEAD_ROWS,
    Backend,
    Hidden,
    ModelSizes,
    RowLimits,
    Sizes,
    UnsupportedOp,
)
from llmrs_cli.engine.backends.handles import Geometry
from llmrs_cli.engine.backends.reference import CanonicalLinear, ReferenceBackend
from llmrs_cli.engine.weights.packed import Dense, Weight
from llmrs_cli.errors import EngineFault, ExitCode
from tests.helpers.canonical import dense, packed4, packed8, permuted4
from tests.helpers.steps import batch, greedy
from tests.helpers.tiny_weights import TinyShape, tiny_weights

SIZES = ModelSizes(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=64)


def test_a_backend_has_a_name_a_block_size_and_no_more_than_one_step_ahead(backend: Backend) -> None:
    assert backend.name in ("reference", "cpu")
    assert backend.block_size > 0 and backend.block_size % 16 == 0
    assert backend.lookahead in (0, 1)
    assert backend.read_ahead >= 0
    assert backend.free_bytes() > 0


def test_default_sizes_hold_a_step_of_every_row(backend: Backend) -> None:
    sizes = backend.sizes
    assert isinstance(sizes, Sizes)
    assert sizes.rows <= sizes.busy_budget <= sizes.idle_budget <= sizes.context


@pytest.mark.parametrize(("layers", "blocks", "heads", "size"), [(1, 1, 1, 8), (2, 5, 3, 20), (3, 2, 2, 128)])
def test_blocks_take_the_memory_that_was_planned(
    backend: Backend, layers: int, blocks: int, heads: int, size: int
) -> None:
    caches = backend.alloc_kv(layers, blocks, heads, size)
    assert len(caches) == layers
    arrays = {id(array): array.nbytes for kv in caches for array in arrays_of(kv)}
    assert sum(arrays.values()) == blocks * backend.kv_bytes(layers, heads, size)


def arrays_of(kv: Any) -> Sequence[Any]:
    return [kv.pool] if hasattr(kv, "pool") else [kv.keys, kv.values]


def test_layers_of_a_cache_do_not_overlap(backend: Backend) -> None:
    geometry = Geometry(2, 2, 8, 1e-6)
    caches = backend.alloc_kv(3, 2, 2, 8)
    rows = backend.open_rows(RowLimits(1, 20, 10))
    rows.start(0, [1] * 20, greedy())
    rows.grant(0, 0, [1, 0])
    step = rows.begin(batch((0, 0, 20, False)))
    for number, kv in enumerate(caches):
        values = np.full((20, 2, 8), float(number + 1), np.float32)
        backend.store_kv(values, values, kv, step.slots)
    q = np.ones((20, 2, 8), np.float32)
    for number, kv in enumerate(caches):
        assert np.allclose(backend.attend(q, kv, step, geometry), number + 1)


@given(st.integers(1, 500), st.integers(1, 500))
def test_a_larger_step_needs_no_less_memory(one: int, two: int) -> None:
    backend = ReferenceBackend()
    few, many = (
        backend.workspace_bytes(SIZES, RowLimits(4, 64, 64, tokens)) for tokens in sorted((one, two))
    )
    assert few <= many
    assert few >= 4 * HEAD_ROWS * SIZES.vocab


def test_a_step_s_memory_covers_what_its_ops_make() -> None:
    """Normed, qkv, queries, mixed, gate and up, activated: all of one layer at once."""
    tokens, heads = 100, SIZES.heads + 2 * SIZES.kv_heads
    made = SIZES.hidden + heads * SIZES.head_dim + 3 * SIZES.ffn
    without = ReferenceBackend().workspace_bytes(SIZES, RowLimits(4, 64, 64, 0))
    with_step = ReferenceBackend().workspace_bytes(SIZES, RowLimits(4, 64, 64, tokens))
    assert with_step - without >= 4 * tokens * made


def test_a_parameter_takes_its_bytes_where_it_is_kept_as_it_is(backend: Backend) -> None:
    assert backend.weight_bytes((64, 64), "4-bit AWQ, group 64", 2048) == 2048


def test_an_op_without_a_kernel_says_which(backend: Backend) -> None:
    error = UnsupportedOp("attend", (3, 7), "float32")
    assert error.message == "No kernel for attend of shape (3, 7) in float32."
    assert isinstance(error, EngineFault)
    assert error.exit_code == ExitCode.ENGINE_FAULT


def test_an_error_of_nobody_beneath_has_no_explanation(backend: Backend) -> None:
    assert backend.explain(ValueError("x")) is None


def test_a_body_runs_each_time_it_is_asked_for(backend: Backend) -> None:
    numbers = iter(range(3))
    assert [backend.run("key", lambda: next(numbers)) for _ in range(3)] == [0, 1, 2]
    backend.use()


def test_drawing_from_a_head_is_sampling_its_logits(backend: Backend) -> None:
    logits = np.random.default_rng(3).standard_normal((2, 20)).astype(np.float32)
    found = []
    for whole in (True, False):
        rows = backend.open_rows(RowLimits(2, 16, 20))
        for row in range(2):
            rows.start(row, [1, 2], greedy(temperature=1.0, seed=row))
            rows.grant(row, 0, [row])
        step = rows.begin(batch((0, 1, 1, True), (1, 1, 1, True)))
        drawn = (
            backend.sample(logits, rows, step, None)
            if whole
            else backend.draw(lambda tokens: logits[np.asarray(tokens)], rows, step, None)
        )
        found.append(backend.fetch(drawn).ids.tolist())
    assert found[0] == found[1]


def test_a_hidden_state_is_changed_in_place(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    weight = backend.prepare_linear([dense(rng, 8, 8)], [None], "o")
    hidden = Hidden(np.ones((3, 8), np.float32))
    before = hidden.residual
    backend.project_add(np.ones((3, 8), np.float32), weight, hidden)
    assert hidden.residual is before
    assert not np.array_equal(before, np.ones((3, 8)))


@pytest.mark.parametrize("tokens", [1, 5])
def test_fused_ops_of_the_base_class_are_their_compositions(tokens: int) -> None:
    backend = ReferenceBackend()
    shape = TinyShape(qk_norm=True)
    model = tiny_weights(backend, shape)
    layer = model.layers[0]
    (kv, again) = backend.alloc_kv(2, 1, shape.kv_heads, shape.head_dim)
    rows = backend.open_rows(RowLimits(1, 16, shape.vocab))
    rows.start(0, list(range(tokens)), greedy())
    rows.grant(0, 0, [0])
    step = rows.begin(batch((0, 0, tokens, True)))
    hidden = backend.embed(model.embedding, step)
    q = backend.norm_qkv_rope_store(hidden, layer, kv, model.rope, step)
    normed = backend.rms_norm(hidden.residual, layer.attention_norm, layer.geometry.eps)
    parts = backend.split_heads(backend.linear(normed, layer.qkv), layer.geometry)
    assert layer.q_norm is not None and layer.k_norm is not None
    turned = [
        backend.rope(backend.rms_norm(part, norm, layer.geometry.eps), step.positions, model.rope)
        for part, norm in zip(parts[:2], (layer.q_norm, layer.k_norm), strict=True)
    ]
    backend.store_kv(turned[1], parts[2], again, step.slots)
    assert np.array_equal(q, turned[0])
    assert np.array_equal(kv.keys, again.keys) and np.array_equal(kv.values, again.values)
    last, _ = backend.choose(hidden, q, step.sample_tokens)
    logits = backend.head(last, model.norm, model.eps, model.head)
    assert logits.shape == (1, shape.vocab)
    assert np.array_equal(
        logits, backend.linear(backend.rms_norm(hidden.residual[-1:], model.norm, model.eps), model.head)
    )


def test_the_size_of_a_step_is_its_key(backend: Backend) -> None:
    rows = backend.open_rows(RowLimits(2, 32, 10))
    for row in range(2):
        rows.start(row, [1] * 20, greedy())
        rows.grant(row, 0, [2 * row, 2 * row + 1])
    one, two = rows.begin(batch((0, 0, 7, False))), rows.begin(batch((0, 3, 4, False), (1, 0, 3, False)))
    assert one.key == two.key == 7


# -- handles --------------------------------------------------------------------------------------------


def every_form(rng: np.random.Generator, rows: int, columns: int) -> list[Weight]:
    plain = [dense(rng, rows, columns, 1.0, dtype) for dtype in ("float32", "float16", "bfloat16")]
    packed = [packed4(rng, rows, columns, 32), packed4(rng, rows, columns, 16, offsets=True)]
    return [*plain, *packed, packed8(rng, rows, columns), permuted4(rng, rows, columns, 32)]


@pytest.mark.parametrize("form", range(7))
def test_a_handle_knows_its_shape_and_how_it_is_stored(backend: Backend, form: int) -> None:
    weight = every_form(np.random.default_rng(0), 24, 64)[form]
    handle = backend.prepare_linear([weight], [None], "test")
    assert handle.shape == (24, 64)
    assert handle.note and handle.note == handle.note.strip()
    assert len(handle.note) < 60


@pytest.mark.parametrize("form", range(7))
def test_slabs_of_a_canonical_weight_are_the_weight(form: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmrs_cli.engine.backends.reference.SLAB_VALUES", 300)
    rng = np.random.default_rng(1)
    parts = (every_form(rng, 24, 64)[form], dense(rng, 5, 64), every_form(rng, 3, 64)[form])
    linear = CanonicalLinear(parts, None)
    seen, rows = np.full((32, 64), np.nan), 0
    for first, slab in linear.slabs():
        assert first == rows and slab.size <= 300
        seen[first : first + len(slab)] = slab
        rows += len(slab)
    assert np.array_equal(seen, np.concatenate([part.dequantise() for part in parts]))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 31), max_size=20))
def test_rows_of_a_stack_come_from_the_part_that_holds_them(wanted: list[int]) -> None:
    rng = np.random.default_rng(2)
    parts = (packed4(rng, 20, 64, 32), dense(rng, 12, 64, dtype="bfloat16"))
    whole = np.concatenate([part.dequantise() for part in parts])
    got = CanonicalLinear(parts, None).rows(np.array(wanted, np.int32))
    assert np.array_equal(got, whole[wanted].reshape(len(wanted), 64))


def test_a_bias_is_added_to_its_own_part_alone(backend: Backend) -> None:
    rng = np.random.default_rng(4)
    parts: list[Weight] = [dense(rng, 3, 16), dense(rng, 5, 16)]
    x = np.zeros((2, 16), np.float32)
    bias = [None, Dense(np.arange(1, 6, dtype=np.float32))]
    got = backend.linear(x, backend.prepare_linear(parts, bias, "test"))
    assert got.tolist() == [[0, 0, 0, 1, 2, 3, 4, 5]] * 2


def test_vectors_and_tables_are_copies_of_their_own(backend: Backend) -> None:
    """A checkpoint's file may be unmapped once it is loaded."""
    values = np.ones(16, np.float32)
    cos = np.ones((4, 8), np.float32)
    vector, table = backend.prepare_vector(Dense(values)), backend.prepare_rope(cos, cos)
    values[:] = 9
    assert np.asarray(vector).tolist() == [1.0] * 16
    assert np.asarray(table[0]).shape == (4, 8)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_drawing_for_no_row_draws_nothing(backend: Backend, count: int) -> None:
    rows = backend.open_rows(RowLimits(4, 16, 20))
    for row in range(4):
        rows.start(row, [1, 2], greedy())
        rows.grant(row, 0, [row])
    step = rows.begin(batch(*((row, 0, 1, row < count) for row in range(4))))
    draws = backend.fetch(backend.sample(np.zeros((count, 20), np.float32), rows, step, None))
    assert draws.ids.shape == draws.failed.shape == draws.logprobs.shape == (count,)
    assert draws.top_ids.shape == draws.top_logprobs.shape == (count, 0)
