"""Lines of a program in colour, one at a time, in time linear in the program.

Each line is read by the lexer together with the few before it since the last line break outside of a
string or comment, where it may begin afresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmrs_cli.chat.wrap import RESET

if TYPE_CHECKING:
    from pygments.lexer import Lexer  # type: ignore[import-untyped]
    from pygments.token import _TokenType  # type: ignore[import-untyped]

REACH = 60
"""Lines that may be read again for one; a longer string or comment loses its colour."""
_CODES = {
    "Token.Keyword": "35",
    "Token.Name.Function": "34",
    "Token.Name.Class": "34",
    "Token.Name.Tag": "34",
    "Token.Name.Decorator": "36",
    "Token.Name.Builtin": "36",
    "Token.Literal.String": "32",
    "Token.Literal.Number": "36",
    "Token.Comment": "2",
    "Token.Generic.Inserted": "32",
    "Token.Generic.Deleted": "31",
    "Token.Generic.Heading": "1",
    "Token.Generic.Subheading": "36",
}
"""Kind of token → colour that can be read on dark and on light ground; kinds below it inherit it."""


class CodePainter:
    """`line` after line of one block."""

    def __init__(self, language: str) -> None:
        """`language`: as it stands behind the fence; an unknown one has no colours."""
        self._lexer = _lexer(language)
        self._context = ""
        self._reach = 0

    def line(self, text: str) -> str:
        """`text`, which has no line break, with colours."""
        if self._lexer is None or len(text) > 2000:
            return text
        whole, start = self._context + text + "\n", len(self._context)
        parts, safe = [], True
        for index, kind, value in self._lexer.get_tokens_unprocessed(whole):
            end = index + len(value)
            if end > start:
                piece = whole[max(index, start) : min(end, len(whole) - 1)]
                parts.append(_coloured(piece, _code(kind)))
            if end == len(whole):
                safe = not str(kind).startswith(("Token.Literal.String", "Token.Comment.Multi"))
        self._reach += 1
        self._context, self._reach = ("", 0) if safe or self._reach > REACH else (whole, self._reach)
        return "".join(parts)


def _lexer(language: str) -> Lexer | None:
    from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
    from pygments.util import ClassNotFound  # type: ignore[import-untyped]

    try:
        return get_lexer_by_name(language) if language else None
    except ClassNotFound:
        return None


def _code(kind: _TokenType) -> str | None:
    """The colour of a kind of token, or of the kind that it belongs to."""
    name = str(kind)
    while name not in _CODES:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None
    return _CODES[name]


def _coloured(text: str, code: str | None) -> str:
    return f"\x1b[{code}m{text}{RESET}" if code and text.strip() else text
