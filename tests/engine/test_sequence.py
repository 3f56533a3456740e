"""The index arithmetic of one request: what is known, wanted, in flight, shared and published."""

from __future__ import annotations

import copy
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.blocks import next_key, root_key
from llmrs_cli.engine.plan import BlockGrant, Chunk, RowStart
from llmrs_cli.engine.sequence import Sequence, State
from llmrs_cli.engine.types import FinishReason, Request, SamplingParams, TokenLogprob

ROOT = root_key("model", "float16", "")
END = 7


def sequence(prompt: int = 10, limit: int = 20, block: int = 4, **params: Any) -> Sequence:
    """A request of the ids 100, 101, …"""
    ids = tuple(range(100, 100 + prompt))
    asked: dict[str, Any] = {"max_tokens": limit - prompt, "stop_ids": (END,)}
    return Sequence(Request("r", ids, SamplingParams(**asked | params)), 1, limit, block, ROOT)


def running(shared: int = 0, **keys: Any) -> Sequence:
    """The same in row 3, with blocks for what it knows, the first `shared` of them from the cache."""
    made = sequence(**keys)
    made.start(3, shared)
    made.grant(range(made.blocks_at_start))
    return made


def keys_of(made: Sequence, blocks: int) -> list[bytes]:
    """Keys of its first blocks, worked out here."""
    keys = [ROOT]
    for first in range(0, blocks * made.block_size, made.block_size):
        keys.append(next_key(keys[-1], made.tokens[first : first + made.block_size]))
    return keys[1:]


def shareable_keys(made: Sequence) -> list[bytes]:
    return [made.key(index) for index in range(made.shareable)]


def scores(*tokens: int) -> list[TokenLogprob]:
    return [TokenLogprob(token, -1.0) for token in tokens]


# -- from the prompt to the last token ------------------------------------------------------------------


def test_a_new_one_waits_with_nothing() -> None:
    made = sequence()
    assert made.state is State.WAITING and made.blocks == [] and made.cached is None
    assert (made.known, made.wanted, made.decoding, made.blocks_at_start) == (10, 10, False, 3)


def test_its_start_carries_what_a_row_needs() -> None:
    made = sequence()
    assert made.start(3, 0) == RowStart(3, array("I", range(100, 110)), 10, made.request.params, 0)
    assert made.grant([5, 8]) == BlockGrant(3, 0, (5, 8))
    assert made.grant([2]) == BlockGrant(3, 2, (2,))
    assert made.blocks == [5, 8, 2]


def test_only_the_last_chunk_of_a_prompt_draws_a_token() -> None:
    made = running()
    assert made.advance(6) == Chunk("r", 3, 0, 6, False)
    assert (made.known, made.wanted) == (10, 4)
    assert made.advance(4) == Chunk("r", 3, 6, 4, True)
    assert (made.known, len(made.tokens), made.wanted, made.in_flight) == (11, 10, 1, 2)


def test_a_decoding_step_can_be_launched_before_the_last_one_is_back() -> None:
    made = running()
    first = made.advance(10)
    assert made.decoding and not made.needs_block
    second = made.decode()
    assert second == Chunk("r", 3, 10, 1, True)
    made.land(first, ())
    assert made.append(50) is None
    assert (made.confirmed, made.computed, made.known) == (10, 11, 12)


def test_the_last_token_is_drawn_but_never_computed() -> None:
    made = running(prompt=3, limit=5)
    for count in (3, 1):
        made.land(made.advance(count), ())
        reason = made.append(50)
    assert reason is FinishReason.LENGTH
    assert (made.known, made.computed, made.wanted, made.decoding) == (5, 4, 0, False)
    assert not made.may_grow


def test_nothing_is_wanted_while_the_last_token_is_in_flight() -> None:
    made = running(prompt=3, limit=4)
    made.advance(3)
    assert (made.known, made.wanted, made.decoding) == (4, 0, False)


