"""One answer's text told apart as it grows: what the model thinks, what it says, which tools it calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llmrs_cli.text.reasoning import ReasoningSplitter, Split, ThoughtTokens
from llmrs_cli.text.tools import ToolCall, ToolParser


class Part(NamedTuple):
    """What one piece of an answer held; each may be empty."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class ReplyParser:
    """`push` the pieces of one answer in order, then `finish` once; all parts are given out in order."""

    def __init__(
        self,
        reasoning: ReasoningSplitter | None,
        tools: ToolParser | None,
        thought: ThoughtTokens | None = None,
    ) -> None:
        """None: the answer has no such part, and what looks like one is content."""
        self._reasoning = reasoning
        self._tools = tools
        self._thought = thought

    @property
    def thought_tokens(self) -> int:
        """Tokens of the thought so far."""
        return 0 if self._thought is None else self._thought.count

    def push(self, text: str, tokens: Sequence[int] = ()) -> Part:
        """What is certain after `text` arrived, with the `tokens` that came with it."""
        if self._thought is not None:
            self._thought.push(tokens)
        split = self._reasoning.push(text) if self._reasoning else Split("", text)
        return self._part(split)

    def finish(self) -> Part:
        """What was held back."""
        if self._thought is not None:
            self._thought.finish()
        split = self._reasoning.finish() if self._reasoning else Split("", "")
        return self._part(split, last=True)

    def _part(self, split: Split, *, last: bool = False) -> Part:
        if self._tools is None:
            return Part(split.reasoning, split.content)
        said = self._tools.push(split.content)
        if last:
            said += self._tools.finish()
        content = "".join(item for item in said if isinstance(item, str))
        calls = tuple(item for item in said if isinstance(item, ToolCall))
        return Part(split.reasoning, content, calls)
