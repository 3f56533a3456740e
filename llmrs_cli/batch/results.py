"""One `Row` with its outcome becomes one output line: flat, or as OpenAI's batch API writes it.

Both carry an error where readers look for it: OpenAI's in `response.body.error` and `status_code`, other
tools' in the top-level `error`. A line holds no character at which any reader would split it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from llmrs_cli.batch.records import Row, Shape
from llmrs_cli.errors import EngineFault, LlmrsError, RequestError

OUR_KEYS = frozenset(
    {
        *("index", "text", "texts", "json", "finish_reason", "finish_reasons"),
        *("token_ids", "logprobs", "usage", "error"),
    }
)
"""Keys of a flat output line; a row's own key of that name gives way."""

_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_PLAIN = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\x0b", "\f": r"\x0c"})


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to a row."""

    text: str
    token_ids: tuple[int, ...]
    """The end token included."""
    finish_reason: str
    logprobs: Any = None
    """As they are to be written, or None."""


@dataclass(frozen=True, slots=True)
class Answer:
    """All answers to a row, in the order of their choice number."""

    choices: Sequence[Choice]
    prompt_tokens: int
    cached_tokens: int = 0
    is_json: bool = False
    """Flat lines hold the value of each answer as well."""

    @property
    def completion_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices)

    @property
    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


Outcome = Answer | LlmrsError


class Form(StrEnum):
    """What the user wants lines to be; AUTO: each as its row was asked."""

    AUTO = "auto"
    OPENAI = "openai"
    FLAT = "flat"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Writer:
    """How lines are written in one run."""

    model: str
    """Name in OpenAI's `model` field."""
    created: int
    """Unix time of the run, in seconds."""
    token_ids: bool = False
    form: Form = Form.AUTO

    def shape_of(self, row: Row) -> Shape:
        """The shape in which a row's answer is written."""
        if self.form is Form.OPENAI and row.shape is Shape.FLAT:
            return Shape.CHAT
        return row.shape if self.form in (Form.AUTO, Form.OPENAI) else Shape.FLAT

    def line(self, row: Row, outcome: Outcome) -> str:
        """The output line of a row, without its end."""
        if self.form is Form.TEXT:
            return plain_line(outcome)
        flat = self.shape_of(row) is Shape.FLAT
        return encode(self._flat(row, outcome) if flat else self._response(row, outcome))

    def _flat(self, row: Row, outcome: Outcome) -> dict[str, Any]:
        extras = {key: value for key, value in row.extras.items() if key not in OUR_KEYS}
        head = {"index": row.index, **row.ids}
        if isinstance(outcome, LlmrsError):
            empty = {"text": None, "finish_reason": None, "usage": None}
            return {**head, **empty, "error": _error(row, outcome), **extras}
        return {**head, **self._flat_choices(outcome), "usage": outcome.usage, "error": None, **extras}

    def _flat_choices(self, answer: Answer) -> dict[str, Any]:
        choices = answer.choices
        columns: dict[str, list[Any]] = {
            "text": [choice.text for choice in choices],
            "finish_reason": [choice.finish_reason for choice in choices],
        }
        if answer.is_json:
            columns["json"] = [json_value(choice.text) for choice in choices]
        if self.token_ids:
            columns["token_ids"] = [choice.token_ids for choice in choices]
        if any(choice.logprobs is not None for choice in choices):
            columns["logprobs"] = [choice.logprobs for choice in choices]
        if len(choices) == 1:
            return {name: values[0] for name, values in columns.items()}
        plural = {"text": "texts", "finish_reason": "finish_reasons"}
        return {plural.get(name, name): values for name, values in columns.items()}

    def _response(self, row: Row, outcome: Outcome) -> dict[str, Any]:
        number = blake2b(f"{self.created}:{row.index}".encode(), digest_size=12).hexdigest()
        if isinstance(outcome, LlmrsError):
            error = _error(row, outcome)
            status = 500 if isinstance(outcome, EngineFault) else 400
            kind = "server_error" if status == 500 else "invalid_request_error"
            body: dict[str, Any] = {"error": {**error, "type": kind}}
        else:
            error, status, body = None, 200, self._completion(row, outcome, number)
        response = {"status_code": status, "request_id": f"req_{number}", "body": body}
        custom_id = row.ids.get("custom_id")
        if row.shape is Shape.FLAT and not isinstance(custom_id, str):
            custom_id = str(row.ids.get("id", f"row-{row.index}") if custom_id is None else custom_id)
        return {"id": f"batch_req_{number}", "custom_id": custom_id, "response": response, "error": error}

    def _completion(self, row: Row, answer: Answer, number: str) -> dict[str, Any]:
        shape = self.shape_of(row)
        chat = shape is Shape.CHAT
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{number}",
            "object": shape.value,
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(i, choice, chat) for i, choice in enumerate(answer.choices)],
            "usage": answer.usage,
        }

    def _choice(self, index: int, choice: Choice, chat: bool) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": choice.text}} if chat else {"text": choice.text}
        ids = {"token_ids": choice.token_ids} if self.token_ids else {}
        return {
            "index": index,
            **said,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
            **ids,
        }


def json_value(text: str) -> Any:
    """The value that an answer in JSON has; None if it was cut, or if no reader of our line could take it."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value


def plain_line(outcome: Outcome) -> str:
    r"""The answer alone, on one line: `\\n`, `\\r`, `\\t` and `\\\\` stand for what would break it; several
    answers are parted by tabs. A row that failed is an empty line."""
    if isinstance(outcome, LlmrsError):
        return ""
    texts = (choice.text.translate(_PLAIN) for choice in outcome.choices)
    return _UNSAFE.sub(_escaped, "\t".join(texts))


def encode(record: Mapping[str, Any]) -> str:
    """JSON on one line, also for readers that split at U+2028, U+0085 and their like.

    Text stays readable; controls, separators, bidirectional marks and lone surrogates are escaped.
    """
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _error(row: Row, error: LlmrsError) -> dict[str, Any]:
    code = error.code if isinstance(error, RequestError) else "engine_error"
    param = error.param if isinstance(error, RequestError) else None
    return {"code": code, "message": str(error), "param": param, "line": row.line}
