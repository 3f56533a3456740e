"""Values that are set while talking: `/set temperature 0.2`, `/regen temp=1`; by the names of the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from llmrs_cli.engine.types import SamplingParams, check_params
from llmrs_cli.errors import RequestError, UsageError, quoted

if TYPE_CHECKING:
    from llmrs_cli.text.options import GenerateOptions, SamplingDefaults

KINDS: Mapping[str, Callable[[str], int | float]] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "seed": int,
    "max_tokens": int,
    "min_tokens": int,
}
"""Option → how its value is read."""
_SPELLINGS = {
    "temp": "temperature",
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_tokens",
    "stop": "stop",
}
DEFAULT = "default"


def parameter(name: str, value: str) -> tuple[str, object]:
    """The option's field and its value; 'default' leaves it to the model. Raises UsageError."""
    field = name.lower().replace("-", "_")
    field = _SPELLINGS.get(field, field)
    if field == "stop":
        return field, () if value == DEFAULT else (value,)
    if field not in KINDS:
        near = get_close_matches(field, [*KINDS, "stop"], n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join([*KINDS, 'stop'])}."
        raise UsageError(f"There is no parameter {quoted(name)}.", hint=hint)
    if value == DEFAULT:
        return field, 0 if field in ("presence_penalty", "frequency_penalty", "min_tokens") else None
    try:
        number = KINDS[field](value)
        check_params(SamplingParams(**{"max_tokens": 1 << 30, field: number}), vocab=1)  # type: ignore[arg-type]
    except ValueError:
        raise UsageError(f"{field} needs a number, not {quoted(value)}.") from None
    except RequestError as error:
        raise UsageError(error.message) from None
    return field, number


def assignments(text: str) -> dict[str, object]:
    """The parameters of 'temperature=1 top_k=5'. Raises UsageError."""
    found = {}
    for part in text.split():
        name, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"{quoted(part)} is not of the form name=value, such as temperature=1.")
        field, number = parameter(name, value)
        found[field] = number
    return found


def listed(options: GenerateOptions, defaults: SamplingDefaults) -> str:
    """Every parameter with its value, and where it comes from if it was not set."""
    rows = []
    for name in (*KINDS, "stop"):
        value, origin = getattr(options, name), ""
        if value is None or value == ():
            value = getattr(defaults, name, None)
            origin = "" if value is None else " (the model's)" if defaults.from_model else " (default)"
        rows.append(f"  {name:<20}{'-' if value is None or value == () else value}{origin}")
    return "\n".join(rows)
