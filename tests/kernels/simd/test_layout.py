"""The order of packed matrices: every value stands where the drawing in `layout` says, padding is zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.kernels.simd.layout import (
    ALIGNMENT,
    BRAIN,
    EIGHT,
    FOUR,
    HALF,
    LANES,
    SINGLE,
    WORD,
    Arena,
    Layout,
    fill,
    tile_count,
    tile_map,
)

Values = NDArray[Any]


def filled(layout: Layout, codes: Values, heads: tuple[Values, ...] = ()) -> Values:
    """(tiles, groups, bytes of a group)"""
    tiles = tile_count(len(codes))
    stream = Arena().take(tiles * layout.tile_bytes)
    stream[:] = 0xEE
    fill(stream, layout, codes, heads)
    return stream.reshape(tiles, layout.groups, layout.group_bytes)


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 70),
    group=st.sampled_from([8, 16, 32]),
    wide=st.booleans(),
)
def test_each_nibble_and_scale_stands_in_its_lane(rows: int, columns: int, group: int, wide: bool) -> None:
    rng = np.random.default_rng(rows * 100 + columns)
    layout = Layout(FOUR, columns, group, wide, zeros=True)
    codes = rng.integers(0, 256, (rows, -(-columns // 2)), np.uint8)
    scales = rng.random((rows, layout.groups)).astype(np.float32 if wide else np.float16)
    zeros = rng.integers(0, 17, (rows, layout.groups)).astype(np.uint8)
    stream = filled(layout, codes, (scales, zeros))
    size = LANES * layout.head_type.itemsize
    for row, column in zip(rng.integers(0, rows, 20), rng.integers(0, columns, 20), strict=True):
        tile, lane, g, k = row // LANES, row % LANES, column // group, column % group
        block = stream[tile, g]
        assert block[:size].view(layout.head_type)[lane] == scales[row, g]
        assert block[size : 2 * size].view(layout.head_type)[lane] == zeros[row, g]
        word = block[2 * size :].view("<u4").reshape(-1, LANES)[k // WORD, lane]
        assert (int(word) >> (4 * (k % WORD))) & 15 == (codes[row, column // 2] >> (4 * (column % 2))) & 15


def test_rows_and_columns_that_fill_up_are_zero() -> None:
    layout = Layout(FOUR, columns=40, group=32)
    codes = np.full((3, 20), 0xFF, np.uint8)
    ones = np.ones((3, 2), np.float16)
    stream = filled(layout, codes, (ones, ones))
    words = stream[..., 64:].copy().view("<u4").reshape(2, 4, LANES)
    assert not stream[..., :64].copy().view(np.float16).reshape(2, 2, LANES)[..., 3:].any()
    assert not words[..., 3:].any()
    assert (words[0, :, :3] == 0xFFFFFFFF).all() and (words[1, 0, :3] == 0xFFFFFFFF).all()
    assert not words[1, 1:].any()


def test_eight_bit_codes_follow_their_scales() -> None:
    layout = Layout(EIGHT, columns=32, group=16)
    codes = np.arange(16 * 32).reshape(16, 32).astype(np.int8)
    scales = np.arange(32, dtype=np.float16).reshape(16, 2)
    stream = filled(layout, codes, (scales,))
    assert np.array_equal(stream[0, 1, :32].view(np.float16), scales[:, 1])
    assert np.array_equal(stream[0, 1, 32:].view(np.int8).reshape(16, 16), codes[:, 16:].T)


@pytest.mark.parametrize(
    ("form", "dtype"), [(SINGLE, np.float32), (HALF, np.float16), (BRAIN, np.uint16)], ids=str
)
def test_a_dense_matrix_is_transposed_by_tiles(form: int, dtype: type[np.generic]) -> None:
    values = np.arange(20 * 5).reshape(20, 5).astype(dtype)
    stream = filled(Layout(form, columns=5, group=6), values)
    across = stream.reshape(2, -1).copy().view(dtype).reshape(2, 6, LANES)
    assert np.array_equal(across[0, :5], values[:16].T)
    assert np.array_equal(across[1, :5, :4], values[16:].T)
    assert not across[:, 5].any() and not across[1, :, 4:].any()


def test_every_part_starts_a_tile() -> None:
    assert tile_map([24, 3, 16]).tolist() == [[0, 16], [16, 8], [24, 3], [27, 16]]


def test_streams_start_on_a_cache_line_and_share_no_byte() -> None:
    arena = Arena(chunk=300)
    streams = [arena.take(size) for size in (1, 100, 64, 5000, 7, 200)]
    for value, stream in enumerate(streams):
        assert stream.ctypes.data % ALIGNMENT == 0
        stream[:] = value
    assert [set(stream.tolist()) for stream in streams] == [{value} for value in range(6)]
    assert [len(stream) for stream in streams] == [1, 100, 64, 5000, 7, 200]
