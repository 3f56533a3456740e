"""Linear layers of the CPU backend over the edges of their tiles: rows, outputs, columns, groups, threads.

Against float64 products of the canonical values. `backends/test_ops` holds the common cases of every
backend; these are the ones that only tiles of sixteen, panels and parts of jobs have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrs_cli.engine.arrays import Floats
from llmrs_cli.engine.backends.base import Hidden
from llmrs_cli.engine.backends.cpu import CpuBackend
from llmrs_cli.engine.backends.handles import Geometry, LayerWeights
from llmrs_cli.engine.weights.packed import Dense, Packed4, Packed8, Weight
from llmrs_cli.kernels.simd.linear import PANEL_FROM
from tests.helpers.canonical import dense, packed4, packed8
from tests.helpers.tolerances import assert_close

ROWS = [1, 2, 3, 7, 8, 9, PANEL_FROM - 1, PANEL_FROM, 24, 64]


@pytest.fixture(scope="module", params=[1, 2, 3], ids=lambda n: f"{n} threads")
def cpu(request: pytest.FixtureRequest) -> Iterator[CpuBackend]:
    backend = CpuBackend(threads=request.param)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def alone() -> Iterator[CpuBackend]:
    backend = CpuBackend(threads=1)
    yield backend
    backend.close()


def product(x: Floats, parts: list[Weight]) -> Any:
    wide = np.concatenate([part.dequantise() for part in parts]).astype(np.float64)
    return x.astype(np.float64) @ wide.T


def some(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


FORMS = ["packed4", "offsets", "packed8", "float32", "float16", "bfloat16"]


def weight(form: str, rows: int, columns: int, group: int) -> Weight:
    rng = np.random.default_rng(rows + columns)
    if form in ("packed4", "offsets"):
        return packed4(rng, rows, columns, group, offsets=form == "offsets")
    return packed8(rng, rows, columns, group) if form == "packed8" else dense(rng, rows, columns, 0.1, form)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("form", FORMS)
def test_any_number_of_rows(cpu: CpuBackend, form: str, rows: int) -> None:
    parts = [weight(form, 50, 96, 32), weight(form, 3, 96, 32)]
    x = some(1, rows, 96)
    got = cpu.linear(x, cpu.prepare_linear(parts, [None, None], "test"))
    assert_close("linear", "cpu", got, product(x, parts))


@settings(max_examples=60, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    rows=st.sampled_from(ROWS),
    outputs=st.integers(1, 70),
    columns=st.integers(1, 150),
    group=st.sampled_from([8, 16, 32, 64, 128, 4096]),
)
def test_any_shape(alone: CpuBackend, form: str, rows: int, outputs: int, columns: int, group: int) -> None:
    part = weight(form, outputs, columns, group)
    x = some(2, rows, columns)
    got = alone.linear(x, alone.prepare_linear([part], [None], "test"))
    assert_close("linear", "cpu", got, product(x, [part]), terms(x, part))


def terms(x: Floats, part: Weight) -> Any:
    """How large the terms of each output may be together: of packed codes, code and zero apart."""
    largest = 15 * np.abs(part.scales).max() if isinstance(part, Packed4) else 0
    largest = np.float64(largest) + np.abs(part.dequantise()).max()
    return np.broadcast_to(np.abs(x).sum(axis=1, keepdims=True) * largest, (len(x), part.shape[0]))


@pytest.mark.parametrize("rows", [1, 30])
@pytest.mark.parametrize("form", ["packed4", "packed8", "bfloat16"])
def test_a_group_may_be_all_of_many_columns(alone: CpuBackend, form: str, rows: int) -> None:
    part = weight(form, 20, 2100, 2100)
    x = some(3, rows, 2100)
    got = alone.linear(x, alone.prepare_linear([part], [None], "test"))
    assert_close("linear", "cpu", got, product(x, [part]))


@pytest.mark.parametrize("rows", [2, 20])
def test_float32_scales_and_mixed_precisions_stay_exact(alone: CpuBackend, rows: int) -> None:
    rng = np.random.default_rng(4)
    plain = packed4(rng, 20, 64, 32, offsets=True)
    assert plain.offsets is not None
    scales = (plain.scales.astype(np.float32) * np.float32(1 + 2**-15)).astype(np.float32)
    eight = packed8(rng, 20, 64)
    parts: list[Weight] = [
        Packed4(plain.codes, scales, None, plain.offsets, 32, 64),
        Packed4(plain.codes, scales, np.full((20, 2), 16, np.uint8), None, 32, 64),
        Packed8(eight.codes, eight.scales.astype(np.float32), 32),
    ]
    for part in parts:
        x = some(5, rows, 64)
        got = alone.linear(x, alone.prepare_linear([part], [None], "test"))
        assert_close("linear", "cpu", got, product(x, [part]))


def test_groups_that_are_no_whole_words_are_widened_and_say_so(alone: CpuBackend) -> None:
    rng = np.random.default_rng(6)
    part = packed4(rng, 10, 60, 12)
    handle = alone.prepare_linear([part], [None], "test")
    assert handle.note == "float32 (groups are no whole words)"
    x = some(7, 3, 60)
    assert_close("linear", "cpu", alone.linear(x, handle), product(x, [part]))


def test_notes_say_how_weights_are_stored(alone: CpuBackend) -> None:
    rng = np.random.default_rng(8)
    parts: list[list[Weight]] = [
        [packed4(rng, 16, 64, 32)],
        [packed8(rng, 16, 64)],
        [dense(rng, 16, 64, dtype="bfloat16")],
        [packed8(rng, 16, 64), dense(rng, 16, 64)],
    ]
    notes = [alone.prepare_linear(part, [None] * len(part), "test").note for part in parts]
    assert notes == ["4 bit, groups of 32", "8 bit, groups of 32", "bfloat16", "float32 (parts differ)"]


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_the_same_to_the_bit_alone_and_in_company(cpu: CpuBackend, form: str) -> None:
    """Up to where panels take over; a decode batch gives each row what it gets alone."""
    handle = cpu.prepare_linear([weight(form, 40, 160, 32)], [None], "test")
    x = some(9, PANEL_FROM - 1, 160)
    together = cpu.linear(x, handle)
    for count in (1, 3, 8, 11):
        assert np.array_equal(cpu.linear(x[:count], handle), together[:count])


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("width", [16, 40])
def test_gate_and_up_in_one_job_equal_the_steps_one_by_one(cpu: CpuBackend, rows: int, width: int) -> None:
    rng = np.random.default_rng(10)
    norm = cpu.prepare_vector(Dense(1 + 0.1 * some(11, 64)))
    gate_up = cpu.prepare_linear(
        [packed4(rng, width, 64, 32), packed4(rng, width, 64, 32)], [None] * 2, "gate_up"
    )
    layer = LayerWeights(
        geometry=Geometry(1, 1, 64, 1e-5),
        attention_norm=norm,
        qkv=gate_up,
        q_norm=None,
        k_norm=None,
        o=gate_up,
        mlp_norm=norm,
        gate_up=gate_up,
        down=gate_up,
    )
    hidden = Hidden(some(12, rows, 64))
    steps = cpu.silu_mul(cpu.linear(cpu.rms_norm(hidden.residual, norm, 1e-5), gate_up))
    assert np.array_equal(cpu.norm_gate_up(hidden, layer), steps)


def test_nothing_is_written_beside_the_outputs(cpu: CpuBackend) -> None:
    handle = cpu.prepare_linear([weight("packed4", 5, 64, 32)], [None], "test")
    for rows in (1, 9, 30):
        hidden = Hidden(some(13, rows, 5))
        frame = np.full((rows + 2, 5), 7, np.float32)
        frame[1:-1] = hidden.residual
        cpu.project_add(some(14, rows, 64), handle, Hidden(frame[1:-1]))
        assert (frame[[0, -1]] == 7).all()
        assert not (frame[1:-1] == hidden.residual).any()
