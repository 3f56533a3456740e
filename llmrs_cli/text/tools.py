"""Finds the tool calls in an answer's text, in the two spellings that our model families use.

    tagged    <tool_call>{"name": ..., "arguments": {...}}</tool_call>     Qwen, Hermes; any number, anywhere
    bare      {"name": ..., "parameters": {...}}                           Llama 3; the whole answer

A call is given out when it is complete, so what a client gets is a call or it is text: whatever does not
parse, or names a tool that was not offered, comes out as the text that it is. Nothing here raises for
what a model wrote, and every character is looked at a bounded number of times.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum
from typing import Any, NamedTuple, Protocol

from llmrs_cli.text.held import TrailingBlanks, begun

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class ToolStyle(Enum):
    """How a model writes calls."""

    TAGGED = "tagged"
    BARE = "bare"


class ToolCall(NamedTuple):
    """One call that an answer holds."""

    name: str
    arguments: str
    """A JSON object, as text."""


Said = str | ToolCall


class ToolParser(Protocol):
    """`push` the pieces of one answer in order, then `finish` once."""

    def push(self, text: str) -> list[Said]:
        """Text and calls that are certain after `text` arrived."""

    def finish(self) -> list[Said]:
        """What was held back."""


def tool_style(template: str) -> ToolStyle:
    """The spelling that a chat template teaches the model."""
    bare = OPEN not in template and ("python_tag" in template or '"parameters"' in template)
    return ToolStyle.BARE if bare else ToolStyle.TAGGED


def tool_parser(style: ToolStyle, names: Collection[str]) -> ToolParser:
    """A parser of one answer, which may call the tools of these names."""
    return TaggedCalls(names) if style is ToolStyle.TAGGED else BareCalls(names)


class TaggedCalls:
    """Calls between tags. Blank space beside a call is dropped; a tag in a JSON string ends nothing."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._held: list[str] = []
        """Pieces of the call that is open."""
        self._tail = ""
        """The end of what came, if a tag may have begun there."""
        self._blanks = TrailingBlanks()
        """Blank space that may precede a call, or does precede the one that is open; lost only if it is one."""
        self._inside = False
        self._in_string = self._escaped = False
        self._after_call = False

    def push(self, text: str) -> list[Said]:
        said: list[Said] = []
        text, self._tail, position = self._tail + text, "", 0
        while position < len(text):
            read = self._read_call if self._inside else self._read_text
            position = read(text, position, said)
        return said

    def finish(self) -> list[Said]:
        blank, tail, self._tail = self._blanks.take(), self._tail, ""
        if not self._inside:
            tail = tail if self._after_call else blank + tail
            return [tail] if tail else []
        body = "".join(self._held) + tail
        call = _call(body, self._names)
        return [call] if call is not None else [blank + OPEN + body]

    def _read_text(self, text: str, start: int, said: list[Said]) -> int:
        """Give out text up to an opening tag; how far it was read."""
        tag = text.find(OPEN, start)
        end = tag if tag >= 0 else len(text) - begun(text, OPEN, start)
        content = self._blanks.push(text[start:end])
        if content:
            said.append(content.lstrip() if self._after_call else content)
            self._after_call = False
        if tag < 0:
            self._tail = text[end:]
            return len(text)
        self._inside, self._in_string = True, False
        return tag + len(OPEN)

    def _read_call(self, text: str, start: int, said: list[Said]) -> int:
        """Collect a call up to a closing tag outside of strings; how far it was read."""
        for position in range(start, len(text)):
            character = text[position]
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_string, self._escaped = True, False
            elif character == "<":
                if text.startswith(CLOSE, position):
                    self._held.append(text[start:position])
                    self._close(said)
                    return position + len(CLOSE)
                if CLOSE.startswith(text[position : position + len(CLOSE)]):
                    self._held.append(text[start:position])
                    self._tail = text[position:]
                    return len(text)
        self._held.append(text[start:])
        return len(text)

    def _close(self, said: list[Said]) -> None:
        body, self._held, self._inside = "".join(self._held), [], False
        call, blank = _call(body, self._names), self._blanks.take()
        said.append(call if call is not None else blank + OPEN + body + CLOSE)
        self._after_call = call is not None


class BareCalls:
    """An answer that is nothing but calls, one after the other; else it is text, given out as it comes."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._held: list[str] = []
        self._begun = self._text = False

    def push(self, text: str) -> list[Said]:
        if self._text:
            return [text] if text else []
        self._held.append(text)
        if not self._begun and text.strip():
            self._begun = True
            self._text = not text.lstrip().startswith("{")
        return self._release() if self._text else []

    def finish(self) -> list[Said]:
        calls = None if self._text else _calls("".join(self._held), self._names)
        return self._release() if calls is None else [*calls]

    def _release(self) -> list[Said]:
        text, self._held = "".join(self._held), []
        return [text] if text else []


def _call(body: str, names: frozenset[str]) -> ToolCall | None:
    """The call that `body` spells, if it is one."""
    try:
        value = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return _as_call(value, names)


def _calls(text: str, names: frozenset[str]) -> list[ToolCall] | None:
    """All calls of a text that is nothing else, apart by blank space or semicolons; None if it is not."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    calls: list[ToolCall] = []
    position, end = 0, len(text)
    while True:
        while position < end and text[position] in " \t\r\n;":
            position += 1
        if position == end:
            return calls or None
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        call = _as_call(value, names)
        if call is None:
            return None
        calls.append(call)


def _as_call(value: Any, names: frozenset[str]) -> ToolCall | None:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    try:
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False))
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    """NaN and Infinity are no JSON."""
    raise ValueError(constant)
