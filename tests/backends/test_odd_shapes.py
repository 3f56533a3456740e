"""Primitive ops at shapes that nobody chose: Hypothesis draws sizes, forms and groupings, float64 loops decide.

`test_ops` has the edges that are known; here are those that are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.engine.backends.base import Backend, RowLimits
from llmrs_cli.engine.backends.handles import Geometry
from llmrs_cli.engine.weights.packed import Dense, Weight
from tests.helpers import naive_ops
from tests.helpers.canonical import dense, packed4, packed8, permuted4
from tests.helpers.steps import batch, greedy
from tests.helpers.tolerances import assert_close

Values = NDArray[np.float32]
EPS = 1e-5
FEW = settings(max_examples=25)
SEEDS = st.integers(0, 10**6)


def normal(rng: np.random.Generator, *shape: int) -> Values:
    return rng.standard_normal(shape).astype(np.float32)


def terms(x: Values, parts: Sequence[Weight]) -> NDArray[np.float64]:
    """How large the terms of each sum of a product are together."""
    weights = np.concatenate([np.abs(naive_ops.values(part)) for part in parts])
    return np.asarray(np.abs(x.astype(np.float64)) @ weights.T)


@st.composite
def stacks(draw: st.DrawFn, plain: bool = False) -> tuple[list[Weight], np.random.Generator]:
    """One to three parts of equal columns, each in a form of its own or all in one."""
    rng = np.random.default_rng(draw(SEEDS))
    words = draw(st.integers(1, 9))
    group = draw(st.sampled_from([8, 16, 32, 64]))
    columns = 8 * words if not plain else draw(st.integers(1, 40))
    forms = (
        ["float32", "float16", "bfloat16"]
        if plain
        else ["float32", "bfloat16", "4", "4 offsets", "8", "sorted"]
    )
    alike = draw(st.booleans())
    form = draw(st.sampled_from(forms))
    parts: list[Weight] = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(1, 40))
        form = form if alike else draw(st.sampled_from(forms))
        parts.append(one(rng, form, rows, columns, group))
    return parts, rng


def one(rng: np.random.Generator, form: str, rows: int, columns: int, group: int) -> Weight:
    if form.startswith("4"):
        return packed4(rng, rows, columns, group, offsets="offsets" in form)
    if form == "sorted":
        return permuted4(rng, rows, columns, group)
    return packed8(rng, rows, columns) if form == "8" else dense(rng, rows, columns, columns**-0.5, form)


@FEW
@given(stacks(), st.integers(1, 20), st.booleans())
def test_a_product_of_any_stack(
    backend: Backend, stack: tuple[list[Weight], np.random.Generator], tokens: int, biased: bool
) -> None:
    parts, rng = stack
    x = normal(rng, tokens, parts[0].shape[1])
    bias = [Dense(normal(rng, part.shape[0])) if biased and i != 1 else None for i, part in enumerate(parts)]
    got = backend.linear(x, backend.prepare_linear(parts, bias, "test"))
    wanted = naive_ops.linear(x, parts, bias)
    assert_close("linear", backend.name, got, wanted, terms(x, parts) + np.abs(wanted))


@FEW
@given(stacks(plain=True), st.integers(1, 9))
def test_a_product_of_columns_in_any_number(
    backend: Backend, stack: tuple[list[Weight], np.random.Generator], tokens: int
) -> None:
    parts, rng = stack
    x = normal(rng, tokens, parts[0].shape[1])
    handle = backend.prepare_linear(parts, [None] * len(parts), "test")
    assert handle.shape == (sum(part.shape[0] for part in parts), parts[0].shape[1])
    wanted = naive_ops.linear(x, parts, [None] * len(parts))
    assert_close("linear", backend.name, backend.linear(x, handle), wanted, terms(x, parts))


@FEW
@given(stacks(), st.integers(2, 33))
def test_a_token_s_product_does_not_depend_on_its_neighbours_beyond_rounding(
    backend: Backend, stack: tuple[list[Weight], np.random.Generator], tokens: int
) -> None:
    parts, rng = stack
    x = normal(rng, tokens, parts[0].shape[1])
    handle = backend.prepare_linear(parts, [None] * len(parts), "test")
    whole = backend.linear(x, handle)
    chosen = int(rng.integers(tokens))
    alone = backend.linear(x[chosen : chosen + 1], handle)
    sizes = terms(x, parts)[chosen : chosen + 1]
    assert_close("linear", backend.name, whole[chosen : chosen + 1], alone.astype(np.float64), 2 * sizes)


@FEW
@given(SEEDS, st.integers(1, 60), st.integers(1, 48), st.integers(0, 12))
def test_an_embedding_gives_its_rows_whatever_its_size(
    backend: Backend, seed: int, vocab: int, hidden: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    table = dense(rng, vocab, hidden, dtype=("float32", "float16", "bfloat16")[seed % 3])
    ids = rng.integers(0, vocab, count).astype(np.int32)
    got = backend.embed_ids(backend.prepare_linear([table], [None], "embedding"), ids)
    assert got.dtype == np.float32
    assert_close("copy", backend.name, got, naive_ops.values(table)[ids].reshape(count, hidden))


@FEW
@given(SEEDS, st.lists(st.integers(1, 5), min_size=1, max_size=2), st.integers(1, 130), st.floats(1e-3, 1e3))
def test_a_norm_of_any_row(
    backend: Backend, seed: int, outer: list[int], columns: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    x, weight = normal(rng, *outer, columns) * np.float32(spread), normal(rng, columns)
    got = backend.rms_norm(x, backend.prepare_vector(Dense(weight)), EPS)
    assert_close("rms_norm", backend.name, got, naive_ops.rms_norm(x, weight, EPS))


@FEW
@given(SEEDS, st.integers(1, 90), st.floats(0.25, 64))
def test_a_norm_of_scaled_values_is_the_same(
    backend: Backend, seed: int, columns: int, factor: float
) -> None:
    """Powers of two are exact; without epsilon the scale cancels."""
    rng = np.random.default_rng(seed)
    x = normal(rng, 2, columns) + np.float32(0.1)
    weight = backend.prepare_vector(Dense(np.ones(columns, np.float32)))
    power = np.float32(2.0 ** round(np.log2(factor)))
    near = backend.rms_norm(x * power, weight, 0.0).astype(np.float64)
    assert_close("rms_norm", backend.name, backend.rms_norm(x, weight, 0.0), near)


@FEW
@given(SEEDS, st.integers(1, 9), st.integers(1, 5), st.integers(1, 40))
def test_a_rotation_turns_and_neither_stretches_nor_shrinks(
    backend: Backend, seed: int, tokens: int, heads: int, half: int
) -> None:
    rng = np.random.default_rng(seed)
    angles = rng.uniform(-np.pi, np.pi, (32, half))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    x, positions = normal(rng, tokens, heads, 2 * half), rng.integers(0, 32, tokens).astype(np.int32)
    before = x.copy()
    table = backend.prepare_rope(cos, sin)
    turned = backend.rope(x, positions, table)
    assert np.array_equal(x, before), "the op changes nothing that is not named"
    assert_close("rope", backend.name, turned, naive_ops.rope(x, positions.tolist(), cos, sin))
    lengths = np.linalg.norm(x.astype(np.float64), axis=-1)
    assert np.allclose(np.linalg.norm(turned.astype(np.float64), axis=-1), lengths, rtol=1e-5)
    back = backend.rope(turned, positions, backend.prepare_rope(cos, -sin))
    assert np.allclose(back, x, atol=1e-5 * float(np.abs(x).max()))


@FEW
@given(SEEDS, st.integers(1, 7), st.integers(1, 70), st.floats(0.01, 8))
def test_a_gate_of_any_width(backend: Backend, seed: int, tokens: int, width: int, spread: float) -> None:
    gate_up = normal(np.random.default_rng(seed), tokens, 2 * width) * np.float32(spread)
    got = backend.silu_mul(gate_up)
    assert got.shape == (tokens, width)
    assert_close("silu_mul", backend.name, got, naive_ops.silu_mul(gate_up))


# -- attention ------------------------------------------------------------------------------------------


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Geometry, list[tuple[int, int]], int]:
    """Geometry, (queries, context) of some sequences, and a seed."""
    kv_heads = draw(st.integers(1, 3))
    geometry = Geometry(
        kv_heads * draw(st.integers(1, 4)),
        kv_heads,
        draw(st.sampled_from([2, 8, 12, 16, 20, 64])),
        EPS,
        draw(st.one_of(st.none(), st.integers(1, 40))),
    )
    contexts = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    return geometry, [(draw(st.integers(1, context)), context) for context in contexts], draw(SEEDS)


class Cache:
    """Sequences whose keys and values lie in shuffled blocks."""

    def __init__(self, backend: Backend, geometry: Geometry, contexts: list[int], seed: int) -> None:
        self.backend, self.geometry = backend, geometry
        rng = np.random.default_rng(seed)
        shape = geometry.kv_heads, geometry.head_dim
        self.keys = [normal(rng, context, *shape) for context in contexts]
        self.values = [normal(rng, context, *shape) for context in contexts]
        width = -(-max(contexts) // backend.block_size)
        order = rng.permutation(width * len(contexts)).tolist()
        (self.kv,) = backend.alloc_kv(1, len(order), *shape)
        self.rows = backend.open_rows(RowLimits(len(contexts), max(contexts), vocab=10))
        for row, context in enumerate(contexts):
            self.rows.start(row, [1] * context, greedy())
            self.rows.grant(row, 0, order[row * width : (row + 1) * width])

    def store(self, row: int, first: int, last: int) -> None:
        step = self.rows.begin(batch((row, first, last - first, False)))
        keys, values = self.keys[row][first:last], self.values[row][first:last]
        self.backend.store_kv(keys, values, self.kv, step.slots)

    def attend(self, queries: list[Values], contexts: list[int]) -> Values:
        chunks = [
            (row, context - len(q), len(q), False)
            for row, (q, context) in enumerate(zip(queries, contexts, strict=True))
        ]
        step = self.rows.begin(batch(*chunks))
        return np.asarray(self.backend.attend(np.concatenate(queries), self.kv, step, self.geometry))


@FEW
@given(crowds())
def test_attention_of_any_crowd(backend: Backend, crowd: tuple[Geometry, list[tuple[int, int]], int]) -> None:
    geometry, sequences, seed = crowd
    contexts = [context for _, context in sequences]
    cache = Cache(backend, geometry, contexts, seed)
    for row, context in enumerate(contexts):
        middle = context // 2
        for first, last in ((0, middle), (middle, context)):
            if first < last:
                cache.store(row, first, last)
    rng = np.random.default_rng(seed + 1)
    queries = [normal(rng, count, geometry.heads, geometry.head_dim) for count, _ in sequences]
    wanted = [
        naive_ops.attention(q, keys, values, geometry)
        for q, keys, values in zip(queries, cache.keys, cache.values, strict=True)
    ]
    sizes = np.full((sum(map(len, queries)), 1), max(float(np.abs(v).max()) for v in cache.values))
    assert_close("attention", backend.name, cache.attend(queries, contexts), np.concatenate(wanted), sizes)


@FEW
@given(crowds(), st.integers(0, 59))
def test_equal_values_are_their_own_mean(
    backend: Backend, crowd: tuple[Geometry, list[tuple[int, int]], int], seed: int
) -> None:
    """Weights of a softmax add up to one, whatever the keys are."""
    geometry, sequences, _ = crowd
    count, context = sequences[0]
    cache = Cache(backend, geometry, [context], seed)
    cache.values[0][:] = 3.0
    cache.store(0, 0, context)
    q = normal(np.random.default_rng(seed), count, geometry.heads, geometry.head_dim) * np.float32(9)
    got = cache.attend([q], [context])
    assert np.allclose(got, 3.0, rtol=3e-6)


def test_a_first_token_attends_to_itself_alone(backend: Backend) -> None:
    geometry = Geometry(6, 2, 16, EPS)
    cache = Cache(backend, geometry, [1], seed=3)
    cache.store(0, 0, 1)
    q = normal(np.random.default_rng(1), 1, 6, 16)
    got = cache.attend([q], [1]).reshape(2, 3, 16)
    assert np.allclose(got, cache.values[0][0][:, None], rtol=1e-6)
