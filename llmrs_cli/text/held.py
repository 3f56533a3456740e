"""What a parser of a growing answer holds back, at a cost that does not depend on how much that is.

A parser that appended each piece to what it holds, and looked at all of it again, would take time with the
square of an answer's length: a model may write blank space for ever.
"""

from __future__ import annotations


class TrailingBlanks:
    """Text given on without the blank space at its end, until it turns out to stand inside."""

    def __init__(self) -> None:
        self._held: list[str] = []

    def push(self, text: str) -> str:
        """What is certain after `text` arrived: it ends in no blank space."""
        said = text.rstrip()
        if not said:
            self._held += [text] if text else []
            return ""
        whole = self.take() + said
        self._held.append(text[len(said) :])
        return whole

    def take(self) -> str:
        """The blank space that is held; then none is."""
        held, self._held = "".join(self._held), []
        return held


def begun(text: str, tag: str, start: int = 0) -> int:
    """Length of the longest end of `text`, from `start` on, that begins `tag` and is not all of it."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n], start)), 0)
