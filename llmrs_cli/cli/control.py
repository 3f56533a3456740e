"""Keeps control sequences of untrusted text away from a terminal.

Model text, file names and messages of a server may hold escape sequences that move the cursor, set the
clipboard or hide text. `ControlFilter` drops them whole, as an ECMA-48 parser would read them, wherever the
text is cut into chunks; bidirectional controls are shown as <U+202E>. A pipe gets text unfiltered.
"""

from __future__ import annotations

import re
from enum import Enum, auto

_C1_STRINGS = frozenset("\x90\x98\x9d\x9e\x9f")
_ESC_STRINGS = frozenset("PX]^_")
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_SPECIAL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class _State(Enum):
    TEXT = auto()
    ESCAPE = auto()
    """After ESC, and through the intermediate bytes of a short sequence."""
    CSI = auto()
    STRING = auto()
    """Inside OSC, DCS, SOS, PM or APC: up to BEL, ST or the end of the line."""
    STRING_ESCAPE = auto()
    """After an ESC inside a string, which may begin ESC \\ (ST)."""


class ControlFilter:
    """A filter with memory: the same text gives the same output however it is cut.

    A sequence that is never closed swallows at most the rest of its line.
    """

    def __init__(self) -> None:
        self._state = _State.TEXT

    def feed(self, text: str) -> str:
        """The part of `text` that may be shown."""
        if self._state is _State.TEXT and _SPECIAL.search(text) is None:
            return text
        return "".join(map(self._step, text))

    def _step(self, char: str) -> str:
        if self._state is _State.TEXT:
            return self._show(char)
        if char == "\n":
            return self._abandon(char)
        if self._state is _State.CSI:
            return self._csi(char)
        if self._state is _State.ESCAPE:
            return self._escape(char)
        return self._string(char)

    def _abandon(self, char: str) -> str:
        self._state = _State.TEXT
        return self._show(char)

    def _show(self, char: str) -> str:
        if char in "\n\t":
            return char
        if char == "\x1b":
            self._state = _State.ESCAPE
        elif char == "\x9b":
            self._state = _State.CSI
        elif char in _C1_STRINGS:
            self._state = _State.STRING
        elif char in _BIDI:
            return f"<U+{ord(char):04X}>"
        elif "\ud800" <= char <= "\udfff":
            return "\ufffd"
        elif char >= " " and not "\x7f" <= char <= "\x9f":
            return char
        return ""

    def _escape(self, char: str) -> str:
        if " " <= char <= "/":
            return ""
        self._state = _State.TEXT
        if char == "[":
            self._state = _State.CSI
        elif char in _ESC_STRINGS:
            self._state = _State.STRING
        elif not "0" <= char <= "~":
            return self._show(char)
        return ""

    def _csi(self, char: str) -> str:
        if " " <= char <= "?":
            return ""
        if "@" <= char <= "~":
            self._state = _State.TEXT
            return ""
        return self._abandon(char)

    def _string(self, char: str) -> str:
        if char in "\x07\x9c" or (self._state is _State.STRING_ESCAPE and char == "\\"):
            self._state = _State.TEXT
        elif char == "\x1b":
            self._state = _State.STRING_ESCAPE
        elif self._state is _State.STRING_ESCAPE:
            self._state = _State.ESCAPE
            return self._escape(char)
        return ""


def clean(text: str) -> str:
    """One whole untrusted text, fit for a terminal."""
    return ControlFilter().feed(text)
