"""One input line becomes one `Row`: what to generate and how to write the answer, or why not.

Four kinds, told apart by their keys: an OpenAI request (`body`, `url`), `messages`, `prompt_token_ids` and
`prompt`. Whatever is wrong with a line stays with that line. Nothing here knows of files or models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from llmrs_cli.batch.columns import Template
from llmrs_cli.batch.decode import decode
from llmrs_cli.batch.fields import IGNORED, OPTIONS, nearest_option, read_options, refuse
from llmrs_cli.batch.lines import Line
from llmrs_cli.errors import RequestError

Message = Mapping[str, Any]

ID_FIELDS = ("id", "custom_id")
PROMPT_FIELDS = ("messages", "prompt_token_ids", "prompt")
_FLAT_FIELDS = frozenset({*ID_FIELDS, *PROMPT_FIELDS, "system"})
_OPTION_NAMES = frozenset(OPTIONS)
_REQUEST_FIELDS = frozenset({"custom_id", "method", "url", "body"})
_URLS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}


class Shape(StrEnum):
    """How the answer to a row is written."""

    FLAT = "flat"
    CHAT = "chat.completion"
    COMPLETION = "text_completion"


@dataclass(frozen=True, slots=True)
class Ask:
    """What to generate. Exactly one of the first three is given."""

    messages: Sequence[Message] | None = None
    text: str | None = None
    """Taken as it stands, without a chat template."""
    token_ids: tuple[int, ...] | None = None
    is_prompt: bool = False
    """The messages stem from a `prompt`."""
    plain: bool = False
    """The messages stem from a bare prompt: a model without a template takes its text as it stands."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the row itself says of generation, by the names of `fields.OPTIONS`."""
    model: str | None = None
    """The model that the request names; ours may be another."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of input on its way to one line of output."""

    index: int
    """Counts rows from 0, blank lines left out."""
    line: int
    """Counts lines of the file from 1."""
    shape: Shape
    ids: Mapping[str, Any]
    """`id` and `custom_id`, as far as the row has them."""
    extras: Mapping[str, Any]
    """Keys that are not ours, copied to the output."""
    ask: Ask | RequestError
    size: int = 0
    """Bytes of the line."""
    digest: str = ""
    """Equal for equal lines."""


class Kind(StrEnum):
    """What every line of an input has to be; AUTO: each what its keys say."""

    AUTO = "auto"
    OPENAI = "openai"
    MESSAGES = "messages"
    PROMPT = "prompt"


Parse = Callable[[Line], dict[str, Any]]
"""What stands in a line. Raises RequestError."""


class RowReader:
    """Reads lines into rows; remembers ids, and the kind of the last good row for lines that have none."""

    def __init__(
        self,
        kind: Kind = Kind.AUTO,
        *,
        template: Template | None = None,
        is_table: bool = False,
        id_field: str | None = None,
    ) -> None:
        """`template`: makes the prompt of a record's other fields. `is_table`: all fields are text, and none
        is an option. `id_field`: the field that is a row's id."""
        self._kind, self._template, self._is_table = kind, template, is_table
        self._id_field = id_field
        self._shape = Shape.CHAT if kind is Kind.OPENAI else Shape.FLAT
        self._count = 0
        self._seen: set[bytes] = set()

    def read(self, line: Line, parse: Parse = decode) -> Row:
        """The row of one line; whatever is wrong with it is in `ask`."""
        index, self._count = self._count, self._count + 1
        data = line.data or b""
        size, digest = len(data), blake2b(data, digest_size=8).hexdigest()
        ids: dict[str, Any] = {}
        extras: dict[str, Any] = {}
        ask: Ask | RequestError
        try:
            record = parse(line)
            self._shape = self._shape_of(record)
            _read_ids(record, ids)
            if self._id_field is not None and record.get(self._id_field) is not None:
                _read_ids({"id": record[self._id_field]}, ids)
            ask = self._ask(record, extras)
            self._remember(ids)
        except RequestError as error:
            ask = error
        return Row(index, line.number, self._shape, ids, extras, ask, size, digest)

    def _shape_of(self, record: Mapping[str, Any]) -> Shape:
        if self._template is not None:
            return Shape.FLAT
        if self._kind is Kind.AUTO:
            return _shape(record, self._shape)
        if self._kind is Kind.OPENAI:
            return Shape.COMPLETION if record.get("url") == "/v1/completions" else Shape.CHAT
        return Shape.FLAT

    def _ask(self, record: Mapping[str, Any], extras: dict[str, Any]) -> Ask:
        """What the record asks; puts into `extras` what is to be copied."""
        if self._shape is not Shape.FLAT:
            return _request_ask(record)
        if self._is_table:
            extras |= {key: value for key, value in record.items() if key not in ID_FIELDS}
        else:
            own = OPTIONS.keys() | (frozenset(ID_FIELDS) if self._template else _FLAT_FIELDS)
            extras |= {key: record[key] for key in record if key not in own}
        if self._template is None:
            ask = _flat_ask(record, extras)
            self._require_kind(ask)
            return ask
        prompt = self._template.fill(record)
        options = {} if self._is_table else _options(record, extras, self._template)
        return Ask(messages=[{"role": "user", "content": prompt}], plain=True, options=options)

    def _require_kind(self, ask: Ask) -> None:
        wanted = self._kind
        if wanted is Kind.MESSAGES and (ask.messages is None or ask.is_prompt):
            raise RequestError("The row has no 'messages'.", code="no_prompt", param="messages")
        if wanted is Kind.PROMPT and not (ask.token_ids or ask.is_prompt):
            raise RequestError("The row has no 'prompt'.", code="no_prompt", param="prompt")

    def _remember(self, ids: Mapping[str, Any]) -> None:
        if not ids:
            return
        digest = blake2b(json.dumps(ids).encode(), digest_size=16).digest()
        if digest in self._seen:
            name, value = next(iter(ids.items()))
            raise refuse(name, f"used before: {value!r:.60}", code="duplicate_id")
        self._seen.add(digest)


