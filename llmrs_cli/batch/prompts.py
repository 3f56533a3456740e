"""What rows ask, as token ids; and whether what they want to be held to can be kept to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmrs_cli.batch.job import Job
from llmrs_cli.batch.records import Ask, Message
from llmrs_cli.errors import LlmrsError

if TYPE_CHECKING:
    from llmrs_cli.text.generate import Prompt, TextEngine

Ids = tuple[int, ...]


class Prompter:
    """Makes prompts for one engine."""

    def __init__(self, engine: TextEngine, job: Job) -> None:
        self._engine, self._job = engine, job
        self._system = job.system

    def ids_of(self, asks: Sequence[Ask]) -> list[Ids | LlmrsError]:
        """For each its ids, or why it cannot be asked. Conversations are encoded together."""
        return [self._refusal(ask) or ids for ask, ids in zip(asks, self._all_ids(asks), strict=True)]

    def _refusal(self, ask: Ask) -> LlmrsError | None:
        """Why the answer cannot be held to its form; found out where nothing can be held up by it."""
        form = self._job.form_of(ask)
        if form is None:
            return None
        try:
            self._engine.check_grammar(form.grammar, form.field)
        except LlmrsError as error:
            return error
        return None

    def _all_ids(self, asks: Sequence[Ask]) -> list[Ids | LlmrsError]:
        chats = [ask for ask in asks if self._is_chat(ask)]
        prompts = iter(
            self._engine.render_many(
                [(self._messages(ask), self._job.template_arguments(ask)) for ask in chats]
            )
        )
        return [_ids(next(prompts)) if self._is_chat(ask) else self._plain(ask) for ask in asks]

    def _is_chat(self, ask: Ask) -> bool:
        if ask.plain and not self._engine.can_chat and self._system is None:
            return False
        return ask.messages is not None

    def _plain(self, ask: Ask) -> Ids | LlmrsError:
        if ask.token_ids is not None:
            return ask.token_ids
        text = ask.text if ask.messages is None else ask.messages[0]["content"]
        assert text is not None
        try:
            return self._engine.encode(text)
        except LlmrsError as error:
            return error

    def _messages(self, ask: Ask) -> list[Message]:
        messages = list(ask.messages or ())
        if self._system is not None and messages[:1] and _role(messages[0]) not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": self._system})
        return messages


def _ids(found: Prompt | LlmrsError) -> Ids | LlmrsError:
    return found if isinstance(found, LlmrsError) else found.ids


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None
