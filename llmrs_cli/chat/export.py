"""A conversation as a file for others: Markdown to read, JSON, or one JSON line that `llmrs batch` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

from llmrs_cli.chat.conversation import Conversation
from llmrs_cli.errors import LlmrsError, UsageError, quoted

FORMATS = ("md", "json", "jsonl")


def format_of(path: str) -> str:
    """By the name of the file. Raises UsageError for a name that says none."""
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise UsageError(f"{quoted(path)} does not end in .md, .json or .jsonl.", hint="Name the file so.")
    return kind


def exported(conversation: Conversation, model: str, kind: str) -> str:
    """The text of the file, one of `FORMATS`. Every turn is in it, those summed up as well."""
    if kind == "md":
        return _markdown(conversation, model)
    whole = Conversation(conversation.system, conversation.turns)
    if kind == "jsonl":
        return json.dumps({"messages": whole.messages()}, ensure_ascii=False) + "\n"
    return json.dumps({"model": model, **conversation.to_json()}, ensure_ascii=False, indent=2) + "\n"


def write_export(path: str, text: str) -> None:
    """Write a file that is not there yet. Raises UsageError if it is, LlmrsError if it cannot be written."""
    target = Path(path).expanduser()
    try:
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
            file.write(text.encode("utf-8", "replace"))
    except FileExistsError:
        raise UsageError(f"{quoted(path)} exists already.", hint="Choose another name.") from None
    except OSError as error:
        raise LlmrsError(f"Cannot write {quoted(path)}: {error.strerror}.") from error


def _markdown(conversation: Conversation, model: str) -> str:
    parts = [f"# Conversation with {model}"]
    parts += [f"## System\n\n{conversation.system}"] if conversation.system else []
    for turn in conversation.turns:
        cut = "\n\n*(cut here)*" if turn.cut else ""
        parts += [f"## Question\n\n{turn.question}", f"## Answer\n\n{turn.answer.strip()}{cut}"]
    return "\n\n".join(parts) + "\n"
