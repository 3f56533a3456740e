"""Weights into the streams that the CPU loops read: several threads at a time, 4-bit ones straight from a file's words."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import Dense, Packed4, Packed8, Tiles4, Words4
from llmrs_cli.kernels.marlin_layout import UNIT_TILES, tile_group
from llmrs_cli.kernels.simd.layout import LANES, WORD, Bytes, Layout, fill, tile_count
from llmrs_cli.kernels.simd.program import Program

Plain = Dense | Packed4 | Packed8
"""Canonical forms with their columns in order."""
RUN_TILES = 16
"""Tiles that a thread fills at a time: whole units of `marlin_layout`, and no second copy of a large matrix."""
WORD_BYTES = 4
HALVES = np.arange(17, dtype=np.float16).view(np.uint16).astype(np.uint32)
"""Zeros as float16."""


def is_direct(weight: Words4 | Tiles4) -> bool:
    """Whether it can go into a stream as it is: whole groups of whole words, of AWQ and GPTQ whole tiles.

    From tiles four words of a lane are taken at once, two steps of sixteen columns.
    """
    rows, columns = weight.shape
    group = min(weight.group, columns)
    if isinstance(weight, Tiles4):
        return columns % group == 0 and group % (4 * WORD) == 0
    return columns % (2 * WORD) == 0 and columns % group == 0 and group % WORD == 0 and rows % LANES == 0


@dataclass(frozen=True, slots=True)
class Filler:
    """What fills streams."""

    loops: Program
    threads: int

    def fill(self, stream: Bytes, order: Layout, weight: Plain | Words4 | Tiles4) -> None:
        """Write all tiles of a matrix; `stream` has their size."""
        tiles = tile_count(weight.shape[0])
        runs = [slice(first, min(first + RUN_TILES, tiles)) for first in range(0, tiles, RUN_TILES)]
        parts = [stream[run.start * order.tile_bytes : run.stop * order.tile_bytes] for run in runs]
        if isinstance(weight, Words4):
            write: Any = partial(self._words, order, weight)
        elif isinstance(weight, Tiles4):
            write = partial(self._tiles, order, weight)
        else:
            write = partial(_plain, order, weight)
        if self.threads == 1 or len(runs) == 1:
            for part, run in zip(parts, runs, strict=True):
                write(part, run)
            return
        with ThreadPoolExecutor(min(self.threads, len(runs)), thread_name_prefix="llmrs-fill") as pool:
            list(pool.map(write, parts, runs))

    def _words(self, order: Layout, weight: Words4, stream: Bytes, tiles: slice) -> None:
        own = weight.outputs(slice(tiles.start * LANES, tiles.stop * LANES))
        awq = weight.kind == "awq"
        first, count = tiles.start * (2 if awq else LANES), tiles.stop - tiles.start
        scales, zeros = (_as_words(values, order) for values in (own.scales, own.plain_zeros()))
        self.loops.from_words(
            stream.view(np.uint32), _sizes(order), int(awq), weight.codes, scales, zeros, first, count
        )

    def _tiles(self, order: Layout, weight: Tiles4, stream: Bytes, tiles: slice) -> None:
        units = weight.tiles.view(np.uint32)[tiles.start // UNIT_TILES : -(-tiles.stop // UNIT_TILES)]
        units = units.reshape(*units.shape[:2], UNIT_TILES, -1)
        own = tile_group(weight.group, weight.shape[1])
        assert own is not None
        count = tiles.stop - tiles.start
        self.loops.from_tiles(stream.view(np.uint32), _sizes(order), units, own // WORD, HALVES, count)


def _as_words(values: NDArray[Any], order: Layout) -> NDArray[np.uint32]:
    """(groups, N) scales or zeros as they stand in the stream, in words."""
    return np.ascontiguousarray(values, order.head_type).view(np.uint32)


def _sizes(order: Layout) -> tuple[int, int, int, int]:
    """Words of a tile, of a group, before a group's codes; words of a lane in a group."""
    sizes = (order.tile_bytes, order.group_bytes, order.head_bytes)
    tile, group, head = (size // WORD_BYTES for size in sizes)
    return tile, group, head, order.group // WORD


def _plain(order: Layout, weight: Plain, stream: Bytes, tiles: slice) -> None:
    own = weight.rows(slice(tiles.start * LANES, tiles.stop * LANES))
    fill(stream, order, own.data if isinstance(own, Dense) else own.codes, heads_of(own))


def heads_of(weight: Plain) -> Sequence[NDArray[Any]]:
    """What stands before each group's codes, (N, ceil(K/G)) each."""
    if isinstance(weight, Dense):
        return []
    if isinstance(weight, Packed8):
        return [weight.scales]
    second = weight.zeros if weight.offsets is None else weight.offsets
    assert second is not None
    return [weight.scales, second]
