"""A step as one stretch of 32-bit words: the index arrays that kernels read, side by side, padded. NumPy only.

    result  contexts  table_rows  query_start  first_page  first_tile  sample_tokens  sample_rows  positions  token_rows  scored
            └───────────────────── sizes of the engine's rows ───────────────────────────────┘  └── padded(T) each ──┘ └ free ┘

What varies comes last, so that everything before it has one address, where a recorded graph finds it: of a body at one padded
token count, of a head at any. Where the words go and how they get there is `cuda_rows`' affair.

What a recording depends on takes few values: a step that decodes alone has its padded token count and one of two kinds of
attention. Beside prompts grids are as large as such a step may need, and are told by its words how much of them has work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Ints, StepBatch
from llmrs_cli.engine.backends.base import HEAD_ROWS
from llmrs_cli.engine.backends.rows import expand, sums
from llmrs_cli.kernels import attend_few
from llmrs_cli.kernels.attend_decode import chunk_pages
from llmrs_cli.kernels.attend_prefill import TILE
from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.wide_plans import GROUP_TOKENS, MOST_TOKENS

PAGE = 64
PREFILL_QUERIES = TILE
"""Queries of one tile of prefill attention."""
FIXED_TOKENS = 128
"""Where bits must not depend on company, every product is of so many tokens."""
NO_ROW = -1
PADDED = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
"""Token counts that a step is padded to, so that few graphs serve all; larger ones in steps of 64, a warpgroup's."""

DRAWN = (1, 6, 20, 68, 132, 255, 256)
"""What the rows that draw are padded to beside tokens that do not: a head reads its weights once for each of these. But for the
ends no size of a step, since as many rows as tokens are all of them; hence 255, in a step of 256."""


def most_drawn(rows: int) -> int:
    """Rows of the largest head of an engine of `rows` rows."""
    return min(max(padded(rows), next((size for size in DRAWN if size >= rows), HEAD_ROWS)), HEAD_ROWS)


def padded(tokens: int) -> int:
    """The size that a step of `tokens` tokens runs at."""
    if tokens > PADDED[-1]:
        return ceil_div(tokens, GROUP_TOKENS) * GROUP_TOKENS
    return PADDED[bisect_left(PADDED, tokens)]


def large_sizes(most: int) -> tuple[int, ...]:
    """Sizes of more than MOST_TOKENS, which are `linear_wide`'s, up to `most`."""
    return tuple(sorted({padded(tokens) for tokens in range(MOST_TOKENS + 1, most + 1)}))


def in_tiles(tokens: int) -> int:
    """`tokens` rounded up to whole products of FIXED_TOKENS."""
    return ceil_div(tokens, FIXED_TOKENS) * FIXED_TOKENS


class Sizes(NamedTuple):
    """What the length of every section, and of what is read of it, follows from."""

    rows: int
    """Of the engine."""
    tokens: int
    """Padded."""
    samples: int
    """Rows that draw, padded so that few recordings serve all; as many as tokens if and only if each token draws."""
    scored: int


Cuts = dict[str, slice]


@lru_cache(maxsize=1024)
def cuts(sizes: Sizes) -> tuple[Cuts, int]:
    """Where each section lies, and the words of all."""
    rows, tokens = sizes.rows, sizes.tokens
    drawing = max(in_tiles(rows), most_drawn(rows))  # whatever `samples` is
    lengths = {
        "result": 2,
        "contexts": rows,
        "table_rows": rows,
        "query_start": rows + 1,
        "first_page": rows + 2,
        "first_tile": rows + 1,
        "sample_tokens": drawing,
        "sample_rows": drawing,
        "positions": tokens,
        "token_rows": tokens,
        "scored_tokens": sizes.scored,
    }
    found, end = {}, 0
    for name, length in lengths.items():
        found[name] = slice(end, end + length)
        end += length
    return found, end


class StepKey(NamedTuple):
    """What the launches of a step's body depend on."""

    tokens: int
    """Padded"""
    tiles: int
    decodes: bool
    few: int

    @property
    def passing(self) -> bool:
        """Whether there may be many such: with prompts."""
        return self.tiles > 0


@dataclass(frozen=True, slots=True)
class Staged:
    """A step's words, and what a launch must know of them."""

    sizes: Sizes
    words: Ints
    tiles: int
    """Tiles of prefill attention to launch, a power of two, or 0. As many as the tokens of one prompt would take at least:
    blocks of tiles that are not there end at once."""
    decodes: bool
    """Some sequence has one query."""
    few: int
    """Blocks for each of their key heads in `attend_few`; 0: `attend_decode` serves them."""
    reached: int
    """Sequences that it looks at to meet all of them; follows from the other sizes."""
    drawn: int
    """Rows that draw."""


