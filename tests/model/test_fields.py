"""One JSON object, read field by field: what is in bounds comes back, what is not is named with its rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.model.fields import Fields
from llmrs_cli.errors import ExitCode, ModelError

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
READERS: dict[str, Callable[[Fields], object]] = {
    "integer": lambda fields: fields.integer("x", -3, 7, 5),
    "number": lambda fields: fields.number("x", -3, 7, 5.0),
    "flag": lambda fields: fields.flag("x", True),
    "text": lambda fields: fields.text("x"),
    "items": lambda fields: fields.items("x"),
    "table": lambda fields: fields.table("x"),
}
DEFAULTS: dict[str, object] = {
    "integer": 5,
    "number": 5.0,
    "flag": True,
    "text": None,
    "items": None,
    "table": None,
}
KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "flag": (bool,),
    "text": (str,),
    "items": (list,),
    "table": (dict,),
}


def fields(**values: Any) -> Fields:
    return Fields(values, "some.json")


def allowed(kind: str, value: Any) -> bool:
    """Whether a reader may give `value` back."""
    fits = isinstance(value, KINDS[kind])
    if kind in ("integer", "number"):
        return fits and not isinstance(value, bool) and -3 <= float(value) <= 7
    return fits


@pytest.mark.parametrize("kind", READERS)
@given(value=ANY)
def test_a_value_comes_back_as_it_is_or_is_refused_by_name(kind: str, value: Any) -> None:
    """Never another value: nothing is rounded, cut or converted, but a whole number to a float."""
    found = fields(x=value)
    if value is None:
        assert READERS[kind](found) == DEFAULTS[kind]
    elif allowed(kind, value):
        assert READERS[kind](found) == value
    else:
        with pytest.raises(ModelError) as caught:
            READERS[kind](found)
        assert caught.value.message.startswith("x in some.json must be ")
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 300


@pytest.mark.parametrize("kind", READERS)
def test_an_absent_field_is_like_null(kind: str) -> None:
    assert READERS[kind](fields()) == READERS[kind](fields(x=None)) == DEFAULTS[kind]


@pytest.mark.parametrize(
    "read",
    [
        lambda fields: fields.integer("x", 0, 9),
        lambda fields: fields.number("x", 0, 9),
        lambda fields: fields.require("x"),
    ],
    ids=["integer", "number", "anything"],
)
@pytest.mark.parametrize("values", [{}, {"x": None}])
def test_a_field_without_a_default_is_required(
    read: Callable[[Fields], object], values: dict[str, None]
) -> None:
    with pytest.raises(ModelError, match=r"^some\.json has no x\.") as caught:
        read(fields(**values))
    assert caught.value.exit_code == ExitCode.MODEL
    assert caught.value.hint is not None


def test_zero_and_false_are_values_not_absences() -> None:
    assert fields(x=0).integer("x", 0, 9, 5) == 0
    assert fields(x=0).number("x", 0, 9, 5.0) == 0.0
    assert fields(x=False).flag("x", True) is False
    assert fields(x="").text("x") == ""
    assert fields(x=[]).items("x") == []
    assert fields(x=0).require("x") == 0


@pytest.mark.parametrize("value", [-3, 7])
def test_bounds_belong_to_the_range(value: int) -> None:
    assert fields(x=value).integer("x", -3, 7) == value
    assert fields(x=value).number("x", -3, 7) == value
    for beyond in (-4, 8):
        with pytest.raises(ModelError, match="from -3 to 7"):
            fields(x=beyond).integer("x", -3, 7)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_bound_lets_through_what_is_not_finite(value: float) -> None:
    with pytest.raises(ModelError, match="must be a number"):
        fields(x=value).number("x", -1e300, 1e300)
