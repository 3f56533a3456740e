"""Reading ahead gives every weight once, in any order, holds little, and passes errors on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.weights.ahead import _Ahead, files_of
from llmrs_cli.engine.weights.packed import Dense, Stored, Weight
from llmrs_cli.engine.weights.parameters import Parameter
from llmrs_cli.errors import ModelError


class Files:
    """Parameters that count how often and how many at once they are held."""

    def __init__(self, count: int, nbytes: int = 10) -> None:
        self.read: list[str] = []
        self._lock = threading.Lock()
        self.parameters = {
            f"p{i}": Parameter((1,), "float32", nbytes, (f"p{i}",), self._reader(i)) for i in range(count)
        }

    def _reader(self, number: int) -> Callable[[], Weight]:
        def read() -> Weight:
            with self._lock:
                self.read.append(f"p{number}")
            return Dense(np.array([number], np.float32))

        return read


def number(weight: Stored) -> float:
    return float(weight.dequantise()[0])


@given(
    count=st.integers(1, 30),
    limit=st.integers(0, 200),
    order=st.randoms(use_true_random=False),
    known=st.booleans(),
)
def test_every_weight_is_read_once_in_any_order(count: int, limit: int, order: Any, known: bool) -> None:
    files = Files(count)
    wanted = list(files.parameters)
    if not known:
        order.shuffle(wanted)
    with files_of(files.parameters, limit) as read:
        assert [number(read(name)) for name in wanted] == [float(name[1:]) for name in wanted]
    assert set(files.read) == set(wanted)
    assert len(files.read) == count or not known


def test_without_a_limit_nothing_is_read_before_it_is_asked_for() -> None:
    files = Files(3)
    with files_of(files.parameters, 0) as read:
        assert files.read == []
        read("p2")
    assert files.read == ["p2"]


def test_no_more_is_begun_than_the_limit_and_one() -> None:
    files = Files(20)
    source = _Ahead(files.parameters, limit=35)
    for i in range(20):
        assert len(source._begun) == min(4, 20 - i)
        assert number(source.read(f"p{i}")) == i
        assert source._bytes == 10 * len(source._begun)
    source.close()


def test_a_weight_larger_than_the_limit_is_read_ahead_alone() -> None:
    source = _Ahead(Files(3, nbytes=1000).parameters, limit=10)
    assert list(source._begun) == ["p0"]
    source.read("p0")
    assert list(source._begun) == ["p1"]
    source.close()


def test_an_error_comes_when_the_weight_is_asked_for() -> None:
    def broken() -> Weight:
        raise ModelError("The file is damaged.")

    files = Files(3)
    files.parameters["p1"] = Parameter((1,), "float32", 10, ("p1",), broken)
    with files_of(files.parameters, 100) as read:
        assert number(read("p0")) == 0
        with pytest.raises(ModelError, match="damaged"):
            read("p1")


def test_no_thread_is_left_when_it_ends_early() -> None:
    before = threading.active_count()
    with pytest.raises(KeyError), files_of(Files(50).parameters, 100) as read:
        read("missing")
    assert threading.active_count() == before
