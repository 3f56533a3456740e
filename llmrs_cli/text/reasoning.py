"""Splits an answer into what the model thinks aloud, between <think> tags, and what it says.

Works on text, after stop strings. Only a tag at the very start of an answer opens a thought; some
templates write it into the prompt, or write a closed pair there to switch thinking off (`opening`).
`ThoughtTokens` counts on the tokens themselves, so it is the same however they were delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from llmrs_cli.text.held import TrailingBlanks, begun

OPEN, CLOSE = "<think>", "</think>"


class Opening(Enum):
    """What a prompt says about the beginning of its answer."""

    UNDECIDED = "the answer may begin with a thought"
    THOUGHT = "the answer begins inside a thought"
    ANSWER = "there is no thought"


class Split(NamedTuple):
    """Two kinds of text that one piece of an answer held, either of them possibly empty."""

    reasoning: str
    content: str


def opening(prompt_end: str) -> Opening:
    """By the last words of the rendered prompt."""
    end = prompt_end.rstrip()
    if end.endswith(OPEN):
        return Opening.THOUGHT
    return Opening.ANSWER if end.endswith(CLOSE) else Opening.UNDECIDED


class ReasoningSplitter:
    """`push` the pieces of one answer in order, then `finish` once.

    Blank space around the thought and before the answer is dropped; apart from that and the tags every
    character comes out again, in order. Held back is only what may still become a tag, and blank space
    that may turn out to be the end of the thought.
    """

    def __init__(self, start: Opening = Opening.UNDECIDED) -> None:
        self._state = start
        self._tail = ""
        """The end of what came, if a tag may have begun there."""
        self._blanks = TrailingBlanks()
        """Blank space that may precede a tag."""
        self._begun = start is Opening.ANSWER
        """Text of the current kind has been given out, so blank space counts."""

    def push(self, text: str) -> Split:
        """What can be told apart after `text` arrived."""
        reasoning = ""
        text, self._tail = self._tail + text, ""
        if self._state is Opening.UNDECIDED:
            text = self._decide(text)
        if self._state is Opening.THOUGHT:
            reasoning, text = self._think(text)
        return Split(reasoning, self._say(text) if self._state is Opening.ANSWER else "")

    def finish(self) -> Split:
        """What was held back: an unfinished tag is text after all."""
        tail, self._tail = self._tail, ""
        if self._state is Opening.THOUGHT:
            return Split(self._blanks.push(tail) if self._begun else tail, "")
        return Split("", self._blanks.take() + tail)

    def _decide(self, text: str) -> str:
        """Find out how the answer begins; what is to be read further."""
        start = text.lstrip()
        blank = text[: len(text) - len(start)]
        if start.startswith(OPEN):
            self._blanks.take()
            self._state = Opening.THOUGHT
            return start[len(OPEN) :]
        if not OPEN.startswith(start):
            self._state, self._begun = Opening.ANSWER, True
            return self._blanks.take() + text
        self._blanks.push(blank)
        self._tail = start
        return ""

    def _think(self, text: str) -> tuple[str, str]:
        """The part of the thought that is certain; on the closing tag what follows, which is the answer."""
        text, tag, rest = text.partition(CLOSE)
        end = len(text) if tag else len(text) - begun(text, CLOSE)
        self._tail = text[end:]
        thought = self._blanks.push(text[:end] if self._begun else text[:end].lstrip())
        self._begun = self._begun or bool(thought)
        if tag:
            self._blanks.take()
            self._state, self._begun = Opening.ANSWER, False
        return thought, rest

    def _say(self, text: str) -> str:
        text = text if self._begun else text.lstrip()
        self._begun = self._begun or bool(text)
        return text


class ThoughtTokens:
    """Counts the tokens of a thought, its tags included; tokens may arrive in any pieces."""

    def __init__(self, start: Opening, data_of: Callable[[int], bytes]) -> None:
        """`data_of`: the bytes of a token."""
        self.count = 0
        self._data_of = data_of
        self._state = start
        self._held = b""
        """Bytes in which a tag may have begun."""

    def push(self, tokens: Iterable[int]) -> None:
        """Take in the next tokens of the answer."""
        for token in tokens:
            if self._state is Opening.ANSWER:
                return
            self.count += 1
            self._held += self._data_of(token)
            if self._state is Opening.UNDECIDED:
                self._held = self._held.lstrip()
                self._decide()
            if self._state is Opening.THOUGHT:
                closed = CLOSE.encode() in self._held
                self._state = Opening.ANSWER if closed else Opening.THOUGHT
                self._held = self._held[1 - len(CLOSE) :]

    def _decide(self) -> None:
        tag = OPEN.encode()
        if self._held.startswith(tag):
            self._state = Opening.THOUGHT
        elif not tag.startswith(self._held):
            self._state, self.count = Opening.ANSWER, 0

    def finish(self) -> None:
        """The answer has ended; a tag that was not finished was none."""
        if self._state is Opening.UNDECIDED:
            self._state, self.count = Opening.ANSWER, 0
