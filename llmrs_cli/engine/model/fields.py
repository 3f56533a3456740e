"""Typed, bounded reading of one JSON object; what the fields mean is decided by the caller.

Every complaint names the field, its value and what would do. A field that is absent or null takes its
default; without a default it is required. A bool is no number, and NaN and infinities are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NoReturn

from llmrs_cli.errors import ModelError, quoted

MAX_CONTEXT = 1 << 24
"""No context, window or position count is larger."""


class Fields:
    """The fields of one object; `source` says in messages where it stands ("config.json")."""

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self.values = values
        self.source = source

    def get(self, name: str) -> object:
        """The raw value; None if absent or null."""
        return self.values.get(name)

    def refuse(self, name: str, rule: str) -> NoReturn:
        """Raise the ModelError "`name` in `source` must be `rule`, not …"."""
        raise ModelError(f"{name} in {self.source} must be {rule}, not {quoted(self.get(name))}.")

    def require(self, name: str) -> object:
        """The raw value of a field that must be there."""
        value = self.get(name)
        if value is None:
            raise ModelError(f"{self.source} has no {name}.", hint="The model's files may be incomplete.")
        return value

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from `low` to `high`."""
        value = self.require(name) if default is None else self.get(name)
        if value is None:
            assert default is not None
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.refuse(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number from `low` to `high`."""
        value = self.require(name) if default is None else self.get(name)
        if value is None:
            assert default is not None
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.refuse(name, f"a number from {low:g} to {high:g}")
        assert math.isfinite(value)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string, or None."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, "a string")
        return value

    def items(self, name: str) -> list[object] | None:
        """A list, or None."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            self.refuse(name, "a list")
        return value

    def table(self, name: str) -> Mapping[str, object] | None:
        """An object, or None."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            self.refuse(name, "an object")
        return value
