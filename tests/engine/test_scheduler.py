"""The scheduler by eye: block size 3, at most 4 rows, and plans that a person can check.

What it may do in general is held by test_scheduler_properties; here are its decisions, one at a time.
Longer than most files: it is a list of short scenes that need no other order.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.blocks import next_key, root_key
from llmrs_cli.engine.plan import BlockGrant, Chunk, RowStart, Sampled, StepPlan, StepResult
from llmrs_cli.engine.scheduler import NUMERIC_FAULT, Scheduler, share_out
from llmrs_cli.engine.sequence import Sequence
from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import ContextLengthError, RequestError, UsageError
from tests.helpers.drive import BLOCK, Drive, limits, request
from tests.helpers.fake_runner import solo


def counts(plan: StepPlan | None) -> dict[str, int]:
    """Tokens computed per request."""
    return {} if plan is None else {chunk.request_id: chunk.count for chunk in plan.chunks}


# -- one request -----------------------------------------------------------------------------------------


def test_a_request_from_first_plan_to_last_event() -> None:
    scheduler = Scheduler(limits())
    one = request("a", [5, 6, 7, 8], max_tokens=3)
    scheduler.add(one)
    first = scheduler.plan()
    assert first == StepPlan(
        number=1,
        starts=(RowStart(3, array("I", (5, 6, 7, 8)), 4, one.params, 0),),
        grants=(BlockGrant(3, 0, (0, 1)),),
        chunks=(Chunk("a", 3, start=0, count=4, samples=True),),
    )
    (event,) = scheduler.commit(StepResult((Sampled(9),)))
    assert (event.tokens, event.finish) == ((9,), None)
    second = scheduler.plan()
    assert (second.starts, second.grants) == ((), ())
    assert second.chunks == (Chunk("a", 3, start=4, count=1, samples=True),)
    scheduler.commit(StepResult((Sampled(9),)))
    third = scheduler.plan()
    assert third.chunks == (Chunk("a", 3, start=5, count=1, samples=True),)
    (event,) = scheduler.commit(StepResult((Sampled(9),)))
    assert (event.tokens, event.finish) == ((9,), FinishReason.LENGTH)
    assert scheduler.plan().chunks == () and scheduler.running == 0
    scheduler.check()


def test_a_block_is_granted_when_the_next_token_has_no_slot() -> None:
    drive = Drive().add(request("a", [1, 2, 3], max_tokens=5))
    granted = [tuple(grant.first for grant in plan.grants) for _ in range(5) if (plan := drive.step())]
    assert granted == [(0,), (1,), (), (), (2,)], "positions 3 and 6 open blocks 1 and 2"


def test_a_stop_id_ends_the_sequence_and_is_part_of_the_answer() -> None:
    tokens, _ = solo(request("a", [1, 2], max_tokens=8), 40)
    drive = Drive().add(request("a", [1, 2], max_tokens=8, stop_ids=(tokens[2],))).run()
    assert drive.answers["a"].tokens == tokens[:3]
    assert drive.answers["a"].finish is FinishReason.STOP


def test_ignore_eos_runs_to_max_tokens() -> None:
    drive = Drive().add(request("a", [1, 2], max_tokens=8, stop_ids=tuple(range(11)), ignore_eos=True))
    drive.run().assert_right()
    assert len(drive.answers["a"].tokens) == 8


def test_a_stop_id_at_max_tokens_counts_as_stop() -> None:
    drive = Drive().add(request("a", [1], max_tokens=1, stop_ids=tuple(range(11)))).run()
    assert drive.answers["a"].finish is FinishReason.STOP


# -- limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lookahead", [0, 1])
def test_an_answer_ends_with_the_context(lookahead: int) -> None:
    drive = Drive(lookahead, context=12).add(request("a", range(7), max_tokens=1000)).run()
    assert len(drive.answers["a"].tokens) == 5
    assert drive.answers["a"].finish is FinishReason.LENGTH
    last = drive.runner.log[-1].chunks[0]
    assert last.start + last.count == 11, "the twelfth token is drawn, never computed"


def test_a_prompt_one_token_short_of_the_context_gets_one_token() -> None:
    drive = Drive(context=8).add(request("a", range(7), max_tokens=9)).run()
    assert len(drive.answers["a"].tokens) == 1


@pytest.mark.parametrize("length", [8, 9, 300])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(length: int) -> None:
    with pytest.raises(ContextLengthError, match=rf"{length} tokens.*holds 8\b") as caught:
        Drive(context=8).add(request("a", [1] * length))
    assert (caught.value.limit, caught.value.prompt) == (8, length)
    assert caught.value.code == "context_length_exceeded"


def test_what_the_pool_can_never_hold_is_refused_and_the_next_request_is_served() -> None:
    drive = Drive(context=400, blocks=4)
    with pytest.raises(ContextLengthError, match=r"prompt of 20 tokens.*can need 23.*holds 12\b"):
        drive.add(request("big", range(20)))
    with pytest.raises(ContextLengthError, match=r"up to 9 can need 13"):
        drive.add(request("grows", range(5), max_tokens=9))
    drive.add(request("small", range(5), max_tokens=8)).run().assert_right("small")


def test_an_id_in_use_is_refused_and_free_again_after_the_end() -> None:
    drive = Drive().add(request("a", [1]))
    with pytest.raises(RequestError, match="'a' is running"):
        drive.scheduler.add(request("a", [2]))
    drive.run().add(request("a", [3])).run().assert_right()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rows": 0}, "at least 1 for rows, not 0"),
        ({"blocks": -1}, "at least 1 for blocks, not -1"),
        ({"busy_budget": 4}, "4 tokens .busy. and 16 .idle. cannot serve 4 rows"),
        ({"idle_budget": 7}, "8 tokens .busy. and 7 .idle. cannot serve"),
    ],
)
def test_limits_that_could_not_work_are_refused(changes: dict[str, int], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        limits(**changes)


# -- budget ----------------------------------------------------------------------------------------------


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    drive = Drive().add(request("a", range(36)))
    chunks = [plan.chunks[0] for _ in range(3) if (plan := drive.step())]
    assert [(c.start, c.count, c.samples) for c in chunks] == [(0, 16, False), (16, 16, False), (32, 4, True)]
    drive.run().assert_right()


def test_the_budget_is_small_while_anything_decodes() -> None:
    drive = Drive().add(request("a", [1], max_tokens=20))
    drive.step()
    drive.add(request("b", range(30)))
    assert counts(drive.step()) == {"a": 1, "b": 7}
    drive.cancel("a")
    assert counts(drive.step()) == {"b": 16}


@pytest.mark.parametrize(
    ("wanted", "budget", "given"),
    [
        ([], 8, []),
        ([5], 8, [5]),
        ([50], 8, [8]),
        ([50, 50], 8, [6, 2]),
        ([50, 50, 1], 8, [6, 1, 1]),
        ([50, 3, 3, 3], 12, [9, 3, 0, 0]),
        ([50, 1], 8, [7, 1]),
        ([1, 50, 2], 8, [1, 5, 2]),
        ([2, 2, 2], 100, [2, 2, 2]),
        ([50, 50], 2, [1, 1]),
    ],
)
def test_prompts_share_the_budget(wanted: list[int], budget: int, given: list[int]) -> None:
    assert share_out(wanted, budget) == given


# -- fairness --------------------------------------------------------------------------------------------


def test_a_short_request_passes_long_prompts_within_the_stated_bound() -> None:
    """One stream decodes, two long prompts are being computed, then a 10-token request arrives."""
    drive = Drive(context=900, blocks=900, busy_budget=33, idle_budget=64)
    drive.add(request("stream", [1], max_tokens=500))
    drive.step()
    drive.add(request("long 1", range(800), max_tokens=1), request("long 2", range(1, 801), max_tokens=1))
    for _ in range(3):
        drive.step()
    before = len(drive.runner.log)
    drive.add(request("short", range(10), max_tokens=1))
    while drive.answers["short"].finish is None:
        assert drive.step()
    assert drive.answers["short"].finished_after - before <= -(-10 // 8), "P = 32, a quarter is 8"
    assert drive.answers["long 1"].finish is None
    drive.run().assert_right()


def test_the_oldest_prompt_keeps_three_quarters_under_a_stream_of_short_ones() -> None:
    drive = Drive(context=200, blocks=200, rows=3, busy_budget=8, idle_budget=8)
    drive.add(request("long", range(120), max_tokens=1))
    for number in range(60):
        drive.add(request(f"short {number}", [number % 11, 1], max_tokens=1))
    while drive.answers["long"].finish is None:
        drive.step()
    assert drive.answers["long"].finished_after <= 120 / 6 + 1


def test_a_big_request_starts_before_every_later_arrival() -> None:
    """Short requests arrive all the time and would find rows and blocks; one needs 60 % of the pool."""
    drive = Drive(rows=6)
    for number in range(4):
        drive.add(request(f"before {number}", [number, 1, 2, 3], max_tokens=4 + 4 * number))
    for _ in range(3):
        drive.step()
    drive.add(request("big", range(36), max_tokens=2))
    later = 0
    while drive.answers["big"].finish is None:
        drive.add(request(f"later {later}", [7, later % 10, 3], max_tokens=6))
        later += 1
        plan = drive.step()
        started = [] if plan is None else [len(start.tokens) for start in plan.starts]
        if started and 36 not in started:
            assert any(36 in [len(s.tokens) for s in p.starts] for p in drive.runner.log), "it was passed"
    assert later > 5
    drive.run().assert_right()


def test_a_request_that_waits_for_a_shared_prefix_lets_others_pass() -> None:
    drive = Drive(blocks=40, rows=4)
    drive.add(request("leader", range(36)), request("follower", [*range(36), 7]), request("other", [9, 9]))
    assert counts(drive.step()) == {"leader": 14, "other": 2}
    assert drive.scheduler.waiting == 1


# -- running out of blocks -------------------------------------------------------------------------------


def test_the_youngest_gives_way_and_comes_back() -> None:
    drive = Drive(blocks=6)
    drive.add(request("old", [1, 2, 3], max_tokens=12), request("young", [4, 5, 6], max_tokens=9))
    preempted_at = None
    while drive.busy:
        drive.step()
        if preempted_at is None and drive.scheduler.preemptions:
            preempted_at = len(drive.runner.log)
            assert drive.scheduler.running == 1 and drive.scheduler.waiting == 1
    assert preempted_at is not None
    assert drive.answers["old"].finished_after < drive.answers["young"].finished_after
    drive.assert_right()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_two_requests_that_fill_the_pool_do_not_preempt_each_other_in_turn(lookahead: int) -> None:
    """A pool of 96 tokens; each of the two needs all of it in the end."""
    drive = Drive(lookahead, context=97, blocks=32)
    drive.add(request("a", range(40), max_tokens=57), request("b", range(1, 41), max_tokens=57))
    drive.run(most=200).assert_right()
    assert drive.scheduler.preemptions == 1
    assert drive.answers["a"].finished_after < drive.answers["b"].finished_after


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("round_", range(20))
def test_a_preempted_request_comes_back_through_the_prefix_cache(lookahead: int, round_: int) -> None:
    """The pool holds one and a half of two requests that share two blocks."""
    drive = Drive(lookahead, blocks=12, context=30)
    stem = [1, 2, 3, 4, 5, round_ % 11]
    drive.add(request("a", [*stem, 7, 8], max_tokens=20), request("b", [*stem, 9], max_tokens=20))
    drive.run().assert_right()
    assert drive.scheduler.preemptions > 0


def test_who_comes_back_with_all_but_its_last_token_cached_goes_on_at_once() -> None:
    """It then looks like a decoding row in the very step that starts it."""
    drive = Drive(1, blocks=9, context=24, rows=2, busy_budget=7, idle_budget=21)
    drive.add(
        request("a", [0] * 3, max_tokens=3),
        request("b", [0, 1, 0, 1, 1, 0, 0], max_tokens=1),
        request("c", [0] * 5 + [1, 0, 1], max_tokens=12),
    )
    for _ in range(7):
        drive.step()
    drive.add(request("d", [1, 0, 1, 0, 1, 1, 1], max_tokens=6))
    for _ in range(3):
        drive.step()
    drive.add(request("e", [0] * 5 + [1], max_tokens=15))
    for _ in range(10):
        drive.step()
    drive.add(request("f", [0] * 3, max_tokens=14)).run().assert_right()
    assert drive.scheduler.preemptions > 0


def test_the_youngest_stands_still_rather_than_give_up_its_own_blocks() -> None:
    drive = Drive(blocks=5, context=13)
    drive.add(request("old", [1] * 5, max_tokens=8), request("young", [2] * 5, max_tokens=8))
    steps = [counts(drive.step()) for _ in range(5)]
    assert steps[1] == {"old": 1, "young": 1}
    assert steps[2:] == [{"old": 1}] * 3, "old took the last block; young keeps what it has"
    assert drive.scheduler.preemptions == 0
    assert counts(drive.step()) == {"old": 1}
    assert drive.scheduler.preemptions == 1
    drive.run().assert_right()


def test_nobody_is_admitted_into_the_blocks_that_running_ones_will_need() -> None:
    drive = Drive(blocks=6)
    drive.add(request("a", [1] * 6, max_tokens=9), request("b", [2] * 10, max_tokens=2))
    assert counts(drive.step()) == {"a": 6}, "b needs 4 blocks, 4 are free, and a may grow"
    drive.run().assert_right()
    assert drive.scheduler.preemptions == 0


def test_a_full_house_of_finished_growth_leaves_every_block_to_the_next() -> None:
    drive = Drive(blocks=6)
    drive.add(request("a", [1] * 6, max_tokens=1), request("b", [2] * 12, max_tokens=1))
    assert counts(drive.step()) == {"a": 6, "b": 10}


# -- prefix cache ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        Scheduler.publish,
        Scheduler.plan,
        lambda scheduler: scheduler.commit(StepResult((Sampled(9),))),
        lambda scheduler: scheduler.cancel("a"),
    ],
    ids=["publish", "plan", "commit", "cancel"],
)
def test_the_blocks_of_a_prompt_are_found_from_the_call_after_its_plan(call: Callable[..., object]) -> None:
    key = next_key(root_key("m", "kv", ""), (5, 6, 7))
    scheduler = Scheduler(limits(), model="m", kv_dtype="kv")
    scheduler.add(request("a", [5, 6, 7, 8]))
    scheduler.plan()
    assert scheduler.pool.find([key]) == [], "its launch is still to come"
    call(scheduler)
    assert scheduler.pool.find([key]) == [0]


def test_the_same_prompt_again_computes_only_its_last_block() -> None:
    prompt = range(3 * BLOCK + 2)
    drive = Drive().add(request("cold", prompt)).run()
    drive.add(request("warm", prompt))
    assert counts(drive.step()) == {"warm": 2}
    drive.run().assert_right()
    assert (drive.answers["cold"].cached, drive.answers["warm"].cached) == (0, 9)


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    prompt = range(2 * BLOCK)
    drive = Drive().add(request("cold", prompt)).run().add(request("warm", prompt))
    assert counts(drive.step()) == {"warm": BLOCK}
    drive.run().assert_right()


def test_an_answer_is_in_the_cache_for_the_next_turn() -> None:
    drive = Drive().add(request("turn 1", range(4), max_tokens=9)).run()
    history = [*range(4), *drive.answers["turn 1"].tokens, 3, 3]
    drive.add(request("turn 2", history)).run().assert_right()
    assert drive.answers["turn 2"].cached == 12, "four full blocks; the thirteenth token was never computed"


def test_other_salt_other_cache() -> None:
    drive = Drive().add(request("a", range(10), salt="x")).run()
    drive.add(request("b", range(10), salt="y"), request("c", range(10), salt="x")).run().assert_right()
    assert (drive.answers["b"].cached, drive.answers["c"].cached) == (0, 9)


def test_a_device_without_work_waits_for_no_prompt_that_finds_no_place() -> None:
    drive = Drive(1, rows=4, blocks=40)
    for i in range(4):
        drive.add(request(f"r{i}", range(i, i + 16)))
    plans = [drive.scheduler.plan(), drive.scheduler.plan()]
    assert [len(plan.starts) for plan in plans] == [2, 2]
    assert [sum(chunk.count for chunk in plan.chunks) for plan in plans] == [16, 16]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_prefix_that_is_being_computed_is_waited_for_one_step(lookahead: int) -> None:
    drive = Drive(lookahead)
    drive.add(request("a", [*range(9), 1]), request("b", [*range(9), 2]))
    assert counts(drive.step()) == {"a": 10}
    assert counts(drive.step()) == {"a": 1, "b": 1}, "published when the launch was enqueued"
    drive.run().assert_right()
    assert drive.answers["b"].cached == 9


def test_a_prefix_whose_leader_left_is_computed_by_the_next() -> None:
    drive = Drive(blocks=30)
    drive.add(request("a", range(36)), request("b", range(36)))
    assert counts(drive.step()) == {"a": 16}
    drive.cancel("a")
    assert counts(drive.step()) == {"b": 16}
    drive.run().assert_right("b")
    assert drive.answers["b"].cached == 15, "what the launched step had filled is good"


def test_prompt_scores_are_whole_although_the_prefix_is_cached() -> None:
    prompt = range(11)
    drive = Drive(busy_budget=5, idle_budget=5)
    drive.add(request("plain", prompt, prompt_logprobs=None)).run()
    drive.add(request("scored", prompt, prompt_logprobs=1, logprobs=0)).run()
    drive.add(request("plain again", prompt)).run()
    drive.add(request("scored again", prompt, prompt_logprobs=0)).run().assert_right()
    assert drive.answers["scored"].prompt_logprobs == drive.answers["scored again"].prompt_logprobs
    assert (drive.answers["scored"].cached, drive.answers["plain again"].cached) == (0, 9)


def test_a_single_token_prompt_has_no_score() -> None:
    drive = Drive().add(request("a", [4], prompt_logprobs=2)).run()
    assert drive.answers["a"].prompt_logprobs == (None,)


# -- failed rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_failed_row_ends_alone_and_its_blocks_are_forgotten(lookahead: int) -> None:
    drive = Drive(lookahead)
    drive.runner.poisoned.add("bad")
    drive.add(request("bad", range(10)), request("good", [*range(6), 7, 7], max_tokens=6)).run()
    assert drive.answers["bad"].finish is FinishReason.ERROR
    assert (drive.answers["bad"].error, drive.answers["bad"].code) == (NUMERIC_FAULT, "numeric")
    assert drive.answers["bad"].tokens == []
    drive.add(request("after", range(10))).run().assert_right("after")


def test_a_fault_in_a_shared_prefix_heals_itself() -> None:
    """Bad keys and values that were published before anybody could know go when they show."""
    drive = Drive(idle_budget=9, busy_budget=9).add(request("bad", range(20)))
    drive.runner.poisoned.add("bad")
    drive.step()
    drive.cancel("bad")
    drive.add(request("victim", range(20))).run()
    assert drive.answers["victim"].finish is FinishReason.ERROR
    drive.add(request("after", range(20))).run().assert_right("after")
    assert drive.answers["after"].cached == 0


def test_a_row_that_fails_after_its_request_was_cancelled_still_leaves_the_cache() -> None:
    drive = Drive(lookahead=1).add(request("bad", range(10)))
    drive.runner.poisoned.add("bad")
    drive.step()
    drive.cancel("bad")
    drive.run()
    drive.add(request("after", range(10))).run().assert_right("after")
    assert drive.answers["after"].cached == 0


# -- running behind --------------------------------------------------------------------------------------


def test_with_lookahead_a_step_is_planned_before_the_token_it_reads_is_known() -> None:
    drive = Drive(lookahead=1).add(request("a", [1, 2], max_tokens=3))
    assert counts(drive.launch()) == {"a": 2}
    assert counts(drive.launch()) == {"a": 1}
    assert drive.answers["a"].tokens == []
    drive.run().assert_right()


def test_max_tokens_is_never_over_scheduled() -> None:
    drive = Drive(lookahead=1).add(request("a", [1, 2], max_tokens=2))
    assert counts(drive.launch()) == {"a": 2}
    assert counts(drive.launch()) == {"a": 1}
    assert drive.launch() is None
    drive.run().assert_right()


def test_a_row_that_stopped_is_in_flight_once_more_and_its_extra_token_is_dropped() -> None:
    drive = Drive(lookahead=1).add(request("a", [1, 2], max_tokens=9, stop_ids=tuple(range(11))))
    drive.launch()
    drive.launch()
    drive.commit()
    assert drive.answers["a"].finish is FinishReason.STOP
    assert drive.scheduler.pool.free == drive.limits.blocks
    drive.add(request("b", [3] * 8)).launch()
    assert drive.commit() == []
    drive.run().assert_right()


def crowded(young_tokens: int) -> Drive:
    """The third plan takes back the block that `young` filled in the step still in flight."""
    drive = Drive(lookahead=1, blocks=4, context=13)
    drive.add(request("old", [1] * 5, max_tokens=8), request("young", [2] * 3, max_tokens=young_tokens))
    for _ in range(3):
        drive.step()
    assert (drive.scheduler.preemptions, drive.scheduler.running) == (1, 1)
    return drive


def test_a_preempted_row_keeps_the_token_it_had_in_flight() -> None:
    drive = crowded(young_tokens=8)
    assert len(drive.answers["young"].tokens) == 2, "both steps that it was part of"
    drive.run().assert_right()


def test_a_request_can_end_while_it_waits_to_come_back() -> None:
    drive = crowded(young_tokens=2)
    assert drive.answers["young"].finish is FinishReason.LENGTH
    drive.run().assert_right()


# -- cancel ----------------------------------------------------------------------------------------------


def test_cancelling_what_is_not_there_does_nothing() -> None:
    drive = Drive().add(request("a", [1])).run()
    assert drive.scheduler.cancel("a") is None
    assert drive.scheduler.cancel("never") is None


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("launched", range(8))
def test_a_request_cancelled_at_any_point_leaves_nothing_and_disturbs_nobody(
    lookahead: int, launched: int
) -> None:
    drive = Drive(lookahead, busy_budget=5, idle_budget=5)
    drive.add(request("gone", range(12), max_tokens=4), request("stays", range(1, 8), max_tokens=8))
    for _ in range(launched):
        drive.step()
    drive.cancel("gone")
    drive.add(request("same again", range(12)))
    drive.run().assert_right("stays", "same again")
    assert drive.answers["gone"].finish in (FinishReason.ABORT, FinishReason.LENGTH)


# -- what a step costs: short ways that must be the long ones -----------------------------------------------


@given(st.integers(1, 9), st.integers(0, 7), st.integers(2, 12))
def test_decoding_is_advancing_by_one(prompt: int, generated: int, answer: int) -> None:
    def sequence() -> Sequence:
        made = Sequence(request("a", range(prompt), answer), 1, prompt + answer, BLOCK, b"root")
        made.start(0, 0)
        made.advance(prompt)
        for token in range(min(generated, answer - 2)):
            made.append(token)
            made.advance(1)
        return made

    short, long = sequence(), sequence()
    assert short.decoding
    assert short.decode() == long.advance(1)
    names = ("computed", "in_flight", "tokens", "known", "wanted", "confirmed")
    assert [getattr(short, name) for name in names] == [getattr(long, name) for name in names]


def test_steps_under_way_are_named_with_all_their_requests() -> None:
    drive = Drive(lookahead=2).add(request("a", [1, 2]), request("b", [3]))
    assert drive.scheduler.under_way() == (0, [])
    drive.launch()
    assert drive.scheduler.under_way() == (1, ["a", "b"])
    drive.add(request("c", [4]))
    drive.launch()
    assert drive.scheduler.under_way() == (2, ["a", "b", "c"])
    drive.commit()
    drive.cancel("a")
    assert drive.scheduler.under_way()[0] == 2
    drive.run()
    assert drive.scheduler.under_way() == (0, [])


def test_prompt_blocks_are_found_from_the_launch_that_fills_them_on() -> None:
    drive = Drive(lookahead=1, busy_budget=9).add(request("a", range(9), 2))
    drive.launch()
    drive.add(request("b", range(9), 2))
    plan = drive.launch()
    assert plan is not None
    assert counts(plan) == {"a": 1, "b": 9 - 2 * BLOCK}
    drive.run().assert_right()
