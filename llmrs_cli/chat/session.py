"""One conversation: its messages, what was said last, and how the next answer is asked for.

Nothing is cut silently. A question that no longer fits the context is an error, and the conversation is
left as it was before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmrs_cli.chat.answer import Shown, show
from llmrs_cli.chat.screen import Screen
from llmrs_cli.text.reasoning import ReasoningSplitter, opening

if TYPE_CHECKING:
    from llmrs_cli.text.generate import GenerateOptions, TextEngine


class Session:
    """Messages in order, and the engine that answers them."""

    def __init__(self, engine: TextEngine, options: GenerateOptions, system: str | None = None) -> None:
        self.system = system
        self.last: Shown | None = None
        """The answer that was shown last."""
        self._engine, self._options = engine, options
        self._turns: list[Mapping[str, Any]] = []

    @property
    def context(self) -> int:
        """Tokens that the conversation may fill."""
        return self._engine.context

    def clear(self) -> None:
        """Forget what was said; the system prompt stays."""
        self._turns.clear()
        self.last = None

    def ask(self, text: str, screen: Screen) -> Shown:
        """Show the answer to `text` and remember both; an answer that was stopped is kept as far as it went.

        Raises RequestError if the question cannot be asked; the conversation is then unchanged.
        """
        question = {"role": "user", "content": text}
        prompt = self._engine.render([*self._system_turn(), *self._turns, question])
        generation = self._engine.start(prompt.ids, self._options)
        splitter = ReasoningSplitter(opening(prompt.text))
        shown = show(generation, screen, splitter)
        self._turns += [question, {"role": "assistant", "content": shown.text}]
        self.last = shown
        return shown

    def _system_turn(self) -> list[Mapping[str, Any]]:
        return [{"role": "system", "content": self.system}] if self.system else []
