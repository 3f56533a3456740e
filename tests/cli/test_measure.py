"""What `llmrs bench` measures: runs of an engine on a clock of our own, memory that is read, and the reports made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.bench.kernels import Timing
from llmrs_cli.cli import bench_kernels, bench_scenarios, measure
from llmrs_cli.cli.bandwidth import threads
from llmrs_cli.cli.bench import Report, Row, _batches, describe
from llmrs_cli.cli.measure import Load, achieved, host_bandwidth
from llmrs_cli.engine.types import FinishReason, Request, TokenEvent
from llmrs_cli.errors import EngineFault
from tests.cli.conftest import Run
from tests.helpers.tiny_model import TinyModel, write_tiny


class Ticking:
    """An engine each of whose steps takes a second and gives a token to every row; prompts take `reading` steps."""

    vocab = 50

    def __init__(self, reading: int = 2, failing: bool = False) -> None:
        self.now = 0.0
        self.reading, self.failing = reading, failing
        self.requests: list[Request] = []
        self._live: dict[str, tuple[Request, int]] = {}
        """With the steps that each has had."""

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    def submit(self, request: Request) -> None:
        self.requests.append(request)
        self._live[request.id] = request, 0

    def step(self) -> list[TokenEvent]:
        self.now += 1.0
        events = []
        for name, (request, steps) in list(self._live.items()):
            self._live[name] = request, steps + 1
            tokens = steps + 2 - self.reading
            if tokens < 1:
                continue
            if self.failing:
                return [TokenEvent(name, finish=FinishReason.ERROR, error="It broke.")]
            done = tokens == request.params.max_tokens
            events.append(TokenEvent(name, (1,), finish=FinishReason.LENGTH if done else None))
            if done:
                del self._live[name]
        return events


def measured(monkeypatch: pytest.MonkeyPatch, engine: Ticking, load: Load, repeats: int = 1) -> measure.Rates:
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: engine.now))
    standing_in: Any = engine
    return measure.measure(standing_in, load, repeats, np.random.default_rng(0))


@pytest.mark.parametrize(("batch", "prompt", "answer"), [(1, 10, 4), (8, 64, 2), (3, 1, 30)])
def test_rates_are_tokens_of_all_rows_over_the_time_that_they_took(
    monkeypatch: pytest.MonkeyPatch, batch: int, prompt: int, answer: int
) -> None:
    rates = measured(monkeypatch, Ticking(reading=2), Load(batch, prompt, answer))
    assert rates.prefill == pytest.approx(batch * prompt / 2)
    assert rates.decode == pytest.approx(batch)


def test_a_first_run_is_thrown_away_and_prompts_are_never_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Ticking()
    measured(monkeypatch, engine, Load(2, 16, 3), repeats=3)
    prompts = [request.prompt_ids for request in engine.requests]
    assert len(prompts) == len(set(prompts)) == 2 * 4
    assert all(len(prompt) == 16 and max(prompt) < engine.vocab for prompt in prompts)
    assert all(request.params.ignore_eos for request in engine.requests)


def test_an_engine_that_fails_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineFault, match="It broke"):
        measured(monkeypatch, Ticking(failing=True), Load(1, 4, 2))


# -- memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_memory_is_read_whole_by_any_number_of_threads(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(measure, "READ_BYTES", 1 << 16)
    assert host_bandwidth(count) > 0


def test_the_better_of_reading_and_copying_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "READ_BYTES", 4000)
    times = iter((2e-6, 8e-6))
    monkeypatch.setattr(measure, "_best", lambda loop: next(times))
    assert host_bandwidth(1) == pytest.approx(4000 / 2e-6)
    times = iter((2e-6, 3e-6))
    monkeypatch.setattr(measure, "_best", lambda loop: next(times))
    assert host_bandwidth(1) == pytest.approx(8000 / 3e-6), "a copy moves every byte twice"


def test_the_best_of_some_runs_after_one_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    durations = iter((9.0, 3.0, 1.0, 4.0, 5.0, 6.0))
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def loop() -> None:
        now[0] += next(durations)

    assert measure._best(loop) == 1.0
    assert next(durations, None) is None


def test_a_backend_is_measured_with_a_model_that_leaves_its_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SHAPES", {"reference": (512, 1)})
    assert achieved("reference") > 0
    for hidden, layers in ((1024, 5), (4096, 4)):
        config = measure._model(hidden, layers)
        assert config["num_attention_heads"] == hidden // 128


def test_there_is_at_least_one_core() -> None:
    assert threads() >= 1


# -- reports -------------------------------------------------------------------------------------------


REPORT = Report(
    model="tiny",
    device="cpu",
    random_weights=False,
    weight_bytes=1_000_000_000,
    bandwidth=2e10,
    prompt_tokens=512,
    answer_tokens=64,
    repeats=3,
    threads=2,
    machine="a machine",
    llmrs="1.0",
    rows=[Row(1, 600.0, 20.0, 50.0, 1.0), Row(32, 900.25, 320.0, 100.0, 0.5)],
)


def test_a_report_is_a_table_for_people() -> None:
    assert list(describe(REPORT)) == [
        "tiny on cpu, 2 threads, a machine",
        "prompts of 512, answers of 64 tokens; median of 3; weights 1.000 GB a step, memory 20.0 GB/s",
        " batch   prefill tok/s    decode tok/s   ms a step    share",
        "     1           600.0            20.0       50.00   100.0%",
        "    32           900.2           320.0      100.00    50.0%",
    ]


def test_a_report_in_json_has_every_field_by_its_name(llmrs: Run, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(measure, "READ_BYTES", 1 << 16)
    model = str(write_tiny(tmp_path / "m", TinyModel()))
    arguments = ("--batch", "1", "--prompt-tokens", "4", "--tokens", "2", "--repeats", "1", "--json")
    result = llmrs("bench", model, *arguments)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert set(found) == {field.name for field in fields(Report)}
    assert [set(row) for row in found["rows"]] == [{field.name for field in fields(Row)}]
    row = found["rows"][0]
    assert row["step_ms"] == pytest.approx(1e3 / row["decode"])
    assert row["share"] == pytest.approx(found["weight_bytes"] * row["decode"] / found["bandwidth"])


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=9))
def test_batches_are_sorted_and_each_once(batches: list[int]) -> None:
    assert _batches(",".join(map(str, batches))) == tuple(sorted(set(batches)))


@given(st.text(max_size=12))
def test_what_is_no_list_of_batches_is_refused_in_words(typed: str) -> None:
    try:
        found = _batches(typed)
    except click.BadParameter as error:
        assert "from 1 to 1024" in error.message
        return
    assert found and all(1 <= batch <= 1024 for batch in found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (1_234_567, "1,234,567"),
        (0.000123456, "0.0001235"),
        (12.3456, "12.35"),
        (123456.7, "123,457"),
    ],
)
def test_figures_are_short(value: float, text: str) -> None:
    assert bench_scenarios._figure(value) == text


def scenario_lines(figures: dict[str, Any]) -> list[str]:
    report = {
        "model": "m", "random_weights": True, "device": "cpu", "machine": "x", "repeats": 2,
        "scenarios": {"single": figures},
    }  # fmt: skip
    return list(bench_scenarios.describe(report))


def test_figures_in_figures_are_indented_and_parts_are_a_table() -> None:
    parts = [{"name": "attend", "calls": 2, "us": 10.0, "each_us": 5.0, "share": 0.25}]
    lines = scenario_lines({"rows": {"token_ms": 1.5}, "parts": parts, "count": 3})
    assert lines[0] == "m (random weights) on cpu, x, medians of 2"
    assert lines[1:3] == ["single", "  rows"]
    assert lines[3].split() == ["token_ms", "1.5"] and lines[3].startswith("    ")
    assert lines[4].split() == ["parts"] or lines[4].split()[0] == "part"
    assert any(line.split() == ["attend", "2", "10.0", "5.00", "25.0%"] for line in lines)
    assert lines[-1].split() == ["count", "3"]


def test_timings_of_ops_are_a_table_by_model() -> None:
    timing = Timing("attend", 64, 4096, 12.345, 3000.0, 1.5, 0.9, "memory")
    plain = Timing("qkv", 1, 0, 5.0, 100.0, 0.01, 0.5, "compute")
    report = {
        "device": "cuda", "machine": "x", "read_gb_per_s": 4000.4, "tflop_per_s": 600.0,
        "models": {"7b": [plain, timing]},
    }  # fmt: skip
    lines = list(bench_kernels.describe(report))
    assert lines[1] == "reads 4000 GB/s, products 600.00 TFLOP/s"
    assert lines[4].split() == ["qkv", "1", "5.00", "100.0", "0.010", "50.0%", "compute"]
    assert lines[5].split() == ["attend", "64", "4096", "12.35", "3000.0", "1.500", "90.0%", "memory"]
    assert json.loads(json.dumps(asdict(timing))) == bench_kernels._plain(timing)


@pytest.mark.parametrize(("typed", "sizes"), [(None, ()), ("8", (8,)), ("64,1,8,1", (1, 8, 64))])
def test_sizes_are_sorted(typed: str | None, sizes: Sequence[int]) -> None:
    assert bench_kernels._sizes(typed) == sizes
