"""Kinds of value in a request body: each reads a decoded JSON value and says what it takes as JSON Schema.

Strict: true is not 1, "3" is not 3, 1.5 is no integer. A range stands here only where it protects the
server or is OpenAI's own; what depends on the model is checked where requests are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmrs_cli.errors import RequestError, escaped

JsonSchema = Mapping[str, Any]
MAX_INTEGER = 2**53
"""No count or id that we take is larger, and every JSON reader has these exactly."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field may hold."""

    rule: str
    """Completes "must be …"."""
    read: Callable[[str, Any], Any]
    """(where it stands, decoded value) → our value; RequestError naming the place if it is none of these."""
    schema: JsonSchema


def refuse(where: str, rule: str, code: str = "invalid_value") -> RequestError:
    """The error for a value that is not what its field takes."""
    where = escaped(where)
    return RequestError(f"{where} must be {rule}.", code=code, param=where)


def number(low: float, high: float) -> Kind:
    """A finite number in a closed range."""
    rule = f"a number from {low:g} to {high:g}"

    def read(where: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refuse(where, rule)
        if not (math.isfinite(value) and low <= value <= high):
            raise refuse(where, rule)
        return float(value)

    return Kind(rule, read, {"type": "number", "minimum": low, "maximum": high})


def positive(high: float) -> Kind:
    """A number above 0."""
    inner = number(0.0, high)

    def read(where: str, value: Any) -> float:
        given: float = inner.read(where, value)
        if not given > 0:
            raise refuse(where, f"a number above 0 and at most {high:g}")
        return given

    return Kind(inner.rule, read, {"type": "number", "exclusiveMinimum": 0, "maximum": high})


def integer(low: int, high: int = MAX_INTEGER) -> Kind:
    """A whole number in a closed range; 3.0 is one, as in JSON Schema."""
    rule = f"an integer from {low} to {high}" if high < MAX_INTEGER else f"an integer of at least {low}"

    def read(where: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refuse(where, rule)
        return value

    return Kind(rule, read, {"type": "integer", "minimum": low, "maximum": high})


def flag() -> Kind:
    """true or false."""

    def read(where: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise refuse(where, "true or false")
        return value

    return Kind("true or false", read, {"type": "boolean"})


def text(longest: int | None = None, shortest: int = 0) -> Kind:
    """A string; lengths in characters."""
    bounds = {"minLength": shortest} if shortest else {}
    bounds |= {} if longest is None else {"maxLength": longest}
    rule = "a text" if longest is None else f"a text of {shortest} to {longest} characters"

    def read(where: str, value: Any) -> str:
        if not isinstance(value, str) or len(value) < shortest:
            raise refuse(where, rule)
        if longest is not None and len(value) > longest:
            raise refuse(where, rule)
        return value

    return Kind(rule, read, {"type": "string", **bounds})


def texts(most: int, longest_name: int, longest: int) -> Kind:
    """An object of at most so many texts; lengths in characters."""
    name, value = text(longest_name), text(longest)
    rule = (
        f"an object of at most {most} texts of up to {longest} characters, with names of up to {longest_name}"
    )

    def read(where: str, given: Any) -> dict[str, str]:
        if not isinstance(given, dict) or len(given) > most or any(len(key) > longest_name for key in given):
            raise refuse(where, rule)
        return {key: value.read(f"{where}.{key}", entry) for key, entry in given.items()}

    schema = {"propertyNames": name.schema, "additionalProperties": value.schema, "maxProperties": most}
    return Kind(rule, read, {"type": "object", **schema})


def one_of(*values: Any) -> Kind:
    """One of a few constants."""
    rule = " or ".join(f'"{value}"' if isinstance(value, str) else str(value).lower() for value in values)

    def read(where: str, value: Any) -> Any:
        if not any(type(value) is type(known) and value == known for known in values):
            raise refuse(where, rule)
        return value

    return Kind(rule, read, {"enum": list(values)})


def array(item: Kind, longest: int, shortest: int = 0) -> Kind:
    """A list, read item by item into a tuple."""
    rule = f"a list of {shortest} to {longest} items" if longest else "an empty list"

    def read(where: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not shortest <= len(value) <= longest:
            raise refuse(where, rule)
        return tuple(item.read(f"{where}[{i}]", entry) for i, entry in enumerate(value))

    return Kind(
        rule, read, {"type": "array", "items": item.schema, "minItems": shortest, "maxItems": longest}
    )


def either(rule: str, *kinds: Kind) -> Kind:
    """The first kind that takes the value."""

    def read(where: str, value: Any) -> Any:
        for kind in kinds:
            try:
                return kind.read(where, value)
            except RequestError as error:
                if error.param != where:  # the right kind, and something inside it is wrong
                    raise
        raise refuse(where, rule)

    return Kind(rule, read, {"anyOf": [kind.schema for kind in kinds]})


def plain_object(schema: JsonSchema | None = None) -> Kind:
    """An object whose content is read elsewhere."""

    def read(where: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refuse(where, "an object")
        return value

    return Kind("an object", read, {"type": "object", **(schema or {})})


def record(fields: Mapping[str, Kind], required: tuple[str, ...] = ()) -> Kind:
    """An object of exactly these fields; null counts as absent where a field is not required."""
    schema = {
        "type": "object",
        "properties": {
            name: kind.schema if name in required else nullable(kind.schema) for name, kind in fields.items()
        },
        "required": list(required),
        "additionalProperties": False,
    }

    def read(where: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refuse(where, "an object")
        for name in value:
            if name not in fields:
                raise refuse(f"{where}.{name}", f"left out: only {', '.join(fields)} have a meaning there")
        for name in required:
            if value.get(name) is None:
                raise refuse(f"{where}.{name}", "given")
        return {
            name: fields[name].read(f"{where}.{name}", entry)
            for name, entry in value.items()
            if entry is not None
        }

    return Kind("an object", read, schema)


def nullable(schema: JsonSchema) -> JsonSchema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}
