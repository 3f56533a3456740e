"""The chart is a PNG that any reader takes, and shows what it was given."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmrs_cli.bench.plot import (
    BOTTOM,
    COLOURS,
    FAINT,
    HEIGHT,
    INK,
    LEFT,
    PAPER,
    RIGHT,
    TOP,
    WIDTH,
    draw,
    line,
    png,
    save_chart,
    write,
)


def test_a_file_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "chart.png"
    save_chart(path, "share of the ceiling", {"7b o": [(1, 0.9), (2048, 0.5)]})
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND\xaeB`\x82")
    assert struct.unpack(">II", data[16:24]) == (WIDTH, HEIGHT)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 255))
def test_pixels_come_back(height: int, width: int, value: int) -> None:
    pixels = np.full((height, width, 3), value, np.uint8)
    pixels[0, 0] = (1, 2, 3)
    data = png(pixels)
    at = data.index(b"IDAT")
    length = struct.unpack(">I", data[at - 4 : at])[0]
    rows = np.frombuffer(zlib.decompress(data[at + 4 : at + 4 + length]), np.uint8).reshape(height, -1)
    assert (rows[:, 0] == 0).all()
    assert (rows[:, 1:].reshape(height, width, 3) == pixels).all()


def test_a_higher_share_stands_higher_and_every_series_has_its_colour() -> None:
    canvas = draw("t", {"low": [(1, 0.1), (8, 0.1)], "high": [(1, 0.9), (8, 0.9)]})
    field = canvas[:, LEFT : WIDTH - 230]
    rows = [np.nonzero((field == colour).all(2))[0].mean() for colour in COLOURS[:2]]
    assert rows[0] > rows[1]


def test_a_share_above_all_stays_on_the_paper() -> None:
    canvas = draw("t", {"odd": [(1, 7.0)]})
    assert (canvas == COLOURS[0]).all(2).any()
    assert (draw("t", {})[0, 0] == PAPER).all()


def test_letters_differ_and_the_edge_cuts_a_text() -> None:
    seen = set()
    for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789":
        canvas = np.zeros((12, 8, 3), np.uint8)
        write(canvas, letter, 0, 0, (1, 1, 1))
        seen.add(canvas.tobytes())
    assert len(seen) >= 34  # 0 and O, 5 and S may look alike
    write(np.zeros((12, 8, 3), np.uint8), "far too long", 0, 0, (1, 1, 1))


def test_a_file_is_made_of_chunks_whose_sums_are_right() -> None:
    data, kinds = png(np.zeros((3, 2, 3), np.uint8))[8:], []
    while data:
        (length,) = struct.unpack(">I", data[:4])
        kind, body, (check,) = (
            data[4:8],
            data[8 : 8 + length],
            struct.unpack(">I", data[8 + length : 12 + length]),
        )
        assert check == zlib.crc32(kind + body)
        kinds.append(kind)
        data = data[12 + length :]
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]


def marks(canvas: NDArray[np.uint8], colour: tuple[int, int, int]) -> NDArray[np.intp]:
    """(N, 2) rows and columns of the field that have the colour."""
    field = canvas[:, : WIDTH - RIGHT + 3]
    return np.argwhere((field == colour).all(2))


@settings(max_examples=25)
@given(st.floats(0, 3), st.floats(1, 1e5))
def test_a_point_alone_stands_at_its_share_over_the_origin(share: float, x: float) -> None:
    found = marks(draw("", {"": [(x, share)]}), COLOURS[0])
    assert len(found) == 25
    height = HEIGHT - BOTTOM - min(share, 1.0) * (HEIGHT - TOP - BOTTOM)
    assert found.mean(0) == pytest.approx([height, LEFT], abs=0.6)


@given(st.integers(1, 6))
def test_powers_stand_at_equal_distances(base: int) -> None:
    xs = [float((base + 1) ** power) for power in range(4)]
    found = marks(draw("", {"": [(x, 0.5) for x in xs]}), COLOURS[0])
    columns = np.unique(found[:, 1][np.abs(found[:, 0] - found[:, 0].mean()) > 1])
    middles = [group.mean() for group in np.split(columns, np.nonzero(np.diff(columns) > 1)[0] + 1)]
    assert len(middles) == 4
    assert np.diff(middles) == pytest.approx([(WIDTH - LEFT - RIGHT) / 3] * 3, abs=1.1)


def test_ten_series_have_ten_colours_and_the_eleventh_begins_anew() -> None:
    canvas = draw("", {f"s{i}": [(1, i / 11)] for i in range(11)})
    assert all(len(marks(canvas, colour)) > 0 for colour in COLOURS)
    assert len(marks(canvas, COLOURS[0])) == 50


def test_scales_and_title_are_in_ink_and_the_lines_behind_are_faint() -> None:
    canvas = draw("title", {"a": [(1, 0.1), (64, 0.2)]})
    above, below = canvas[: TOP - 2], canvas[HEIGHT - BOTTOM + 5 :]
    assert (above == INK).all(2).any() and (below == INK).all(2).any()
    assert (canvas[:, :LEFT] == INK).all(2).any()
    rows = np.unique(marks(canvas, FAINT)[:, 0])
    assert len(rows) == 6
    assert len(np.unique(np.diff(rows).round(-1))) == 1


@given(
    st.tuples(st.floats(0, 39), st.floats(0, 29)),
    st.tuples(st.floats(0, 39), st.floats(0, 29)),
)
def test_a_line_joins_its_ends_without_a_gap(start: tuple[float, float], end: tuple[float, float]) -> None:
    canvas = np.zeros((31, 40, 3), np.uint8)
    line(canvas, start, end, (9, 9, 9))
    for across, down in (start, end):
        assert canvas[round(down), round(across), 0] == 9
    rows, columns = np.nonzero(canvas[..., 0])
    assert len(np.unique(columns)) == columns.max() - columns.min() + 1
    assert len(np.unique(rows)) == rows.max() - rows.min() + 1


def test_a_line_at_the_lower_edge_stays_on_the_paper() -> None:
    canvas = np.zeros((HEIGHT, 12, 3), np.uint8)
    line(canvas, (0, HEIGHT - 1), (11, HEIGHT - 1), (9, 9, 9))
    assert (canvas[HEIGHT - 1] == 9).all()


def test_a_letter_is_written_alike_in_both_cases_and_an_unknown_one_is_a_gap() -> None:
    pictures = []
    for text in ("ab", "AB", "a?b", "a b"):
        canvas = np.zeros((12, 40, 3), np.uint8)
        write(canvas, text, 1, 1, (5, 5, 5))
        pictures.append(canvas.tobytes())
    assert pictures[0] == pictures[1]
    assert pictures[2] == pictures[3] != pictures[0]
