"""Rounding keeps every value within half a step of its group, and what is stored is what was chosen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.quantise.rounding import LEVELS, residue, round_matrix, slabs, spans


def matrix(seed: int, rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)


@given(
    rows=st.integers(1, 9),
    groups=st.integers(1, 5),
    group=st.sampled_from([1, 3, 8, 32]),
    shift=st.floats(-3, 3),
    exponent=st.integers(-3, 3),
    seed=st.integers(0, 99),
)
def test_every_value_is_within_half_a_step_and_within_one_at_the_ends(
    rows: int, groups: int, group: int, shift: float, exponent: int, seed: int
) -> None:
    weight = (matrix(seed, rows, groups * group) + np.float32(shift)) * np.float32(10.0**exponent)
    found = round_matrix(weight, group)
    assert found.codes.max() <= LEVELS and found.zeros.max() <= LEVELS
    steps = np.repeat(found.scales.astype(np.float32), group, axis=1)
    errors = np.abs(found.dequantise() - weight) / steps
    between = (found.codes > 0) & (found.codes < LEVELS)
    assert errors[between].max(initial=0) <= 0.501
    assert errors.max() <= 1.01  # at the ends: the zero is rounded as well, and the scale to float16


def test_values_on_the_grid_are_kept_exactly() -> None:
    weight = np.array([[-8, -3, 0, 7, 1, 2, 3, 15]], np.float32)
    found = round_matrix(weight, 4)
    np.testing.assert_array_equal(found.dequantise(), weight)
    assert (found.zeros.tolist(), found.scales.tolist()) == ([[8, 0]], [[1, 1]])


@pytest.mark.parametrize("value", [0.0, 2.5, -2.5])
def test_a_group_of_one_value_is_kept(value: float) -> None:
    found = round_matrix(np.full((2, 8), value, np.float32), 8)
    np.testing.assert_allclose(found.dequantise(), value, rtol=1e-3)


def test_a_clipped_range_is_finer_inside_and_cuts_outside() -> None:
    weight = np.linspace(-1, 1, 32, dtype=np.float32)[None]
    whole, clipped = (round_matrix(weight, 32, clip) for clip in (None, np.full((1, 1), 0.5, np.float32)))
    assert clipped.scales[0, 0] < 0.51 * whole.scales[0, 0]
    assert np.abs(clipped.dequantise()).max() < 0.6
    inside = np.abs(weight) < 0.5
    assert (
        np.abs(clipped.dequantise() - weight)[inside].max()
        < np.abs(whole.dequantise() - weight)[inside].max()
    )


def test_the_residue_is_what_rounding_changes() -> None:
    weight = matrix(1, 6, 64)
    groups = weight.reshape(6, 2, 32)
    found = residue(groups, spans(groups)).reshape(6, 64)
    np.testing.assert_allclose(found, round_matrix(weight, 32).dequantise() - weight, atol=1e-6)


@given(group=st.integers(1, 40), seed=st.integers(0, 9))
def test_spans_reach_from_the_smallest_to_the_largest_and_hold_zero(group: int, seed: int) -> None:
    groups = matrix(seed, 3, 2 * group).reshape(3, 2, group)
    high, low = spans(groups)
    np.testing.assert_array_equal(high, np.maximum(groups.max(-1), 0))
    np.testing.assert_array_equal(low, np.minimum(groups.min(-1), 0))


@given(rows=st.integers(1, 5000), columns=st.integers(1, 70000))
def test_slabs_cover_all_rows_in_order(rows: int, columns: int) -> None:
    found = slabs(rows, columns)
    assert found[0].start == 0 and found[-1].stop == rows
    assert all(a.stop == b.start for a, b in zip(found, found[1:], strict=False))
