"""Each primitive op of each backend against loops in float64 (`helpers.naive_ops`).

Shapes are chosen for edges: one token, a block, a block and one, groups of heads, columns that are no
multiple of 128, mixed chunk lengths. Inputs hold planted large and tiny values, as real models have.
Tolerances stand in `helpers.tolerances`. Needs no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import StepArrays
from llmrs_cli.engine.backends.base import Backend, RowLimits
from llmrs_cli.engine.backends.handles import Geometry
from llmrs_cli.engine.weights.packed import Dense, Weight
from tests.helpers import naive_ops
from tests.helpers.canonical import dense, packed4, packed8, permuted4
from tests.helpers.steps import batch, greedy
from tests.helpers.tolerances import assert_close

Values = NDArray[np.float32]
EPS = 1e-6


def planted(rng: np.random.Generator, *shape: int) -> Values:
    """Normal values with some very large and very small ones, and a zero."""
    values = rng.standard_normal(shape).astype(np.float32)
    flat = values.reshape(-1)
    for value in (4e3, -2.5e4, 1e-12, 0.0):
        flat[rng.integers(flat.size)] = value
    return values


def vector(rng: np.random.Generator, size: int) -> Dense:
    return Dense(planted(rng, size))


@pytest.mark.parametrize("shape", [(1, 64), (3, 576), (17, 96), (2, 4, 32)], ids=str)
def test_rms_norm(backend: Backend, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    x, weight = planted(rng, *shape), vector(rng, shape[-1])
    got = backend.rms_norm(x, backend.prepare_vector(weight), EPS)
    assert_close("rms_norm", backend.name, got, naive_ops.rms_norm(x, weight.dequantise(), EPS))


def test_rms_norm_of_zeros_is_zero(backend: Backend) -> None:
    weight = backend.prepare_vector(Dense(np.ones(32, np.float32)))
    assert not np.any(backend.rms_norm(np.zeros((2, 32), np.float32), weight, EPS))


FORMS = ["float32", "float16", "bfloat16", "packed4", "packed4 offsets", "packed8"]


def weight_of(form: str, rng: np.random.Generator, n: int, k: int, group: int) -> Weight:
    if form.startswith("packed4"):
        return packed4(rng, n, k, group, offsets="offsets" in form)
    if form == "permuted4":
        return permuted4(rng, n, k, group)
    return packed8(rng, n, k) if form == "packed8" else dense(rng, n, k, k**-0.5, form)


@pytest.mark.parametrize("form", [*FORMS, "permuted4"])
@pytest.mark.parametrize("tokens", [1, 2, 9, 33])
@pytest.mark.parametrize(
    ("n", "k", "group"), [(24, 64, 32), (10, 576, 64), (7, 256, 128), (5, 96, 64)], ids=str
)
def test_linear(backend: Backend, form: str, tokens: int, n: int, k: int, group: int) -> None:
    rng = np.random.default_rng(2)
    weight, x = weight_of(form, rng, n, k, group), planted(rng, tokens, k)
    handle = backend.prepare_linear([weight], [None], "test")
    assert handle.shape == (n, k)
    assert_close("linear", backend.name, backend.linear(x, handle), naive_ops.linear(x, [weight], [None]))


@pytest.mark.parametrize("form", [*FORMS, "permuted4"])
def test_linear_stacks_parts_and_a_part_without_bias_has_zeros(backend: Backend, form: str) -> None:
    rng = np.random.default_rng(3)
    parts = [weight_of(form, rng, n, 64, 32) for n in (24, 8, 6)]
    bias = [vector(rng, 24), None, Dense(np.full(6, 0.5, np.float16))]
    x = planted(rng, 3, 64)
    got = backend.linear(x, backend.prepare_linear(parts, bias, "test"))
    assert_close("linear", backend.name, got, naive_ops.linear(x, parts, bias))


@pytest.mark.parametrize("n", [64, 192, 896, 128, 4864])
def test_4_bit_rows_that_are_no_multiple_of_128_keep_their_last_outputs(backend: Backend, n: int) -> None:
    rng = np.random.default_rng(n)
    weight, x = packed4(rng, n, 64, 32), planted(rng, 17, 64)
    handle = backend.prepare_linear([weight], [None], "test")
    right = x.astype(np.float64) @ weight.dequantise().astype(np.float64).T
    for tokens in (1, 7, 8, 9, 17):
        assert_close("linear", backend.name, backend.linear(x[:tokens], handle), right[:tokens])


def test_linear_takes_parts_of_different_forms(backend: Backend) -> None:
    rng = np.random.default_rng(4)
    parts: list[Weight] = [packed4(rng, 16, 64, 32), dense(rng, 8, 64, 0.1, "float16")]
    x = planted(rng, 5, 64)
    got = backend.linear(x, backend.prepare_linear(parts, [None, None], "test"))
    assert_close("linear", backend.name, got, naive_ops.linear(x, parts, [None, None]))


def test_linear_takes_parts_whose_columns_were_sorted_in_different_ways(backend: Backend) -> None:
    rng = np.random.default_rng(4)
    parts: list[Weight] = [permuted4(rng, 16, 64, 32, order) for order in (1, 2)]
    parts.append(packed4(rng, 8, 64, 32))
    x = planted(rng, 5, 64)
    got = backend.linear(x, backend.prepare_linear(parts, [None, None, None], "test"))
    assert_close("linear", backend.name, got, naive_ops.linear(x, parts, [None, None, None]))


@pytest.mark.parametrize("form", FORMS)
def test_embed_ids_gives_rows_in_order(backend: Backend, form: str) -> None:
    rng = np.random.default_rng(5)
    table = weight_of(form, rng, 40, 64, 32)
    ids = np.array([39, 0, 7, 7, 12], np.int32)
    got = backend.embed_ids(backend.prepare_linear([table], [None], "test"), ids)
    assert_close("copy", backend.name, got, naive_ops.values(table)[ids])


@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, 1, 8), (5, 3, 64), (17, 4, 128)], ids=str)
def test_rope(backend: Backend, tokens: int, heads: int, head_dim: int) -> None:
    rng = np.random.default_rng(6)
    cos, sin = tables(head_dim)
    x, positions = planted(rng, tokens, heads, head_dim), rng.integers(0, 64, tokens).astype(np.int32)
    got = backend.rope(x, positions, backend.prepare_rope(cos, sin))
    assert_close("rope", backend.name, got, naive_ops.rope(x, positions.tolist(), cos, sin))


def tables(head_dim: int) -> tuple[Values, Values]:
    angles = np.outer(np.arange(64), 100.0 ** (-np.arange(head_dim // 2) / (head_dim // 2)))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@pytest.mark.parametrize("shape", [(1, 16), (7, 96), (33, 1536)], ids=str)
def test_silu_mul(backend: Backend, shape: tuple[int, int]) -> None:
    gate_up = planted(np.random.default_rng(7), *shape)
    got = backend.silu_mul(gate_up)
    assert got.shape == (shape[0], shape[1] // 2)
    assert_close("silu_mul", backend.name, got, naive_ops.silu_mul(gate_up))


def test_silu_mul_neither_overflows_nor_forgets_a_massive_activation(backend: Backend) -> None:
    gate_up = np.array([[-1e4, 1e4, 300.0, 2.0, 65.0, 500.0]], np.float32)
    assert_close("silu_mul", backend.name, backend.silu_mul(gate_up), naive_ops.silu_mul(gate_up))


def test_split_heads_is_queries_then_keys_then_values(backend: Backend) -> None:
    qkv = np.arange(2 * 8 * 4, dtype=np.float32).reshape(2, 32)
    q, k, v = backend.split_heads(qkv, Geometry(heads=4, kv_heads=2, head_dim=4, eps=EPS))
    joined = np.concatenate([np.asarray(part) for part in (q, k, v)], axis=1)
    assert (q.shape, k.shape, v.shape) == ((2, 4, 4), (2, 2, 4), (2, 2, 4))
    assert joined.reshape(2, 32).tolist() == qkv.tolist()


def test_add_into_changes_its_residual(backend: Backend) -> None:
    rng = np.random.default_rng(8)
    residual, x = planted(rng, 3, 64), planted(rng, 3, 64)
    wanted = residual.astype(np.float64) + x
    backend.add_into(residual, x)
    assert_close("add_into", backend.name, residual, wanted)


def test_take_rows_takes_them_in_order(backend: Backend) -> None:
    x = planted(np.random.default_rng(9), 6, 32)
    rows = np.array([5, 0, 5], np.int32)
    assert_close("copy", backend.name, backend.take_rows(x, rows), x[rows])


# -- attention over pages -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Sequences of `contexts` tokens, of which the last `counts` are in this step."""

    counts: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    window: int | None = None

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.heads, self.kv_heads, self.head_dim, EPS, self.window)


