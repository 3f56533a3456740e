"""What was said: questions, answers and the system prompt, as one immutable value.

It becomes messages for a template, and JSON for a file. A cut answer keeps its token ids, so that it can go
on exactly where it stopped. Nothing here knows of an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import UsageError

FORMAT = 1
"""Of the JSON form; a reader refuses any other."""
SUMMARY = "Summary of the conversation so far:"


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str = ""
    thought: str = ""
    finish: FinishReason = FinishReason.STOP
    ids: tuple[int, ...] = ()
    """Tokens of an answer that was cut, its thought included; none if it ended by itself, or if the model
    is another one by now."""

    @property
    def cut(self) -> bool:
        """Whether there may be more to say."""
        return self.finish is not FinishReason.STOP

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what says nothing is left out."""
        entry: dict[str, Any] = {"question": self.question, "answer": self.answer}
        entry |= {"thought": self.thought} if self.thought else {}
        return entry | ({"finish": str(self.finish), "ids": list(self.ids)} if self.cut else {})


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in order under a system prompt; the oldest ones may be represented by a summary."""

    system: str | None = None
    turns: tuple[Turn, ...] = ()
    summary: str | None = None
    summed: int = 0
    """How many of the first turns the summary stands for."""

    def messages(self, first: int = 0) -> list[dict[str, Any]]:
        """For a template: the system prompt with the summary, then the turns from number `first` on."""
        head = "\n\n".join(part for part in (self.system, self.recap) if part)
        messages = [{"role": "system", "content": head}] if head else []
        for turn in self.turns[max(first, self.summed) :]:
            messages += [
                {"role": "user", "content": turn.question},
                {"role": "assistant", "content": turn.answer},
            ]
        return messages

    @property
    def recap(self) -> str | None:
        """The summary as the model gets it."""
        return None if self.summary is None else f"{SUMMARY}\n{self.summary}"

    def with_turn(self, turn: Turn) -> Conversation:
        """One turn more."""
        return replace(self, turns=(*self.turns, turn))

    def without(self, count: int) -> Conversation:
        """The last `count` turns gone; a summary of turns that are gone goes with them."""
        turns = self.turns[: len(self.turns) - count]
        if len(turns) < self.summed:
            return replace(self, turns=turns, summary=None, summed=0)
        return replace(self, turns=turns)

    def without_ids(self) -> Conversation:
        """For another model, to which the tokens of this one say nothing."""
        return replace(self, turns=tuple(replace(turn, ids=()) for turn in self.turns))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "llmrs_session": FORMAT,
            "system": self.system,
            "summary": self.summary,
            "summed": self.summed,
            "turns": [turn.to_json() for turn in self.turns],
        }


def from_json(value: object) -> Conversation:
    """The inverse of `Conversation.to_json`. Raises UsageError if `value` is something else."""
    try:
        if not isinstance(value, Mapping):
            raise TypeError
        if value["llmrs_session"] != FORMAT:
            raise UsageError("The session was written by another version of llmrs.")
        turns = tuple(_turn(entry) for entry in value["turns"])
        summed = int(value["summed"])
        texts = [value["system"], value["summary"]]
        if not all(text is None or isinstance(text, str) for text in texts) or not 0 <= summed <= len(turns):
            raise TypeError
        return Conversation(value["system"], turns, value["summary"], summed)
    except (KeyError, TypeError, ValueError):
        raise UsageError("The session is damaged.") from None


def _turn(entry: Mapping[str, Any]) -> Turn:
    texts = entry["question"], entry["answer"], entry.get("thought", "")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    ids = tuple(int(id) for id in entry.get("ids", ()))
    return Turn(*texts, FinishReason(entry.get("finish", "stop")), ids)
