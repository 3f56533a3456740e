"""The clock of the host, on a time that only moves when a call takes it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.bench import ceilings, clock
from llmrs_cli.bench.ceilings import HostCeilings
from llmrs_cli.bench.clock import HostClock


class Time:
    """Stands still until somebody works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = 0

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.calls += 1

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    module = SimpleNamespace(perf_counter=time.perf_counter)
    monkeypatch.setattr(clock, "time", module)
    monkeypatch.setattr(ceilings, "time", module)
    return time


def test_a_call_takes_what_it_takes(standing: Time) -> None:
    assert HostClock().seconds([lambda: standing.work(0.004)]) == pytest.approx(0.004)


def test_calls_that_take_turns_count_as_their_mean(standing: Time) -> None:
    calls = [lambda: standing.work(0.002), lambda: standing.work(0.006)]
    assert HostClock(least=0.08).seconds(calls) == pytest.approx(0.004)


def test_a_round_lasts_at_least_as_long_as_asked(standing: Time) -> None:
    HostClock(rounds=4, least=1.0).seconds([lambda: standing.work(0.3)])
    warm, a_round = 1, 4
    assert standing.calls == warm + 4 * a_round


def test_a_call_longer_than_a_round_is_made_once_in_each(standing: Time) -> None:
    HostClock(rounds=3, least=0.02).seconds([lambda: standing.work(5.0)])
    assert standing.calls == 1 + 3


def test_two_of_many_calls_warm_up(standing: Time) -> None:
    made: list[int] = []

    def call(number: int) -> None:
        made.append(number)
        standing.work(1.0)

    HostClock(rounds=1, least=0.5).seconds([lambda n=n: call(n) for n in range(4)])  # type: ignore[misc]
    assert made == [0, 1, 0]


def test_a_round_that_was_disturbed_does_not_count(standing: Time) -> None:
    def call() -> None:
        standing.work(90.0 if standing.calls == 2 else 1.0)

    assert HostClock(rounds=5, least=0.5).seconds([call]) == 1.0


@given(st.lists(st.floats(1e-6, 0.5), min_size=1, max_size=5), st.integers(1, 5))
def test_the_time_of_a_call_lies_between_the_shortest_and_the_longest(
    durations: list[float], rounds: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        time = Time()
        patch.setattr(clock, "time", SimpleNamespace(perf_counter=time.perf_counter))
        calls = [lambda d=d: time.work(d) for d in durations]
        found = HostClock(rounds, least=0.0).seconds(calls)
    assert min(durations) * (1 - 1e-9) <= found <= max(durations) * (1 + 1e-9)


# -- ceilings of the host -----------------------------------------------------------------------------


def test_a_ceiling_is_the_fastest_of_three(standing: Time) -> None:
    durations = iter((3.0, 2.0, 5.0))
    assert ceilings._best(lambda: standing.work(next(durations))) == 2.0
    assert standing.calls == 3


def test_reads_take_as_long_as_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "HOST_BYTES", 4000)
    monkeypatch.setattr(ceilings, "_best", lambda call: 2e-6)
    top = HostCeilings()
    assert top.read_seconds(4000) == pytest.approx(2e-6)
    assert top.read_seconds(1) == pytest.approx(2e-6 / 4000)


def test_a_product_counts_two_operations_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "HOST_PRODUCT", 8)
    monkeypatch.setattr(ceilings, "_best", lambda call: 0.5)
    assert HostCeilings().operations() == 2 * 8**3 / 0.5


def test_ceilings_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[object] = []

    def best(call: object) -> float:
        measured.append(call)
        return 1.0

    monkeypatch.setattr(ceilings, "HOST_BYTES", 64)
    monkeypatch.setattr(ceilings, "HOST_PRODUCT", 4)
    monkeypatch.setattr(ceilings, "_best", best)
    top = HostCeilings()
    for size in (10, 20, 30):
        top.read_seconds(size)
        top.operations()
    assert len(measured) == 2
