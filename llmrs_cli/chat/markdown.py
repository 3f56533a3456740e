"""An answer in Markdown, written to a terminal while it grows; nothing that was written is drawn again.

Prose goes out word by word, code line by line, a table when it is complete. The text itself has been freed
of control sequences; what this adds is colour and weight, and line breaks between words.
"""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from itertools import zip_longest
from typing import Literal

from rich import box
from rich.console import Console
from rich.style import Style as RichStyle
from rich.table import Table
from rich.text import Text

from llmrs_cli.chat.blocks import Fence, Kind, Start, fence_of, start_of
from llmrs_cli.chat.code import CodePainter
from llmrs_cli.chat.inline import Inline, Style
from llmrs_cli.chat.wrap import RESET, Wrapped, sgr

BULLETS = "-*+"
MAX_RULE = 40
"""Cells of a horizontal rule."""


class MarkdownPainter:
    """`feed` the pieces of one answer, then `finish`; both return what to write."""

    def __init__(self, columns: Callable[[], int]) -> None:
        """`columns`: the width of the terminal now."""
        self._columns = columns
        self._lines = Wrapped(columns)
        self._inline = Inline(self._lines.put)
        self._line = ""
        """Of the current line what has not been dealt with."""
        self._start: Start | None = None
        self._fence: Fence | None = None
        self._code = CodePainter("")
        self._table: list[str] = []

    def feed(self, text: str) -> str:
        """More of the answer."""
        *complete, rest = text.split("\n")
        for line in complete:
            self._grow(line)
            self._end_line()
        self._grow(rest)
        return self._lines.take()

    def finish(self) -> str:
        """The answer is over; its last line is left open."""
        if self._line or self._start is not None:
            self._end_line(last=True)
        self._end_table()
        self._lines.flush()
        return self._lines.take().removesuffix("\n")

    def recall(self, text: str) -> str:
        """Take in a beginning that was written before; of it only the last line is written again."""
        return self.feed(text).rpartition("\n")[2]

    # -- lines --------------------------------------------------------------------------------------

    def _grow(self, text: str) -> None:
        self._line += text
        if self._fence is not None or self._start is not None and self._start.kind is Kind.TABLE:
            return
        if self._start is None and self._line:
            self._begin(start_of(self._line, complete=False))
        if self._start is not None and self._start.kind is not Kind.TABLE:
            self._inline.push(self._line)
            self._line = ""

    def _begin(self, start: Start | None) -> None:
        """The kind of the current line is known: write what stands for its mark."""
        if start is None:
            return
        self._start = start
        if start.kind is Kind.TABLE:
            return
        self._end_table()
        self._line = self._line[len(start.mark) :]
        self._lines.indent, self._inline.base = 0, Style.PLAIN
        if start.kind in (Kind.HEADING, Kind.ITEM, Kind.BLANK):
            self._inline.reset()
        if start.kind is Kind.HEADING:
            self._inline.base = Style.HEADING if start.mark.count("#") < 3 else Style.BOLD
        elif start.kind is Kind.ITEM:
            self._item(start.mark)
        elif start.kind is Kind.QUOTE:
            self._lines.put("│ ", Style.FAINT)
            self._lines.indent = 2

    def _item(self, mark: str) -> None:
        margin = len(mark.expandtabs(4)) - len(mark.expandtabs(4).lstrip())
        sign = mark.strip()
        sign = "•" if sign in BULLETS else sign
        self._lines.put(" " * margin + sign + " ", Style.PLAIN)
        self._lines.indent = margin + len(sign) + 1

    def _end_line(self, *, last: bool = False) -> None:
        if self._fence is not None:
            self._code_line(self._line)
        elif self._start is not None and self._start.kind is Kind.TABLE:
            self._table.append(self._line)
        else:
            self._end_prose()
        self._line, self._start = "", None

    def _end_prose(self) -> None:
        if self._start is None:
            start = start_of(self._line, complete=True)
            if start is not None and start.kind in (Kind.FENCE, Kind.RULE):
                self._whole(start)
                return
            self._begin(start)
            self._inline.push(self._line)
        self._inline.end_line()
        self._lines.end_line()

    def _whole(self, start: Start) -> None:
        """A line that is a mark and nothing else."""
        self._end_table()
        self._inline.reset()
        if start.kind is Kind.RULE:
            self._faint("─" * min(self._columns() - 1, MAX_RULE))
            return
        self._fence = fence_of(self._line)
        assert self._fence is not None, "start_of has seen it"
        self._code = CodePainter(self._fence.language)
        self._faint(self._line)

    def _code_line(self, line: str) -> None:
        assert self._fence is not None, "we are inside of one"
        if self._fence.closed_by(line):
            self._fence = None
            self._faint(line)
        else:
            self._lines.literal(self._code.line(line) + "\n")

    def _faint(self, line: str) -> None:
        self._lines.literal(f"{sgr(Style.FAINT)}{line}{RESET}\n")

    # -- tables -------------------------------------------------------------------------------------

    def _end_table(self) -> None:
        if self._table:
            rows, self._table = self._table, []
            self._lines.literal(_drawn(rows, max(self._columns() - 1, 20)))


def _drawn(lines: list[str], width: int) -> str:
    """A table of Markdown, drawn in at most `width` cells; what is none comes back as it is."""
    rows = [_cells(line) for line in lines]
    if len(rows) < 2 or not all(set(cell) <= set(":- ") and "-" in cell for cell in rows[1]):
        return "".join(f"{line}\n" for line in lines)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style=RichStyle(bold=True))
    for name, rule in zip_longest(rows[0], rows[1][: len(rows[0])], fillvalue=""):
        table.add_column(_text(name), justify=_justify(rule), overflow="fold")
    for row in rows[2:]:
        table.add_row(*[_text(cell) for cell in row[: len(rows[0])]])
    drawn = StringIO()
    Console(file=drawn, width=width, force_terminal=True, color_system="standard", highlight=False).print(
        table
    )
    return "".join(f"{line.rstrip()}\n" for line in drawn.getvalue().split("\n") if line.strip())


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|").replace("\\|", "\0")
    return [cell.strip().replace("\0", "|") for cell in inner.split("|")]


def _justify(rule: str) -> Literal["left", "center", "right"]:
    if rule.endswith(":"):
        return "center" if rule.startswith(":") else "right"
    return "left"


def _text(cell: str) -> Text:
    """A cell with its emphasis, for rich."""
    text = Text()

    def add(piece: str, style: Style) -> None:
        code = "cyan" if style & Style.CODE else None
        look = RichStyle(color=code, bold=bool(style & Style.BOLD), italic=bool(style & Style.ITALIC))
        text.append(piece, look)

    inline = Inline(add)
    inline.push(cell)
    inline.end_line()
    return text
