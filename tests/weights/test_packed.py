"""Canonical forms: values are those of a plain loop over the definition, and rows are chosen in the same form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import (
    Dense,
    Packed4,
    Packed8,
    Permuted4,
    Weight,
    bf16_to_f32,
    f32_to_bf16,
)

Values = NDArray[np.float32]


def packed4(seed: int, rows: int, columns: int, group: int, *, offsets: bool = False) -> Packed4:
    """Random codes in every nibble that counts; an odd last column has a neighbour that must not."""
    rng = np.random.default_rng(seed)
    groups = -(-columns // group)
    scales = rng.uniform(0.5, 2, (rows, groups)).astype(np.float16)
    second = rng.integers(0, 17, (rows, groups)).astype(np.uint8)
    return Packed4(
        rng.integers(0, 256, (rows, -(-columns // 2))).astype(np.uint8),
        scales,
        None if offsets else second,
        (second / np.float16(7)).astype(np.float16) if offsets else None,
        group,
        columns,
    )


def one_by_one(weight: Packed4) -> Values:
    """The definition, value by value."""
    rows, columns = weight.shape
    found = np.empty((rows, columns), np.float32)
    for n in range(rows):
        for k in range(columns):
            code = np.float32((int(weight.codes[n, k // 2]) >> (4 * (k % 2))) & 15)
            scale = np.float32(weight.scales[n, k // weight.group])
            if weight.zeros is not None:
                found[n, k] = (code - np.float32(weight.zeros[n, k // weight.group])) * scale
            else:
                assert weight.offsets is not None
                found[n, k] = code * scale + np.float32(weight.offsets[n, k // weight.group])
    return found


@given(st.integers(1, 5), st.integers(1, 37), st.sampled_from([1, 2, 8, 32, 64]), st.booleans())
def test_four_bit_values_are_those_of_the_definition(
    rows: int, columns: int, group: int, offsets: bool
) -> None:
    weight = packed4(rows * 100 + columns, rows, columns, group, offsets=offsets)
    assert weight.shape == (rows, columns)
    assert np.array_equal(weight.dequantise(), one_by_one(weight))
    assert weight.unpack().shape == (rows, columns) and weight.unpack().max() <= 15


@given(st.permutations(range(24)))
def test_sorted_columns_go_back_to_their_inputs(order: list[int]) -> None:
    weight = packed4(1, 3, 24, 8)
    permuted = Permuted4(weight, np.array(order, np.int32))
    x = np.random.default_rng(2).standard_normal((2, 24)).astype(np.float32)
    assert permuted.shape == weight.shape
    wanted = x[:, order].astype(np.float64) @ weight.dequantise().T.astype(np.float64)
    got = x.astype(np.float64) @ permuted.dequantise().T.astype(np.float64)
    assert np.allclose(got, wanted, rtol=1e-12, atol=1e-12)


@given(st.integers(1, 4), st.integers(1, 70), st.sampled_from([8, 32, 64]))
def test_eight_bit_values_are_code_times_scale(rows: int, columns: int, group: int) -> None:
    rng = np.random.default_rng(columns)
    codes = rng.integers(-128, 128, (rows, columns)).astype(np.int8)
    scales = rng.uniform(0.1, 1, (rows, -(-columns // group))).astype(np.float32)
    values = Packed8(codes, scales, group).dequantise()
    for n, k in np.ndindex(rows, columns):
        assert values[n, k] == np.float32(codes[n, k]) * scales[n, k // group]


ROWS = 6
FORMS: dict[str, Weight] = {
    "float32": Dense(np.random.default_rng(3).standard_normal((ROWS, 9)).astype(np.float32)),
    "bfloat16": Dense(np.arange(ROWS * 9, dtype=np.uint16).reshape(ROWS, 9) + np.uint16(0x3F80)),
    "zeros": packed4(4, ROWS, 33, 32),
    "offsets": packed4(5, ROWS, 33, 32, offsets=True),
    "permuted": Permuted4(packed4(6, ROWS, 16, 8), np.arange(16, dtype=np.int32)[::-1].copy()),
    "eight bit": Packed8(np.full((ROWS, 8), -3, np.int8), np.ones((ROWS, 1), np.float32), 8),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "chosen", [slice(2, 5), slice(0, 0), np.array([4, 0, 4])], ids=["run", "none", "any"]
)
def test_chosen_rows_are_those_rows_in_the_same_form(form: str, chosen: slice | NDArray[np.int64]) -> None:
    weight = FORMS[form]
    part = weight.rows(chosen)
    assert type(part) is type(weight)
    assert np.array_equal(part.dequantise(), weight.dequantise()[chosen])
    assert part.shape == (len(np.arange(ROWS)[chosen]), weight.shape[1])


def test_a_plain_matrix_says_what_it_is_stored_as() -> None:
    assert Dense(np.zeros(2, np.float32)).dtype == "float32"
    assert Dense(np.zeros(2, np.float16)).dtype == "float16"
    assert Dense(np.zeros(2, np.uint16)).dtype == "bfloat16"


@given(st.integers(0, 2**16 - 1))
def test_every_bfloat16_survives_being_widened(bits: int) -> None:
    one = np.array([bits], np.uint16)
    wide = bf16_to_f32(one)
    if np.isnan(wide[0]):
        assert np.isnan(bf16_to_f32(f32_to_bf16(wide))[0])
    else:
        assert f32_to_bf16(wide)[0] == bits


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_rounding_goes_to_the_nearest_bfloat16_and_ties_to_even(value: float) -> None:
    exact = np.array([value], np.float32)
    bits = f32_to_bf16(exact)
    got = np.float64(bf16_to_f32(bits)[0])
    below = np.uint16(int(exact.view(np.uint32)[0]) >> 16)
    candidates = bf16_to_f32(np.array([below, below + np.uint16(1)], np.uint16)).astype(np.float64)
    finite = candidates[np.isfinite(candidates)]
    if not np.isfinite(got):
        assert len(finite) < 2 and abs(value) > float(np.abs(finite).max())
        return
    distances = np.abs(finite - np.float64(exact[0]))
    assert abs(got - float(exact[0])) == distances.min()
    if len(distances) == 2 and distances[0] == distances[1]:
        assert bits[0] % 2 == 0


def test_infinity_and_nan_are_no_numbers_after_rounding_either() -> None:
    values = np.array([np.inf, -np.inf, np.nan], np.float32)
    values[2:].view(np.uint32)[0] = 0x7F800001  # a NaN whose upper half alone is infinity
    got = bf16_to_f32(f32_to_bf16(values))
    assert got[0] == np.inf and got[1] == -np.inf and np.isnan(got[2])
