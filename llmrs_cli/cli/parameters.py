"""Kinds of option values that Click does not have, and options with unlisted spellings.

A converter is a function from what was typed to the value; it fails with one phrase, which Click puts
behind the flag's name.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import Any

import click

from llmrs_cli.engine.types import BIAS_LIMIT

_UNITS = "bkmgt"


class AliasedOption(click.Option):
    """An option that also answers to names which other tools use; they are not listed in the help."""

    def __init__(self, param_decls: Sequence[str], *, aliases: Sequence[str] = (), **attrs: Any) -> None:
        name = max(param_decls, key=len).lstrip("-").replace("-", "_")
        super().__init__([*param_decls, *aliases, name], **attrs)
        self._listed = list(param_decls)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        spellings, self.opts = self.opts, self._listed
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = spellings

    def get_error_hint(self, ctx: click.Context | None, *args: Any, **kwargs: Any) -> str:
        return " / ".join(f"'{name}'" for name in self._listed)


class FiniteRange(click.FloatRange):
    """A float range without NaN and infinities."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


def text(typed: str) -> str:
    """UTF-8 text. Python hands over what the locale cannot read as lone surrogates: they are read again."""
    try:
        typed.encode("utf-8")
    except UnicodeEncodeError:
        try:
            return os.fsencode(typed).decode("utf-8")
        except UnicodeError:
            raise click.BadParameter("it is not UTF-8.") from None
    return typed


def some_text(typed: str) -> str:
    """`text` of at least one character."""
    if not typed:
        raise click.BadParameter("it must not be empty.")
    return text(typed)


def tokens(typed: str | int) -> int:
    """A number of tokens; k and m count in 1,024 and its square."""
    match = re.fullmatch(r"(\d{1,12})([km]?)", str(typed).strip().lower(), re.ASCII)
    count = int(match[1]) << {"": 0, "k": 10, "m": 20}[match[2]] if match else 0
    if count < 1:
        raise click.BadParameter(f"{typed!r} is not a number of tokens such as 4096 or 8k.")
    return count


def memory(typed: str | int | float) -> int | float:
    """Bytes, or a share of what is free: '40GiB' → 40 · 2³⁰, '0.8' and '80%' → 0.8. K, M, G and T count in 1,024."""
    match = re.fullmatch(
        r"(\d{1,12}(?:\.\d{1,6})?)\s*(%|[kmgt]?(?:i?b)?)", str(typed).strip().lower(), re.ASCII
    )
    number, unit = (float(match[1]), match[2]) if match else (0.0, "")
    if unit in ("", "%"):
        share = number / 100 if unit else number
        if 0 < share <= 1:
            return share
    elif unit[0] in _UNITS and number > 0:
        return int(number * 1024 ** _UNITS.index(unit[0]))
    raise click.BadParameter(f"{typed!r} is neither a size such as 40GiB nor a share such as 0.8 or 80%.")


def device(typed: str) -> str:
    """A place to compute."""
    if not re.fullmatch(r"auto|cpu|reference|cuda(:\d{1,3})?", typed, re.ASCII):
        raise click.BadParameter(f"{typed!r} is none of auto, cuda, cuda:N, cpu and reference.")
    return typed


def bias(typed: str) -> tuple[int, float]:
    """A token id with what is added to its logit, written ID:BIAS."""
    token, _, amount = typed.partition(":")
    try:
        pair = int(token), float(amount)
    except ValueError:
        raise click.BadParameter(f"{typed!r} is not a token id and a number, such as 42:-100.") from None
    if pair[0] < 0 or not abs(pair[1]) <= BIAS_LIMIT:
        raise click.BadParameter(f"{typed!r} is not an id and a bias of at most {BIAS_LIMIT:g} either way.")
    return pair
