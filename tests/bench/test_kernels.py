"""Ops alone and steps in parts, on a tiny model: each figure follows from the time and the shape."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llmrs_cli.bench import kernels
from llmrs_cli.bench.ceilings import HostCeilings, ceilings
from llmrs_cli.bench.clock import Call, Clock, HostClock
from llmrs_cli.bench.kernels import Bed, Timing, Work
from llmrs_cli.bench.profile import profile
from llmrs_cli.bench.workplace import Workplace


class Ticking:
    """A clock on which every call takes a millisecond; it runs each of them once."""

    def seconds(self, calls: Sequence[Call]) -> float:
        for call in calls:
            call()
        return 1e-3


class Known:
    """Reads at 1 GB/s, products at 1 GFLOP/s."""

    def __init__(self) -> None:
        self.clock: Clock = Ticking()

    def read_seconds(self, size: int) -> float:
        return size / 1e9

    def operations(self) -> float:
        return 1e9


@pytest.fixture
def bed(place: Workplace) -> Bed:
    return kernels.lay(place.checkpoint, place.backend, Known())


def test_every_linear_is_timed_at_every_size(bed: Bed) -> None:
    found = list(kernels.time_linears(bed, (1, 5)))
    assert [(t.op, t.tokens) for t in found] == [
        (op, tokens) for tokens in (1, 5) for op in ("qkv", "o", "gate_up", "down", "head")
    ]
    o = found[1]
    assert (o.us, o.bound) == (1000.0, "memory")
    assert found[6].bound == "compute"
    assert o.gb_per_s == pytest.approx((2 * 128 * 128 + 2 * (128 + 128)) / 1e6)
    assert o.share == pytest.approx((2 * 128 * 128 + 2 * (128 + 128)) / 1e6)
    assert o.tflop_per_s == pytest.approx(2 * 128 * 128 / 1e9)


def test_attention_is_timed_over_filled_caches(bed: Bed) -> None:
    found = list(kernels.time_attention(bed, ((3, 40), (1, 9)), (17,), kv_bytes=1 << 16))
    assert [(t.op, t.tokens, t.context) for t in found] == [
        ("attend", 3, 40),
        ("attend", 1, 9),
        ("attend", 17, 17),
    ]
    token = 2 * 2 * 32 * 2  # keys and values, two heads of 32, two bytes
    assert found[0].gb_per_s == pytest.approx(3 * 40 * token / 1e6)
    assert found[2].tflop_per_s == pytest.approx(2 * 17 * 17 * 4 * 32 / 1e9)


def test_what_binds_is_the_slower_of_reading_and_computing(bed: Bed) -> None:
    memory = bed.timing("x", 1, Work(500_000, 1000), [lambda: None])
    assert memory.bound == "memory"
    assert memory.share == pytest.approx(0.5)
    compute = bed.timing("x", 1, Work(5, 900_000), [lambda: None])
    assert compute.bound == "compute"
    assert compute.share == pytest.approx(0.9)


def test_there_are_layers_enough_to_leave_the_caches(place: Workplace) -> None:
    spec = place.checkpoint.spec
    smallest = 2 * 128 * 128
    assert kernels.layers_for(spec, 10 * smallest) == 10
    assert kernels.layers_for(spec, 1) == 2
    assert kernels.layers_for(spec) == kernels.MOST_LAYERS


def test_a_chart_shows_linears_by_size() -> None:
    timings = [Timing(op, m, c, 1.0, 1.0, 1.0, s, "memory") for op, m, c, s in (
        ("o", 1, 0, 0.5), ("o", 8, 0, 0.25), ("attend", 1, 64, 0.1)
    )]  # fmt: skip
    assert kernels.series(timings, "7b") == {"7b o": [(1, 0.5), (8, 0.25)]}
    assert kernels.figures(timings[2])["context"] == 64


def test_the_host_has_ceilings() -> None:
    top = HostCeilings()
    assert top.operations() > 0
    assert top.read_seconds(2000) == pytest.approx(2 * top.read_seconds(1000))
    assert top.operations() == top.operations()


def test_a_backend_on_the_host_is_compared_with_the_host(place: Workplace) -> None:
    assert isinstance(ceilings(place.backend), HostCeilings)


def test_the_host_clock_gives_seconds_of_one_call() -> None:
    calls: list[int] = []
    seconds = HostClock(rounds=3, least=0.001).seconds([lambda: calls.append(1), lambda: calls.append(2)])
    assert 0 < seconds < 0.001
    assert calls[:4] == [1, 2, 1, 2]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_step_falls_into_its_ops(place: Workplace, rows: int) -> None:
    found = profile(place, rows, 9)
    calls = {part["name"]: part["calls"] for part in found["parts"]}
    assert calls == {
        "embed": 1, "norm_qkv_rope_store": 2, "attend": 2, "project_add": 4, "norm_gate_up": 2, "head": 1, "sample": 1
    }  # fmt: skip
    assert found["launched_us"] == pytest.approx(sum(part["us"] for part in found["parts"]))
    assert found["step_us"] == pytest.approx(found["launched_us"] + found["between_us"])
    assert "attend" not in vars(place.backend)
