"""A run over a scripted engine: order, how far it reads ahead, and what is kept when it ends early.

Longer than most files: all of it needs the gate, an engine that answers when it is told to.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llmrs_cli.batch.delivery import StreamDelivery
from llmrs_cli.batch.job import Counts, Job, row_seed
from llmrs_cli.batch.records import Ask, Row, Shape
from llmrs_cli.batch.results import Writer
from llmrs_cli.batch.run import Run
from llmrs_cli.engine import EngineLimits, EngineStats, FinishReason, Request, TokenEvent, check_params
from llmrs_cli.errors import EngineFault, LlmrsError, RequestError, RowsFailedError
from llmrs_cli.text.generate import GenerateOptions, TextEngine
from llmrs_cli.text.options import SamplingDefaults
from llmrs_cli.text.template import ChatTemplate

HELD, NAN = 1, 2
"""First prompt ids with a meaning: the answer waits for `open`; the logits are no numbers."""
PATIENCE = 20.0


class Gate:
    """A token engine that answers at once, but for prompts that begin with HELD."""

    def __init__(self) -> None:
        self.limits = EngineLimits(4, 64, 64, 16, 64, 256)
        self.vocab = 1024
        self.fault: EngineFault | None = None
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self._held: dict[str, Callable[[TokenEvent], None]] = {}
        self._lock = threading.Lock()

    def submit(self, request: Request, sink: Callable[[TokenEvent], None]) -> None:
        with self._lock:
            if self.fault is not None:
                raise self.fault
            check_params(request.params, self.vocab)
            self.requests.append(request)
            first = request.prompt_ids[0]
            if first == HELD:
                self._held[request.id] = sink
            elif first == NAN:
                sink(TokenEvent(request.id, finish=FinishReason.ERROR, error="The logits are no numbers."))
            else:
                sink(TokenEvent(request.id, (7,), finish=FinishReason.LENGTH))

    def abort(self, request_id: str) -> None:
        with self._lock:
            self.aborted.append(request_id)
            if request_id in self._held:
                self._held.pop(request_id)(TokenEvent(request_id, finish=FinishReason.ABORT))

    def open(self) -> None:
        """Answer everything that waits."""
        with self._lock:
            for name, sink in self._held.items():
                sink(TokenEvent(name, (7,), finish=FinishReason.LENGTH))
            self._held.clear()

    def stats(self) -> EngineStats:
        raise AssertionError("a batch asks for no statistics")

    def close(self) -> None:
        self.open()


@pytest.fixture
def gate() -> Gate:
    return Gate()


def make_run(gate: Gate, out: list[str] | StreamDelivery, **sizes: int) -> Run:
    engine = TextEngine(gate, tokenizer=None, template=ChatTemplate({}), defaults=SamplingDefaults())
    job = Job(GenerateOptions(max_tokens=1), seed=5, writer=Writer("m", 0))
    delivery = out if isinstance(out, StreamDelivery) else StreamDelivery(out.append)
    return Run(engine, job, delivery, **{"in_flight": 8, **sizes})


def row(index: int, *ids: int, **options: Any) -> Row:
    return Row(index, index + 1, Shape.FLAT, {}, {}, Ask(token_ids=ids or (9,), options=options), size=10)


def bad_row(index: int) -> Row:
    return Row(index, index + 1, Shape.FLAT, {}, {}, RequestError("Bad.", code="invalid_json"))


def indices(lines: list[str]) -> list[int]:
    return [json.loads(line)["index"] for line in lines]


def wait_for(condition: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(int(PATIENCE / 0.005)):
        if condition():
            return
        done.wait(0.005)
    raise AssertionError("it did not happen")


def test_output_is_in_input_order_whatever_finishes_first(gate: Gate) -> None:
    lines: list[str] = []
    run = make_run(gate, lines)

    def rows() -> Iterator[Row]:
        yield row(0, HELD)
        yield from (row(i) for i in range(1, 6))
        wait_for(lambda: len(gate.requests) == 6)
        assert lines == [], "the first row is not ready"
        gate.open()

    counts = run.run(enumerate(rows()))
    assert indices(lines) == [0, 1, 2, 3, 4, 5]
    assert counts == Counts(rows=6, failed=0, prompt_tokens=6, completion_tokens=6)


def test_a_line_is_written_while_reading_waits_for_the_next(gate: Gate) -> None:
    """A program may wait for each answer before it asks again."""
    lines: list[str] = []

    def rows() -> Iterator[Row]:
        for i in range(3):
            yield row(i)
            wait_for(lambda count=i: len(lines) > count)  # type: ignore[misc]

    assert make_run(gate, lines).run(enumerate(rows())).rows == 3


@pytest.mark.parametrize("window", [3, 1])
def test_reading_stops_at_the_window(gate: Gate, window: int) -> None:
    lines: list[str] = []
    ahead: list[int] = []

    def rows() -> Iterator[Row]:
        for i in range(20):
            ahead.append(i - len(lines))
            if len(ahead) == window:
                threading.Timer(0.05, gate.open).start()  # nothing moves before
            yield row(i, HELD if i == 0 else 9)

    make_run(gate, lines, window=window).run(enumerate(rows()))
    assert indices(lines) == list(range(20))
    assert max(ahead) <= window


def test_reading_stops_at_many_bytes(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmrs_cli.batch.run.WINDOW_BYTES", 25)
    lines: list[str] = []
    ahead: list[int] = []

    def rows() -> Iterator[Row]:
        for i in range(10):
            ahead.append(i - len(lines))
            yield row(i)

    make_run(gate, lines).run(enumerate(rows()))
    assert indices(lines) == list(range(10))
    assert max(ahead) <= 3


def test_rows_that_fail_are_lines_and_counted(gate: Gate) -> None:
    lines: list[str] = []
    counts = make_run(gate, lines).run(
        enumerate([row(0), bad_row(1), row(2, NAN), row(3, temperature=9.0), row(4)])
    )
    assert (counts.rows, counts.failed) == (5, 3)
    codes = [(json.loads(line)["error"] or {}).get("code") for line in lines]
    assert codes == [None, "invalid_json", "engine_error", "invalid_request", None]


def test_a_broken_engine_ends_the_run_with_what_was_finished(gate: Gate) -> None:
    lines: list[str] = []

    def rows() -> Iterator[Row]:
        yield row(0)
        wait_for(lambda: len(lines) == 1)
        gate.fault = EngineFault("The engine failed.")
        yield row(1)
        yield row(2)

    with pytest.raises(EngineFault):
        make_run(gate, lines).run(enumerate(rows()))
    assert indices(lines) == [0]


def test_an_interrupt_lets_rows_in_flight_finish_and_starts_no_other(gate: Gate) -> None:
    lines: list[str] = []

    def rows() -> Iterator[Row]:
        yield row(0)
        yield row(1, HELD)
        yield row(2, HELD)
        yield row(3)
        wait_for(lambda: len(lines) == 1)
        threading.Timer(0.05, gate.open).start()
        raise KeyboardInterrupt

    run = make_run(gate, lines, in_flight=2)
    with pytest.raises(KeyboardInterrupt):
        run.run(enumerate(rows()))
    assert indices(lines) == [0, 1, 2]
    assert (len(gate.requests), run.counts.rows) == (3, 3)


def test_rows_that_do_not_finish_in_time_are_ended_and_leave_no_line(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmrs_cli.batch.run.GRACE", 0.05)
    lines: list[str] = []
    delivery = StreamDelivery(lines.append)
    run = make_run(gate, delivery)

    def rows() -> Iterator[Row]:
        yield row(0)
        yield row(1, HELD)
        yield row(2)
        wait_for(lambda: run.counts.rows == 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run(enumerate(rows()))
    assert indices(lines) == [0]
    delivery.flush()
    assert indices(lines) == [0, 2], "what was computed is not lost"
    held = next(request.id for request in gate.requests if request.prompt_ids == (HELD,))
    assert held in gate.aborted


def test_an_output_that_cannot_be_written_is_not_written_again(gate: Gate) -> None:
    lines: list[str] = []

    def full(line: str) -> None:
        lines.append(line)
        raise OSError(28, "No space left on device")

    delivery = StreamDelivery(full)
    with pytest.raises(OSError):
        make_run(gate, delivery).run(enumerate(row(i) for i in range(5)))
    delivery.flush()
    assert len(lines) == 1


@pytest.mark.parametrize("group", [1, 2, 64])
def test_an_input_that_breaks_off_is_an_error_after_what_was_read(gate: Gate, group: int) -> None:
    lines: list[str] = []

    def rows() -> Iterator[Row]:
        yield from (row(i) for i in range(3))
        raise LlmrsError("The input is cut off.")

    with pytest.raises(LlmrsError, match="cut off"):
        make_run(gate, lines, group=group).run(enumerate(rows()))
    assert indices(lines) == [0, 1, 2]


def test_too_many_failures_end_a_run(gate: Gate) -> None:
    lines: list[str] = []
    with pytest.raises(RowsFailedError, match="More than 2"):
        make_run(gate, lines, max_failed=2).run(enumerate(bad_row(i) for i in range(50)))
    assert len(lines) == 3


def test_rows_may_be_delivered_as_they_finish(gate: Gate) -> None:
    lines: list[str] = []

    def rows() -> Iterator[Row]:
        yield row(0, HELD)
        yield row(1)
        wait_for(lambda: indices(lines) == [1])
        gate.open()

    make_run(gate, StreamDelivery(lines.append, in_order=False)).run(enumerate(rows()))
    assert indices(lines) == [1, 0]


# -- rows with equal answers --------------------------------------------------------------------------


def test_equal_greedy_rows_are_computed_once(gate: Gate) -> None:
    lines: list[str] = []

    def rows() -> Iterator[Row]:
        yield from (row(i, HELD, temperature=0.0) for i in range(3))
        gate.open()
        wait_for(lambda: len(lines) == 3)
        yield row(3, HELD, temperature=0.0)

    counts = make_run(gate, lines).run(enumerate(rows()))
    assert (counts.rows, counts.merged, len(gate.requests)) == (4, 3, 1)
    assert indices(lines) == [0, 1, 2, 3]
    assert len({json.dumps(json.loads(line)["usage"]) for line in lines}) == 1


@pytest.mark.parametrize(
    ("first", "second", "computed"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0, "seed": 3}, 1),
        ({"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "seed": 3}, 1),
        ({"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "seed": 4}, 2),
        ({"temperature": 1.0}, {"temperature": 1.0}, 2),
        ({"temperature": 0.0}, {"temperature": 0.0, "max_tokens": 2}, 2),
        ({}, {}, 2),
    ],
)
def test_rows_are_merged_only_where_nothing_is_left_to_chance(
    gate: Gate, first: dict[str, Any], second: dict[str, Any], computed: int
) -> None:
    lines: list[str] = []
    make_run(gate, lines).run(enumerate([row(0, **first), row(1, **second)]))
    assert (indices(lines), len(gate.requests)) == ([0, 1], computed)


def test_twins_of_a_row_that_fails_fail_too(gate: Gate) -> None:
    lines: list[str] = []
    counts = make_run(gate, lines).run(enumerate([row(i, NAN, temperature=0.0) for i in range(3)]))
    assert (counts.failed, len(lines)) == (3, 3)


def test_many_choices_take_as_many_places(gate: Gate) -> None:
    lines: list[str] = []
    run = make_run(gate, lines, in_flight=4)

    def rows() -> Iterator[Row]:
        yield from (row(i, HELD, n=2) for i in range(4))
        assert len(gate.requests) == 4
        gate.open()
        wait_for(lambda: len(gate.requests) == 8)
        gate.open()

    assert run.run(enumerate(rows())).rows == 4
    assert all(len(json.loads(line)["finish_reasons"]) == 2 for line in lines)


def test_every_row_has_a_seed_of_its_own_unless_it_brings_one(gate: Gate) -> None:
    make_run(gate, []).run(enumerate([row(0), row(1), row(2, 9, seed=3)]))
    seeds = [request.params.seed for request in gate.requests]
    assert seeds == [row_seed(5, 0), row_seed(5, 1), 3]
    assert seeds[0] != seeds[1]
    assert row_seed(5, 0) != row_seed(6, 0)


def test_arguments_of_the_template_are_no_sampling_options(gate: Gate) -> None:
    lines: list[str] = []
    counts = make_run(gate, lines).run(enumerate([row(0, chat_template_kwargs={"enable_thinking": False})]))
    assert counts.failed == 0


def test_without_a_tokenizer_text_is_an_error_row(gate: Gate) -> None:
    lines: list[str] = []
    asks = [Ask(text="x"), Ask(messages=[{"role": "user", "content": "x"}], plain=True)]
    make_run(gate, lines).run(enumerate(Row(i, i, Shape.FLAT, {}, {}, ask) for i, ask in enumerate(asks)))
    assert all("tokenizer" in json.loads(line)["error"]["message"] for line in lines)


def test_any_error_of_ours_is_one_row(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    run = make_run(gate, lines)
    monkeypatch.setattr(run._engine, "start", lambda *a, **k: (_ for _ in ()).throw(LlmrsError("Odd.")))
    assert run.run(enumerate([row(0)])).failed == 1


def test_rows_with_one_beginning_are_asked_together_and_written_in_input_order(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What shares a prefix finds it in the cache; the output does not show that anything was moved."""
    monkeypatch.setattr("llmrs_cli.batch.window.GAIN", 4)
    lines: list[str] = []
    a, b = (5,) * 10, (6,) * 10

    def rows() -> Iterator[Row]:
        yield from (row(i, HELD) for i in range(2))
        yield from (row(2 + i, *(a if i % 2 else b), i) for i in range(8))
        gate.open()

    make_run(gate, lines, in_flight=2, group=1).run(enumerate(rows()))
    assert indices(lines) == list(range(10))
    firsts = [request.prompt_ids[0] for request in gate.requests[2:]]
    assert sum(x != y for x, y in zip(firsts, firsts[1:], strict=False)) == 1, firsts
