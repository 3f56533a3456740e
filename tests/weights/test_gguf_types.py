"""Block formats against the dequantiser of the `gguf` package, over random bytes."""

from __future__ import annotations

from typing import Any

import gguf as oracle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.engine.weights.gguf_types import FORMATS, canonical
from llmrs_cli.engine.weights.packed import Dense, Packed4, Packed8

ROUNDED = {"Q5_1", "Q5_K"}
"""Stored as float16: half a unit in the last place of 11 bits, or the smallest subnormal."""
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
"""Where the float16 numbers of a block stand."""
PACKED = {
    "Q4_0": (Packed4, 32),
    "Q4_1": (Packed4, 32),
    "Q5_0": (Packed8, 32),
    "Q8_0": (Packed8, 32),
    "Q2_K": (Packed4, 16),
    "Q3_K": (Packed4, 16),
    "Q4_K": (Packed4, 32),
    "Q6_K": (Packed8, 16),
}
BY_NAME = {form.name: (number, form) for number, form in FORMATS.items()}


def random_rows(name: str, rows: int, blocks: int, seed: int) -> NDArray[np.uint8]:
    """Random codes with scales of a real model's size, positive and negative."""
    _, form = BY_NAME[name]
    rng = np.random.default_rng(seed)
    if form.block == 1:
        values = rng.standard_normal((rows, 32 * blocks)).astype(np.float32)
        data: NDArray[Any] = values if name == "F32" else values.astype(np.float16)
        return (
            (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
            if name == "BF16"
            else data.view(np.uint8)
        )
    data = rng.integers(0, 256, (rows * blocks, form.nbytes), np.uint8)
    for at in SCALES[name]:
        data[:, at : at + 2] = rng.uniform(-0.5, 0.5, (rows * blocks, 1)).astype("<f2").view(np.uint8)
    return data.reshape(rows, -1)


def expected(name: str, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    number, form = BY_NAME[name]
    stored = rows.view({"F32": "<f4", "F16": "<f2"}.get(form.name, np.uint8))
    found: NDArray[np.float32] = oracle.quants.dequantize(stored, oracle.GGMLQuantizationType(number))
    return found


@pytest.mark.parametrize("name", BY_NAME)
@given(rows=st.integers(1, 5), blocks=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_every_format_gives_the_numbers_of_the_oracle(name: str, rows: int, blocks: int, seed: int) -> None:
    data = random_rows(name, rows, blocks, seed)
    wanted = expected(name, data)
    found = canonical(BY_NAME[name][1], data, wanted.shape)
    assert found.shape == wanted.shape
    if name in ROUNDED:
        np.testing.assert_allclose(found.dequantise(), wanted, rtol=2**-11, atol=2**-25)
    else:
        np.testing.assert_array_equal(found.dequantise(), wanted)


@pytest.mark.parametrize("name", PACKED)
def test_small_formats_stay_packed(name: str) -> None:
    kind, group = PACKED[name]
    weight = canonical(BY_NAME[name][1], random_rows(name, 2, 2, 0), (2, 2 * BY_NAME[name][1].block))
    assert isinstance(weight, kind) and isinstance(weight, Packed4 | Packed8)
    assert weight.group == group


def test_block_sizes_are_those_of_the_oracle() -> None:
    for number, form in FORMATS.items():
        kind = oracle.GGMLQuantizationType(number)
        assert kind.name == form.name
        assert oracle.GGML_QUANT_SIZES[kind] == (form.block, form.nbytes)


def test_a_quantised_vector_becomes_dense() -> None:
    data = random_rows("Q8_0", 1, 2, 0)
    vector = canonical(BY_NAME["Q8_0"][1], data, (64,))
    assert isinstance(vector, Dense)
    np.testing.assert_array_equal(vector.dequantise(), expected("Q8_0", data)[0])


def test_values_past_float16_saturate() -> None:
    data = random_rows("Q5_1", 1, 1, 0)
    data[0, :4] = np.array([60000, 60000], "<f2").view(np.uint8)
    weight = canonical(BY_NAME["Q5_1"][1], data, (1, 32)).dequantise()
    assert np.isfinite(weight).all() and weight.max() == 65504


@pytest.mark.parametrize("name", BY_NAME)
def test_rows_can_be_reordered_in_every_form(name: str) -> None:
    data = random_rows(name, 4, 1, 5)
    weight = canonical(BY_NAME[name][1], data, expected(name, data).shape)
    order = np.array([2, 0, 3, 1])
    np.testing.assert_array_equal(weight.rows(order).dequantise(), weight.dequantise()[order])
