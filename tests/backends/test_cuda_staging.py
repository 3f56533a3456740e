"""The words of a step: every section says what its chunks say, and stands where a recording finds it. No GPU, real or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.backends.cuda_sizes import recordings
from llmrs_cli.engine.backends.cuda_staging import (
    DRAWN,
    FIXED_TOKENS,
    PREFILL_QUERIES,
    Sizes,
    cuts,
    most_drawn,
    padded,
    stage,
)
from llmrs_cli.kernels.graphs import MOST
from tests.helpers.steps import batch

SECTIONS = tuple(cuts(Sizes(1, 1, 1, 1))[0])
Step = list[tuple[int, int, int, bool, int]]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Up to 6 chunks of different rows: (row, start, count, samples, scored)."""
    rows = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True))
    chunks = []
    for row in rows:
        count = draw(st.one_of(st.just(1), st.integers(1, 90)))
        scored = draw(st.sampled_from([0, count]))
        chunks.append((row, draw(st.integers(0, 100)), count, draw(st.booleans()), scored))
    return chunks


@given(steps(), st.integers(1, 300))
def test_every_section_says_what_the_chunks_say(chunks: Step, shares: int) -> None:
    made = stage(batch(*chunks), 8, shares)
    at, length = cuts(made.sizes)
    assert len(made.words) == length
    part = {name: made.words[at[name]].tolist() for name in SECTIONS}
    count, total = len(chunks), sum(chunk[2] for chunk in chunks)
    assert made.sizes.tokens == padded(total) >= total
    assert part["contexts"][:count] == [start + n for _, start, n, *_ in chunks]
    assert part["contexts"][count:] == [0] * (8 - count)
    ends = np.cumsum([0, *(chunk[2] for chunk in chunks)]).tolist()
    assert part["query_start"] == ends + [total] * (8 - count)
    tokens = [(row, position) for row, start, n, *_ in chunks for position in range(start, start + n)]
    padding = made.sizes.tokens - total
    assert part["token_rows"] == [row for row, _ in tokens] + [-1] * padding
    assert part["positions"] == [position for _, position in tokens] + [0] * padding
    pages = [-(-(start + 1) // 64) if n == 1 else 0 for _, start, n, *_ in chunks]
    assert part["first_page"][: count + 1] == np.cumsum([0, *pages]).tolist()
    assert made.decodes == any(pages)
    tiles = [0 if n == 1 else -(-n // PREFILL_QUERIES) for _, _, n, *_ in chunks]
    assert part["first_tile"][: count + 1] == np.cumsum([0, *tiles]).tolist()
    assert made.tiles >= sum(tiles) and made.tiles.bit_count() == bool(made.tiles) == (sum(tiles) > 0)
    drawing = [i for i, chunk in enumerate(chunks) if chunk[3]]
    assert made.drawn == len(drawing)
    unused = len(part["sample_rows"]) - len(drawing)
    assert len(drawing) <= made.sizes.samples <= len(part["sample_tokens"]) == len(part["sample_rows"])
    # As many as tokens only where each of these draws: then nobody need gather them.
    assert (made.sizes.samples == made.sizes.tokens) == (total == len(drawing))
    assert made.sizes.samples in (len(drawing), made.sizes.tokens, *DRAWN)
    assert part["sample_tokens"] == [ends[i + 1] - 1 for i in drawing] + [0] * unused
    assert part["sample_rows"] == [chunks[i][0] for i in drawing] + [-1] * unused
    scored = [ends[i] + j for i, chunk in enumerate(chunks) for j in range(chunk[4])]
    assert part["scored_tokens"] == scored


def test_what_a_recording_reads_stands_at_one_address_for_one_padded_size() -> None:
    few, many = cuts(Sizes(8, 64, 1, 0))[0], cuts(Sizes(8, 64, 60, 9))[0]
    assert SECTIONS[-1] == "scored_tokens"
    assert [few[name] for name in SECTIONS[:-1]] == [many[name] for name in SECTIONS[:-1]]


def test_what_a_head_reads_stands_at_one_address_for_all_sizes() -> None:
    few, many = cuts(Sizes(8, 64, 1, 0))[0], cuts(Sizes(8, 2048, 6, 9))[0]
    assert all(few[name] == many[name] for name in ("result", "sample_tokens", "sample_rows"))
    assert few["positions"].start == many["positions"].start


def test_a_full_step_in_which_not_all_tokens_draw_has_a_size_of_its_own_for_them() -> None:
    drawn = {
        stage(
            batch(*((row, 5, 1, True) for row in range(count)), (255, 0, 256 - count, False)), 256, 66
        ).sizes
        for count in range(133, 255)
    }
    assert drawn == {Sizes(256, 256, 255, 0)}


@given(st.integers(1, 600), st.data())
def test_every_row_that_draws_has_a_place_and_a_size_that_is_met_again(
    rows: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, rows))
    fixed = data.draw(st.booleans())
    chunks = [(row, 5, 1, True) for row in range(count)]
    if longer := data.draw(st.integers(0, 300)):
        chunks[-1] = (count - 1, 0, longer, data.draw(st.booleans()))
    made = stage(batch(*chunks), rows, 66, fixed)
    at, _ = cuts(made.sizes)
    places = at["sample_rows"].stop - at["sample_rows"].start
    assert made.drawn <= made.sizes.samples <= places
    if 0 < made.drawn <= DRAWN[-1]:
        assert made.sizes.samples in (*DRAWN, made.sizes.tokens)
        assert made.sizes.samples <= (most_drawn(rows) if not fixed else places)


@pytest.mark.parametrize("rows", [1, 5, 100, 256])
def test_steps_that_only_decode_have_as_many_keys_as_are_planned(rows: int) -> None:
    keys = set()
    for count in range(1, rows + 1):
        for longest in (60, 3000, 30000):
            chunks = [(row, 59, 1, True) for row in range(count - 1)]
            made = stage(batch(*chunks, (count - 1, longest, 1, True)), rows, 132, few=(8, 4, 2, 1))
            keys.add((made.sizes.tokens, made.few))
            assert not made.tiles
    assert len(keys) <= recordings(rows)[0] - MOST


@given(steps())
def test_a_fixed_step_has_whole_tiles_and_prefill_attention_alone(chunks: Step) -> None:
    made = stage(batch(*chunks), 8, 66, fixed=True)
    assert made.sizes.tokens % FIXED_TOKENS == 0
    assert not made.decodes
    at, _ = cuts(made.sizes)
    tiles = [-(-chunk[2] // PREFILL_QUERIES) for chunk in chunks]
    assert made.words[at["first_tile"]].tolist()[: len(chunks) + 1] == np.cumsum([0, *tiles]).tolist()
    assert made.tiles >= sum(tiles)
    assert not made.words[at["first_page"]][:-1].any()
