"""What holds for one row of a job: its own options, its form, and variables of the template."""

from __future__ import annotations

from typing import Any

import pytest

from llmrs_cli.batch.job import Job, row_seed
from llmrs_cli.batch.records import Ask, Row, Shape
from llmrs_cli.batch.results import Writer
from llmrs_cli.errors import RequestError
from llmrs_cli.text.forms import AnswerForm
from llmrs_cli.text.generate import GenerateOptions

FORM, JSON, FREE = AnswerForm("g"), AnswerForm("j", is_json=True), AnswerForm()


def job(form: AnswerForm | None = None, **arguments: Any) -> Job:
    options = GenerateOptions(max_tokens=5, temperature=0.5)
    return Job(options, 7, Writer("m", 0), form=form, arguments=arguments)


def test_a_rows_own_options_win() -> None:
    options = job().options_for(3, Ask(text="x", options={"temperature": 0.0, "n": 2}))
    assert options == GenerateOptions(max_tokens=5, temperature=0.0, n=2, seed=row_seed(7, 3))
    assert job().options_for(3, Ask(text="x", options={"seed": 1})).seed == 1


@pytest.mark.parametrize(
    ("whole", "own", "grammar"),
    [(None, {}, ""), (JSON, {}, "j"), (JSON, {"form": FORM}, "g"), (JSON, {"form": FREE}, "")],
)
def test_a_rows_own_form_wins(whole: AnswerForm | None, own: dict[str, Any], grammar: str) -> None:
    ask = Ask(text="x", options=own)
    assert job(whole).options_for(0, ask).grammar == grammar
    assert job(whole).is_json(Row(0, 1, Shape.FLAT, {}, {}, ask)) is (grammar == "j")


def test_a_row_that_is_none_has_no_form() -> None:
    assert not job(JSON).is_json(Row(0, 1, Shape.FLAT, {}, {}, RequestError("Bad.")))


@pytest.mark.parametrize(
    ("form", "own", "arguments"),
    [
        (None, {}, {}),
        (JSON, {}, {"enable_thinking": False}),
        (None, {"form": FORM}, {"enable_thinking": False}),
        (JSON, {"form": FREE}, {}),
        (JSON, {"chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
        (None, {"chat_template_kwargs": {"a": 1}}, {"a": 1}),
    ],
)
def test_a_thought_has_no_place_in_a_form(
    form: AnswerForm | None, own: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert job(form).template_arguments(Ask(text="x", options=own)) == arguments
    whole = {**arguments, "b": 2}
    assert job(form, b=2).template_arguments(Ask(text="x", options=own)) == whole


def test_a_rows_own_variables_win() -> None:
    ask = Ask(text="x", options={"chat_template_kwargs": {"a": 1}})
    assert job(JSON, a=0, enable_thinking=True).template_arguments(ask) == {"a": 1, "enable_thinking": True}
