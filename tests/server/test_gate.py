"""Places for requests: as many as run and may wait, shared by the keys once not everybody can run."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.types import FinishReason
from llmrs_cli.server.faults import HttpError
from llmrs_cli.server.gate import Gate
from tests.helpers.bench import Bench, Client
from tests.helpers.byte_tokenizer import IM_END, byte_ids
from tests.helpers.fake_engine import reply


def fits(gate: Gate, caller: bytes, more: int = 1) -> bool:
    try:
        gate.check(caller, more)
    except HttpError as error:
        assert (error.status, error.code) == (429, "overloaded")
        return False
    return True


@pytest.mark.parametrize("keys", [0, 1])
def test_one_caller_may_have_all_places(keys: int) -> None:
    gate = Gate(10, running=4, keys=keys)
    assert fits(gate, b"a", 10)
    assert not fits(gate, b"a", 11)


def test_of_two_each_has_half_however_much_the_other_asks_for() -> None:
    gate = Gate(10, running=4, keys=2)
    with gate.taken(b"a") as first, gate.taken(b"b") as second:
        first.hold(5)
        assert not fits(gate, b"a")
        second.hold(5)
        assert not fits(gate, b"b")
        first.hold(1)
        assert fits(gate, b"a", 4)
        assert not fits(gate, b"b")


def test_what_would_not_run_otherwise_may_be_beyond_a_share() -> None:
    gate = Gate(12, running=6, keys=4)
    with gate.taken(b"a") as place:
        place.hold(6)
        assert not fits(gate, b"a")
        assert fits(gate, b"b", 3)


@given(
    st.integers(1, 5),
    st.integers(0, 12),
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9))),
)
def test_whoever_comes_to_a_gate_that_is_not_overdrawn_finds_its_share(
    keys: int, running: int, queue: int, asked: list[tuple[int, int]]
) -> None:
    """Nobody holds more than a share: then there is room for everybody's."""
    room = running + queue
    gate, share, held = Gate(room, running, keys), max(1, room // keys), [0] * keys
    with ExitStack() as places:
        for number, count in asked:
            who = number % keys
            if fits(gate, b"%d" % who, count):
                places.enter_context(gate.taken(b"%d" % who)).hold(count)
                held[who] += count
        assert sum(held) <= room
        if max(held) <= share <= room // keys:
            for who in range(keys):
                assert held[who] == share or fits(gate, b"%d" % who, share - held[who])
    assert room == 0 or fits(gate, b"0", min(room, max(share, running)))


def test_a_key_that_asks_for_everything_leaves_another_its_share() -> None:
    """Four rows, and four that may wait: one key asks for twenty."""
    hello = reply((*byte_ids("hello"), IM_END), finish=FinishReason.STOP)

    async def scene() -> tuple[list[int | None], int | None]:
        bench = Bench(hello, at_once=False, queue=4, keys=(b"many-of-mine", b"another-one"))

        def client(key: bytes) -> Client:
            made = Client({"prompt": "hi"})
            made.scope["headers"] = [*made.scope["headers"], (b"authorization", b"Bearer " + key)]
            return made

        many, other = [client(b"many-of-mine") for _ in range(20)], client(b"another-one")
        tasks = [bench.ask(one) for one in many]
        while sum(one.status is not None for one in many) < 16:
            await asyncio.sleep(0.001)
        tasks.append(bench.ask(other))
        while len(bench.engine.requests) < 5:
            await asyncio.sleep(0.001)
        bench.engine.play()
        await asyncio.gather(*tasks)
        return [one.status for one in many], other.status

    statuses, other = asyncio.run(scene())
    assert sorted(statuses, key=str) == [200] * 4 + [429] * 16
    assert other == 200
