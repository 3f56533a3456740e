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
from typing import TYPE_CHECKING, Protocol

from llmrs_cli.chat.screen import Screen
from llmrs_cli.text.reasoning import ReasoningSplitter, Split

if TYPE_CHECKING:
    from llmrs_cli.engine.types import FinishReason
    from llmrs_cli.text.events import GenerationResult, TextEvent


class Source(Protocol):
    """What is shown: a `text.generate.Generation`, or one that goes on (`resume.Resumed`)."""

    @property
    def seed(self) -> int: ...

    def __iter__(self) -> Iterator[TextEvent]: ...

    def cancel(self) -> None: ...

    def result(self) -> GenerationResult: ...


@dataclass(frozen=True, slots=True)
class Figures:
    """How one answer went; times in seconds from the question."""

    prompt_tokens: int
    tokens: int
    first: float
    """Until the first token."""
    total: float
    cached: int = 0
    """Tokens of the prompt that need not be computed again."""

    @property
    def used(self) -> int:
        """Tokens of the context that prompt and answer fill."""
        return self.prompt_tokens + self.tokens

    @property
    def rate(self) -> float | None:
        """Tokens a second after the first one; None if there were none."""
        seconds = self.total - self.first
        return (self.tokens - 1) / seconds if self.tokens > 1 and seconds > 0 else None

    @property
    def mean_length(self) -> float:
        """Tokens that stood before one of the answer, on average."""
        return self.prompt_tokens + self.tokens / 2

    def line(self, context: int, share: float | None = None) -> str:
        """The figures in one line; `context` is the length that prompt and answer may fill, `share` that of
        the memory's bandwidth, which bounds the speed of one answer."""
        parts = [f"{self.tokens} tokens"]
        if self.rate is not None:
            ceiling = "" if share is None else f" ({100 * share:.0f}% of what memory allows)"
            parts.append(f"{self.rate:.1f} tok/s{ceiling}")
        parts.append(f"first after {self.first:.2f} s")
        if self.cached:
            parts.append(f"{self.cached} of {self.prompt_tokens} prompt tokens reused")
        parts.append(f"context {self.used} of {context} ({100 * self.used // context}%)")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Shown:
    """What was said, and why it ended there."""

    text: str
    finish: FinishReason
    """STOP, LENGTH, or ABORT after Ctrl-C"""
    figures: Figures
    thought: str = ""
    ids: tuple[int, ...] = ()
    """Tokens of this answer, as far as this call made them."""
    seed: int = 0


def show(generation: Source, screen: Screen, splitter: ReasoningSplitter, before: str = "") -> Shown:
    """Stream `generation` to `screen` until it ends or is stopped.

    `before`: text of the answer from earlier, which `splitter` has not seen; the screen is told that it
    stands there already (`Screen.recall`).
    """
    started = time.monotonic()
    said = _Said(screen)
    with stopped_by_interrupt(generation), screen.undisturbed():
        if before:
            said.recall(splitter.push(before))
        events = iter(generation)
        with screen.working("Reading the prompt"):
            event = next(events, None)
        first = time.monotonic() - started
        while event is not None:
            said.add(splitter.push(event.text))
            event = next(events, None)
    said.add(splitter.finish())
    screen.end_answer()
    result = generation.result()
    usage, choice = result.usage, result.choices[0]
    figures = Figures(
        usage.prompt_tokens,
        usage.completion_tokens,
        first,
        time.monotonic() - started,
        usage.cached_tokens,
    )
    return Shown(
        said.text, choice.finish_reason, figures, said.thought, tuple(choice.token_ids), generation.seed
    )


class _Said:
    """Keeps what goes to the screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._texts: list[str] = []
        self._thoughts: list[str] = []

    def add(self, split: Split) -> None:
        if split.reasoning:
            self._screen.thinking(split.reasoning)
        if split.content:
            self._screen.answer(split.content)
        self._keep(split)

    def recall(self, split: Split) -> None:
        """Take in what was shown before."""
        if split.content:
            self._screen.recall(split.content)
        self._keep(split)

    def _keep(self, split: Split) -> None:
        self._thoughts.append(split.reasoning)
        self._texts.append(split.content)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def thought(self) -> str:
        return "".join(self._thoughts)


@contextmanager
def stopped_by_interrupt(generation: Source) -> Iterator[None]:
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
