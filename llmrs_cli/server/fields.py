"""What becomes of the fields of a request body: the reading of a table, and its JSON Schema.

A field is *honoured*, *inert* (checked, and without influence on an answer) or *refused* by name, because
an answer that silently lacks what was asked for is worse than none. What is in no table is refused with
the nearest name that is. The tables themselves stand in `schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any

from llmrs_cli.errors import RequestError, quoted
from llmrs_cli.server.kinds import JsonSchema, Kind, nullable


class Standing(Enum):
    """What becomes of a field."""

    HONOURED = "honoured"
    INERT = "inert"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a body."""

    kind: Kind
    standing: Standing = Standing.HONOURED
    required: bool = False
    instead: str | None = None
    """The field that means what this one, refused, would."""

    @property
    def schema(self) -> JsonSchema:
        """What may stand in the field."""
        if self.standing is Standing.REFUSED:
            return {"type": "null", "description": "Not supported."}
        return self.kind.schema if self.required else nullable(self.kind.schema)


Table = Mapping[str, Field]


def read_fields(table: Table, body: Any) -> dict[str, Any]:
    """The honoured fields of a body that are given; null is absent. Raises RequestError naming the field."""
    if not isinstance(body, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_json")
    for name, value in body.items():
        if name not in table:
            raise _unknown(name, table)
        if table[name].standing is Standing.REFUSED and value is not None:
            instead = table[name].instead
            hint = f"Use {instead}." if instead else None
            raise RequestError(f"{name} is not supported.", code="unsupported", param=name, hint=hint)
    for name, field in table.items():
        if field.required and body.get(name) is None:
            raise RequestError(f"{name} is missing.", code="missing_field", param=name)
    given = {
        name: table[name].kind.read(name, value)
        for name, value in body.items()
        if value is not None and table[name].standing is not Standing.REFUSED
    }
    return {name: value for name, value in given.items() if table[name].standing is Standing.HONOURED}


def body_schema(table: Table) -> JsonSchema:
    """JSON Schema of a whole body."""
    return {
        "type": "object",
        "properties": {name: field.schema for name, field in table.items()},
        "required": [name for name, field in table.items() if field.required],
        "additionalProperties": False,
    }


def _unknown(name: str, table: Table) -> RequestError:
    near = get_close_matches(_FOREIGN.get(name, name), list(table), n=1)
    hint = f"Did you mean {near[0]}?" if near else None
    return RequestError(
        f"There is no field {quoted(name)}.", code="unknown_field", param=name[:256], hint=hint
    )


_FOREIGN = {"num_predict": "max_tokens", "n_predict": "max_tokens", "max_new_tokens": "max_tokens"}
