"""The order of 4-bit tiles: both directions agree, and who reads as a kernel reads finds the canonical weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import Packed4
from llmrs_cli.kernels.marlin_layout import (
    CODE_BYTES,
    GROUPS,
    HEAD_BYTES,
    TILE_COLUMNS,
    UNIT_ROWS,
    UNIT_TILES,
    Layout,
    pack,
    tile_group,
    unpack,
)
from tests.helpers.canonical import packed4

Floats = NDArray[np.float32]
SHAPES = st.tuples(st.integers(1, 150), st.integers(1, 400), st.sampled_from([32, 64, 96, 128, 256, 10**9]))


def weight(rows: int, columns: int, group: int, seed: int = 0) -> Packed4:
    return packed4(np.random.default_rng(seed), rows, columns, min(group, columns))


def packed(w: Packed4) -> NDArray[np.uint8]:
    assert w.zeros is not None
    return pack(w.codes, w.scales.astype(np.float16), w.zeros, w.group, w.columns)


def layout_of(w: Packed4) -> Layout:
    own = tile_group(w.group, w.columns)
    assert own is not None
    return Layout(*w.shape, own)


# -- a slow reader, written from the drawing alone ----------------------------------------------------------


def half_of(bits: int) -> float:
    return float(np.array([bits], np.uint16).view(np.float16)[0])


def brain_of(bits: int) -> float:
    return float(np.array([bits << 16], np.uint32).view(np.float32)[0])


def decoded(word: int, zeros: tuple[int, int], kind: str) -> list[tuple[float, float]]:
    """The four registers (low, high) that a lane makes of a word: code - zero, by way of base + code.

    "plain" codes stand beside no exponent: subnormal numbers, as the zero is.
    """
    value = brain_of if kind == "bf16" else half_of
    out = []
    for pair in range(4):
        if kind == "bf16":
            shift, place, base = 4 * pair, 0, 0x4300  # 128
        else:
            shift, place, base = pair // 2 * 8, pair % 2 * 4, (0x6400, 0x5400)[pair % 2]  # 1024 or 64
        unit = 1.0
        if kind == "plain":
            base, unit = 0, 2.0 ** (place - 24)
        bits = (word >> shift) & (0x000F000F << place) | base * 0x00010001
        offset = value(base + (zeros[pair % 2] << place))
        out.append(((value(bits & 0xFFFF) - offset) / unit, (value(bits >> 16) - offset) / unit))
    return out


def walk(stream: NDArray[np.uint8], layout: Layout, kind: str) -> Floats:
    """The matrix that a kernel multiplies with: every tile, lane and step, at the addresses it would use."""
    out = np.full(layout.padded, np.nan, np.float32)
    flat = stream.reshape(-1)
    for unit in range(layout.unit_rows * layout.unit_columns):
        down, across = divmod(unit, layout.unit_columns)
        for tile in range(UNIT_TILES):
            at = (unit * UNIT_TILES + tile) * layout.tile_bytes
            words = flat[at : at + CODE_BYTES].view(np.uint32)
            heads = flat[at + CODE_BYTES : at + layout.tile_bytes].view(np.uint32)
            for lane in range(32):
                g, c = divmod(lane, 4)
                for step in range(8):
                    word = int(words[step // 4 * 128 + lane * 4 + step % 4])
                    group = step * 16 // layout.group
                    own = [int(heads[group * 16 + g * 2 + half]) for half in (0, 1)]
                    pairs = decoded(word, (own[0] >> 16, own[1] >> 16), kind)
                    for pair, (low, high) in enumerate(pairs):
                        row = down * UNIT_ROWS + tile * 16 + g + pair % 2 * 8
                        k = across * TILE_COLUMNS + step * 16 + 2 * c + pair // 2 * 8
                        scale = np.float32(half_of(own[pair % 2] & 0xFFFF))
                        out[row, k : k + 2] = np.array([low, high], np.float32) * scale
    return out


@pytest.mark.parametrize("kind", ["bf16", "f16", "plain"])
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_who_reads_as_a_kernel_reads_finds_the_canonical_weights(group: int, kind: str) -> None:
    w = weight(70, 200, group)
    found = walk(packed(w), layout_of(w), kind)
    assert found[:70, :200].tolist() == w.dequantise().tolist()
    assert not found[70:].any()
    assert not np.isnan(found).any()


# -- properties -----------------------------------------------------------------------------------------------


@given(SHAPES, st.integers(0, 2**32 - 1))
def test_unpacking_gives_back_what_was_packed(shape: tuple[int, int, int], seed: int) -> None:
    w = weight(*shape, seed=seed)
    codes, scales, zeros = unpack(packed(w), w.group, *w.shape)
    if w.columns % 2:  # a high nibble that belongs to no column
        w.codes[:, -1] &= 15
    assert codes.tolist() == w.codes.tolist()
    assert scales.tolist() == w.scales.tolist()
    assert zeros.tolist() == w.zeros.tolist()  # type: ignore[union-attr]


@given(SHAPES)
def test_sizes_are_those_of_the_drawing(shape: tuple[int, int, int]) -> None:
    w = weight(*shape)
    layout = layout_of(w)
    stream = packed(w)
    assert stream.shape == (layout.unit_rows, layout.unit_columns, layout.unit_bytes)
    assert stream.size == layout.nbytes
    assert layout.tile_bytes == 1024 + 64 * (128 // layout.group)
    assert layout.tile_bytes % 16 == 0
    rows, columns = layout.padded
    assert w.shape[0] <= rows < w.shape[0] + UNIT_ROWS
    assert w.columns <= columns < w.columns + TILE_COLUMNS


@pytest.mark.parametrize(
    ("group", "columns", "own"),
    [(32, 576, 32), (64, 576, 64), (128, 896, 128), (896, 896, 128), (256, 896, 128), (192, 576, 64),
     (96, 960, 32), (16, 896, None), (48, 960, None), (10, 64, None), (64, 64, 128)],
)  # fmt: skip
def test_groups_that_tiles_can_hold(group: int, columns: int, own: int | None) -> None:
    assert tile_group(group, columns) == own
    assert own is None or own in GROUPS


def test_a_group_of_all_columns_repeats_its_scale() -> None:
    w = weight(64, 384, 384)
    heads = packed(w)[0].reshape(3, UNIT_TILES, -1)[:, :, CODE_BYTES:]
    assert heads.shape[-1] == HEAD_BYTES
    assert (heads == heads[:1]).all()


def test_every_nibble_has_one_place() -> None:
    """Setting one code changes four bits of the stream, and no two codes the same bit."""
    seen = np.zeros(UNIT_TILES * CODE_BYTES * 8, np.int64)
    zeros = np.zeros((64, 1), np.uint8)
    for row in range(0, 64, 7):
        for k in range(128):
            codes = np.zeros((64, 64), np.uint8)
            codes[row, k // 2] = 15 << 4 * (k % 2)
            tiles = pack(codes, zeros.astype(np.float16), zeros, 128, 128).reshape(UNIT_TILES, -1)
            bits = np.unpackbits(tiles[:, :CODE_BYTES].reshape(-1))
            assert bits.sum() == 4
            seen += bits
    assert seen.max() == 1
