"""A line chart as a PNG, with no drawing library: shares over a logarithmic axis, a line a series.

Source of the file format: the PNG specification, W3C Recommendation, second edition.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 960, 540
LEFT, RIGHT, TOP, BOTTOM = 60, 220, 30, 40
"""Margins: the scales on the left and below, the names on the right."""
PAPER, INK, FAINT = (255, 255, 255), (40, 40, 40), (224, 224, 224)
COLOURS = (
    (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75),
    (227, 119, 194), (127, 127, 127), (188, 189, 34), (23, 190, 207),
)  # fmt: skip
ZOOM = 2
# Each glyph: five rows of three pixels, a digit a row, bit 2 on the left.
_GLYPHS = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71317", "4": "55711", "5": "74717", "6": "74757",
    "7": "71122", "8": "75757", "9": "75717", "A": "25755", "B": "65656", "C": "34443", "D": "65556",
    "E": "74647", "F": "74644", "G": "34553", "H": "55755", "I": "72227", "J": "11152", "K": "55655",
    "L": "44447", "M": "57755", "N": "65555", "O": "25552", "P": "65644", "Q": "25563", "R": "65655",
    "S": "34216", "T": "72222", "U": "55557", "V": "55552", "W": "55775", "X": "55255", "Y": "55222",
    "Z": "71247", ".": "00002", "%": "51245", "-": "00700", "_": "00007", "=": "07070", "/": "11244",
    " ": "00000",
}  # fmt: skip
Series = Mapping[str, Sequence[tuple[float, float]]]
"""Points (x > 0, share) by name."""


def save_chart(path: Path, title: str, series: Series) -> None:
    """Write the chart; shares run from 0 to 100 %, x is logarithmic. Raises OSError."""
    path.write_bytes(png(draw(title, series)))


def draw(title: str, series: Series) -> NDArray[np.uint8]:
    """(HEIGHT, WIDTH, 3) pixels."""
    canvas = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    canvas[:] = PAPER
    xs = sorted({x for points in series.values() for x, _ in points}) or [1.0]
    low, high = np.log(xs[0]), max(np.log(xs[-1]), np.log(xs[0]) + 1e-9)

    def place(x: float, share: float) -> tuple[float, float]:
        across = (np.log(x) - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        return LEFT + across, HEIGHT - BOTTOM - min(share, 1.0) * (HEIGHT - TOP - BOTTOM)

    for tenth in range(0, 11, 2):
        y = round(place(xs[0], tenth / 10)[1])
        canvas[y, LEFT : WIDTH - RIGHT] = FAINT
        write(canvas, f"{tenth * 10}%", LEFT - 44, y - 5, INK)
    for x in xs:
        write(canvas, f"{x:g}", round(place(x, 0)[0]) - 4, HEIGHT - BOTTOM + 10, INK)
    write(canvas, title, LEFT, 10, INK)
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        placed = [place(x, share) for x, share in points]
        for start, end in zip(placed, placed[1:], strict=False):
            line(canvas, start, end, colour)
        for across, down in placed:
            canvas[round(down) - 2 : round(down) + 3, round(across) - 2 : round(across) + 3] = colour
        write(canvas, name, WIDTH - RIGHT + 14, TOP + 16 * number, colour)
    return canvas


def line(
    canvas: NDArray[np.uint8],
    start: tuple[float, float],
    end: tuple[float, float],
    colour: tuple[int, int, int],
) -> None:
    """A line two pixels thick, of points at most half a pixel apart, so that no rounding leaves a gap."""
    steps = 2 * ceil(max(abs(end[0] - start[0]), abs(end[1] - start[1]))) + 1
    xs = np.linspace(start[0], end[0], steps).round().astype(int)
    ys = np.linspace(start[1], end[1], steps).round().astype(int)
    canvas[ys, xs] = colour
    canvas[np.minimum(ys + 1, HEIGHT - 1), xs] = colour


def write(canvas: NDArray[np.uint8], text: str, x: int, y: int, colour: tuple[int, int, int]) -> None:
    """Text from (x, y) on, in capitals; what has no glyph is left out, and so is what passes the edge."""
    for letter in text.upper():
        rows = _GLYPHS.get(letter, _GLYPHS[" "])
        bits = np.array([[int(row) >> (2 - i) & 1 for i in range(3)] for row in rows], bool)
        bits = bits.repeat(ZOOM, 0).repeat(ZOOM, 1)
        if x < 0 or y < 0 or x + bits.shape[1] > canvas.shape[1] or y + bits.shape[0] > canvas.shape[0]:
            return
        canvas[y : y + bits.shape[0], x : x + bits.shape[1]][bits] = colour
        x += bits.shape[1] + ZOOM


def png(pixels: NDArray[np.uint8]) -> bytes:
    """(height, width, 3) pixels as a file."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # the first byte of a row: not filtered
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
