"""What a batch says of itself: figures, the time that is left, and the command that goes on."""

from __future__ import annotations

import shlex

import pytest

from llmrs_cli.batch.job import Counts
from llmrs_cli.batch.plan import Plan
from llmrs_cli.cli.batch_outlet import resume_command
from llmrs_cli.cli.batch_plan import report
from llmrs_cli.cli.batch_progress import EVERY, Progress, duration, figures


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("llmrs_cli.cli.batch_progress.time.monotonic", lambda: self.now)


def test_the_time_left_follows_from_the_share_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    progress = Progress(Counts(rows=20), lambda: 100, lambda: 0.25)
    clock.now += 10
    progress.counts = Counts(rows=30, failed=1, completion_tokens=500)
    assert progress.line() == (
        "Answering: 50 rows, 1 failed, 20 from before, 500 tokens in 10 s (50.0 tok/s), about 2 min left"
    )


@pytest.mark.parametrize(("share", "rows"), [(None, 5), (0.0, 5), (0.5, 0)])
def test_no_time_is_guessed_without_a_ground(share: float | None, rows: int) -> None:
    progress = Progress(Counts(), lambda: 10, lambda: share)
    progress.counts = Counts(rows=rows)
    assert "left" not in progress.line()


def test_lines_of_a_log_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    progress = Progress(Counts(), lambda: 0, lambda: None)
    said = []
    for _ in range(100):
        clock.now += EVERY / 10
        said.append(progress.is_due())
    assert said.count(True) == 10


def test_figures_tell_equal_rows_apart() -> None:
    assert "2 equal to others" in figures(Counts(), Counts(rows=4, merged=2), 1.0)


def test_one_of_a_kind_is_no_plural() -> None:
    assert (
        figures(Counts(), Counts(rows=1, completion_tokens=1), 2.0) == "1 row, 1 token in 2.0 s (0.5 tok/s)"
    )
    plan = Plan(rows=1, merged=1, prompt_tokens=1, answers=1)
    assert list(report(plan, "9", 1, None, "cpu"))[:4] == [
        "1 row, 0 cannot be answered, 0 of them too long",
        "1 row equal to others, computed once",
        "1 prompt token, the longest 0; the context holds 9",
        "1 answer of at most 1 token, where a row does not say otherwise",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.23, "1.2 s"), (59.6, "60 s"), (119, "2 min"), (5999, "1.7 h"), (7200, "2.0 h")]
)
def test_times_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_command_that_goes_on_is_quoted_and_starts_nothing_over() -> None:
    command = resume_command(["batch", "a b.jsonl", "-o", "out", "--overwrite", "--prompt-template", "'{x}'"])
    assert shlex.split(command) == [
        *("llmrs", "batch", "a b.jsonl", "-o", "out", "--prompt-template", "'{x}'", "--resume")
    ]
