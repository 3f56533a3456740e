"""Sixteen values between arrays and registers: every type, every offset, and nothing beside what was asked for."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.kernels.simd import memory, words
from llmrs_cli.kernels.simd.lanes import LANES

Bytes = NDArray[np.uint8]


def bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def loader(fetch: Any) -> Any:
    """Compile (bytes, offset, out) for one of the loads."""

    def read(stream, at, out):  # type: ignore[no-untyped-def]
        memory.store(out, 0, fetch(stream, at))

    return numba.njit(read)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "int8"])
def test_a_load_widens_sixteen_values_from_any_byte_on(kind: str) -> None:
    values = np.random.default_rng(1).integers(-128, 128, LANES).astype(np.float32)
    kinds: dict[str, NDArray[Any]] = {
        "f32": values,
        "f16": values.astype(np.float16),
        "bf16": bf16(values),
        "int8": values.astype(np.int8),
    }
    stored = kinds[kind].view(np.uint8)
    load = loader(getattr(memory, f"load_{kind}"))
    for offset in range(5):
        stream = np.full(len(stored) + 8, 0xEE, np.uint8)
        stream[offset : offset + len(stored)] = stored
        out = np.zeros(LANES, np.float32)
        load(stream, offset, out)
        assert np.array_equal(out, values)


def test_halves_keep_their_infinities_and_smallest_numbers() -> None:
    values = np.array([np.inf, -np.inf, 2**-24, -(2**-14), 65504, -0.0] + [0] * 10, np.float16)
    out = np.zeros(LANES, np.float32)
    loader(memory.load_f16)(values.view(np.uint8), 0, out)
    assert np.array_equal(out, values.astype(np.float32))
    assert np.signbit(out[5])


def first_of(x, at, out, to, count):  # type: ignore[no-untyped-def]
    memory.store_first(out, to, memory.load_first(x, at, count), count)


@pytest.mark.parametrize("count", [-1, 0, 1, 7, 15, 16])
def test_a_part_of_a_vector_is_moved_alone(count: int) -> None:
    move: Any = numba.njit(first_of)
    x = np.arange(1, LANES + 1, dtype=np.float32)
    out = np.full(LANES + 4, -1, np.float32)
    held = max(count, 0)
    move(x[LANES - held :] if held else x[:1], 0, out, 2, count)
    assert np.array_equal(out[2 : 2 + held], x[LANES - held :])
    assert (out[:2] == -1).all() and (out[2 + held :] == -1).all()


def filled_up(x, out, count):  # type: ignore[no-untyped-def]
    memory.store(out, 0, memory.load_first(x, 0, count))


@pytest.mark.parametrize("count", [0, 5, 16])
def test_lanes_that_are_not_read_are_zero(count: int) -> None:
    move: Any = numba.njit(filled_up)
    out = np.full(LANES, -1, np.float32)
    move(np.ones(LANES, np.float32), out, count)
    assert out.tolist() == [1.0] * count + [0.0] * (LANES - count)


def one(x, y):  # type: ignore[no-untyped-def]
    memory.store_one(x, 3, y, 5)


def test_one_value_goes_from_index_to_index_whatever_the_rank() -> None:
    x, y = np.zeros((2, 2), np.float32), np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    numba.njit(one)(x, y)
    assert x.tolist() == [[0, 0], [0, 5]]


def ints(x, at, out):  # type: ignore[no-untyped-def]
    memory.store(out, 0, words.from_signed(words.load_ints(x, at)))


def test_signed_words_come_from_any_index() -> None:
    x = np.arange(-20, 20, dtype=np.int32)
    out = np.zeros(LANES, np.float32)
    numba.njit(ints)(x, 7, out)
    assert np.array_equal(out, x[7 : 7 + LANES])


def ahead(x):  # type: ignore[no-untyped-def]
    memory.prefetch(x, 1 << 40)
    return x[0]


def test_asking_for_memory_that_is_not_there_does_no_harm() -> None:
    assert numba.njit(ahead)(np.array([7], np.uint8)) == 7
