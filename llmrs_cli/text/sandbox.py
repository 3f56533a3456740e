"""A Jinja environment for untrusted templates: no side effects, and a budget on everything that grows.

A chat template comes from a model's publisher, so it may be hostile. Jinja's immutable sandbox keeps it
from attributes, mutation and I/O, but not from `'a' * 10**9` or nested loops. Rather than a child
process that can be killed (start-up time, a pipe, a second failure mode), every operation that can make
a large value out of small ones is metered *before* it runs: operators and `~`, method and filter calls,
slices, list and dict literals, buffers of blocks and macros, output; and every loop iteration passes a
checkpoint. So each single operation is linear in what has been paid for, and the CPU deadline, looked at
in each checkpoint, ends what is merely long. What cannot be metered is not offered.

Not here: which template, which messages, what an error means to a user (`template`).
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import Template, TemplateError, TemplateRuntimeError, Undefined
from jinja2.ext import loopcontrols
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from llmrs_cli.text.syntax import GenerationTag, Metering

MAX_SOURCE = 128 * 1024
"""Characters of a template, whose compilation is not metered; the largest published ones have about 30,000."""
UNITS = 32 * 1024 * 1024
UNITS_PER_INPUT = 64
"""Budget of one rendering: characters and list entries made, plus this many per character of input."""
CPU_SECONDS, SECONDS_PER_INPUT, MOST_SECONDS = 0.25, 2e-6, 2.0
"""Of the rendering thread: so many, plus so many per character of input, but no more than the last. A published
template takes below a millisecond for a short chat, and half a second for two thousand calls of tools in 2.5 MiB."""
CALL_UNITS = 16
MAX_INT_BITS = 4096
WIDE = re.compile(r"%(\([^)]*\))?[-+ #0]*(\d{4}|\*|\d*\.(\d{4}|\*))")
"""A directive of the operator % whose width or precision has more than three digits, or is an argument."""

FILTER_NAMES = (
    *("abs", "attr", "capitalize", "default", "d", "dictsort", "e", "escape", "first", "float", "groupby"),
    *("int", "items", "last", "length", "count", "list", "lower", "map", "max", "min", "reject"),
    *("rejectattr", "reverse", "round", "safe", "select", "selectattr", "sort", "string", "title", "trim"),
    *("unique", "upper"),
)
"""Filters whose result is no larger than their input; `join`, `replace`, `indent`, `tojson` are ours."""

STR_METHODS = (
    *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii"),
    *("isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower"),
    *("lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition"),
    *("rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper"),
)
METHODS: tuple[tuple[type | tuple[type, ...], tuple[str, ...]], ...] = (
    (str, STR_METHODS),
    (dict, ("get", "items", "keys", "values")),
    ((list, tuple), ("count", "index")),
    ((int, float, bytes), ()),
)
"""What may be looked up on plain data; `join` and `replace` are metered, the others cannot grow."""


class BudgetExceeded(TemplateError):
    """The template asked for more work, memory or output than any real one needs."""


class Meter:
    """What one rendering may still spend."""

    def __init__(self, units: int, seconds: float) -> None:
        self._left = units
        self._deadline = time.thread_time() + seconds

    def spend(self, units: int) -> None:
        """Pay for `units` characters or entries about to be made."""
        self._left -= units
        if self._left < 0 or time.thread_time() > self._deadline:
            raise BudgetExceeded("the template does too much work")


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders one template at a time; renderings of several threads take turns."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, functions: dict[str, Callable[..., Any]], *, seconds: float = CPU_SECONDS) -> None:
        """`functions` are globals of the templates; `seconds` of CPU are what rendering a short input may take."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant folding would run operations before there is a meter
            extensions=[GenerationTag, loopcontrols],
        )
        self._seconds = seconds
        self._meter = Meter(UNITS, seconds)
        self._lock = threading.Lock()
        self.finalize = self._printable
        self.filters = {name: self._metered(FILTERS[name]) for name in FILTER_NAMES}
        self.filters |= {
            "join": self._join,
            "replace": self._replace,
            "indent": self._indent,
            "tojson": self._to_json,
        }
        self.globals = {"range": safe_range, "namespace": Namespace, **functions}

    def prepare(self, source: str) -> Template:
        """Parse and compile; raises jinja2.TemplateSyntaxError, or BudgetExceeded by its length."""
        if len(source) > MAX_SOURCE:
            raise BudgetExceeded(f"the template is longer than {MAX_SOURCE} characters")
        return self.from_string(Metering().visit(self.parse(source)))

    def render(self, template: Template, values: dict[str, Any]) -> str:
        """Text of a prepared template; raises jinja2.TemplateError, or what bad operands raise."""
        with self._lock:
            self._meter = Meter(UNITS, MOST_SECONDS)
            weight = self._weight(values)
            seconds = min(MOST_SECONDS, self._seconds + SECONDS_PER_INPUT * weight)
            self._meter = Meter(UNITS + UNITS_PER_INPUT * weight, seconds)
            return template.render(values)

    # -- what compiled templates call ---------------------------------------------------------------

    def checkpoint(self, value: Any = True) -> Any:
        """Passed by every loop iteration and every comparison; the call itself is what is metered."""
        return value

    def weigh(self, value: Any) -> Any:
        """Pay for a list, tuple or dict with all that is inside, so that nothing grows by nesting."""
        self._weight(value)
        return value

    def glue(self, *parts: Any) -> str:
        """The operator `~`."""
        return self.concat(str(self._printable(part)) for part in parts)

    def cut(self, value: Any, *bounds: Any) -> Any:
        """value[start:stop:step]"""
        return self._paid(value[slice(*bounds)])

    def concat(self, parts: Iterable[str]) -> str:
        """Join the pieces of an output, a block or a macro."""
        return "".join(self._paid(part) for part in parts)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902
        __self._meter.spend(CALL_UNITS)
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str) and __obj.__name__ == "replace":
            return __self._replace(text, *args, **kwargs)
        if isinstance(text, str) and __obj.__name__ == "join":
            return __self._join(args[0], text)
        return __self._paid(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            self._pay_format(left, right)
        else:
            self._meter.spend(_growth(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call_test(self, *args: Any, **kwargs: Any) -> Any:
        """A test that a filter such as `select` applies to each item."""
        self._meter.spend(CALL_UNITS)
        return super().call_test(*args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in METHODS:
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` is not offered: its widths could not be metered."""

    # -- metering -----------------------------------------------------------------------------------

    def _paid(self, value: Any) -> Any:
        self._meter.spend(len(value) if isinstance(value, str | list | tuple) else 1)
        return value

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # also carries Jinja's marks of functions that want the context
        def metered(*args: Any, **kwargs: Any) -> Any:
            self._meter.spend(CALL_UNITS)
            return self._paid(function(*args, **kwargs))

        return metered

    def _weight(self, value: Any) -> int:
        """Characters and entries inside `value`, paid while counting."""
        total, unpaid, stack = 0, 0, [value]
        while stack:
            item = stack.pop()
            unpaid += 1 + len(item) if isinstance(item, str | list | tuple | dict) else 1
            if unpaid > 4096 or not stack:
                self._meter.spend(unpaid)
                total, unpaid = total + unpaid, 0
            if isinstance(item, list | tuple):
                stack.extend(item)
            elif isinstance(item, dict):
                stack.extend(item)
                stack.extend(item.values())
            elif not isinstance(item, str | int | float | Undefined | None):
                raise TemplateRuntimeError(f"the template makes data of a {type(item).__name__}")
        return total + unpaid

    def _pay_format(self, form: str, values: Any) -> None:
        """For `form % values`: any directive may print all of a mapping, with a width of three digits."""
        if WIDE.search(form.replace("%%", "")):
            raise TemplateRuntimeError("the template formats with a width that is too large")
        weight, directives = self._weight(values), form.count("%")
        repeats = directives if isinstance(values, dict) else 1
        self._meter.spend(len(form) + 1000 * directives + weight * repeats)

    def _printable(self, value: Any) -> Any:
        if not isinstance(value, str | Undefined):
            self._weight(value)
        return value

    # -- filters that can grow ----------------------------------------------------------------------

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = list(value)
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        self._meter.spend(len(d) * len(items))
        return str(d).join(str(self._printable(item)) for item in items)

    def _replace(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        text = str(self._printable(value))
        times = text.count(old) if count is None or count < 0 else min(count, text.count(old))
        self._meter.spend(len(text) + times * len(new))
        return text.replace(old, new, times)

    def _indent(self, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        self._meter.spend(len(text) + (text.count("\n") + 2) * _indent_size(width))
        return str(self._paid(FILTERS["indent"](text, width, first, blank)))

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As Hugging Face has it: plain JSON, nothing escaped for HTML, keys in their order."""
        self._meter.spend(self._weight(value) * (4 + _indent_size(indent or 0)))
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )


def _growth(operator: str, left: Any, right: Any) -> int:
    """Units that an operator may make out of its operands; refuses what has no use in a template."""
    if operator == "*":
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                return len(sequence) * max(times, 0)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_INT_BITS:
            raise TemplateRuntimeError("the template computes with integers that are too large")
    return _length(left) + _length(right)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 1


def _indent_size(width: int | str) -> int:
    size = len(width) if isinstance(width, str) else abs(width)
    if size > 100:
        raise TemplateRuntimeError("the template indents by more than 100 characters")
    return size
