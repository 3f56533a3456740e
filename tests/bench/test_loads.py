"""What the scenarios ask for: mixtures, rates, repeats and shared prompts, on engines that answer by a rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.bench import scenarios
from llmrs_cli.bench.client import Answer, Ask, Run
from llmrs_cli.engine.stats import StepTiming

VOCAB = 100
BLOCK = 16


class Place:
    """A workplace whose engines have sizes and no more."""

    repeats = 2
    longest = 4096
    backend = SimpleNamespace(name="cpu", block_size=BLOCK)

    def __init__(self, scale: float = 0.02) -> None:
        self.scale = scale
        self.sizes: list[tuple[int, int, int | None]] = []

    def scaled(self, count: int, least: int = 1) -> int:
        return max(least, round(count * self.scale))

    @contextmanager
    def engine(self, rows: int, context: int, budget: int | None = None) -> Iterator[Any]:
        self.sizes.append((rows, context, budget))
        steps = StepTiming(tokens=1, chunks=1, plan=0.001, launch=0.002, wait=0.003, commit=0.004)
        idle = StepTiming(tokens=0, chunks=0, plan=9.0, launch=9.0, wait=9.0, commit=9.0)
        yield SimpleNamespace(vocab=VOCAB, stats=lambda: SimpleNamespace(recent=(steps, idle, steps)))


class Loads:
    """Takes the place of `serve`: request i of a load has its first token after i + 1 s, each next one 0.1 s later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.works: list[list[Ask]] = []
        self.sampling: list[dict[str, float]] = []
        self.cached = 0
        self.rests: list[float] = []
        monkeypatch.setattr(scenarios, "serve", self)
        monkeypatch.setattr("time.sleep", self.rests.append)

    def __call__(self, engine: object, work: Any, **sampling: float) -> Run:
        self.works.append(list(work))
        self.sampling.append(sampling)
        answers = [
            Answer(0.0, [i + 1 + 0.1 * token for token in range(ask.answer)], self.cached)
            for i, ask in enumerate(self.works[-1])
        ]
        return Run(answers, 4.0 * len(self.works))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    return Loads(monkeypatch)


@pytest.fixture
def place() -> Any:
    return Place()


def test_a_first_run_is_thrown_away(place: Any, loads: Loads) -> None:
    found = scenarios.prefill(place)
    assert len(loads.works) == 2 * (1 + place.repeats)
    tokens = found["requests"] * found["prompt_tokens"]
    assert found["tokens_per_s"] == pytest.approx((tokens / 8 + tokens / 12) / 2)
    assert found["busy_tokens_per_s"] == pytest.approx((tokens / 20 + tokens / 24) / 2)
    runs = 1 + place.repeats
    assert loads.rests == [scenarios.REST] * runs + [0.0] * runs


def test_no_prompt_is_asked_twice(place: Any, loads: Loads) -> None:
    place.scale = 1.0
    scenarios.single(place)
    prompts = [ask.prompt for work in loads.works for ask in work]
    assert len(set(prompts)) == len(prompts) == 3 * (1 + place.repeats)


def test_one_request_at_a_time_is_one(place: Any, loads: Loads) -> None:
    found = scenarios.single(place)
    assert {len(work) for work in loads.works} == {1}
    assert found["token_ms"] == pytest.approx(100.0)
    assert found["first_token_ms"] == pytest.approx(1000.0)
    assert found[f"first_token_{place.scaled(1200)}_ms"] == pytest.approx(1000.0)


def test_a_long_prompt_is_asked_after_a_rest_and_right_behind_another(place: Any, loads: Loads) -> None:
    place.scale = 1.0
    scenarios.single(place)
    rests: dict[float, list[int]] = {}
    for work, rest in zip(loads.works, loads.rests, strict=True):
        rests.setdefault(rest, []).append(len(work[0].prompt))
    runs = 1 + place.repeats
    assert rests == {0.0: [256] * runs + [1200] * runs, scenarios.REST: [1200] * runs}


def test_crowds_run_a_quarter_at_a_time_and_then_all(place: Any, loads: Loads) -> None:
    place.scale = 0.1
    found = scenarios.throughput(place)
    assert list(found) == ["running_6", "running_26"]
    assert [rows for rows, _, _ in place.sizes] == [6, 26]
    assert {len(work) for work in loads.works} == {26}


def test_a_steps_time_on_the_host_leaves_out_steps_that_launched_nothing(place: Any, loads: Loads) -> None:
    (crowd, _) = scenarios.throughput(place).values()
    assert crowd["step_host_ms"] == pytest.approx({"plan": 1.0, "launch": 2.0, "wait": 3.0, "commit": 4.0})
    assert "device_busy" not in crowd, "no GPU was watched"


def test_the_last_answers_first_token_is_the_slowest(place: Any, loads: Loads) -> None:
    place.scale = 1.0
    crowd = scenarios.throughput(place)["running_256"]
    assert 250_000 < crowd["first_token_p99_ms"] <= 256_000