CASES = [
    Case((1,), (1,)),
    Case((1,), (16,)),
    Case((1,), (17,)),
    Case((16,), (16,)),
    Case((17,), (17,), heads=6, kv_heads=1),
    Case((15,), (48,), heads=2, kv_heads=2),
    Case((1, 1, 1), (1, 33, 64)),
    Case((5, 1, 31, 2), (5, 47, 40, 16), heads=9, kv_heads=3, head_dim=64),
    Case((1, 20), (60, 40), window=7),
    Case((18, 1), (18, 18), window=16),
    Case((1, 3), (90, 3), head_dim=128),
]


class Pages:
    """Keys and values of a case, stored where a shuffled block table says."""

    def __init__(self, backend: Backend, case: Case) -> None:
        rng = np.random.default_rng(10)
        self.backend, self.case = backend, case
        shape = case.kv_heads, case.head_dim
        self.keys = [planted_keys(rng, c, *shape) for c in case.contexts]
        self.values = [planted(rng, c, *shape) for c in case.contexts]
        self.q = [rng.standard_normal((n, case.heads, case.head_dim)).astype(np.float32) for n in case.counts]
        width = -(-max(case.contexts) // backend.block_size) + 1
        blocks = rng.permutation(width * len(case.contexts)).astype(np.int32)
        (self.kv,) = backend.alloc_kv(1, len(blocks), *shape)
        rows = len(case.contexts)
        self.rows = backend.open_rows(RowLimits(rows, max(case.contexts) + 16, vocab=10))
        for row, context in enumerate(case.contexts):
            self.rows.start(row, [1] * context, greedy(prompt=context))
            self.rows.grant(row, 0, blocks[row * width : (row + 1) * width].tolist())

    def step(self, starts: tuple[int, ...], counts: tuple[int, ...]) -> StepArrays:
        return self.rows.begin(
            batch(*((r, s, n, False) for r, (s, n) in enumerate(zip(starts, counts, strict=True))))
        )

    def fill(self) -> None:
        """Store all keys and values, one sequence after the other in one step."""
        step = self.step((0,) * len(self.keys), self.case.contexts)
        self.backend.store_kv(np.concatenate(self.keys), np.concatenate(self.values), self.kv, step.slots)

    def attend(self) -> Values:
        starts = tuple(c - n for c, n in zip(self.case.contexts, self.case.counts, strict=True))
        step = self.step(starts, self.case.counts)
        return np.asarray(self.backend.attend(np.concatenate(self.q), self.kv, step, self.case.geometry))

    def wanted(self) -> NDArray[np.float64]:
        triples = zip(self.q, self.keys, self.values, strict=True)
        return np.concatenate([naive_ops.attention(*triple, self.case.geometry) for triple in triples])


def planted_keys(rng: np.random.Generator, *shape: int) -> Values:
    """Keys with a few large ones, so that some weights are nearly one and others nearly zero."""
    keys = rng.standard_normal(shape).astype(np.float32)
    keys.reshape(-1)[rng.integers(keys.size, size=3)] *= 20
    return keys


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.counts}of{case.contexts}w{case.window}")
def test_attend(backend: Backend, case: Case) -> None:
    pages = Pages(backend, case)
    pages.fill()
    assert_close("attention", backend.name, pages.attend(), pages.wanted())


