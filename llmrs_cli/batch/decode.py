"""Strict JSON for one line: an object, in UTF-8, without anything that two readers would read differently.

NaN, numbers out of range, keys that stand twice and bottomless nesting are refused with a reason.
"""

from __future__ import annotations

import json
import math
from typing import Any

from llmrs_cli.batch.lines import MAX_LINE, Line
from llmrs_cli.errors import RequestError

MAX_DEPTH = 200
"""Levels of nested lists and objects in a line."""


def decode(line: Line) -> dict[str, Any]:
    """The line's JSON object. Raises RequestError."""
    text = text_of(line)
    try:
        record = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_no_repeats
        )
        if text.count("{") + text.count("[") > MAX_DEPTH and _depth(record) > MAX_DEPTH:
            raise RecursionError
    except json.JSONDecodeError as error:
        message = f"The line is not JSON: {error.msg} at character {error.pos + 1}."
        raise RequestError(message, code="invalid_json") from None
    except (ValueError, RecursionError) as error:
        reason = (
            str(error) if isinstance(error, _BadJson) else "it is nested too deeply or holds a huge number"
        )
        raise RequestError(f"The line is not JSON that can be read: {reason}.", code="invalid_json") from None
    if not isinstance(record, dict):
        raise RequestError("The line is JSON but not an object.", code="invalid_json")
    return record


def text_of(line: Line) -> str:
    """The line as text. Raises RequestError."""
    if line.data is None:
        raise RequestError(f"The line is longer than {MAX_LINE >> 20} MiB.", code="line_too_long")
    try:
        return line.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"The line is not UTF-8 at byte {error.start}.", code="invalid_utf8") from None


class _BadJson(ValueError):
    """JSON that Python would take and that means nothing certain."""


def _no_constant(name: str) -> None:
    raise _BadJson(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _BadJson(f"the number {digits:.20} is out of range")
    return value


def _depth(value: Any) -> int:
    """Levels of nesting, found without recursion."""
    level, depth = [value], 0
    while level:
        children = [
            item.values() if isinstance(item, dict) else item
            for item in level
            if isinstance(item, (dict, list))
        ]
        level, depth = [child for group in children for child in group], depth + 1
    return depth


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _BadJson(f"the key {twice!r:.60} stands twice in one object")
    return record
