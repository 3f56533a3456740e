"""A conversation to token ids, with special tokens in its content inert.

A user who writes `<|im_end|>` must not end their own turn. The text that the template makes is split
only at markers that the template itself wrote, and each piece between them, scaffold and content
together, is encoded as plain characters. To tell the two apart, every marker in the content is *hidden*
before rendering: one private-use character that occurs nowhere else stands for it, so that a template
which trims or compares still works, and what is left in the rendered text is the template's own.
A marker cannot arise across the edge either: where content ends with the beginning of one, or begins
with the end of one, that character is hidden too. (A template that spells a marker around a word, such as
`'<|' + role + '|>'`, means it: content that lies wholly inside a marker is left to it.)

Content without any of this, which is nearly all, is encoded in one go exactly as Hugging Face does it.

What the assistant said is the model's own text: there, added tokens that are not control tokens
(`<think>`, `<tool_call>`) keep their meaning, since templates look for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from llmrs_cli.errors import LlmrsError
from llmrs_cli.text.messages import Conversation
from llmrs_cli.text.template import ChatTemplate
from llmrs_cli.text.tokenizer import Tokenizer

A = TypeVar("A")
R = TypeVar("R")

PRIVATE = range(0xF0000, 0xFFFFE)
"""Plane 15: characters that mean nothing to anybody."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation."""

    text: str
    ids: tuple[int, ...]


class ChatPrompts:
    """Makes prompts of conversations for one template and tokenizer; may be shared between threads."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        markers = tokenizer.markers
        self._every = Markers(markers)
        self._control = Markers(text for text, id in markers.items() if id in tokenizer.special_ids)

    def build(self, chat: Conversation) -> Prompt:
        """Render `chat` and encode it. Raises what `ChatTemplate.render` and `Tokenizer.encode` raise."""
        rendered = self._render(chat)
        return self._encode(rendered) if isinstance(rendered, str) else rendered

    def build_many(self, chats: Sequence[Conversation]) -> list[Prompt | LlmrsError]:
        """For each what `build` gives or raises; they are encoded together, without the GIL."""
        rendered = [tried(self._render, chat) for chat in chats]
        texts = [text for text in rendered if isinstance(text, str)]
        prompts = iter(self._encode_many(texts))
        return [next(prompts) if isinstance(found, str) else found for found in rendered]

    def _render(self, chat: Conversation) -> str | Prompt:
        """The text, which is to be encoded as a whole; or the prompt, if the content had to be hidden."""
        disguise = Disguise(chat, self._every, self._control)
        text = self._template.render(disguise.hidden)
        if not disguise.used:
            return text
        parts = self._tokenizer.split(text)
        revealed = [disguise.reveal(part) if isinstance(part, str) else part for part in parts]
        return Prompt(disguise.reveal(text), self._tokenizer.encode_parts(revealed))

    def _encode(self, text: str) -> Prompt:
        return Prompt(text, self._tokenizer.encode(text, bos=False, markers=True))

    def _encode_many(self, texts: Sequence[str]) -> list[Prompt | LlmrsError]:
        try:
            batch = self._tokenizer.encode_batch(texts, bos=False, markers=True)
        except LlmrsError:  # one of them is at fault: see which
            return [tried(self._encode, text) for text in texts]
        return [Prompt(text, ids) for text, ids in zip(texts, batch, strict=True)]


def tried(function: Callable[[A], R], argument: A) -> R | LlmrsError:
    """What the function gives, or the error of ours that it raises."""
    try:
        return function(argument)
    except LlmrsError as error:
        return error


class Disguise:
    """Hides the markers in the content of one conversation, and reveals them in what was rendered."""

    def __init__(self, chat: Conversation, every: Markers, control: Markers) -> None:
        """`control` markers are hidden in what the assistant said, `every` one elsewhere."""
        self._every, self._control = every, control
        self._stand_ins: dict[str, str] = {}
        """hidden text → the character that stands for it"""
        self._free = _unused_characters(chat)
        self.hidden = replace(
            chat,
            messages=tuple(self._hide_message(message) for message in chat.messages),
            tools=tuple(self._hide(tool, every) for tool in chat.tools),
            arguments=self._hide(dict(chat.arguments or {}), every),
        )
        """The conversation with stand-ins for its markers."""

    @property
    def used(self) -> bool:
        """Whether anything was hidden."""
        return bool(self._stand_ins)

    def reveal(self, text: str) -> str:
        """`text` with every stand-in replaced by what it stands for."""
        return text.translate({ord(stand_in): original for original, stand_in in self._stand_ins.items()})

    def _hide_message(self, message: dict[str, Any]) -> dict[str, Any]:
        own = self._control if message["role"] == "assistant" else self._every
        return {key: value if key == "role" else self._hide(value, own) for key, value in message.items()}

    def _hide(self, value: Any, markers: Markers) -> Any:
        if isinstance(value, str):
            return self._hide_text(value, markers)
        if isinstance(value, Mapping):
            return {self._hide(key, markers): self._hide(item, markers) for key, item in value.items()}
        if isinstance(value, list):
            return [self._hide(item, markers) for item in value]
        return value

    def _hide_text(self, text: str, markers: Markers) -> str:
        text = markers.pattern.sub(lambda match: self._stand_in(match[0]), text)
        body = text.strip()  # as templates trim
        start, end = text.find(body), text.find(body) + len(body)
        head = self._stand_in(body[0]) if markers.ends_with(body) else body[:1]
        tail = self._stand_in(body[-1]) if markers.begins_with(body) else body[-1:]
        if len(body) < 2:
            return text if head == tail == body else text.replace(body, self._stand_in(body))
        return text[:start] + head + body[1:-1] + tail + text[end:]

    def _stand_in(self, original: str) -> str:
        if original not in self._stand_ins:
            self._stand_ins[original] = next(self._free)
        return self._stand_ins[original]


class Markers:
    """Marker texts, to be found whole or cut by the edge of a text."""

    def __init__(self, texts: Iterable[str]) -> None:
        longest_first = sorted(texts, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._heads = {text[:n] for text in longest_first for n in range(1, len(text))}
        self._tails = {text[-n:] for text in longest_first for n in range(1, len(text))}
        self._reach = max(map(len, longest_first), default=0)

    def ends_with(self, text: str) -> bool:
        """Whether a marker may end inside `text`: it begins with the tail of one."""
        return any(text[:n] in self._tails for n in range(1, min(self._reach, len(text) + 1)))

    def begins_with(self, text: str) -> bool:
        """Whether a marker may begin inside `text`: it ends with the head of one."""
        return any(text[-n:] in self._heads for n in range(1, min(self._reach, len(text) + 1)))


def _unused_characters(chat: Conversation) -> Iterator[str]:
    """Private-use characters that the conversation does not hold; looks at it when first asked."""
    used = set(json.dumps([chat.messages, chat.tools, chat.arguments], ensure_ascii=False))
    yield from (chr(code) for code in PRIVATE if chr(code) not in used)
