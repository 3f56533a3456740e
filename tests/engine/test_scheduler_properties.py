"""The scheduler under anything: whatever is added, cancelled, preempted or evicted in whatever order, with
results read at once or one step behind, each answer is what the request gives alone.

`Drive` checks the books after every call and the fake runner checks every slot that is attended to, so
most faults show where they happen; the answers show the rest.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from llmrs_cli.engine.types import FinishReason, Request
from tests.helpers.drive import BLOCK, Drive, request
from tests.helpers.fake_runner import VOCAB

SOAK = os.environ.get("SOAK") == "1"
CONTEXT = 24

STEMS = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 0, 0, 0], [5] * 9)
"""Prompts begin alike, so that they meet in the cache."""

sizes = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 4),
        "blocks": st.integers(CONTEXT // BLOCK, 14),
        "busy_budget": st.integers(5, 9),
        "idle_budget": st.integers(9, 30),
        "context": st.just(CONTEXT),
    }
)
prompts = st.builds(
    lambda stem, length, tail: [*stem[:length], *tail],
    st.sampled_from(STEMS),
    st.integers(0, 9),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
)


@st.composite
def requests(draw: st.DrawFn, name: str = "a") -> Request:
    """Any request that may be served."""
    return request(
        name,
        draw(prompts),
        draw(st.integers(1, 14)),
        salt=draw(st.sampled_from(["", "", "", "other"])),
        stop_ids=draw(st.sampled_from([(), (), (0,), (3, 7)])),
        seed=draw(st.integers(0, 3)),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
        logprobs=draw(st.sampled_from([None, 0])),
    )


class Machine(RuleBasedStateMachine):
    """Requests come and go at any moment between two calls of the scheduler."""

    @initialize(sizes=sizes, lookahead=st.integers(0, 1))
    def open(self, sizes: dict[str, int], lookahead: int) -> None:
        self.drive = Drive(lookahead, **sizes)
        self.aborted: set[str] = set()

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        name = f"r{len(self.drive.requests)}"
        self.drive.add(data.draw(requests(name)))

    @precondition(lambda self: self.drive.scheduler.in_flight <= self.drive.lookahead)
    @rule(absent=st.integers(0, 63))
    def launch(self, absent: int) -> None:
        """Some sit the step out, and some of the others draw nothing in it."""
        out, late = (
            {name for name in self.drive.unfinished() if absent >> int(name[1:]) % 3 + shift & 1}
            for shift in (0, 3)
        )
        self.drive.launch(out, late)

    @precondition(lambda self: self.drive.scheduler.in_flight > 0)
    @rule()
    def commit(self) -> None:
        self.drive.commit()

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        while self.drive.scheduler.in_flight > self.drive.lookahead:
            self.drive.commit()
        for _ in range(steps):
            self.drive.step()

    @precondition(lambda self: self.drive.unfinished())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.drive.unfinished()))
        self.aborted.add(name)
        self.drive.cancel(name)

    def teardown(self) -> None:
        if not hasattr(self, "drive"):
            return
        self.drive.run()
        kept = [name for name in self.drive.answers if name not in self.aborted]
        if kept:
            self.drive.assert_right(*kept)
        for name in self.aborted:
            assert self.drive.answers[name].finish is FinishReason.ABORT


TestMachine = pytest.mark.timeout(3600 if SOAK else 120)(Machine.TestCase)
TestMachine.settings = settings(
    max_examples=5_000 if SOAK else 300, stateful_step_count=200 if SOAK else 100, deadline=None
)


@settings(deadline=None, max_examples=150)
@given(
    sizes=sizes,
    lookahead=st.integers(0, 1),
    batch=st.lists(requests(), min_size=1, max_size=7),
    arrivals=st.lists(st.integers(0, 12), min_size=7, max_size=7),
)
def test_chunks_rows_pressure_and_company_change_no_answer(
    sizes: dict[str, int], lookahead: int, batch: list[Request], arrivals: list[int]
) -> None:
    drive = Drive(lookahead, **sizes)
    for number, (each, arrival) in enumerate(zip(batch, sorted(arrivals), strict=False)):
        while len(drive.runner.log) < arrival and drive.busy:
            drive.step()
        named = Request(f"r{number}", each.prompt_ids, each.params, each.choice, each.salt)
        drive.add(named)
    drive.run().assert_right()


@settings(deadline=None, max_examples=60)
@given(sizes=sizes, batch=st.lists(requests(), min_size=2, max_size=5))
def test_the_oldest_never_loses_its_blocks(sizes: dict[str, int], batch: list[Request]) -> None:
    """It is part of every step until it ends."""
    drive = Drive(**sizes)
    for number, each in enumerate(batch):
        drive.add(Request(f"r{number}", each.prompt_ids, each.params, each.choice, each.salt))
    while drive.busy:
        oldest = drive.unfinished()[0]
        plan = drive.step()
        assert plan is not None
        assert oldest in [chunk.request_id for chunk in plan.chunks]


@pytest.mark.parametrize("sizes", [{"rows": 2}, {"rows": 4, "blocks": 8}], ids=["rows", "blocks"])
def test_who_waits_for_a_block_of_another_keeps_its_turn(sizes: dict[str, int]) -> None:
    drive = Drive(**{"busy_budget": 5, "idle_budget": 9, **sizes})
    drive.add(
        request("first", (5, 5, 5, 0), 1), request("alike", (5, 5, 5, 0), 12), request("late", range(11))
    )
    plans = [drive.step(), drive.step()]
    named = [[chunk.request_id for chunk in plan.chunks] for plan in plans if plan is not None]
    assert "alike" not in named[0] and named[1][0] == "alike"
    drive.run().assert_right()


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("salts", [("", ""), ("", "other")])
@pytest.mark.parametrize("budget", [5, 7, 40])
def test_warm_equals_cold_for_every_length_around_the_block_edges(
    lookahead: int, salts: tuple[str, str], budget: int
) -> None:
    prompt = [n * n % VOCAB for n in range(4 * BLOCK + 2)]
    for length in range(1, len(prompt) + 1):
        drive = Drive(lookahead, idle_budget=budget, busy_budget=5)
        drive.add(request("cold", prompt[:length], salt=salts[0])).run()
        drive.add(request("warm", prompt[:length], salt=salts[1])).run()
        drive.add(request("longer", [*prompt[:length], 10, 10], salt=salts[1])).run().assert_right()
        assert drive.answers["warm"].tokens == drive.answers["cold"].tokens
        cached = (length - 1) // BLOCK * BLOCK if salts[0] == salts[1] else 0
        assert drive.answers["warm"].cached == cached


@pytest.mark.parametrize("lookahead", [0, 1])
def test_two_thousand_random_aborts_leak_nothing(lookahead: int) -> None:
    """Half of the requests are aborted at a random moment; the others equal their solo answers."""
    rng = random.Random(lookahead)
    drive = Drive(lookahead, rows=6, blocks=24, busy_budget=9)
    drive.scheduler.limits.check(request("any", [1] * 9, 12))
    due: dict[int, list[str]] = {}
    aborted = set()
    for number in range(4_000):
        name = f"r{number}"
        stem = STEMS[rng.randrange(3)][: rng.randrange(10)]
        prompt = [*stem, *(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 5)))]
        drive.add(request(name, prompt, rng.randrange(1, 12), seed=rng.randrange(3)))
        if number % 2:
            due.setdefault(number + rng.randrange(12), []).append(name)
        for victim in due.pop(number, ()):
            aborted.add(victim)
            drive.cancel(victim)
        while drive.scheduler.waiting > 8 or rng.random() < 0.5:
            drive.step()
    for victims in due.values():
        for victim in victims:
            aborted.add(victim)
            drive.cancel(victim)
    drive.run()
    assert len(aborted) == 2_000
    assert sum(drive.answers[name].finish is FinishReason.ABORT for name in aborted) > 500
    drive.assert_right(*(name for name in drive.answers if name not in aborted))


@pytest.mark.parametrize("lookahead", [0, 1])
def test_whichever_claim_of_blocks_is_refused_everybody_ends_right(
    lookahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The k-th claim finds no room, for every k until a run makes fewer claims than that."""
    refused, k = True, 0
    while refused:
        k, refused = k + 1, False
        drive = Drive(lookahead, blocks=12, context=30)
        claims = iter(range(1, 10_000))
        claim = drive.scheduler.pool.claim

        def failing(*args: int, **kwargs: int) -> list[int] | None:
            nonlocal refused
            if next(claims) == k:  # noqa: B023 (used within this turn)
                refused = True
                return None
            return claim(*args, **kwargs)  # type: ignore[arg-type]  # noqa: B023

        monkeypatch.setattr(drive.scheduler.pool, "claim", failing)
        for name in "abc":
            drive.add(request(name, [1, 2, 3, 4, ord(name) % VOCAB], max_tokens=14))
        drive.run().assert_right()
    assert k > 10


@settings(deadline=None, max_examples=100)
@given(
    sizes=sizes,
    lookahead=st.integers(0, 1),
    batch=st.lists(requests(), min_size=1, max_size=6),
    absent=st.lists(st.tuples(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5))), max_size=60),
)
def test_who_sits_out_or_is_late_gives_the_same_answer_and_so_do_the_others(
    sizes: dict[str, int],
    lookahead: int,
    batch: list[Request],
    absent: list[tuple[set[int], set[int]]],
) -> None:
    drive = Drive(lookahead, **sizes)
    for number, each in enumerate(batch):
        drive.add(Request(f"r{number}", each.prompt_ids, each.params, each.choice, each.salt))
    for out, late in absent:
        if drive.scheduler.in_flight > drive.lookahead:
            drive.commit()
        plan = drive.launch(*({f"r{number}" for number in some} for some in (out, late)))
        if plan is None and drive.scheduler.in_flight:
            drive.commit()
    drive.run().assert_right()
