"""The sampler's bits: Philox against published vectors, log and exp against float64, exact anchors.

The anchors at the end stand for the stream that users' seeds give: a changed one is a changed answer.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.arrays import Floats
from llmrs_cli.engine.backends import reference_random as bits

UNIT = 2.0**-24
EIGHT = np.arange(8, dtype=np.int32)
WORD = st.integers(0, 2**32 - 1)


def spread(count: int) -> bits.Words:
    """Words over the whole range, both ends among them."""
    edges = [0, 1, 2, 2**23, 2**24 + 1, 2**30 - 1, 2**30, 2**31, 2**32 - 129, 2**32 - 128, 2**32 - 1]
    drawn = np.random.default_rng(1).integers(0, 2**32, count)
    tiny = np.arange(4096)
    return np.concatenate([edges, tiny, drawn]).astype(np.uint32)


def relative(got: Floats, wanted: np.ndarray, floor: float = 0.0) -> float:
    """Worst error in units of 2⁻²⁴ of the right value, or of `floor` where that is larger."""
    return float(np.max(np.abs(got - wanted) / np.maximum(np.abs(wanted), floor)) / UNIT)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_vectors(
    key: tuple[int, int], counter: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert tuple(int(word) for word in bits.philox(key, counter)) == expected


def test_a_token_takes_its_lane_of_its_group() -> None:
    seed, position, choice = (7 << 32) | 5, 11, 2
    ids = np.array([0, 1, 2, 3, 4, 9, 151_935], np.int32)
    drawn = bits.words(seed, position, choice, ids)
    for token, word in zip(ids.tolist(), drawn, strict=True):
        assert word == bits.philox((5, 7), (position, token // 4, choice, 0))[token % 4]


@given(WORD, WORD, WORD, WORD)
def test_each_part_of_the_counter_changes_the_words(low: int, high: int, position: int, choice: int) -> None:
    seed = (high << 32) | low
    base = bits.words(seed, position, choice, EIGHT)
    for other in (
        bits.words(seed ^ 1, position, choice, EIGHT),
        bits.words(seed ^ (1 << 32), position, choice, EIGHT),
        bits.words(seed, position ^ 1, choice, EIGHT),
        bits.words(seed, position, choice ^ 1, EIGHT),
    ):
        assert not np.array_equal(base, other)


def test_uniforms_stay_inside_their_interval() -> None:
    v = bits.uniform(np.array([0, 1, 2**32 - 1], np.uint32))
    assert v.tolist() == [2.0**-33, 1.5 * 2.0**-32, 1 - 2.0**-24]
    assert v.dtype == np.float32


@pytest.mark.parametrize("exponent", [-33, -20, -2, -1, 0, 1, 4])
def test_log_is_right_over_every_octave(exponent: int) -> None:
    x = np.ldexp(np.linspace(1, 2, 1 << 18, endpoint=False, dtype=np.float32), exponent)
    x = x[x != 1]
    assert relative(bits.log(x), np.log(x.astype(np.float64))) < 1.5


def test_log_of_one_is_zero() -> None:
    assert bits.log(np.ones(1, np.float32)).tolist() == [0.0]


def test_exponentials_are_right_from_the_least_word_to_the_greatest() -> None:
    v = bits.uniform(spread(1 << 19))
    assert relative(bits.exponential(v), -np.log1p(-v.astype(np.float64))) < 3.6


def test_gumbels_are_right_and_finite_for_every_kind_of_word() -> None:
    x = spread(1 << 19)
    exact = -np.log(-np.log1p(-bits.uniform(x).astype(np.float64)))
    got = bits.gumbel(x)
    assert relative(got, exact, floor=1.0) < 5
    assert -2.82 < got.min() < got.max() < 22.88


def test_greater_words_give_smaller_gumbels_up_to_rounding() -> None:
    got = bits.gumbel(np.sort(spread(1 << 16)))
    assert np.all(np.diff(got) <= 4 * UNIT * np.maximum(1, np.abs(got[1:])))


def test_masses_are_right_to_the_last_bits_of_float32() -> None:
    d = -np.linspace(0, 23, 1 << 19).astype(np.float32)
    exact = np.exp(d.astype(np.float64)) * 2**32
    assert np.all(np.abs(bits.mass(d).astype(np.float64) - exact) <= 1.5 * UNIT * exact + 0.5)


def test_mass_has_exact_ends() -> None:
    d = np.array([0.0, -0.0, -23.0, -23.1, -1e9, -np.inf], np.float32)
    assert bits.mass(d).tolist() == [2**32, 2**32, 0, 0, 0, 0]
    assert bits.mass(np.array([-22.0], np.float32)).tolist() == [1]


@given(st.floats(-30, 0, width=32))
def test_no_mass_exceeds_the_mass_of_the_best(d: float) -> None:
    assert 0 <= int(bits.mass(np.array([d], np.float32))[0]) <= bits.MASS_ONE


def test_the_random_stream_stays_as_it_is() -> None:
    drawn = bits.gumbel(bits.words(42, 7, 1, EIGHT[:6])).view(np.uint32)
    expected = ["3F849E19", "3F71AED8", "400E5037", "BE0DCB14", "BF2FBB94", "3E1E943E"]
    assert [f"{word:08X}" for word in drawn] == expected
    d = np.array([-0.001, -0.5, -1.0, -3.25, -10.0, -20.5], np.float32)
    assert bits.mass(d).tolist() == [4290674432, 2605029376, 1580030208, 166533952, 194991, 5]
