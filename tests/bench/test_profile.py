"""A step in parts, on an engine whose ops take a known time."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llmrs_cli.bench import profile as profiled
from llmrs_cli.bench.profile import OPS, STEPS, profile

COST = dict.fromkeys(OPS, 1.0) | {"attend": 5.0, "project_add": 2.0}
CALLS = dict.fromkeys(OPS, 1) | {"attend": 2, "norm_qkv_rope_store": 2, "project_add": 4, "norm_gate_up": 2}
BETWEEN = 3.0


class Machine:
    """A backend and an engine on it, on a clock that moves with their work alone."""

    name = "fixed"

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.closed = False
        self.fails_at = -1

    def __getattr__(self, name: str) -> Any:
        if name not in OPS:
            raise AttributeError(name)
        return lambda: self.take(COST[name])

    def take(self, seconds: float) -> None:
        self.now += seconds

    def step(self) -> list[object]:
        self.steps += 1
        if self.steps == self.fails_at:
            raise RuntimeError("no more")
        for name, calls in CALLS.items():
            for _ in range(calls):
                getattr(self, name)()
        self.take(BETWEEN)
        return []

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    monkeypatch.setattr(profiled, "time", SimpleNamespace(perf_counter=lambda: made.now))
    monkeypatch.setattr(profiled, "_decoding", lambda place, rows, prompt: made)
    yield made
    assert made.closed


def of(machine: Machine, rows: int = 1) -> dict[str, Any]:
    place: Any = SimpleNamespace(backend=machine)
    return profile(place, rows, 7)


def test_parts_are_what_their_ops_take(machine: Machine) -> None:
    parts = {part["name"]: part for part in of(machine)["parts"]}
    assert set(parts) == set(OPS)
    for name, part in parts.items():
        assert part["calls"] == CALLS[name]
        assert part["each_us"] == pytest.approx(COST[name] * 1e6)
        assert part["us"] == pytest.approx(COST[name] * CALLS[name] * 1e6)


def test_what_no_op_takes_lies_between_them(machine: Machine) -> None:
    found = of(machine)
    launched = sum(COST[name] * CALLS[name] for name in OPS)
    assert found["launched_us"] == pytest.approx(launched * 1e6)
    assert found["between_us"] == pytest.approx(BETWEEN * 1e6)
    assert found["step_us"] == pytest.approx((launched + BETWEEN) * 1e6)
    assert sum(part["share"] for part in found["parts"]) == pytest.approx(launched / (launched + BETWEEN))


def test_the_longest_part_stands_first(machine: Machine) -> None:
    parts = of(machine)["parts"]
    assert parts[0]["name"] == "attend"
    assert [part["us"] for part in parts] == sorted((part["us"] for part in parts), reverse=True)


def test_the_report_says_what_was_taken_apart(machine: Machine) -> None:
    found = of(machine, rows=3)
    assert (found["rows"], found["context"]) == (3, 7)
    assert set(found) == {"rows", "context", "step_us", "launched_us", "between_us", "parts"}
    assert set(found["parts"][0]) == {"name", "calls", "us", "each_us", "share"}


def test_a_step_is_timed_whole_before_it_is_watched(machine: Machine) -> None:
    of(machine)
    assert machine.steps == profiled.WARM + 2 * STEPS


def test_ops_are_the_backends_own_again(machine: Machine) -> None:
    of(machine)
    assert not set(vars(machine)) & set(OPS)


def test_ops_are_the_backends_own_again_after_a_failure(machine: Machine) -> None:
    machine.fails_at = profiled.WARM + STEPS + 3
    with pytest.raises(RuntimeError, match="no more"):
        of(machine)
    assert not set(vars(machine)) & set(OPS)


def test_an_op_that_fails_is_not_hidden() -> None:
    def op(*_: object, **__: object) -> None:
        raise ValueError("bad shape")

    times: list[float] = []
    with pytest.raises(ValueError, match="bad shape"):
        profiled._timed(op, times)(1, two=2)
    assert times == []


def test_a_timed_op_takes_and_gives_what_it_did() -> None:
    times: list[float] = []
    op = profiled._timed(lambda *args, **named: (args, named), times)
    assert op(1, 2, three=3) == ((1, 2), {"three": 3})
    assert len(times) == 1 and times[0] >= 0
