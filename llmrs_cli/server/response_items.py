"""Bodies of /v1/responses to the same typed request that chats become: items in, messages out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from llmrs_cli.errors import RequestError, quoted
from llmrs_cli.server.fields import read_fields
from llmrs_cli.server.kinds import refuse
from llmrs_cli.server.schema import RESPONSE
from llmrs_cli.server.translate import ChatRequest, chat_request
from llmrs_cli.text.grammar import FIELD

Message = dict[str, Any]
FORM = "text.format"
"""What is `response_format` in a chat."""


def response_request(body: Any) -> tuple[ChatRequest, dict[str, Any]]:
    """The request, and the fields that its response repeats. Raises RequestError naming the field."""
    given = read_fields(RESPONSE, body)
    chat: dict[str, Any] = {
        name: given[name]
        for name in ("model", "temperature", "top_p", "stream", "parallel_tool_calls")
        if name in given
    }
    chat["messages"] = _messages(given)
    if "max_output_tokens" in given:
        chat["max_tokens"] = given["max_output_tokens"]
    if given.get("tools"):
        chat["tools"] = [_tool(tool) for tool in given["tools"]]
    if "tool_choice" in given:
        chat["tool_choice"] = _choice(given["tool_choice"])
    if "format" in given.get("text", {}):
        chat["response_format"] = _format(given["text"]["format"])
    with named_as_here():
        request = chat_request(chat)
    if request.form_field == FIELD:
        request = replace(request, form_field=FORM)
    return request, _repeated(given)


@contextmanager
def named_as_here() -> Iterator[None]:
    """Errors that are told of a chat's fields are told of those of a response from which they were made."""
    try:
        yield
    except RequestError as error:
        message, param = error.message, error.param or ""
        for name in (f"{FIELD}.json_schema", FIELD):
            message, param = message.replace(name, FORM), param.replace(name, FORM)
        if param.startswith("messages"):  # which of the items it was is not known any more
            param = "input"
        raise RequestError(message, code=error.code, param=param or None, hint=error.hint) from None


def _repeated(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "instructions": given.get("instructions"),
        "max_output_tokens": given.get("max_output_tokens"),
        "metadata": given.get("metadata", {}),
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "temperature": given.get("temperature"),
        "text": {"format": given.get("text", {}).get("format", {"type": "text"})},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": [
            {"description": None, "parameters": None, "strict": None, **tool}
            for tool in given.get("tools", ())
        ],
        "top_p": given.get("top_p"),
        "truncation": "disabled",
        "store": False,
    }


def _messages(given: Mapping[str, Any]) -> list[Message]:
    start = [{"role": "system", "content": given["instructions"]}] if given.get("instructions") else []
    if isinstance(given["input"], str):
        return [*start, {"role": "user", "content": given["input"]}]
    messages: list[Message] = start
    for i, item in enumerate(given["input"]):
        _add(messages, item, f"input[{i}]")
    return messages


def _add(messages: list[Message], item: Mapping[str, Any], where: str) -> None:
    """One item more; calls of one turn belong to one message."""
    match item.get("type", "message"):
        case "message":
            role, content = _text(item, "role", where), _content(item.get("content"), f"{where}.content")
            messages.append({"role": role, "content": content})
        case "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {name: _text(item, name, where) for name in ("name", "arguments")}
            call = {"id": _text(item, "call_id", where), "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            content = _content(item.get("output"), f"{where}.output")
            messages.append(
                {"role": "tool", "tool_call_id": _text(item, "call_id", where), "content": content}
            )
        case "reasoning":
            pass  # what was thought before is not part of a prompt
        case other:
            raise RequestError(
                f"Items of type {quoted(other)} are not supported.", code="unsupported", param=f"{where}.type"
            )


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refuse(where, "a text or a list of parts")
    return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("input_text", "output_text", "text"):
        raise RequestError(
            f"Content of type {quoted(kind)} is not supported; only text is.", code="unsupported", param=where
        )
    return _text(part, "text", where)


def _text(given: Mapping[str, Any], name: str, where: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise refuse(f"{where}.{name}", "a text")
    return value


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _choice(choice: Any) -> Any:
    return choice if isinstance(choice, str) else {"type": "function", "function": {"name": choice["name"]}}


def _format(form: Mapping[str, Any]) -> dict[str, Any]:
    """A form as chats spell it: there a schema stands one level deeper."""
    if form.get("type") != "json_schema":
        return dict(form)
    return {"type": "json_schema", "json_schema": {name: v for name, v in form.items() if name != "type"}}
