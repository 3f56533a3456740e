"""Checked launches on a device that only records; no GPU."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer, Kernel, Scalar, Shape, ceil_div
from llmrs_cli.kernels.loader import Unit

SHAPE = Shape((3, 1, 1), (128, 1, 1), 64)
KERNEL = Kernel(
    Unit("embed"),
    "twice",
    (
        Buffer("x", "f32", ("T", "C")),
        Buffer("y", "u16", ("T", 4)),
        Buffer("rows", "i32", ("T",), optional=True),
        Scalar("eps", "f32"),
        Scalar("count", "i32"),
    ),
)


@dataclass
class Recorder:
    """A device that keeps what it is asked to run."""

    calls: list[tuple[Kernel, Shape, bytes]] = field(default_factory=list)

    def launch(self, kernel: Kernel, shape: Shape, slots: bytes) -> None:
        self.calls.append((kernel, shape, slots))


class Fake:
    """An array at a made-up address."""

    def __init__(self, array: np.ndarray[Any, Any], address: int = 0x1000) -> None:
        self.dtype, self.ndim, self.shape, self.flags = array.dtype, array.ndim, array.shape, array.flags
        self.data = type("Memory", (), {"ptr": address})


def fake(kind: str, *shape: int, address: int = 0x1000) -> Fake:
    return Fake(np.zeros(shape, kind), address)


def launch(*values: Any) -> list[bytes]:
    recorder = Recorder()
    KERNEL.launch(recorder, SHAPE, *values)
    ((kernel, shape, slots),) = recorder.calls
    assert (kernel, shape) == (KERNEL, SHAPE)
    return [slots[i : i + 8] for i in range(0, len(slots), 8)]


def test_pointers_and_scalars_are_packed_as_declared() -> None:
    slots = launch(fake("f4", 5, 8, address=0x77), fake("u2", 5, 4), None, 0.5, 7)
    assert slots[0] == struct.pack("Q", 0x77)
    assert slots[2] == bytes(8)
    assert slots[3] == struct.pack("f4x", 0.5)
    assert slots[4] == struct.pack("i4x", 7)
    assert len(slots) == 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((fake("f8", 5, 8), fake("u2", 5, 4), None, 0.5, 7), r"x must be f32\(T, C\), not float64"),
        ((fake("f4", 5), fake("u2", 5, 4), None, 0.5, 7), r"x must be f32\(T, C\), not shape \(5,\)"),
        ((fake("f4", 5, 8), fake("u2", 6, 4), None, 0.5, 7), r"y must be .* not shape \(6, 4\) with T=5"),
        ((fake("f4", 5, 8), fake("u2", 5, 8), None, 0.5, 7), r"y must be u16\(T, 4\), not shape \(5, 8\)"),
        ((None, fake("u2", 5, 4), None, 0.5, 7), "x is missing"),
        ((fake("f4", 5, 8), fake("u2", 5, 4), fake("i4", 4), 0.5, 7), "rows must be"),
        ((fake("f4", 5, 8), fake("u2", 5, 4), None, 0.5, 2**31), "count does not fit i32"),
        ((fake("f4", 5, 8), fake("u2", 5, 4), None, 0.5, 1.5), "count does not fit i32"),
        ((fake("f4", 5, 8),), "takes 5 parameters, not 1"),
    ],
)
def test_a_wrong_argument_is_named(values: tuple[Any, ...], message: str) -> None:
    recorder = Recorder()
    with pytest.raises(EngineFault, match=message):
        KERNEL.launch(recorder, SHAPE, *values)
    assert recorder.calls == []


def test_a_strided_view_is_refused() -> None:
    view = Fake(np.zeros((5, 16), np.float32)[:, ::2])
    with pytest.raises(EngineFault, match="x must be .* not a strided view"):
        launch(view, fake("u2", 5, 4), None, 0.5, 7)


def test_an_empty_grid_launches_nothing() -> None:
    recorder = Recorder()
    values = fake("f4", 0, 8), fake("u2", 0, 4), None, 0.5, 7
    KERNEL.launch(recorder, Shape((0, 1, 1), (128, 1, 1)), *values)
    assert recorder.calls == []


@given(
    st.lists(st.integers(1, 4), min_size=3, max_size=3), st.lists(st.integers(1, 4), min_size=3, max_size=3)
)
def test_a_letter_means_one_size(first: list[int], second: list[int]) -> None:
    kernel = Kernel(
        Unit("embed"), "k", (Buffer("a", "i32", ("A", "B", "A")), Buffer("b", "i32", ("B", "A", "C")))
    )
    a, b = fake("i4", *first), fake("i4", *second)
    fits = first[0] == first[2] and second[0] == first[1] and second[1] == first[0]
    recorder = Recorder()
    if fits:
        kernel.launch(recorder, SHAPE, a, b)
    else:
        with pytest.raises(EngineFault):
            kernel.launch(recorder, SHAPE, a, b)
    assert len(recorder.calls) == fits


@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_ceil_div(a: int, b: int) -> None:
    assert b * ceil_div(a, b) >= a > b * (ceil_div(a, b) - 1)
