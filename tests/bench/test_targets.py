"""What the script for GPUs compares stands under those names in the reports of the scenarios at full size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_models import SCENARIOS as RUN
from benchmarks.gpu_models import TARGETS, Target, command, readme_table, table
from llmrs_cli.bench import scenarios
from llmrs_cli.bench.client import Answer, Run
from llmrs_cli.cli.bench_names import NAMES
from llmrs_cli.engine.stats import StepTiming

STEP = StepTiming(tokens=64, chunks=64, plan=1e-4, launch=2e-4, wait=1e-3, commit=1e-4)


class Place:
    """A workplace whose engines answer at once, in no time."""

    scale = 1.0
    repeats = 2
    longest = 32_768
    backend = SimpleNamespace(name="cuda", block_size=64, run=None, draw=None)

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def scaled(self, count: int, least: int = 1) -> int:
        return max(count, least)

    @contextmanager
    def engine(self, rows: int, context: int, budget: int | None = None) -> Iterator[Any]:
        self.sizes.append((rows, context))
        yield SimpleNamespace(vocab=100, stats=lambda: SimpleNamespace(recent=(STEP,)))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    def serve(engine: object, work: Any, **_: float) -> Run:
        answers = [Answer(0.0, [1.0 + 0.01 * i for i in range(ask.answer)]) for ask in work]
        return Run(answers, 2.0)

    @contextmanager
    def watched(_: object) -> Iterator[Any]:
        yield SimpleNamespace(start=lambda: None, seconds=lambda: 1.9)

    monkeypatch.setattr(scenarios, "serve", serve)
    monkeypatch.setattr(scenarios, "watch", watched)
    monkeypatch.setattr(scenarios, "REST", 0.0)
    return Place()


def test_every_target_is_a_figure_of_its_scenario(place: Any) -> None:
    wanted = {target.path for targets in TARGETS.values() for target in targets}
    names = {path[0] for path in wanted} - {"startup"}
    report = {name: scenarios.SCENARIOS[name](place) for name in names}
    report["startup"] = {"warm_s": 3.0}
    for targets in TARGETS.values():
        for target in targets:
            assert target.found(report) is not None, target


def test_the_sizes_are_those_that_are_described(place: Any) -> None:
    scenarios.single(place)
    scenarios.throughput(place)
    scenarios.prefill(place)
    scenarios.long(place)
    assert place.sizes == [(1, 1328), (64, 384), (256, 384), (16, 2050), (1, 32_768)]


def test_figures_follow_from_the_runs(place: Any) -> None:
    crowd = scenarios.throughput(place)["running_64"]
    assert crowd["tokens_per_s"] == 256 * 128 / 2
    assert crowd["device_busy"] == pytest.approx(0.95)
    assert crowd["step_host_ms"]["wait"] == pytest.approx(1.0)
    single = scenarios.single(place)
    assert single["token_ms"] == pytest.approx(10.0)
    assert single["first_token_1200_ms"] == single["first_token_1200_busy_ms"] == pytest.approx(1000.0)
    assert scenarios.prefill(place)["tokens_per_s"] == 16 * 2048 / 2


def test_a_target_is_met_on_its_own_side() -> None:
    fast, quick = Target("rate", ("a", "b"), 10.0, 8.0), Target("time", ("c",), 3.0, None, least=False)
    report = {"a": {"b": 11.0}, "c": 4.0}
    assert fast.found(report) == 11.0 and fast.met(11.0) and not fast.met(9.0)
    assert quick.found(report) == 4.0 and not quick.met(4.0) and quick.met(3.0)
    assert fast.found({"a": 3}) is None


def test_the_table_shows_what_was_measured_alone() -> None:
    lines = table("7b", {"single": {"token_ms": 3.5, "first_token_ms": 12.0}})
    assert len(lines) == 2
    assert "3.5" in lines[0] and "ok" in lines[0] and "vLLM 4.86" in lines[0]
    assert "MISSED" in lines[1]


def test_the_command_is_one_that_there_is() -> None:
    assert set(RUN) <= set(NAMES)
    words = command("7b", ["single", "mixed"])
    assert words[words.index("bench") + 1] == "qwen2.5-7b"
    assert words.count("-s") == 2


def test_the_readme_shows_the_other_engine_only_where_its_figure_is_known() -> None:
    records = [
        {"model": "qwen2.5-7b", "scenarios": {"startup": {"warm_s": 3.4619}, "single": {"token_ms": 3.549}}},
        {"model": "qwen2.5-3b", "scenarios": {"startup": {"warm_s": 2.9939}}},
    ]
    shown = readme_table(records).splitlines()
    assert shown[0] == "| Qwen2.5 | 7b | 3b |"
    assert "| ms a token, one request | 3.55 (4.86) |  |" in shown
    assert "| start to first token, s | 3.46 (70.0) | 2.99 |" in shown
