"""Schemas as tools have them: fields of many kinds, put together the ways people do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

FIELDS: dict[str, Schema] = {
    "query": {"type": "string", "description": "What to look for."},
    "city": {"type": "string", "minLength": 1, "maxLength": 80},
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
    "days": {"type": "integer", "minimum": 1, "maximum": 14},
    "date": {"type": "string", "format": "date"},
    "start": {"type": "string", "format": "date-time", "title": "Start"},
    "end": {"type": ["string", "null"], "format": "date-time"},
    "limit": {"type": "integer", "default": 10, "minimum": 1, "maximum": 100},
    "page": {"type": "integer", "minimum": 0},
    "email": {"type": "string", "format": "email"},
    "url": {"type": "string", "format": "uri"},
    "id": {"type": "string", "format": "uuid"},
    "slug": {"type": "string", "pattern": "^[a-z0-9-]{1,64}$"},
    "country": {"type": "string", "pattern": "^[A-Z]{2}$", "examples": ["NO", "PT"]},
    "amount": {"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000},
    "price": {"type": "number", "minimum": 0, "multipleOf": 0.01},
    "ratio": {"type": "number", "minimum": 0, "maximum": 1},
    "currency": {"enum": ["EUR", "USD", "GBP", "JPY", "NOK"]},
    "verbose": {"type": "boolean", "default": False},
    "dry_run": {"type": "boolean", "description": "Change nothing."},
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 20},
    "ids": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    "attendees": {"type": "array", "items": {"type": "string", "format": "email"}},
    "point": {
        "type": "object",
        "properties": {
            "lat": {"type": "number", "minimum": -90, "maximum": 90},
            "lon": {"type": "number", "minimum": -180, "maximum": 180},
        },
        "required": ["lat", "lon"],
        "additionalProperties": False,
    },
    "filters": {"type": "object", "additionalProperties": {"type": "string"}},
    "headers": {
        "type": "object",
        "patternProperties": {"^X-": {"type": "string"}},
        "additionalProperties": False,
    },
    "sort": {
        "type": "object",
        "properties": {"by": {"enum": ["name", "date"]}, "descending": {"type": "boolean"}},
    },
    "value": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]},
    "kind": {"const": "event"},
    "body": {"type": "string", "maxLength": 5000},
    "code": {"type": "string", "description": "Python that is run.", "minLength": 1},
    "path": {"type": "string", "pattern": "^/?([^/]+/)*[^/]+$"},
    "range": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}], "items": False},
    "time": {"type": "string", "format": "time", "deprecated": True},
    "size": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    "level": {"type": "string", "enum": ["debug", "info", "warning", "error"], "readOnly": False},
    "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    "phone": {"type": "string", "pattern": r"^\+?[0-9 ()-]{6,20}$"},
    "host": {"type": "string", "format": "hostname"},
    "address": {"type": "string", "format": "ipv4"},
}
TOOLS = (
    *(
        "city unit",
        "city unit days",
        "query",
        "query limit page",
        "query filters sort limit",
        "date time city",
    ),
    *(
        "start end attendees",
        "start end attendees body tags",
        "id",
        "id verbose",
        "id dry_run",
        "ids",
        "ids level",
    ),
    *("email body", "email body attendees dry_run", "url headers", "url headers body time", "slug body tags"),
    *(
        "amount currency",
        "amount currency country id",
        "price currency tags",
        "ratio value",
        "point",
        "point size",
    ),
    *(
        "path",
        "path code",
        "path body dry_run",
        "code verbose",
        "code time level",
        "matrix",
        "matrix ratio",
        "kind id",
    ),
    *(
        "kind value tags",
        "range query",
        "range matrix",
        "phone country",
        "phone body",
        "host address",
        "host level",
    ),
    *(
        "size price currency country",
        "filters sort page limit",
        "city point date unit",
        "level query start end",
    ),
    *(
        "value value",
        "headers host path",
        "tags ids ratio",
        "email phone city country",
        "slug kind level",
        "query code",
    ),
    "start date time days",
)
"""Names of fields; the first of each is required."""


def tool_schemas() -> Iterator[Schema]:
    """Each tool open, closed, as items of a list, and by reference."""
    for names in TOOLS:
        first, *more = names.split()
        tool: Schema = {
            "type": "object",
            "properties": {name: FIELDS[name] for name in (first, *more)},
            "required": [first],
        }
        yield tool
        yield {**tool, "additionalProperties": False, "required": [first, *dict.fromkeys(more)]}
        yield {
            "type": "object",
            "properties": {"calls": {"type": "array", "items": tool}},
            "required": ["calls"],
        }
        yield {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$defs": {"one": tool},
            "type": "object",
            "properties": {
                "item": {"$ref": "#/$defs/one"},
                "other": {"anyOf": [{"$ref": "#/$defs/one"}, {"type": "null"}]},
            },
            "required": ["item"],
        }
