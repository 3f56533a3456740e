"""The look before a run: rows, tokens and problems, as a run would find them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.job import Job
from llmrs_cli.batch.plan import GROUP, SHOWN, Plan, make_plan
from llmrs_cli.batch.records import Ask, Row, Shape
from llmrs_cli.batch.results import Writer
from llmrs_cli.errors import RequestError
from llmrs_cli.text.generate import GenerateOptions, TextEngine
from llmrs_cli.text.options import SamplingDefaults
from llmrs_cli.text.template import ChatTemplate
from tests.helpers.fake_engine import FakeEngine, reply

CONTEXT = 16


def planned(*asks: Ask | RequestError, temperature: float = 0.0) -> Plan:
    engine = TextEngine(
        FakeEngine(reply((1,)), context=CONTEXT, vocab=100),
        tokenizer=None,
        template=ChatTemplate({}),
        defaults=SamplingDefaults(),
    )
    job = Job(GenerateOptions(max_tokens=4, temperature=temperature), 1, Writer("m", 0))
    rows = (Row(n, n + 1, Shape.FLAT, {}, {}, ask) for n, ask in enumerate(asks))
    return make_plan(engine, job, enumerate(rows))


def ask(*ids: int, **options: Any) -> Ask:
    return Ask(token_ids=ids, options=options)


def test_good_rows_are_counted_with_their_tokens() -> None:
    plan = planned(ask(1, 2, 3), ask(4, n=3), ask(5, 6))
    assert (plan.rows, plan.failing, plan.answers) == (3, 0, 5)
    assert (plan.prompt_tokens, plan.longest) == (6, 3)


def test_equal_rows_count_once_where_a_run_would_compute_them_once() -> None:
    assert planned(*[ask(1, 2)] * 5) == Plan(rows=5, merged=4, answers=1, prompt_tokens=2, longest=2)
    assert planned(*[ask(1, 2)] * 5, temperature=1.0).merged == 0
    assert planned(*[ask(1, 2, seed=3)] * 5, temperature=1.0).merged == 4


def test_what_cannot_be_answered_is_told_with_its_line() -> None:
    plan = planned(
        RequestError("Bad.", code="invalid_json"),
        ask(*range(CONTEXT)),
        ask(1),
        ask(2, stop=("a",)),
        Ask(text="no tokenizer"),
    )
    assert (plan.rows, plan.failing, plan.too_long) == (5, 4, 1)
    assert [line for line, _ in plan.problems] == [1, 2, 4, 5]
    assert str(CONTEXT) in plan.problems[1][1]


def test_only_the_first_problems_are_named() -> None:
    plan = planned(*[RequestError("Bad.")] * (SHOWN + 5))
    assert (plan.failing, len(plan.problems)) == (SHOWN + 5, SHOWN)


@given(st.lists(st.sampled_from(["good", "twin", "bad", "long"]), max_size=2 * GROUP + 5))
def test_every_row_is_counted_once_whatever_stands_beside_it(kinds: list[str]) -> None:
    def made(n: int, kind: str) -> Ask | RequestError:
        if kind == "bad":
            return RequestError("Bad.")
        return ask(*{"good": (n % 100, n // 100), "twin": (7,), "long": range(CONTEXT)}[kind])

    plan = planned(*(made(n, kind) for n, kind in enumerate(kinds)))
    twins = kinds.count("twin")
    assert plan.rows == len(kinds)
    assert (plan.failing, plan.too_long) == (kinds.count("bad") + kinds.count("long"), kinds.count("long"))
    assert plan.merged == max(twins - 1, 0)
    assert plan.answers == kinds.count("good") + min(twins, 1)
