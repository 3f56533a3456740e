"""A conversation as templates want it: checked, copied, and in one spelling.

Clients write the same thing in several ways: content as text or as parts, tool-call arguments as JSON
text or as an object, the role `developer` for `system`. Here each becomes the form that published
templates understand; what would be dropped without a word is refused instead, by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from llmrs_cli.errors import RequestError, escaped, quoted
from llmrs_cli.text.tokenizer import check_text

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_DEPTH = 64
ROLES = ("system", "user", "assistant", "tool")
KEYS = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")
"""Of a message, whatever a template makes of them; others are taken if it reads them."""
RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("raise_exception", "strftime_now", "range", "namespace", "tokenize", "chat_template"),
        *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
    }
)
"""Names that arguments for a template may not take."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template renders; plain JSON values, ours alone."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    arguments: Mapping[str, Any] | None = None
    """Extra variables of the template, such as enable_thinking."""
    continue_last: bool = False
    """The last message is the beginning of the answer."""


def conversation(
    messages: Sequence[Mapping[str, Any]],
    *,
    source: str,
    tools: Sequence[Mapping[str, Any]] | None = None,
    arguments: Mapping[str, Any] | None = None,
    continue_last: bool = False,
) -> Conversation:
    """Check and normalise; `source` is the template that will render it. Raises RequestError."""
    if not messages:
        raise RequestError("There are no messages.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"There are {len(messages)} messages; at most {MAX_MESSAGES}.", param="messages")
    checked = tuple(_message(message, f"messages[{i}]", source) for i, message in enumerate(messages))
    if continue_last and (checked[-1]["role"] != "assistant" or not checked[-1]["content"].strip()):
        raise RequestError(
            "An answer can be continued only if the last message is the assistant's and has text.",
            param="messages",
        )
    return Conversation(checked, _tools(tools, source), _arguments(arguments), continue_last)


def _message(message: Any, where: str, source: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError("Each message must be an object with role and content.", param=where)
    copied: dict[str, Any] = _plain(message, where)
    copied["role"] = _role(copied.get("role"), where, source)
    _check_keys(copied, where, source)
    if copied.get("content") is None and copied["role"] != "assistant":
        raise RequestError("A message must have content.", param=f"{where}.content")
    copied["content"] = _content(copied.get("content"), f"{where}.content")
    if copied.get("tool_calls"):
        copied["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(_list(copied, where))
        ]
    else:
        copied.pop("tool_calls", None)  # templates ask whether the key is there
    return copied


def _role(role: Any, where: str, source: str) -> str:
    """The role; `developer` is `system` to a template that has never heard of it."""
    if not isinstance(role, str):
        raise RequestError("A message must have a role.", param=f"{where}.role")
    if role in ROLES or f"'{role}'" in source or f'"{role}"' in source:
        return role
    if role == "developer":
        return "system"
    raise RequestError(
        f"The role {quoted(role)} is unknown; {', '.join(ROLES)} are known.", param=f"{where}.role"
    )


def _check_keys(message: Mapping[str, Any], where: str, source: str) -> None:
    """Nothing that was said of a message is dropped without a word, but the name of a tool that answers: its call
    has it. Empty fields say nothing."""
    for key, value in message.items():
        known = key in KEYS or (key == "name" and message["role"] == "tool")
        if known or value is None or value == [] or _reads(source, key):
            continue
        near = get_close_matches(key, KEYS, n=1)
        raise RequestError(
            f"This model's chat template has no place for {quoted(key)} in a message.",
            code="unknown_field",
            param=f"{where}.{escaped(key)[:256]}",
            hint=f"Did you mean {near[0]}?" if near else None,
        )


def _reads(source: str, key: str) -> bool:
    """Whether a template asks its messages for `key`."""
    access = rf"\b(message|msg|m)(\.|\[['\"]|\.get\(['\"]){re.escape(key)}\b"
    return re.search(access, source) is not None


def _content(content: Any, where: str) -> str:
    """Text, or the texts of all parts joined without anything between them; null is empty, as beside calls."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError("The content of a message must be text or a list of parts.", param=where)
    return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind != "text":
        raise RequestError(f"Content of type {quoted(kind)} is not supported; only text is.", param=where)
    if not isinstance(part.get("text"), str):
        raise RequestError("A part of type text must have a text.", param=where)
    for key in part:
        if key not in ("type", "text") and part[key] is not None:
            raise RequestError(
                f"A part of type text has no {quoted(key)}.",
                code="unknown_field",
                param=f"{where}.{escaped(key)[:256]}",
            )
    return str(part["text"])


def _list(message: dict[str, Any], where: str) -> list[Any]:
    calls = message["tool_calls"]
    if not isinstance(calls, list):
        raise RequestError("Tool calls must be a list.", param=f"{where}.tool_calls")
    return calls


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    """A call whose arguments are an object, as templates expect; clients send them as JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError("A tool call must have a function with a name.", param=where)
    arguments = _call_arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _call_arguments(arguments: Any, where: str) -> dict[str, Any]:
    try:
        if isinstance(arguments, str):
            arguments = _plain(json.loads(arguments or "{}"), where)
    except (ValueError, RecursionError):
        arguments = ()
    if not isinstance(arguments, dict | None):
        raise RequestError("The arguments of a tool call must be a JSON object.", param=where)
    return arguments or {}


def _tools(tools: Sequence[Mapping[str, Any]] | None, source: str) -> tuple[dict[str, Any], ...]:
    if not tools:
        return ()
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"There are {len(tools)} tools; at most {MAX_TOOLS}.", param="tools")
    if "tools" not in source:
        raise RequestError("This model's chat template has no place for tools.", param="tools")
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestError("Each tool must be an object.", param="tools")
    return tuple(_plain(tool, f"tools[{i}]") for i, tool in enumerate(tools))


def _arguments(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    for name in arguments or {}:
        if name in RESERVED or not str(name).isidentifier() or name.startswith("_"):
            raise RequestError(
                f"A chat template argument may not be named {quoted(name)}.", param="chat_template_kwargs"
            )
    return dict(_plain(arguments or {}, "chat_template_kwargs"))


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy in JSON's kinds of value, with every text checked."""
    if depth > MAX_DEPTH:
        raise RequestError(f"Values are nested more than {MAX_DEPTH} deep.", param=where)
    if isinstance(value, str):
        check_text(value, where)
        return value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise RequestError(f"A value of kind {type(value).__name__} has no place in a message.", param=where)


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise RequestError("Names in an object must be text.", param=where)
    check_text(key, where)
    return key
