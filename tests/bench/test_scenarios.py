"""Every load runs on a tiny model and gives figures that hang together; none of them is bounded by a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from llmrs_cli.bench import scenarios
from llmrs_cli.bench.client import Answer, Ask, Run, asks, percentile, serve
from llmrs_cli.bench.workplace import Workplace
from llmrs_cli.engine.backends.cpu import CpuBackend
from llmrs_cli.errors import DoesNotFitError


def numbers(figures: dict[str, Any]) -> list[float]:
    return [
        number
        for value in figures.values()
        for number in (numbers(value) if isinstance(value, dict) else [float(value)])
    ]


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_a_scenario_gives_finite_figures(place: Workplace, name: str) -> None:
    figures = scenarios.SCENARIOS[name](place)
    found = numbers(figures)
    assert len(found) >= 3
    assert all(math.isfinite(number) and number >= 0 for number in found), figures


def test_a_shared_prompt_is_found_in_the_cache(place: Workplace) -> None:
    figures = scenarios.prefix(place)
    assert figures["shared_tokens"] == 32
    assert figures["cached_tokens"] == 32


def test_a_load_gives_every_token_and_its_time(place: Workplace) -> None:
    draw = np.random.default_rng(1)
    with place.engine(2, 64) as engine:
        run = serve(engine, asks(draw, engine.vocab, 5, 9, 4))
    assert run.tokens == 20
    assert all(len(answer.times) == 4 and answer.times == sorted(answer.times) for answer in run.answers)
    assert all(answer.first > 0 for answer in run.answers)


def test_engines_of_many_sizes_share_the_weights(place: Workplace) -> None:
    with place.engine(1, 32):
        model = place._model
    with place.engine(3, 64) as engine:
        assert place._model is model
        assert (engine.limits.rows, engine.limits.context) == (3, 64)


def test_what_does_not_fit_is_refused(place: Workplace) -> None:
    place.memory = 1 << 20
    with pytest.raises(DoesNotFitError, match="available 1 MiB"), place.engine(64, 512):
        pass


def test_arrivals_keep_to_their_rate_and_their_bounds(place: Workplace) -> None:
    place.scale = 1.0
    work = scenarios.mixture(place, np.random.default_rng(0), 300, 2000, rate=50.0)
    assert work == sorted(work, key=lambda ask: ask.at)
    assert 2000 / work[-1].at == pytest.approx(50.0, rel=0.1)
    assert all(32 <= len(ask.prompt) <= 2048 and 16 <= ask.answer <= 512 for ask in work)
    assert scenarios.mixture(place, np.random.default_rng(0), 300, 9)[-1].at == 0


def test_figures_of_a_run_are_medians_of_its_requests() -> None:
    run = Run([Answer(0.0, [1.0, 2.0, 4.0]), Answer(0.0, [3.0]), Answer(1.0, [6.0, 6.5])], 10.0)
    assert run.tokens == 6
    assert run.rate == 0.6
    assert run.first == 3.0
    assert run.per_token == 1.0
    assert list(run.answers[0].gaps) == [1.0, 2.0]


def test_a_share_of_nothing_is_nothing() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0


def test_requests_wait_for_their_time(place: Workplace) -> None:
    with place.engine(2, 64) as engine:
        run = serve(engine, [Ask((1, 2), 1), Ask((3, 4), 1, at=0.2)])
    assert run.answers[1].submitted - run.answers[0].submitted >= 0.19


def test_a_budget_of_tokens_is_the_engines(place: Workplace) -> None:
    with place.engine(3, 64, budget=5) as engine:
        assert engine.limits.busy_budget == 5
    figures = scenarios.budget(place)
    assert list(figures) == ["tokens_2", "tokens_3", "tokens_4", "tokens_5"]


def test_memory_that_the_model_took_is_not_asked_for_twice(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuBackend, "free_bytes", lambda self: place.memory)
    with place.engine(1, 64):
        pass
    monkeypatch.setattr(CpuBackend, "free_bytes", lambda self: place.memory - place.weights)
    with place.engine(2, 64) as engine:
        assert engine.limits.rows == 2
