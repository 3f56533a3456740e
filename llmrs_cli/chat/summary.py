"""Asks the model to sum up the beginning of a conversation, so that a few words can stand for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llmrs_cli.chat.answer import stopped_by_interrupt
from llmrs_cli.chat.conversation import Conversation
from llmrs_cli.chat.screen import Screen
from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import LlmrsError
from llmrs_cli.text.options import GenerateOptions
from llmrs_cli.text.reasoning import ReasoningSplitter, opening

if TYPE_CHECKING:
    from llmrs_cli.text.generate import Prompt, TextEngine

REQUEST = (
    "Sum up our conversation so far in a few sentences. Keep names, numbers, decisions and open questions. "
    "Write only the summary."
)
SHARE = 8
"""A summary may take 1/SHARE of the context."""


class NoRoomError(LlmrsError):
    """One turn alone leaves no room in the context for a summary of it."""


def sum_up(engine: TextEngine, conversation: Conversation, count: int, screen: Screen) -> Conversation:
    """`conversation` with a summary that stands for its first `count` turns and any earlier summary.

    Of turns that do not fit into one request the oldest are not looked at, which is said. Raises
    NoRoomError if the last of them does not fit, LlmrsError if the model gives no summary or is stopped.
    """
    room = max(1, engine.context // SHARE)
    first, prompt = conversation.summed, _request(engine, conversation, conversation.summed, count)
    while len(prompt.ids) + room > engine.context and first < count - 1:
        first += 1
        prompt = _request(engine, conversation, first, count)
    if len(prompt.ids) >= engine.context:
        raise NoRoomError(
            f"What was said fills the context of {engine.context} tokens: there is no room to sum it up.",
            hint="/undo and /clear make room; --ctx gives more.",
        )
    if first > conversation.summed:
        screen.warn(f"The summary misses the oldest {first - conversation.summed}: they fill the context.")
    generation = engine.start(prompt.ids, GenerateOptions(max_tokens=room, temperature=0.0))
    splitter = ReasoningSplitter(opening(prompt.text))
    with stopped_by_interrupt(generation), screen.working("Summing up"):
        result = generation.result().choices[0]
    if result.finish_reason is FinishReason.ABORT:
        raise LlmrsError("The summary was stopped.", hint="The conversation is as it was.")
    text = (splitter.push(result.text).content + splitter.finish().content).strip()
    if not text:
        raise LlmrsError("The model gave no summary.", hint="The conversation is as it was.")
    return replace(conversation, summary=text, summed=count)


def _request(engine: TextEngine, conversation: Conversation, first: int, count: int) -> Prompt:
    part = replace(conversation, turns=conversation.turns[:count])
    messages = [*part.messages(first), {"role": "user", "content": REQUEST}]
    return engine.render(messages, template_arguments={"enable_thinking": False})
