"""Delivery into a stream: input order whatever finishes first, and what is held back is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.delivery import Record, StreamDelivery


def record(number: int, *, failed: bool = False) -> Record:
    return Record(number, "", failed, 1, 1, f"line {number}")


def text(*numbers: int) -> list[str]:
    return [f"line {number}" for number in numbers]


@given(st.permutations(range(7)))
def test_lines_come_in_input_order_and_none_waits_longer_than_it_must(order: list[int]) -> None:
    lines: list[str] = []
    delivery = StreamDelivery(lines.append)
    for count, number in enumerate(order, 1):
        delivery.put(record(number))
        ready = next(n for n in range(8) if n not in order[:count])
        assert lines == text(*range(ready))
        assert delivery.held == count - ready
        assert delivery.held_bytes == len("line 0") * delivery.held
    assert delivery.held == 0


@given(st.permutations(range(7)))
def test_without_order_nothing_waits(order: list[int]) -> None:
    lines: list[str] = []
    delivery = StreamDelivery(lines.append, in_order=False)
    for number in order:
        delivery.put(record(number))
    assert (lines, delivery.held, delivery.held_bytes) == (text(*order), 0, 0)


@given(st.permutations(range(6)), st.integers(0, 6))
def test_what_was_computed_is_written_when_a_run_ends_early(order: list[int], ended: int) -> None:
    lines: list[str] = []
    delivery = StreamDelivery(lines.append)
    for number in order[:ended]:
        delivery.put(record(number))
    delivery.flush()
    assert lines == text(*sorted(order[:ended]))
    assert (delivery.held, delivery.held_bytes) == (0, 0)


def test_lines_of_rows_that_failed_may_go_elsewhere() -> None:
    good: list[str] = []
    bad: list[str] = []
    delivery = StreamDelivery(good.append, write_failed=bad.append)
    for number in (2, 0, 1):
        delivery.put(record(number, failed=number == 1))
    assert (good, bad) == (text(0, 2), text(1))


def test_what_could_not_be_written_once_is_not_tried_again() -> None:
    tried: list[str] = []

    def full(line: str) -> None:
        tried.append(line)
        raise OSError(28, "No space left on device")

    delivery = StreamDelivery(full)
    delivery.put(record(1))
    with pytest.raises(OSError):
        delivery.put(record(0))
    delivery.flush()
    assert tried == text(0)


def test_nothing_of_a_stream_can_be_taken_up_or_made_safe() -> None:
    delivery = StreamDelivery(lambda line: None)
    delivery.put(record(0))
    delivery.sync()
    assert delivery.until_sync() is None
    assert not delivery.has(0, "")