def test_budgets_leave_room_beside_the_rows(place: Any, loads: Loads) -> None:
    place.scale = 1.0
    found = scenarios.budget(place)
    assert [budget for _, _, budget in place.sizes] == [64 + beside for beside in scenarios.BESIDE]
    assert {rows for rows, _, _ in place.sizes} == {64}
    assert list(found) == [f"tokens_{64 + beside}" for beside in scenarios.BESIDE]
    assert all(set(figures) == {"tokens_per_s"} for figures in found.values())


def test_arrivals_come_at_a_share_of_what_the_engine_took(place: Any, loads: Loads) -> None:
    found = scenarios.mixed(place)
    at_once, again, paced = loads.works
    assert {ask.at for ask in (*at_once, *again)} == {0.0}
    assert found["arrivals_per_s"] == pytest.approx(scenarios.OFFERED * len(again) / 8.0)
    assert [ask.at for ask in paced] == sorted(ask.at for ask in paced)
    assert paced[0].at > 0
    assert found["gap_p50_ms"] == pytest.approx(100.0)
    assert found["first_token_p50_ms"] <= found["first_token_p99_ms"]


def test_greedy_and_drawn_answers_alternate_in_one_engine(place: Any, loads: Loads) -> None:
    found = scenarios.sampled(place)
    each = 1 + place.repeats
    assert loads.sampling[:each] == [{}] * each
    assert loads.sampling[each : 2 * each] == [dict(scenarios.SAMPLED)] * each
    assert found["temperature"] == 0.8 and found["top_p"] == 0.95
    for name in ("rows_1",):
        row = found[name]
        assert row["sampled_share"] == pytest.approx(row["sampled_tokens_per_s"] / row["greedy_tokens_per_s"])


def test_a_long_context_ends_where_the_models_does(place: Any, loads: Loads) -> None:
    place.scale = 1.0
    found = scenarios.long(place)
    assert found["prompt_tokens"] + found["answer_tokens"] == place.longest
    place.longest = 1 << 20
    assert scenarios.long(place)["prompt_tokens"] + 128 == scenarios.LONG


def test_a_prompt_is_shared_by_two_requests_and_by_no_others(place: Any, loads: Loads) -> None:
    loads.cached = 40
    found = scenarios.prefix(place)
    shared = found["shared_tokens"]
    assert shared >= 2 * BLOCK, "less than a block is never shared"
    heads = [work[0].prompt[:shared] for work in loads.works]
    assert heads[0::2] == heads[1::2]
    assert len(set(heads)) == 1 + place.repeats
    assert len({work[0].prompt for work in loads.works}) == len(loads.works), "the questions differ"
    assert found["cached_tokens"] == 40
    assert found["times_sooner"] == pytest.approx(found["first_token_ms"] / found["first_token_hit_ms"])


def test_what_is_watched_starts_before_the_last_run(loads: Loads) -> None:
    ran: list[int] = []
    place: Any = SimpleNamespace(repeats=3)
    engine: Any = None
    runs = scenarios._repeated(place, engine, lambda: [Ask((1,), 1)], lambda: ran.append(len(loads.works)))
    assert ran == [3]
    assert len(runs) == 3 and len(loads.works) == 4


# -- mixtures -------------------------------------------------------------------------------------------


def workplace(scale: float) -> Any:
    return Place(scale)


@given(st.integers(1, 60), st.integers(0, 1000), st.floats(0.01, 1.0))
def test_a_mixture_keeps_to_its_bounds_at_any_scale(number: int, seed: int, scale: float) -> None:
    place = workplace(scale)
    work = scenarios.mixture(place, np.random.default_rng(seed), VOCAB, number)
    assert len(work) == number
    assert all(place.scaled(32) <= len(ask.prompt) <= place.scaled(2048) for ask in work)
    assert all(place.scaled(16) <= ask.answer <= place.scaled(512) for ask in work)
    assert all(ask.at == 0 for ask in work)


@given(st.integers(1, 30), st.integers(0, 1000), st.floats(0.1, 1000.0))
def test_arrivals_are_in_order_and_twice_the_rate_takes_half_the_time(
    number: int, seed: int, rate: float
) -> None:
    place = workplace(0.01)
    slow = scenarios.mixture(place, np.random.default_rng(seed), VOCAB, number, rate)
    fast = scenarios.mixture(place, np.random.default_rng(seed), VOCAB, number, 2 * rate)
    assert [ask.at for ask in slow] == sorted(ask.at for ask in slow)
    assert [2 * ask.at for ask in fast] == pytest.approx([ask.at for ask in slow])


def test_lengths_are_log_normal_about_the_middle_of_their_range() -> None:
    work = scenarios.mixture(workplace(1.0), np.random.default_rng(0), VOCAB, 4000)
    prompts = np.log([len(ask.prompt) for ask in work])
    assert np.exp(np.median(prompts)) == pytest.approx(256, rel=0.1)
    assert np.quantile(prompts, 0.8413) - np.median(prompts) == pytest.approx(np.log(2048 / 32) / 4, rel=0.1)
    answers = [ask.answer for ask in work]
    assert np.median(answers) == pytest.approx(np.sqrt(16 * 512), rel=0.1)
    assert np.corrcoef(prompts, np.log(answers))[0, 1] == pytest.approx(0, abs=0.06)
