"""Values that are set while talking, by the same names and ranges as everywhere."""

from __future__ import annotations

import pytest

from llmrs_cli.chat.parameters import KINDS, assignments, listed, parameter
from llmrs_cli.errors import UsageError
from llmrs_cli.text.options import GenerateOptions, SamplingDefaults


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [
        ("temperature", "0.5", ("temperature", 0.5)),
        ("temp", "1", ("temperature", 1.0)),
        ("top-k", "5", ("top_k", 5)),
        ("seed", "7", ("seed", 7)),
        ("num_predict", "9", ("max_tokens", 9)),
        ("stop", "END", ("stop", ("END",))),
        ("stop", "default", ("stop", ())),
        ("temperature", "default", ("temperature", None)),
        ("presence_penalty", "default", ("presence_penalty", 0)),
    ],
)
def test_values(name: str, typed: str, value: tuple[str, object]) -> None:
    assert parameter(name, typed) == value


@pytest.mark.parametrize(
    ("name", "typed", "part"),
    [
        ("temprature", "1", "Did you mean temperature?"),
        ("color", "1", "There are temperature"),
        ("temperature", "hot", "needs a number"),
        ("temperature", "3", "between 0 and 2"),
        ("temperature", "nan", "between 0 and 2"),
        ("top_p", "1.5", "between 0 and 1"),
        ("seed", "-1", "2^64"),
        ("max_tokens", "0", "at least 1"),
    ],
)
def test_what_is_refused(name: str, typed: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        parameter(name, typed)
    assert part in str(caught.value)


def test_assignments_of_a_line() -> None:
    assert assignments("temp=1 top_k=3") == {"temperature": 1.0, "top_k": 3}
    assert assignments("") == {}
    with pytest.raises(UsageError, match="name=value"):
        assignments("hotter")


def test_every_parameter_is_an_option_and_is_listed_with_its_origin() -> None:
    options = GenerateOptions(temperature=0.3)
    shown = listed(options, SamplingDefaults(top_k=20, from_model=True))
    assert all(name in shown and hasattr(options, name) for name in KINDS)
    lines = {line.split()[0]: line for line in shown.splitlines()}
    assert lines["temperature"].endswith("0.3")
    assert lines["top_k"].endswith("20 (the model's)")
    assert lines["seed"].endswith("-")
