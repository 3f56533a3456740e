"""Which kind of Markdown block a line belongs to; by the line alone, as soon as its beginning says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

_FENCE = re.compile(r"( {0,12})(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*\Z")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+")
_ITEM = re.compile(r"([ \t]*)([-*+]|\d{1,9}[.)])[ \t]+")
_QUOTE = re.compile(r" {0,3}>[ \t]?")
_TABLE = re.compile(r" {0,3}\|")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(\1[ \t]*){2,}\Z")
_UNDECIDED = re.compile(r"[ \t]*(#{0,6}|>|[-*+_]|\d{1,9}[.)]?|`*|~*|([-*_][ \t]*){2,})[ \t]*\Z")


class Kind(Enum):
    """What a line is."""

    BLANK = auto()
    TEXT = auto()
    HEADING = auto()
    ITEM = auto()
    QUOTE = auto()
    TABLE = auto()
    RULE = auto()
    FENCE = auto()


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of a line."""

    kind: Kind
    mark: str = ""
    """The characters that say so."""


def start_of(line: str, *, complete: bool) -> Start | None:
    """What `line` is; None while it may become several things."""
    stripped = line.lstrip(" ")
    if not complete and (_UNDECIDED.match(line) or stripped.startswith(("```", "~~~"))):
        return None
    if not line.strip():
        return Start(Kind.BLANK)
    if complete and _FENCE.match(line):
        return Start(Kind.FENCE, line)
    if complete and _RULE.match(line):
        return Start(Kind.RULE, line)
    for kind, pattern in _PATTERNS.items():
        if match := pattern.match(line):
            return Start(kind, match[0])
    return Start(Kind.TEXT)


_PATTERNS = {Kind.HEADING: _HEADING, Kind.ITEM: _ITEM, Kind.QUOTE: _QUOTE, Kind.TABLE: _TABLE}


@dataclass(frozen=True, slots=True)
class Fence:
    """The line that opened a block of code."""

    marks: str
    language: str

    def closed_by(self, line: str) -> bool:
        """Whether `line` ends the block."""
        text = line.strip()
        return text.startswith(self.marks) and not text.strip(self.marks[0])


def fence_of(line: str) -> Fence | None:
    """The fence that `line` is; None if it is none."""
    match = _FENCE.match(line)
    return Fence(match[2], match[3]) if match else None


def code_blocks(text: str) -> list[str]:
    """What stands in the fenced blocks of `text`, in order, with the indentation of the fence taken away.

    A block that is never closed ends with the text. Line feeds alone part lines: code may hold a form feed.
    """
    blocks: list[list[str]] = []
    fence, margin = None, 0
    for line in text.removesuffix("\n").split("\n"):
        if fence is None:
            fence = fence_of(line)
            if fence is not None:
                margin = len(line) - len(line.lstrip(" "))
                blocks.append([])
        elif fence.closed_by(line):
            fence = None
        else:
            blank = len(line) - len(line.lstrip(" "))
            blocks[-1].append(line[min(margin, blank) :])
    return ["".join(f"{line}\n" for line in block) for block in blocks]