def test_attend_reads_nothing_past_the_context(backend: Backend) -> None:
    """A block may hold what its last owner left, even NaN."""
    case = Case((1, 4), (18, 30))
    pages = Pages(backend, case)
    longer = tuple(c + 12 for c in case.contexts)
    step = pages.step((0, 0), longer)
    poison = np.full((sum(longer), case.kv_heads, case.head_dim), np.nan, np.float32)
    backend.store_kv(poison, poison, pages.kv, step.slots)
    pages.fill()
    assert_close("attention", backend.name, pages.attend(), pages.wanted())


def test_attend_sees_the_window_alone(backend: Backend) -> None:
    case = Case((2,), (40,), window=5)
    pages = Pages(backend, case)
    pages.fill()
    before = pages.attend()
    pages.keys[0][:34] *= -3
    pages.values[0][:34] += 1e6
    pages.fill()
    assert np.array_equal(pages.attend(), before)


# -- scores ---------------------------------------------------------------------------------------------


def test_score(backend: Backend) -> None:
    logits = np.random.default_rng(11).standard_normal((5, 300)).astype(np.float32) * 4
    targets = np.array([0, 299, 7, 7, 100], np.int32)
    scored = backend.fetch(backend.score(logits, targets, 3))
    wanted = naive_ops.log_softmax(logits)
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :3]
    assert scored.top_ids.tolist() == order.tolist()
    assert_close("score", backend.name, scored.logprobs, wanted[np.arange(5), targets])
    assert_close("score", backend.name, scored.top_logprobs, np.take_along_axis(wanted, order, axis=-1))
    assert not scored.failed.any()
