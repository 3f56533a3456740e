"""Splits an answer into what the model thinks aloud, between <think> tags, and what it says.

Works on text, after stop strings. Only a tag at the very start of an answer opens a thought; some
templates write it into the prompt, or write a closed pair there to switch thinking off (`opening`).
`ThoughtTokens` counts on the tokens themselves, so it is the same however they were delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

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
        self._held = ""
        self._begun = start is Opening.ANSWER
        """Text of the current kind has been given out, so blank space counts."""

    def push(self, text: str) -> Split:
        """What can be told apart after `text` arrived."""
        self._held += text
        if self._state is Opening.UNDECIDED:
            self._decide()
        reasoning = self._think() if self._state is Opening.THOUGHT else ""
        content = self._say() if self._state is Opening.ANSWER else ""
        return Split(reasoning, content)

    def finish(self) -> Split:
        """What was held back: an unfinished tag is text after all."""
        held, self._held = self._held, ""
        if self._state is Opening.THOUGHT:
            return Split(held.rstrip() if self._begun else held.strip(), "")
        return Split("", held if self._begun or self._state is Opening.UNDECIDED else held.lstrip())

    def _decide(self) -> None:
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._held, self._state = text[len(OPEN) :], Opening.THOUGHT
        elif not OPEN.startswith(text):
            self._state, self._begun = Opening.ANSWER, True

    def _think(self) -> str:
        """The part of the thought that is certain; on the closing tag the rest becomes the answer."""
        thought, tag, rest = self._held.partition(CLOSE)
        if not self._begun:
            thought = thought.lstrip()
        if tag:
            self._held, self._state, self._begun = rest, Opening.ANSWER, False
            return thought.rstrip()
        cut = len(thought) - _begun_tag(thought)
        cut = len(thought[:cut].rstrip())
        self._held, self._begun = thought[cut:], self._begun or cut > 0
        return thought[:cut]

    def _say(self) -> str:
        text = self._held if self._begun else self._held.lstrip()
        self._held, self._begun = "", self._begun or bool(text)
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
                self._decide()
            if self._state is Opening.THOUGHT:
                closed = CLOSE.encode() in self._held
                self._state = Opening.ANSWER if closed else Opening.THOUGHT
                self._held = self._held[1 - len(CLOSE) :]

    def _decide(self) -> None:
        begun, tag = self._held.lstrip(), OPEN.encode()
        if begun.startswith(tag):
            self._state = Opening.THOUGHT
        elif not tag.startswith(begun):
            self._state, self.count = Opening.ANSWER, 0

    def finish(self) -> None:
        """The answer has ended; a tag that was not finished was none."""
        if self._state is Opening.UNDECIDED:
            self._state, self.count = Opening.ANSWER, 0


def _begun_tag(text: str) -> int:
    """Length of the longest end of `text` that begins the closing tag."""
    return next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)