@pytest.mark.parametrize(
    ("params", "token", "reason"),
    [
        ({}, END, FinishReason.STOP),
        ({"ignore_eos": True}, END, None),
        ({"stop_ids": ()}, END, None),
        ({}, 50, None),
    ],
)
def test_what_ends_it(params: dict[str, Any], token: int, reason: FinishReason | None) -> None:
    made = running(**params)
    made.land(made.advance(10), ())
    assert made.append(token) is reason
    assert made.tokens[-1] == token


def test_a_stop_at_the_very_end_is_a_stop() -> None:
    made = running(prompt=3, limit=4)
    made.land(made.advance(3), ())
    assert made.append(END) is FinishReason.STOP


@pytest.mark.parametrize("count", [0, 11])
def test_no_more_than_is_wanted_can_be_launched(count: int) -> None:
    with pytest.raises(AssertionError):
        running().advance(count)


def test_a_running_one_cannot_be_started_again() -> None:
    with pytest.raises(AssertionError):
        running().start(1, 0)


# -- blocks ----------------------------------------------------------------------------------------------


@given(prompt=st.integers(1, 30), more=st.integers(1, 30), block=st.integers(1, 9))
def test_the_blocks_of_a_whole_life_hold_every_token_but_the_last(prompt: int, more: int, block: int) -> None:
    made = running(prompt=prompt, limit=prompt + more, block=block)
    while made.wanted:
        if made.needs_block:
            assert made.may_grow
            made.grant([len(made.blocks)])
        made.land(made.advance(made.wanted), ())
        made.append(50)
    assert len(made.tokens) == prompt + more and not made.may_grow
    assert len(made.blocks) == -(-max(prompt, prompt + more - 1) // block)


def test_a_start_from_the_cache_skips_what_is_there() -> None:
    made = running(shared=2)
    assert (made.cached, made.computed, made.confirmed, made.published, made.wanted) == (8, 8, 8, 2, 2)
    assert made.advance(2) == Chunk("r", 3, 8, 2, True)


def test_what_the_cache_held_is_told_of_the_first_start() -> None:
    made = running(shared=1)
    made.stop(State.WAITING)
    made.start(0, 2)
    assert made.cached == 4


@pytest.mark.parametrize(("prompt", "blocks"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (10, 2)])
def test_the_last_token_of_a_prompt_is_never_shared(prompt: int, blocks: int) -> None:
    made = sequence(prompt=prompt)
    assert shareable_keys(made) == keys_of(made, blocks)


def test_a_key_is_worked_out_when_somebody_asks() -> None:
    made = sequence()
    assert made.known_keys() == []
    assert made.key(0) == keys_of(made, 1)[0]
    assert made.known_keys() == keys_of(made, 1)


def test_a_request_for_prompt_scores_shares_nothing_until_it_has_them() -> None:
    made = running(prompt_logprobs=0)
    assert shareable_keys(made) == []
    made.land(made.advance(10), scores(*range(101, 110)))
    assert shareable_keys(made) == keys_of(made, 2)


def test_full_blocks_are_given_out_once_each_with_the_key_before() -> None:
    made = running()
    first, second = keys_of(made, 2)
    assert made.publishable(3) == []
    assert made.publishable(7) == [(0, first, ROOT)]
    assert made.publishable(7) == []
    assert made.publishable(10) == [(1, second, first)]
    assert made.known_keys() == [first, second]


def test_a_block_is_complete_when_its_tokens_are_confirmed() -> None:
    made = running()
    chunk = made.advance(4)
    seen = [made.completed_block]
    made.land(chunk, ())
    seen.append(made.completed_block)
    made.publishable(4)
    assert [*seen, made.completed_block] == [False, True, False]


def test_it_will_publish_only_prompt_blocks_still_to_come() -> None:
    made = running(shared=1)
    first, second = keys_of(made, 2)
    assert made.will_publish(1, second)
    assert not made.will_publish(0, first), "it came from the cache"
    assert not made.will_publish(1, first), "another content"
    assert not made.will_publish(2, second), "beyond the full blocks of the prompt"


# -- prompt scores ------------------------------------------------------------------------------------------


def test_every_prompt_token_but_the_first_is_scored_once() -> None:
    made = running(prompt_logprobs=0)
    chunks = [made.advance(count) for count in (4, 4, 2)]
    assert [chunk.scored for chunk in chunks] == [4, 4, 1]
    for chunk in chunks:
        made.land(chunk, scores(*range(101 + chunk.start, 101 + chunk.start + chunk.scored)))
    told = made.prompt_scores()
    assert told is not None and told[0] is None
    assert [score.token for score in told[1:] if score] == list(range(101, 110))


def test_nobody_is_scored_who_did_not_ask() -> None:
    made = running()
    assert made.advance(10).scored == 0 and made.prompt_scores() is None


def test_a_preempted_one_scores_from_the_start_again() -> None:
    made = running(prompt_logprobs=0)
    made.land(made.advance(4), scores(101, 102, 103, 104))
    made.stop(State.WAITING)
    made.start(0, 0)
    assert made.scores == [] and made.advance(10).scored == 9


def test_what_was_scored_in_full_is_not_scored_again() -> None:
    made = running(prompt_logprobs=0)
    made.land(made.advance(10), scores(*range(101, 110)))
    made.append(50)
    made.stop(State.WAITING)
    made.start(0, 0)
    assert made.advance(11).scored == 0 and len(made.prompt_scores() or ()) == 10


# -- stopping -------------------------------------------------------------------------------------------------


def test_a_preempted_one_keeps_the_token_that_was_in_flight() -> None:
    made = running()
    chunk = made.advance(10)
    assert made.stop(State.WAITING) == [0, 1, 2]
    assert (made.blocks, made.computed, made.confirmed, made.published) == ([], 0, 0, 0)
    made.land(chunk, ())
    made.append(50)
    assert (made.confirmed, made.in_flight, made.known, made.wanted) == (0, 0, 11, 11)
    assert list(made.start(1, 0).tokens) == [*range(100, 110), 50]


def test_one_whose_steps_are_in_flight_cannot_start_yet() -> None:
    made = running()
    made.advance(10)
    made.stop(State.WAITING)
    with pytest.raises(AssertionError):
        made.start(1, 0)


# -- any order of events ----------------------------------------------------------------------------------------


@given(data=st.data())
def test_the_books_balance_after_any_event(data: st.DataObject) -> None:
    """Random chunks, landings and preemptions: every position is computed once per start, in order."""
    made = sequence(data.draw(st.integers(1, 12)), data.draw(st.integers(13, 24)), 4)
    flying: list[Chunk] = []
    reached = 0
    for _ in range(40):
        if made.state is State.WAITING and not flying:
            shared = data.draw(st.integers(0, made.shareable))
            made.start(0, shared)
            made.grant(range(made.blocks_at_start))
            reached = made.computed
        elif len(flying) > 0 and data.draw(st.booleans()):
            chunk = flying.pop(0)
            made.land(chunk, ())
            if chunk.samples and made.append(50):
                break
        elif made.state is State.RUNNING and made.wanted:
            while made.needs_block:
                made.grant([len(made.blocks)])
            count = data.draw(st.integers(1, made.wanted))
            if made.decoding:
                twin = copy.deepcopy(made)
                assert made.decode() == (chunk := twin.advance(1))
                assert (made.known, made.computed) == (twin.known, twin.computed)
            else:
                chunk = made.advance(count)
            assert chunk.start == reached
            reached += chunk.count
            flying.append(chunk)
        elif made.state is State.RUNNING and data.draw(st.integers(0, 3)) == 0:
            held = len(made.blocks)
            assert len(made.stop(State.WAITING)) == held and made.blocks == []
        assert made.confirmed <= made.computed <= made.known <= made.limit
        assert made.in_flight == len(flying)
        assert made.known - len(made.tokens) == sum(chunk.samples for chunk in flying)
        assert made.wanted == (made.known - made.computed if made.known < made.limit else 0)
