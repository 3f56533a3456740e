"""Options of a row: whatever stands in a field is an option of the right kind, or an error that names it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.fields import IGNORED, LONGEST, OPTIONS, nearest_option, read_options
from llmrs_cli.errors import RequestError
from llmrs_cli.text.generate import GenerateOptions

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
KNOWN = frozenset(OPTIONS)


@given(st.sampled_from(sorted(OPTIONS)), JSON)
def test_any_value_is_an_option_or_an_error_that_names_the_field(name: str, value: Any) -> None:
    try:
        options = read_options({name: value})
    except RequestError as error:
        assert (error.param or "").startswith(name)
        assert len(error.message) < 200
        return
    assert len(options) <= 1
    hash(tuple(options))


def test_every_option_is_one_that_a_request_has() -> None:
    known = {field.name for field in fields(GenerateOptions)}
    beside = {"chat_template_kwargs", "form", "top_logprobs"}
    assert {target for target, _ in OPTIONS.values() if target is not None} <= known | beside
    assert not KNOWN & IGNORED


@given(st.dictionaries(st.sampled_from(sorted(OPTIONS)), st.none()), st.text(max_size=5))
def test_what_is_absent_or_of_somebody_else_is_no_option(absent: dict[str, None], name: str) -> None:
    assert read_options({**absent, f"their {name}": 5}) == {}


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("temperature", 1, 1.0),
        ("top_k", 5.0, 5),
        ("seed", 0, 0),
        ("stop", "x", ("x",)),
        ("logit_bias", {"5": 1}, ((5, 1.0),)),
        ("n", 128, 128),
    ],
)
def test_kinds_are_ours(name: str, value: Any, option: Any) -> None:
    assert read_options({name: value}) == {name: option}
    assert type(read_options({name: value})[name]) is type(option)


@given(st.sampled_from(sorted(OPTIONS)), st.data())
def test_a_slip_of_one_character_in_a_long_name_is_found(name: str, data: st.DataObject) -> None:
    if len(name) < 8:
        return
    place = data.draw(st.integers(0, len(name) - 1))
    slip = name[:place] + name[place + 1 :]
    assert slip in KNOWN or nearest_option(slip, KNOWN) in KNOWN
    assert nearest_option(name.upper(), KNOWN) == name


@pytest.mark.parametrize("name", ["label", "text", "x", "", "問", "temperature" * 10, "a" * (LONGEST + 1)])
def test_what_is_far_from_every_option_is_somebody_elses(name: str) -> None:
    assert nearest_option(name, KNOWN) is None