def _shape(record: Mapping[str, Any], before: Shape) -> Shape:
    if any(record.get(name) is not None for name in PROMPT_FIELDS):
        return Shape.FLAT
    if "body" in record or "url" in record:
        return Shape.COMPLETION if record.get("url") == "/v1/completions" else Shape.CHAT
    return before


def _read_ids(record: Mapping[str, Any], ids: dict[str, Any]) -> None:
    """Put `id` and `custom_id` into `ids`; both are given back, so that no reader misses its own."""
    for name in ID_FIELDS:
        value = record.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise refuse(name, "neither a text nor an integer")
        ids[name] = value


# -- flat rows ----------------------------------------------------------------------------------------


def _flat_ask(record: Mapping[str, Any], extras: Mapping[str, Any]) -> Ask:
    given = [name for name in PROMPT_FIELDS if record.get(name) is not None]
    _refuse_near_misses(extras, _OPTION_NAMES if given else _OPTION_NAMES.union(PROMPT_FIELDS))
    if len(given) != 1:
        found = f"The row has {' and '.join(map(repr, given))}" if given else "The row has no prompt"
        raise RequestError(
            f"{found}: give one of 'prompt', 'messages' and 'prompt_token_ids'.", code="no_prompt"
        )
    options = read_options(record)
    if record.get("system") is not None and given != ["prompt"]:
        raise refuse("system", "only allowed beside 'prompt'")
    if given == ["messages"]:
        return Ask(messages=_messages(record["messages"]), options=options)
    if given == ["prompt_token_ids"]:
        return Ask(token_ids=_token_ids("prompt_token_ids", record["prompt_token_ids"]), options=options)
    return Ask(
        messages=_prompt_messages(record), is_prompt=True, plain="system" not in record, options=options
    )


def _options(record: Mapping[str, Any], extras: Mapping[str, Any], template: Template) -> dict[str, Any]:
    """What a record whose prompt comes from a template says of generation; its columns are no options."""
    _refuse_near_misses([name for name in extras if name not in template.columns], _OPTION_NAMES)
    return read_options({key: value for key, value in record.items() if key not in template.columns})


def _refuse_near_misses(names: Iterable[str], known: frozenset[str]) -> None:
    for name in names:
        if meant := nearest_option(name, known):
            raise _unknown(name, meant)


def _prompt_messages(record: Mapping[str, Any]) -> list[Message]:
    system = record.get("system")
    start = [{"role": "system", "content": _text("system", system)}] if system is not None else []
    return [*start, {"role": "user", "content": _text("prompt", record["prompt"])}]


# -- OpenAI requests ----------------------------------------------------------------------------------


def _request_ask(record: Mapping[str, Any]) -> Ask:
    for name in record:
        if name not in _REQUEST_FIELDS:
            raise _unknown(name, nearest_option(name, _REQUEST_FIELDS))
    if not isinstance(record.get("custom_id"), str):
        raise refuse("custom_id", "missing or not a text", code="invalid_request")
    if record.get("method", "POST") != "POST":
        raise refuse("method", "not 'POST'", code="invalid_request")
    url, body = record.get("url"), record.get("body")
    if not isinstance(url, str) or url not in _URLS:
        raise refuse("url", f"none of {' and '.join(_URLS)}", code="invalid_request")
    if not isinstance(body, dict):
        raise refuse("body", "missing or not an object", code="invalid_request")
    return _body_ask(body, _URLS[url])


def _body_ask(body: Mapping[str, Any], prompt_field: str) -> Ask:
    known = frozenset({*OPTIONS, *IGNORED, prompt_field})
    for name in body:
        if name not in known:
            raise _unknown(name, nearest_option(name, known))
    prompt = body.get(prompt_field)
    if prompt is None:
        raise refuse(prompt_field, "missing", code="no_prompt")
    options, model = read_options(body), body.get("model")
    if prompt_field == "messages":
        return Ask(messages=_messages(prompt), options=options, model=model)
    if isinstance(prompt, list):
        return Ask(token_ids=_token_ids("prompt", prompt), options=options, model=model)
    return Ask(text=_text("prompt", prompt), options=options, model=model)


# -- values -------------------------------------------------------------------------------------------


def _unknown(name: str, meant: str | None) -> RequestError:
    guess = f": did you mean {meant!r}?" if meant else "."
    return RequestError(f"There is no field {name!r:.60}{guess}", code="unknown_field", param=name)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise refuse(name, "not a text")
    return value


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    good = isinstance(value, list) and value and all(type(token) is int and token >= 0 for token in value)
    if not good:
        raise refuse(name, "not a list of token ids")
    return tuple(value)


def _messages(value: Any) -> list[Message]:
    """A list; what stands in it is checked where it is rendered."""
    if not isinstance(value, list) or not value:
        raise refuse("messages", "not a list of messages")
    return value
