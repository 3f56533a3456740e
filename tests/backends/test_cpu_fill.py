"""What a file holds goes straight into the CPU's stream, and is there what its canonical form would be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.engine.backends.cpu import CpuBackend
from llmrs_cli.engine.backends.cpu_fill import is_direct
from llmrs_cli.engine.backends.cpu_weights import CpuLinear
from llmrs_cli.engine.weights.packed import Packed4, Stored, Tiles4, Weight, canonical
from llmrs_cli.kernels.marlin_layout import pack
from llmrs_cli.kernels.simd.layout import Layout
from tests.helpers.canonical import dense, packed4, words4


@pytest.fixture(scope="module")
def backend() -> Iterator[CpuBackend]:
    opened = CpuBackend(threads=2)
    yield opened
    opened.close()


def tiles4(weight: Packed4) -> Tiles4:
    assert weight.zeros is not None
    scales: Any = weight.scales
    tiles = pack(weight.codes, scales, weight.zeros, weight.group, weight.columns)
    return Tiles4(tiles, weight.group, weight.shape)


def prepared(backend: CpuBackend, *parts: Stored) -> CpuLinear:
    made = backend.prepare_linear(parts, [None] * len(parts), "x")
    assert isinstance(made, CpuLinear)
    return made


def stream_of(backend: CpuBackend, *parts: Stored) -> NDArray[np.uint8]:
    """With a value in front that no loop may leave."""
    made = prepared(backend, *parts)
    made.stream[:] = 0xEE
    start = 0
    for part in parts:
        size = -(-part.shape[0] // 16) * made.order[-1]
        ready: Any = part
        order = Layout(made.order[0], part.shape[1], made.order[3], bool(made.order[1]), True)
        backend._filler.fill(made.stream[start : start + size], order, ready)
        start += size
    return made.stream


@given(
    tiles=st.integers(1, 40),
    groups=st.integers(1, 5),
    group=st.sampled_from([16, 32, 64, 96, 128, 256]),
    kind=st.sampled_from(["awq", "gptq"]),
    wide=st.booleans(),
)
def test_words_fill_the_stream_as_their_canonical_form_does(
    backend: CpuBackend, tiles: int, groups: int, group: int, kind: Any, wide: bool
) -> None:
    rng = np.random.default_rng(tiles)
    weight = words4(rng, kind, 16 * tiles, groups * group, group, np.float32 if wide else np.float16)
    assert is_direct(weight)
    assert np.array_equal(stream_of(backend, weight), prepared(backend, weight.canonical()).stream)


@given(
    rows=st.integers(1, 300),
    groups=st.integers(1, 5),
    group=st.sampled_from([32, 64, 96, 128, 256]),
)
def test_tiles_fill_the_stream_as_their_canonical_form_does(
    backend: CpuBackend, rows: int, groups: int, group: int
) -> None:
    weight = packed4(np.random.default_rng(rows), rows, groups * group, group)
    assert np.array_equal(stream_of(backend, tiles4(weight)), prepared(backend, weight).stream)


def test_one_group_of_all_columns_goes_straight(backend: CpuBackend) -> None:
    weight = words4(np.random.default_rng(0), "awq", 32, 96, 96)
    assert is_direct(weight)
    assert np.array_equal(stream_of(backend, weight), prepared(backend, weight.canonical()).stream)


@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(24, 128, 64), (32, 72, 24), (32, 200, 64), (32, 96, 12)]
)
def test_odd_shapes_take_the_canonical_form(backend: CpuBackend, rows: int, columns: int, group: int) -> None:
    weight = words4(np.random.default_rng(0), "awq", rows, columns, group)
    assert not is_direct(weight)
    found, wanted = prepared(backend, weight), prepared(backend, weight.canonical())
    assert (found.order, found.note) == (wanted.order, wanted.note)
    assert np.array_equal(found.stream, wanted.stream)


@pytest.mark.parametrize("columns", [16, 48, 112])
def test_tiles_of_no_whole_pairs_of_steps_take_the_canonical_form(backend: CpuBackend, columns: int) -> None:
    weight = packed4(np.random.default_rng(columns), 40, columns, columns)
    assert not is_direct(tiles4(weight))
    assert np.array_equal(prepared(backend, tiles4(weight)).stream, prepared(backend, weight).stream)


@pytest.mark.parametrize("threads", [1, 3])
def test_parts_in_different_forms_stand_one_below_the_other(threads: int) -> None:
    rng = np.random.default_rng(1)
    parts: list[Stored] = [words4(rng, "awq", 640, 128, 64), words4(rng, "gptq", 48, 128, 64)]
    parts += [tiles4(packed4(rng, 70, 128, 64)), packed4(rng, 20, 128, 64)]
    backend = CpuBackend(threads=threads)
    usual: list[Weight] = [canonical(part) for part in parts]
    assert np.array_equal(prepared(backend, *parts).stream, prepared(backend, *usual).stream)
    backend.close()


def test_parts_that_do_not_go_together_are_widened(backend: CpuBackend) -> None:
    rng = np.random.default_rng(2)
    part, plain = words4(rng, "awq", 16, 64, 32), dense(rng, 16, 64)
    found = prepared(backend, part, plain)
    assert found.note == "float32 (parts differ)"
    values = backend.embed_ids(found, np.arange(32, dtype=np.int32))
    assert np.array_equal(values, np.concatenate([part.dequantise(), plain.dequantise()]))


def test_threads_end_when_a_matrix_is_filled(backend: CpuBackend) -> None:
    before = threading.active_count()
    prepared(backend, dense(np.random.default_rng(3), 1000, 16))
    assert threading.active_count() == before


def test_only_machines_of_many_threads_read_much_ahead() -> None:
    assert [CpuBackend(threads=count).read_ahead >> 20 for count in (1, 4, 16)] == [8, 8, 392]
