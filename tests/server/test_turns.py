"""Callers take turns: whoever asks for much waits for it, and nobody else for more than one of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.server.faults import HttpError
from llmrs_cli.server.turns import Turns


class Scene:
    """Asks for turns, and says who has one; a turn ends when told to."""

    def __init__(self, room: int = 100) -> None:
        self.turns = Turns(room)
        self.served: list[str] = []
        self.at_once = 0
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str) -> None:
        """The caller is the first letter of `name`."""
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.ensure_future(self._hold(name))
        await asyncio.sleep(0)

    async def _hold(self, name: str) -> None:
        async with self.turns.taken(name[:1].encode()):
            assert self.at_once == 0
            self.at_once += 1
            self.served.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.at_once -= 1

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await asyncio.wait([self._tasks[name]])
        await asyncio.sleep(0)

    async def leave(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])
        await asyncio.sleep(0)

    async def serve_all(self) -> None:
        """End turns until there are none."""
        done = 0
        while done < len(self.served):
            await self.end(self.served[done])
            done += 1


def order(asked: Sequence[str], leaving: Sequence[str] = ()) -> list[str]:
    """In which order those are served who ask in this one; some leave before the first turn ends."""

    async def scene() -> list[str]:
        one = Scene()
        for name in asked:
            await one.ask(name)
        for name in leaving:
            await one.leave(name)
        await one.serve_all()
        await one.ask("z")  # whatever has happened, the next one is served
        assert one.served[-1] == "z"
        await one.serve_all()
        return one.served[:-1]

    return asyncio.run(scene())


def test_one_caller_is_served_in_order() -> None:
    assert order(["a1", "a2", "a3"]) == ["a1", "a2", "a3"]


def test_callers_take_turns_however_much_one_asks_for() -> None:
    assert order(["a1", "a2", "a3", "a4", "b1", "c1", "b2"]) == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


def test_who_leaves_while_waiting_is_passed_over() -> None:
    assert order(["a1", "a2", "b1", "a3"], leaving=["a2", "b1"]) == ["a1", "a3"]


def test_who_leaves_in_its_turn_passes_it_on() -> None:
    assert order(["a1", "b1"], leaving=["a1"]) == ["a1", "b1"]


def test_who_leaves_as_its_turn_comes_passes_it_on() -> None:
    async def scene() -> None:
        one = Scene()
        for name in ("a1", "b1", "c1"):
            await one.ask(name)
        one._ends["a1"].set()
        await asyncio.sleep(0)  # the turn is b1's, which does not know it yet
        await one.leave("b1")
        assert one.served == ["a1", "c1"]
        await one.serve_all()

    asyncio.run(scene())


def test_of_one_caller_only_so_many_wait_and_that_is_nothing_to_the_others() -> None:
    async def scene() -> None:
        one = Scene(room=2)
        for name in ("a1", "a2", "a3"):
            await one.ask(name)
        with pytest.raises(HttpError) as error:
            async with one.turns.taken(b"a"):
                pass
        assert (error.value.status, error.value.code) == (429, "overloaded")
        await one.ask("b1")
        await one.serve_all()
        assert one.served == ["a1", "a2", "b1", "a3"]

    asyncio.run(scene())


@given(st.lists(st.sampled_from("abc"), max_size=12), st.sets(st.integers(0, 11)))
def test_everybody_who_stays_is_served_once_and_between_two_of_one_caller_all_others_that_wait(
    callers: list[str], leaving: set[int]
) -> None:
    names = [f"{caller}{number}" for number, caller in enumerate(callers)]
    gone = [name for number, name in enumerate(names) if number in leaving and number]
    served = order(names, gone)
    stay = [name for name in names if name not in gone]
    assert sorted(served) == sorted(stay)
    for place, name in enumerate(served[1:], 1):
        again = next((later for later in served[place + 1 :] if later[0] == name[0]), None)
        if again is not None:
            between = {one[0] for one in served[place : served.index(again)]}
            assert {one[0] for one in served[served.index(again) :]} <= between
