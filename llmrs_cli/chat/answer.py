"""Shows one answer while it is made: the answer to stdout, thoughts and figures to stderr.

Ctrl-C stops the generation and keeps what was said; a second one leaves. Used for one question and for
every turn of a conversation.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from llmrs_cli.chat.screen import Screen
from llmrs_cli.text.reasoning import ReasoningSplitter, Split

if TYPE_CHECKING:
    from llmrs_cli.engine.types import FinishReason
    from llmrs_cli.text.generate import Generation


@dataclass(frozen=True, slots=True)
class Figures:
    """How one answer went; times in seconds from the question."""

    prompt_tokens: int
    tokens: int
    first: float
    """Until the first token."""
    total: float

    @property
    def used(self) -> int:
        """Tokens of the context that prompt and answer fill."""
        return self.prompt_tokens + self.tokens

    def line(self, context: int) -> str:
        """The figures in one line; `context` is the length that prompt and answer may fill."""
        parts = [f"{self.tokens} tokens"]
        if self.tokens > 1 and self.total > self.first:
            parts.append(f"{(self.tokens - 1) / (self.total - self.first):.1f} tok/s")
        parts.append(f"first after {self.first:.2f} s")
        parts.append(f"context {self.used} of {context} ({100 * self.used // context} %)")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Shown:
    """What was said, and why it ended there."""

    text: str
    finish: FinishReason
    """STOP, LENGTH, or ABORT after Ctrl-C"""
    figures: Figures


def show(generation: Generation, screen: Screen, splitter: ReasoningSplitter) -> Shown:
    """Stream `generation` to `screen` until it ends or is stopped."""
    started = time.monotonic()
    said: list[str] = []
    with _stopped_by_interrupt(generation):
        events = iter(generation)
        with screen.working("Reading the prompt"):
            event = next(events, None)
        first = time.monotonic() - started
        while event is not None:
            _show_split(splitter.push(event.text), screen, said)
            event = next(events, None)
    _show_split(splitter.finish(), screen, said)
    screen.end_answer()
    result = generation.result()
    usage = result.usage
    figures = Figures(usage.prompt_tokens, usage.completion_tokens, first, time.monotonic() - started)
    return Shown("".join(said), result.choices[0].finish_reason, figures)


def _show_split(split: Split, screen: Screen, said: list[str]) -> None:
    if split.reasoning:
        screen.thinking(split.reasoning)
    if split.content:
        screen.answer(split.content)
        said.append(split.content)


@contextmanager
def _stopped_by_interrupt(generation: Generation) -> Iterator[None]:
    """Within, the first Ctrl-C cancels the generation; the next one is a KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        generation.cancel()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
