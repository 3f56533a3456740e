"""The chart is a PNG that any reader takes, and shows what it was given."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.bench.plot import COLOURS, HEIGHT, LEFT, PAPER, WIDTH, draw, png, save_chart, write


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
