"""A conversation that has outgrown the context: refused, sent without its oldest turns, or summed up.

Whatever is done is said. A turn that was left out stays out, so that the next prompts share their beginning;
a quarter of the context is made free at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from llmrs_cli.chat.conversation import Conversation
from llmrs_cli.chat.screen import Screen
from llmrs_cli.chat.summary import SHARE, NoRoomError, sum_up
from llmrs_cli.errors import counted

if TYPE_CHECKING:
    from llmrs_cli.text.generate import Prompt, TextEngine

ROOM = 4
"""An answer should find 1/ROOM of the context free."""


class Overflow(StrEnum):
    """What happens to a conversation that no longer fits."""

    ERROR = "error"
    OLDEST = "oldest"
    SUMMARIZE = "summarize"


@dataclass(frozen=True, slots=True)
class Fitted:
    """What is sent."""

    earlier: Conversation
    """As it was, or with a summary."""
    first: int
    """The turns before this one are left out, whether or not a summary stands for them."""
    prompt: Prompt


@dataclass(slots=True)
class Fitter:
    """Makes prompts that leave room for an answer."""

    engine: TextEngine
    overflow: Overflow
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """For the chat template."""

    def fitted(
        self, earlier: Conversation, question: str, first: int, room: int, begun: int, screen: Screen
    ) -> Fitted:
        """The prompt of `question` after `earlier` from turn `first` on.

        `room`: tokens to leave for the answer if that is possible; `begun`: tokens that it has already.
        A prompt that cannot fit is returned as it is: the engine refuses it with both numbers.
        """
        limit = self.engine.context - begun - min(room, max(1, self.engine.context // ROOM))
        prompt = self.render(earlier, question, first)
        now, last = max(first, earlier.summed), len(earlier.turns)
        if self.overflow is Overflow.ERROR or len(prompt.ids) <= limit or now >= last:
            return Fitted(earlier, first, prompt)

        def tokens(start: int) -> int:
            return len(self.render(earlier, question, start).ids)

        if tokens(last) + begun >= self.engine.context:
            return Fitted(earlier, first, prompt)
        if self.overflow is Overflow.SUMMARIZE:
            count = first_that_fits(now, last, tokens, limit - self.engine.context // SHARE)
            summed = self._summed(earlier, question, count, screen)
            if summed is not None and len(summed.prompt.ids) <= limit:
                screen.warn(f"The context is full; summed up: the oldest {exchanges(count)}.")
                return summed
        start = first_that_fits(now, last, tokens, limit)
        screen.warn(
            f"The context of {self.engine.context} tokens is full; no longer sent: the oldest "
            f"{exchanges(start)} of {last} (--ctx makes room, --overflow chooses)."
        )
        return Fitted(earlier, start, self.render(earlier, question, start))

    def _summed(self, earlier: Conversation, question: str, count: int, screen: Screen) -> Fitted | None:
        """With a summary in place of the first `count` turns; None, which is said, if there is no room for one."""
        try:
            summed = sum_up(self.engine, earlier, count, screen)
        except NoRoomError as error:
            screen.warn(error.message)
            return None
        return Fitted(summed, 0, self.render(summed, question, 0))

    def render(self, earlier: Conversation, question: str | None, first: int) -> Prompt:
        """`earlier` from turn `first` on with a question behind it, as the template writes it."""
        asked = [] if question is None else [{"role": "user", "content": question}]
        messages = [*earlier.messages(first), *asked]
        return self.engine.render(messages, template_arguments=self.arguments)


def first_that_fits(first: int, last: int, tokens: Callable[[int], int], limit: int) -> int:
    """The smallest number after `first` of a turn from which a prompt has at most `limit` tokens; `last`
    if there is none. `tokens(n)`: of the prompt from turn n on, which falls with n."""
    low, high = first + 1, last
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if tokens(middle) <= limit else (middle + 1, high)
    return low


def exchanges(count: int) -> str:
    """'1 exchange', '3 exchanges'."""
    return counted(count, "exchange")