def stage(batch: StepBatch, rows: int, shares: int, fixed: bool = False, few: Sequence[int] = ()) -> Staged:
    """The words of a step for an engine of `rows` rows; `shares`: blocks of decode attention a key head.

    `fixed`: whole tiles of tokens, and prefill attention for all, so that one token's sums are always the same. `few`:
    numbers of blocks that `attend_few` may take (`attend_few.sizes`).
    """
    counts, count = batch.counts, len(batch.counts)
    ends = sums(counts)
    total = int(ends[-1])
    drawn = int(np.count_nonzero(batch.samples))
    scored = int(np.add.reduce(batch.scored)) if np.count_nonzero(batch.scored) else 0
    tokens = in_tiles(total) if fixed else padded(total)
    sizes = Sizes(rows, tokens, _samples(drawn, total, tokens), scored)
    at, length = cuts(sizes)
    words = np.zeros(length, np.int32)

    contexts = batch.starts + counts
    words[at["contexts"]][:count] = contexts
    words[at["table_rows"]][:count] = batch.rows
    _prefix(words[at["query_start"]], ends)
    one_each = total == count
    decodes = 0 if fixed else count if one_each else int(np.count_nonzero(counts == 1))
    tiles = blocks = reached = 0
    if decodes:
        decode = None if one_each else counts == 1
        pages = _decode_pages(contexts, decode)
        first_page = words[at["first_page"]]
        _prefix(first_page[:-1], sums(pages))
        first_page[-1] = chunk_pages(int(first_page[-2]), int(pages.max()), shares)
        blocks, reached = _few(contexts, decode, rows, shares, few)
    if decodes < count:
        own_tiles = (counts + (PREFILL_QUERIES - 1)) // PREFILL_QUERIES
        tile_ends = sums(own_tiles * (counts > 1) if decodes else own_tiles)
        _prefix(words[at["first_tile"]], tile_ends)
        tiles = _power_of_two(max(int(tile_ends[-1]), ceil_div(tokens, PREFILL_QUERIES)))

    positions, token_rows = words[at["positions"]], words[at["token_rows"]]
    if one_each:
        positions[:total], token_rows[:total] = batch.starts, batch.rows
    else:
        positions[:total] = np.arange(total, dtype=np.int32) + (contexts - ends).repeat(counts)
        token_rows[:total] = batch.rows.repeat(counts)
    token_rows[total:] = NO_ROW
    who = slice(None) if drawn == count else batch.samples
    words[at["sample_tokens"]][:drawn] = ends[who] - 1
    sample_rows = words[at["sample_rows"]]
    sample_rows[:drawn], sample_rows[drawn:] = batch.rows[who], NO_ROW
    if scored:
        words[at["scored_tokens"]] = expand(ends - counts, batch.scored)
    return Staged(sizes, words, tiles, bool(decodes), blocks, reached, drawn)


def _samples(drawn: int, total: int, tokens: int) -> int:
    """Entries for `drawn` rows of a step of `total` tokens, padded to `tokens`."""
    if drawn == total:
        return tokens
    return next((size for size in DRAWN if size >= drawn and size != tokens), drawn) if drawn else 0


def _few(
    contexts: Ints, decode: NDArray[np.bool_] | None, rows: int, shares: int, sizes: Sequence[int]
) -> tuple[int, int]:
    """Blocks of `attend_few` for each key head, and the sequences that it reaches, or zeros.

    `decode` as in `_decode_pages`. Both follow from the tokens of a step that only decodes. Beside prompts, whose attention
    takes longer, there is one block a head, for as many as the GPU holds at once.
    """
    if not sizes:
        return 0, 0
    if decode is None:
        count = reached = min(padded(contexts.size), rows)
    else:
        (places,) = decode.nonzero()
        contexts, sizes = contexts[places], sizes[-1:]
        count, reached = contexts.size, min(shares, rows)
        if places[-1] >= reached:
            return 0, 0
    blocks = attend_few.choose(sizes, shares, count, int(contexts.max()), int(np.add.reduce(contexts)))
    return (blocks, reached) if blocks else (0, 0)


def _decode_pages(contexts: Ints, decode: NDArray[np.bool_] | None) -> Ints:
    """Pages of each sequence that has one query, 0 for the others; None: all have one."""
    pages: Ints = (contexts + (PAGE - 1)) // PAGE
    return pages if decode is None else pages * decode


def _prefix(target: Ints, ends: Ints) -> None:
    """target[i]: the sum before entry i, given the sums after each; entries that do not exist add nothing."""
    target[1 : len(ends) + 1] = ends
    target[len(ends) + 1 :] = ends[-1]


def _power_of_two(count: int) -> int:
    """The least that is not smaller than `count` ≥ 1."""
    return 1 << (count - 1).bit_length()
