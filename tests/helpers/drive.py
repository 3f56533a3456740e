"""Drives a scheduler with the fake runner, checking the books after every call, and gathers the answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmrs_cli.engine.limits import EngineLimits
from llmrs_cli.engine.plan import StepPlan
from llmrs_cli.engine.scheduler import Scheduler
from llmrs_cli.engine.types import FinishReason, Request, SamplingParams, TokenEvent, TokenLogprob
from tests.helpers.fake_runner import FakeRunner, solo, solo_scores

BLOCK = 3


def limits(**changes: int) -> EngineLimits:
    """Small: 4 rows, 40 tokens of context, 20 blocks of 3, budgets 8 and 16."""
    values = {
        "rows": 4,
        "context": 40,
        "blocks": 20,
        "block_size": BLOCK,
        "busy_budget": 8,
        "idle_budget": 16,
    }
    return EngineLimits(**(values | changes))


def request(
    name: str, prompt: Iterable[int], max_tokens: int = 4, *, salt: str = "", **params: Any
) -> Request:
    return Request(name, tuple(prompt), SamplingParams(max_tokens=max_tokens, **params), salt=salt)


@dataclass
class Answer:
    """Everything that events said about one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    cached: int = 0
    finish: FinishReason | None = None
    error: str | None = None
    code: str = ""
    finished_after: int = 0
    """Steps launched by then."""

    def take(self, event: TokenEvent, steps: int) -> None:
        assert self.finish is None, f"an event after the end: {event}"
        if event.prompt_logprobs is not None:
            assert not self.tokens and self.prompt_logprobs is None
            self.prompt_logprobs = event.prompt_logprobs
        self.tokens += event.tokens
        self.logprobs += event.logprobs
        self.cached = event.cached_tokens
        self.finish, self.error, self.code = event.finish, event.error, event.code
        self.finished_after = steps


class Drive:
    """A scheduler that plans at most `lookahead` steps ahead of the last committed one."""

    def __init__(self, lookahead: int = 0, **sizes: int) -> None:
        self.limits = limits(**sizes)
        self.scheduler = Scheduler(self.limits)
        self.runner = FakeRunner(self.limits.block_size)
        self.lookahead = lookahead
        self.requests: dict[str, Request] = {}
        self.answers: dict[str, Answer] = {}

    def add(self, *requests: Request) -> Drive:
        for each in requests:
            self.scheduler.add(each)
            self.requests[each.id] = each
            self.answers[each.id] = Answer()
        return self

    def launch(self, out: Collection[str] = (), late: Collection[str] = ()) -> StepPlan | None:
        """Plan and launch a step; None if there is nothing to compute. The requests `out` sit it out, and those that
        are `late` draw nothing in it."""
        plan = self.scheduler.plan(out)
        self.scheduler.check()
        if not plan.chunks:
            return None
        assert not {chunk.request_id for chunk in plan.chunks} & {*out}
        self.runner.silent = {chunk.request_id for chunk in plan.chunks if chunk.samples} & {*late}
        self.runner.launch(plan)
        self.scheduler.retract(self.runner.silent)
        self.scheduler.check()
        return plan

    def commit(self) -> list[TokenEvent]:
        events = self.scheduler.commit(self.runner.collect())
        self.scheduler.check()
        for event in events:
            self.answers[event.request_id].take(event, len(self.runner.log))
        return events

    def step(self) -> StepPlan | None:
        """What the engine does in a step."""
        plan = self.launch()
        if self.scheduler.in_flight > self.lookahead or (plan is None and self.scheduler.in_flight):
            self.commit()
        return plan

    def cancel(self, name: str) -> None:
        event = self.scheduler.cancel(name)
        self.scheduler.check()
        if event is not None:
            self.answers[name].take(event, len(self.runner.log))

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.in_flight or self.scheduler.waiting or self.scheduler.running)

    def run(self, most: int = 5_000) -> Drive:
        """Step until everything has ended and nothing is in use."""
        for _ in range(most):
            if not self.busy:
                assert self.scheduler.pool.free == self.limits.blocks
                return self
            self.step()
        raise AssertionError(f"still busy after {most} steps: {self.unfinished()}")

    def unfinished(self) -> Sequence[str]:
        return [name for name, answer in self.answers.items() if answer.finish is None]

    def assert_right(self, *names: str) -> None:
        """The named requests (or all) gave what they give alone, by plain recomputation."""
        for name in names or self.answers:
            answer, each = self.answers[name], self.requests[name]
            tokens, finish = solo(each, self.limits.context)
            assert (answer.tokens, answer.finish) == (tokens, finish), name
            if each.params.prompt_logprobs is not None:
                assert answer.prompt_logprobs == solo_scores(each), name
            if each.params.logprobs is not None:
                assert [entry.token for entry in answer.logprobs] == tokens, name
