# mypy: allow-untyped-defs
"""4-bit weights into the stream of tiles that `layout` draws, straight from the words of a file: one pass over memory.

Each loop writes tiles 0 … `tiles` - 1 of a stream of words, and leaves Python's lock alone, so that threads can share
a matrix out. `sizes` counts words: of a tile, of a group, of the scales and zeros before a group's codes, and of one
lane in a group. K is a multiple of the group in all of them.
"""

from __future__ import annotations

import numpy as np

from llmrs_cli.kernels.simd.compiling import inner, unlocked
from llmrs_cli.kernels.simd.layout import LANES

FOURS, BYTES, PAIRS = np.uint32(0x0F0F0F0F), np.uint32(0x00FF00FF), np.uint32(0x0000FFFF)
TWO_FOURS, TWO_BYTES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x00FF00FF00FF00FF)
MIDDLE_FOURS, MIDDLE_BYTES = np.uint64(0x00F000F000F000F0), np.uint64(0x0000FF000000FF00)
UNIT_TILES, TILE_WORDS, HEADS = 4, 16, 256
"""Of `marlin_layout`: tiles below one another, words of eight columns in a row of a tile, words of codes before scales."""


@inner
def put_heads(stream, sizes, group, scales, zeros, tiles):
    """Scales and zeros of one group, which lie side by side in (groups, words) each."""
    tile_size, group_size, head, _ = sizes
    half = head // 2
    for tile in range(tiles):
        to = tile * tile_size + group * group_size
        for i in range(half):
            stream[to + i] = scales[group, tile * half + i]
            stream[to + half + i] = zeros[group, tile * half + i]


@inner
def exchange(low, high, shift, mask):
    """Exchange the bits of `low` from `shift` on with the lower ones of `high`, where the mask is."""
    moved = ((low >> np.uint32(shift)) ^ high) & mask
    return low ^ (moved << np.uint32(shift)), high ^ moved


@inner
def turned(a, b, c, d, e, f, g, h):
    """Eight words of eight nibbles, transposed (Warren, Hacker's Delight, 7-3)."""
    a, e = exchange(a, e, 16, PAIRS)
    b, f = exchange(b, f, 16, PAIRS)
    c, g = exchange(c, g, 16, PAIRS)
    d, h = exchange(d, h, 16, PAIRS)
    a, c = exchange(a, c, 8, BYTES)
    b, d = exchange(b, d, 8, BYTES)
    e, g = exchange(e, g, 8, BYTES)
    f, h = exchange(f, h, 8, BYTES)
    a, b = exchange(a, b, 4, FOURS)
    c, d = exchange(c, d, 4, FOURS)
    e, f = exchange(e, f, 4, FOURS)
    g, h = exchange(g, h, 4, FOURS)
    return a, b, c, d, e, f, g, h


@inner
def put_outputs(stream, to, tile_size, words, k, first, tiles):
    """A word of each lane from rows `k` … `k` + 7, whose columns have eight outputs each, in AWQ's order."""
    for half in range(2 * tiles):
        at = first + half
        lanes = turned(
            words[k, at],
            words[k + 1, at],
            words[k + 2, at],
            words[k + 3, at],
            words[k + 4, at],
            words[k + 5, at],
            words[k + 6, at],
            words[k + 7, at],
        )
        near = to + half // 2 * tile_size + half % 2 * 8
        for nibble in range(4):  # even outputs first, then odd ones
            stream[near + 2 * nibble] = lanes[nibble]
            stream[near + 2 * nibble + 1] = lanes[nibble + 4]


@inner
def put_inputs(stream, to, tile_size, words, k, first, tiles):
    """A word of each lane from row `k`, whose columns have eight inputs each, in order."""
    for tile in range(tiles):
        for lane in range(LANES):
            stream[to + tile * tile_size + lane] = words[k, first + tile * LANES + lane]


@unlocked
def from_words(stream, sizes, by_outputs, words, scales, zeros, first, tiles):
    """words (K, N/8) of AWQ, `by_outputs`, or (K/8, N) of GPTQ; the first tile's begin in column `first`."""
    tile_size, group_size, head, across = sizes
    for group in range(scales.shape[0]):
        put_heads(stream, sizes, group, scales, zeros, tiles)
        for word in range(across):
            k, to = group * across + word, group * group_size + head + word * LANES
            if by_outputs:
                put_outputs(stream, to, tile_size, words, 8 * k, first, tiles)
            else:
                put_inputs(stream, to, tile_size, words, k, first, tiles)


@unlocked
def from_tiles(stream, sizes, units, width, halves, tiles):
    """units (down, across, 4, words) as `marlin_layout` draws them, whose groups have `width` words of a lane.

    halves: float16 of the zeros 0 … 16.
    """
    tile_size, group_size, head, across = sizes
    for tile in range(tiles):
        down, within = tile // UNIT_TILES, tile % UNIT_TILES
        for group in range(tile_size // group_size):
            near, first = tile * tile_size + group * group_size, group * across
            column = units[down, first // TILE_WORDS, within]
            put_tile_head(stream, near, column, HEADS + first % TILE_WORDS // width * LANES, halves)
            for word in range(0, across, 4):
                step = (first + word) // 2
                codes = units[down, step // 8, within]
                put_steps(stream, near + head + word * LANES, codes, step % 8 // 4 * 128 + step % 4)


@inner
def put_tile_head(stream, to, tile, at, halves):
    """Sixteen scales, then as many zeros; a tile has row g beside row g + 8."""
    for pair in range(8):
        low, high = at + pair % 4 * 4 + pair // 4, at + pair % 4 * 4 + pair // 4 + 2
        stream[to + pair] = tile[low] & PAIRS | tile[high] << np.uint32(16)
        stream[to + 8 + pair] = halves[tile[low] >> np.uint32(16)] | halves[
            tile[high] >> np.uint32(16)
        ] << np.uint32(16)


@inner
def put_steps(stream, to, tile, at):
    """Two steps, 32 columns of sixteen rows: four words of each lane, two at a time in 64 bits."""
    for g in range(8):
        word, near = at + 16 * g, to + g
        a, b, c, d = two(tile, word), two(tile, word + 4), two(tile, word + 8), two(tile, word + 12)
        a, c = exchange(a, c, 8, TWO_BYTES)
        b, d = exchange(b, d, 8, TWO_BYTES)
        a, b = exchange(a, b, 4, TWO_FOURS)
        c, d = exchange(c, d, 4, TWO_FOURS)
        put_two(stream, near, side_by_side(a))
        put_two(stream, near + 8, side_by_side(b))
        put_two(stream, near + LANES, side_by_side(c))
        put_two(stream, near + LANES + 8, side_by_side(d))


@inner
def two(tile, at):
    """Two words of a tile: low codes of their four pairs in the lower halves, high ones above."""
    return np.uint64(tile[at]) | np.uint64(tile[at + 1]) << np.uint64(32)


@inner
def side_by_side(halves):
    """In each word the nibbles of the lower half with those of the upper one between them."""
    middle = (halves ^ (halves >> np.uint64(8))) & MIDDLE_BYTES
    halves ^= middle ^ (middle << np.uint64(8))
    middle = (halves ^ (halves >> np.uint64(4))) & MIDDLE_FOURS
    return halves ^ middle ^ (middle << np.uint64(4))


@inner
def put_two(stream, at, words):
    """The words of two steps, which lie two vectors apart."""
    stream[at] = np.uint32(words)
    stream[at + 2 * LANES] = np.uint32(words >> np.uint64(32))
