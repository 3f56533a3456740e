"""Turns in the event loop: in order, none lost, and with a look around between any two slices."""

from __future__ import annotations

import asyncio

import pytest

from llmrs_cli.server import pace as module
from llmrs_cli.server.pace import Pace


async def _passes(log: list[str]) -> None:
    """Notes each time that the loop goes round."""
    while True:
        log.append("look")
        await asyncio.sleep(0)


def _run(count: int) -> list[str]:
    async def scene() -> list[str]:
        pace, log = Pace(), list[str]()

        async def work(name: str) -> None:
            await pace.turn()
            log.append(name)

        looking = asyncio.create_task(_passes(log))
        await asyncio.gather(*(work(str(i)) for i in range(count)))
        looking.cancel()
        return log

    return asyncio.run(scene())


def test_when_a_slice_is_used_up_the_loop_looks_around_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SLICE", 0.0)
    log = _run(20)
    assert [name for name in log if name != "look"] == [str(i) for i in range(20)]
    works = [i for i, name in enumerate(log) if name != "look"]
    assert all("look" in log[a:b] for a, b in zip(works, works[1:], strict=False))


def test_work_that_fits_into_a_slice_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 60.0)
    log = _run(20)
    assert log[1:21] == [str(i) for i in range(20)]


def test_whoever_comes_later_waits_behind_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 0.0)

    async def scene() -> list[str]:
        pace, log = Pace(), list[str]()

        async def work(name: str) -> None:
            await pace.turn()
            log.append(name)

        early = [asyncio.create_task(work(f"early {i}")) for i in range(5)]
        await asyncio.sleep(0)
        late = asyncio.create_task(work("late"))
        await asyncio.gather(*early, late)
        return log

    assert asyncio.run(scene()) == [*(f"early {i}" for i in range(5)), "late"]
