"""Emphasis and code inside a line of Markdown, told apart while the line is still growing.

What was given out is never taken back. So a star or underscore opens emphasis where CommonMark would let it
and where it is not between letters or digits (2*3*4), and what is never closed ends with its paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntFlag


class Style(IntFlag):
    """How a piece of text looks; several may hold at once."""

    PLAIN = 0
    BOLD = 1
    ITALIC = 2
    CODE = 4
    HEADING = 8
    FAINT = 16


Sink = Callable[[str, Style], None]
"""Takes a piece of text in order, with its style."""

_RUN = re.compile(r"\\[*_`#\\]|\\\Z|\*+|_+|`+")
_KINDS = {1: Style.ITALIC, 2: Style.BOLD}


class Inline:
    """`push` the text of a line in any pieces, then `end_line`; `reset` between paragraphs."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.base = Style.PLAIN
        """What holds for the whole line."""
        self._style = Style.PLAIN
        self._fence = 0
        """Length of the run of backticks that opened a code span."""
        self._held = ""
        self._before = " "

    def push(self, text: str) -> None:
        """More of the line; the end of it is held while it may still mean something."""
        text = self._held + text
        cut = len(text)
        for match in _RUN.finditer(text):
            if match.end() == len(text):
                cut = match.start()
        self._held = text[cut:]
        self._take(text[:cut], self._held[:1])

    def end_line(self) -> None:
        """The line is complete; a code span ends with it."""
        held, self._held = self._held, ""
        self._take(held, " ")
        self._fence, self._before = 0, " "
        self._style &= ~Style.CODE

    def reset(self) -> None:
        """A new paragraph: emphasis that was never closed is over."""
        self._style, self._fence = Style.PLAIN, 0

    def _take(self, text: str, after: str) -> None:
        position = 0
        for match in _RUN.finditer(text):
            self._give(text[position : match.start()])
            position = match.end()
            self._run(match[0], text[position : position + 1] or after)
        self._give(text[position:])

    def _give(self, text: str) -> None:
        if text:
            self._sink(text, self.base | self._style)
            self._before = text[-1]

    def _run(self, run: str, after: str) -> None:
        """A run of marks with the character behind it; one in front of it is remembered."""
        if run[0] == "`":
            self._backticks(run)
        elif self._fence:
            self._give(run)
        elif run[0] == "\\":
            self._give(run[1:] or run)
        elif not self._emphasis(run, after):
            self._give(run)

    def _backticks(self, run: str) -> None:
        if not self._fence:
            self._fence, self._style = len(run), self._style | Style.CODE
        elif len(run) == self._fence:
            self._fence, self._style = 0, self._style & ~Style.CODE
        else:
            self._give(run)

    def _emphasis(self, run: str, after: str) -> bool:
        """Open or close what the run says; False if it is only characters."""
        kind = _KINDS.get(len(run), Style.BOLD | Style.ITALIC)
        if len(run) > 3:
            return False
        if self._style & kind:
            closes = not self._before.isspace() and not (run[0] == "_" and after.isalnum())
            self._style &= ~kind if closes else self._style
            return closes
        opens = not after.isspace() and not (self._before.isascii() and self._before.isalnum())
        self._style |= kind if opens else Style.PLAIN
        return opens
