"""What rows ask, as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmrs_cli.batch.records import Ask
from llmrs_cli.errors import EngineFault, LlmrsError

if TYPE_CHECKING:
    from llmrs_cli.text.generate import TextEngine

Ids = tuple[int, ...]


class Prompter:
    """Makes prompts for one engine."""

    def __init__(self, engine: TextEngine, system: str | None) -> None:
        """`system`: before the messages of rows that have none of their own."""
        self._engine, self._system = engine, system

    def ids_of(self, asks: Sequence[Ask]) -> list[Ids | LlmrsError]:
        """For each its ids, or why there are none."""
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Ids | LlmrsError:
        try:
            return self._ids(ask)
        except EngineFault:
            raise
        except LlmrsError as error:
            return error

    def _ids(self, ask: Ask) -> Ids:
        if ask.token_ids is not None:
            return ask.token_ids
        if ask.text is not None:
            return self._engine.encode(ask.text)
        messages = list(ask.messages or ())
        if ask.plain and not self._engine.can_chat and self._system is None:
            return self._engine.encode(messages[0]["content"])
        if self._system is not None and messages[:1] and _role(messages[0]) not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": self._system})
        arguments = ask.options.get("chat_template_kwargs")
        return self._engine.render(messages, template_arguments=arguments).ids


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None
