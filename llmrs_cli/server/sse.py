"""JSON on its way in and out: strict decoding of bodies, encoding, long lists, and server-sent events.

An event is one `data:` line and a blank line. Characters at which some readers split lines (U+2028,
U+2029, U+0085) are escaped, so that no reader sees half a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import orjson

from llmrs_cli.errors import RequestError

MAX_DEPTH = 64
DONE = b"data: [DONE]\n\n"
_SPLITTERS = {character.encode(): f"\\u{ord(character):04x}".encode() for character in "\u2028\u2029\x85"}


def decode_body(data: bytes) -> Any:
    """The JSON value of a body. Raises RequestError: not JSON (NaN and lone surrogates are not), or too deep."""
    if _depth(data) > MAX_DEPTH:
        raise RequestError(f"The body is nested more than {MAX_DEPTH} deep.", code="invalid_json")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        where = f" in line {error.lineno}, column {error.colno}" if data else ""
        raise RequestError(
            f"The body is not valid JSON{where}." if data else "The body is empty.",
            code="invalid_json",
        ) from None


def encode(value: Any) -> bytes:
    """Compact JSON without a character that a reader might take for the end of a line."""
    data = orjson.dumps(value)
    if data.isascii():
        return data
    for character, escape in _SPLITTERS.items():
        if character in data:
            data = data.replace(character, escape)
    return data


class JsonList:
    """A list that is written as its items come; it stands as a value in what `encode_parts` takes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = [b"["]

    def add(self, items: Sequence[Any]) -> None:
        """More items."""
        if items:
            comma = b"," if len(self.parts) > 1 else b""
            self.parts.append(comma + encode(items)[1:-1])


def encode_parts(value: Any) -> list[bytes]:
    """What `encode` gives, in parts: lists that were written before are not even copied, however long they are."""
    match value:
        case JsonList():
            return [*value.parts, b"]"]
        case dict():
            heads = [b"%b%b:" % (b"," if i else b"{", encode(name)) for i, name in enumerate(value)]
            pairs = zip(heads, value.values(), strict=True)
            return [part for head, item in pairs for part in (head, *encode_parts(item))] + [
                b"}" if value else b"{}"
            ]
        case [dict(), *_]:
            items = [(b"," if i else b"[", *encode_parts(item)) for i, item in enumerate(value)]
            return [*chain.from_iterable(items), b"]"]
        case _:
            return [encode(value)]


def event(value: Any, name: str | None = None) -> bytes:
    """One server-sent event; `name` is its type where the API has types."""
    head = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, encode(value))


def _depth(data: bytes) -> int:
    """How deep brackets nest outside of strings; at most one more than is allowed."""
    depth = deepest = 0
    for part in _outside_strings(data):
        for byte in part:
            depth += byte in b"[{"
            depth -= byte in b"]}"
            deepest = max(deepest, depth)
            if deepest > MAX_DEPTH:
                return deepest
    return deepest


_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _outside_strings(data: bytes) -> list[bytes]:
    """The brackets between strings, in order; an escaped quote does not end a string."""
    pieces = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    return [piece.translate(None, _BRACKETS) for piece in pieces[::2]]
