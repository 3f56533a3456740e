"""What a run would do, found out without computing anything: rows, tokens, rows that cannot be answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from llmrs_cli.batch.job import Job
from llmrs_cli.batch.prompts import Prompter
from llmrs_cli.batch.records import Ask, Row
from llmrs_cli.batch.twins import twin_key
from llmrs_cli.engine.types import TokenEvent
from llmrs_cli.errors import ContextLengthError, LlmrsError

if TYPE_CHECKING:
    from llmrs_cli.text.generate import TextEngine

GROUP = 64
SHOWN = 20
"""Rows with something wrong that are named."""


@dataclass(slots=True)
class Plan:
    """Figures of one input. Tokens of equal rows count once."""

    rows: int = 0
    failing: int = 0
    too_long: int = 0
    """Of those, for the context."""
    merged: int = 0
    """Rows that take the answer of an equal one; over the whole input, where a run looks at a window."""
    answers: int = 0
    prompt_tokens: int = 0
    longest: int = 0
    """Tokens of the longest prompt."""
    problems: list[tuple[int, str]] = field(default_factory=list)
    """The first lines that cannot be answered, and why."""


def make_plan(engine: TextEngine, job: Job, rows: Iterable[tuple[int, Row]]) -> Plan:
    """Go through all rows as a run does; `engine` must accept or refuse each request, and need not answer."""
    plan, seen = Plan(), set[bytes]()
    for row, prompt in _prompts(Prompter(engine, job), (row for _, row in rows)):
        plan.rows += 1
        try:
            _add(plan, engine, job, row, prompt, seen)
        except LlmrsError as error:
            plan.failing += 1
            plan.too_long += isinstance(error, ContextLengthError)
            if len(plan.problems) < SHOWN:
                plan.problems.append((row.line, error.message))
    return plan


def _prompts(prompter: Prompter, rows: Iterator[Row]) -> Iterator[tuple[Row, tuple[int, ...] | LlmrsError]]:
    while group := list(islice(rows, GROUP)):
        prompts = iter(prompter.ids_of([row.ask for row in group if isinstance(row.ask, Ask)]))
        for row in group:
            yield row, next(prompts) if isinstance(row.ask, Ask) else row.ask


def _add(
    plan: Plan, engine: TextEngine, job: Job, row: Row, prompt: tuple[int, ...] | LlmrsError, seen: set[bytes]
) -> None:
    if isinstance(prompt, LlmrsError):
        raise prompt
    assert isinstance(row.ask, Ask)
    options = job.options_for(row.index, row.ask)
    engine.start(prompt, options, sink=_nowhere)
    plan.longest = max(plan.longest, len(prompt))
    key = twin_key(prompt, options, row.ask, engine.defaults)
    if key in seen:
        plan.merged += 1
        return
    if key is not None:
        seen.add(key)
    plan.answers += options.n
    plan.prompt_tokens += len(prompt)


def _nowhere(event: TokenEvent) -> None:
    pass
