"""Styled words in lines that fit the terminal, given out as they come and never taken back.

A word is held until it is known to be complete, then goes to the line or to the next one. The width is asked
for at every word, so a terminal that is resized gets lines of its new width from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rich.cells import cell_len

from llmrs_cli.chat.inline import Style

RESET = "\x1b[0m"
_CODES = {
    Style.BOLD: "1",
    Style.FAINT: "2",
    Style.ITALIC: "3",
    Style.CODE: "36",
    Style.HEADING: "1;4",
}
"""Of the 16 colours every theme defines, one that can be read on dark and on light ground."""
LEAST = 10
"""Cells to which lines are wrapped in a narrower terminal."""


@cache
def sgr(style: Style) -> str:
    """The sequence that switches `style` on."""
    codes = [code for flag, code in _CODES.items() if style & flag]
    return f"\x1b[{';'.join(codes)}m" if codes else ""


class Wrapped:
    """`put` styled text, `end_line`, and `take` what can be written."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self.indent = 0
        """Cells in front of every further line of what is being put."""
        self._out: list[str] = []
        self._column = 0
        self._blanks = ""
        self._word: list[tuple[str, Style]] = []
        self._word_cells = 0
        self._style = Style.PLAIN

    def put(self, text: str, style: Style) -> None:
        """A piece of a line, without line breaks."""
        start = 0
        for position, char in enumerate(text):
            if char in " \t":
                self._add(text[start:position], style)
                self._end_word()
                self._blanks += " " if char == " " else "    "
                start = position + 1
            elif ord(char) > 0x2E7F and cell_len(char) == 2:  # a line may break beside it
                self._add(text[start:position], style)
                self._end_word()
                self._add(char, style)
                self._end_word()
                start = position + 1
        self._add(text[start:], style)

    def literal(self, text: str) -> None:
        """A text that is written as it stands: whole lines with sequences of their own."""
        self._out.append(text)

    def end_line(self) -> None:
        """Go to a new line."""
        self._end_word()
        self._restyle(Style.PLAIN)
        self._out.append("\n")
        self._column, self._blanks = 0, ""

    def flush(self) -> None:
        """The word that is held is complete."""
        self._end_word()
        self._restyle(Style.PLAIN)

    def take(self) -> str:
        """What was put and can be written by now."""
        out = "".join(self._out)
        self._out.clear()
        return out

    @property
    def _width(self) -> int:
        return max(self._columns() - 1, LEAST)

    def _add(self, text: str, style: Style) -> None:
        """More of the word; one that fills a line by itself is cut."""
        while text:
            room = max(1, self._width - self.indent) - self._word_cells
            if room < 1:
                self._end_word()
                continue
            if cell_len(text) <= room:
                self._word.append((text, style))
                self._word_cells += cell_len(text)
                return
            piece = _fitting(text, room)
            self._word.append((piece, style))
            self._word_cells += cell_len(piece)
            self._end_word()
            text = text[len(piece) :]

    def _end_word(self) -> None:
        if not self._word:
            return
        if self._column and self._column + len(self._blanks) + self._word_cells > self._width:
            self._restyle(Style.PLAIN)
            self._out.append("\n" + " " * self.indent)
            self._column, self._blanks = self.indent, ""
        if self._blanks:
            if self._style != self._word[0][1]:
                self._restyle(Style.PLAIN)
            self._out.append(self._blanks)
            self._column += len(self._blanks)
        for text, style in self._word:
            self._restyle(style)
            self._out.append(text)
        self._column += self._word_cells
        self._word, self._word_cells, self._blanks = [], 0, ""

    def _restyle(self, style: Style) -> None:
        if style != self._style:
            self._out.append((RESET if self._style else "") + sgr(style))
            self._style = style


def _fitting(text: str, room: int) -> str:
    """The longest beginning of `text` in at most `room` cells; one character at least."""
    cells = 0
    for position, char in enumerate(text):
        cells += cell_len(char)
        if cells > room:
            return text[: max(position, 1)]
    return text
