"""How a configuration describes rotary positions: `rope_parameters`, `rope_scaling`, `rope_theta` → RopeSpec.

Reading only: the frequencies themselves are `model.rope`. A kind or a key that we do not know is refused,
since plain positions in its place would give fluent rubbish.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from llmrs_cli.engine.model.fields import MAX_CONTEXT, Fields
from llmrs_cli.errors import ModelError, quoted

RopeKind = Literal["default", "linear", "llama3", "yarn", "dynamic"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How positions rotate queries and keys; `model.rope` turns it into tables."""

    kind: RopeKind = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_context: int | None = None
    """Context the model was first trained for (llama3, yarn, dynamic)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """On cosines and sines; None: 0.1·ln(factor) + 1 (yarn)."""


_KEYS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"},
}
"""What each kind of rotary scaling reads, beside the keys of every kind."""
_COMMON = {"rope_type", "type", "rope_theta", "original_max_position_embeddings", "finetuned"}


def rope_from_config(fields: Fields, trained: int) -> RopeSpec:
    """From `rope_parameters` (new) or `rope_scaling` with `rope_theta` (old); both must agree."""
    new = fields.table("rope_parameters") or {}
    theta = _theta(Fields(new, f"rope_parameters of {fields.source}"), _theta(fields, 10000.0))
    found = [
        _section(Fields(section, f"{name} of {fields.source}"), theta, trained)
        for name in ("rope_parameters", "rope_scaling")
        if (section := fields.table(name))
    ]
    if len(found) == 2 and found[0] != found[1]:
        raise ModelError(f"rope_parameters and rope_scaling in {fields.source} contradict each other.")
    return found[0] if found else RopeSpec(theta=theta)


def _section(fields: Fields, theta: float, trained: int) -> RopeSpec:
    kind = _kind(fields)
    for name in fields.values.keys() - _COMMON - _KEYS[kind]:
        if fields.get(name) is not None:
            raise ModelError(f"{fields.source} has {quoted(name)}, which we do not know for type {kind!r}.")
    theta = _theta(fields, theta)
    if kind == "default":
        return RopeSpec(theta=theta)
    low, high = 1.0, 4.0
    if kind == "llama3":
        low = fields.number("low_freq_factor", 1e-3, 1e6)
        high = fields.number("high_freq_factor", 1e-3, 1e6)
        if low >= high:
            fields.refuse("high_freq_factor", f"above low_freq_factor, which is {low:g}")
        fields.require("original_max_position_embeddings")
    if not fields.flag("truncate", True):
        fields.refuse("truncate", "true, which is all we run")
    return RopeSpec(
        kind=kind,
        theta=theta,
        factor=fields.number("factor", 1.0, 1e6),
        original_context=fields.integer("original_max_position_embeddings", 1, MAX_CONTEXT, trained),
        low_freq_factor=low,
        high_freq_factor=high,
        beta_fast=fields.number("beta_fast", 1e-3, 1e6, 32.0),
        beta_slow=fields.number("beta_slow", 1e-3, 1e6, 1.0),
        attention_factor=_attention_factor(fields),
    )


def _theta(fields: Fields, default: float) -> float:
    return fields.number("rope_theta", 2.0, 1e12, default)


def _kind(fields: Fields) -> RopeKind:
    new, old = fields.text("rope_type"), fields.text("type")
    if new is not None and old is not None and new != old:
        fields.refuse("type", f"the same as rope_type, which is {quoted(new)}")
    kind = new if new is not None else old
    if kind is None:
        if fields.values.keys() <= {"rope_theta"}:
            return "default"
        fields.require("rope_type")
    if kind not in _KEYS:
        raise ModelError(
            f"Rotary scaling of type {quoted(kind)} ({fields.source}) is not supported; "
            f"we run {', '.join(_KEYS)}."
        )
    return kind  # type: ignore[return-value]


def _attention_factor(fields: Fields) -> float | None:
    """YaRN's factor where the section settles it: given, or the ratio of two scaled logarithms."""
    if fields.get("attention_factor") is not None:
        return fields.number("attention_factor", 1e-3, 1e3)
    if not (fields.get("mscale") and fields.get("mscale_all_dim")):
        return None
    factor = fields.number("factor", 1.0, 1e6)
    above, below = (
        yarn_magnitude(factor, fields.number(name, 1e-3, 1e3)) for name in ("mscale", "mscale_all_dim")
    )
    return above / below


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """0.1 · scale · ln(factor) + 1: how YaRN sharpens attention for a stretched context."""
    return 0.1 * scale * math.log(factor) + 1.0


def stretched_context(rope: RopeSpec, trained: int) -> int:
    """The context limit in tokens; linear and yarn stretch it, dynamic is run unstretched (see `rope`)."""
    stretched = trained
    if rope.kind == "linear":
        stretched = int(trained * rope.factor)
    if rope.kind == "yarn":
        stretched = max(trained, int((rope.original_context or trained) * rope.factor))
    return min(stretched, MAX_CONTEXT)
