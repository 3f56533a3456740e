"""JSON on its way in and out: strict decoding of bodies, encoding, long lists, and server-sent events.

An event is one `data:` line and a blank line. Characters at which some readers split lines (U+2028,
U+2029, U+0085) are escaped, so that no reader sees half a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import orjson

from llmrs_cli.errors import RequestError

MAX_DEPTH = 64
MAX_PARTS = 2**17
"""Strings, names of fields among them, lists and objects. The longest conversation that is taken, if all of it were
calls of tools, has some 70,000."""
MAX_VALUES = 2**19
"""Values of lists and fields: twice as many token ids as a list may have. To read them holds the interpreter's lock."""
PIECE = 16 * 1024
"""Bytes that are looked at in one go."""
DONE = b"data: [DONE]\n\n"
_SPLITTERS = {character.encode(): f"\\u{ord(character):04x}".encode() for character in "\u2028\u2029\x85"}


def decode_body(data: bytes) -> Any:
    """The JSON value of a body. Raises RequestError: not JSON (NaN and lone surrogates are not), or too deep, or of
    so many parts that the objects would take far more memory than the body."""
    _check_shape(data.replace(b"\\\\", b"").replace(b'\\"', b""))
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


def _check_shape(data: bytes) -> None:
    """Raise RequestError for too many parts or too deep a nesting of brackets outside of strings; `data` has no
    escapes. It is looked at piece by piece, so that neither memory nor the interpreter's lock is held for long."""
    parts, values, depth, inside = data.count(b'"') // 2, 0, 0, 0
    for start in range(0, len(data), PIECE):
        pieces = data[start : start + PIECE].split(b'"')
        outside = b"".join(pieces[inside::2])
        brackets = outside.translate(_STEPS, _OTHERS)
        parts += brackets.count(1)
        values += outside.count(b",")
        if parts > MAX_PARTS:
            raise _no_body(f"has more than {MAX_PARTS:,} strings, lists and objects")
        if values > MAX_VALUES:
            raise _no_body(f"has more than {MAX_VALUES:,} values")
        depths = list(accumulate(memoryview(brackets).cast("b"), initial=depth))
        if max(depths) > MAX_DEPTH:
            raise _no_body(f"is nested more than {MAX_DEPTH} deep")
        depth = depths[-1]
        inside ^= (len(pieces) - 1) % 2


def _no_body(what: str) -> RequestError:
    return RequestError(f"The body {what}.", code="invalid_json")


_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One up and one down, as signed bytes."""
