"""The digest of a tensor changes with every word, with their order and with their number, whatever their dtype."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.engine.weights.checksum import BLOCK_BYTES, BLOCK_WORDS, WORD_BYTES, digest

BLOCKS = 3
SIZE = BLOCKS * BLOCK_BYTES + 13
"""Some blocks and a rest that is no whole word."""
DATA = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)


def changed(start: int, values: bytes) -> NDArray[np.uint8]:
    copy = DATA.copy()
    copy[start : start + len(values)] = np.frombuffer(values, np.uint8)
    return copy


@given(place=st.integers(0, SIZE - 1), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found(place: int, bit: int) -> None:
    assert digest(changed(place, bytes([DATA[place] ^ 1 << bit]))) != digest(DATA)


@given(st.data())
def test_words_that_change_places_are_found(data: st.DataObject) -> None:
    words = DATA[: SIZE // WORD_BYTES * WORD_BYTES].view(np.uint64).copy()
    right = digest(words)
    here, there = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
    different = bool(words[here] != words[there])
    words[[here, there]] = words[[there, here]]
    assert (digest(words) != right) == different


@given(first=st.integers(0, SIZE), length=st.integers(1, SIZE))
def test_a_stretch_of_zeros_is_found(first: int, length: int) -> None:
    zeroed = changed(first, bytes(min(length, SIZE - first)))
    assert (digest(zeroed) != digest(DATA)) == (zeroed.tobytes() != DATA.tobytes())


def test_whole_blocks_out_of_order_are_found() -> None:
    blocks = DATA[: BLOCKS * BLOCK_BYTES].reshape(BLOCKS, -1)
    assert digest(blocks[::-1]) != digest(blocks)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint16, np.int8, np.int32])
def test_only_bytes_count_not_their_dtype_their_shape_or_their_place_in_memory(dtype: type) -> None:
    whole = DATA[: 2 * BLOCK_BYTES + 64]
    values: NDArray[Any] = whole.view(dtype).reshape(2, -1)
    assert digest(values) == digest(whole)
    assert digest(np.asfortranarray(values)) == digest(whole)


@pytest.mark.parametrize("size", [0, 1, WORD_BYTES, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_any_number_of_bytes_has_a_digest_of_its_own(size: int) -> None:
    assert len(digest(DATA[:size])) == 64
    assert digest(DATA[:size]) != digest(DATA[: size + 1])


def test_the_digest_is_the_sum_that_its_module_describes() -> None:
    """Files outlive a version: what was once written must be found again."""
    block = range(1, BLOCK_WORDS + 1)
    factors, power = [], 1
    for _ in block:
        power = power * 0x9E3779B97F4A7C15 % 2**64
        factors.append(power)
    total = sum(word * factor for word, factor in zip(block, factors, strict=True)) % 2**64
    rest = b"abc"
    data = np.frombuffer(np.array(block, "<u8").tobytes() + rest, np.uint8)
    assert digest(data) == hashlib.sha256(total.to_bytes(8, "little") + rest).hexdigest()
