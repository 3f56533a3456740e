"""Small parts that several commands share: questions before a removal, time limits, progress in words, licences, reports."""

from __future__ import annotations

import io
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.cli.confirm import confirm
from llmrs_cli.cli.faults import TimedOut
from llmrs_cli.cli.fetching import FetchBar, clock_text
from llmrs_cli.cli.help import TOPICS
from llmrs_cli.cli.json_options import json_form
from llmrs_cli.cli.licences import LICENCES, licence_of
from llmrs_cli.cli.report import tell
from llmrs_cli.cli.time_limit import AGAIN, time_limit
from llmrs_cli.errors import LlmrsError, ModelError, UsageError
from llmrs_cli.hub.aliases import ALIASES
from tests.cli.conftest import Run


class Paper:
    """A terminal that keeps what it is told, and answers what it was told to."""

    def __init__(self, answer: str = "", *, is_terminal: bool = True) -> None:
        self.err_is_terminal = is_terminal
        self.answer = answer
        self.questions: list[str] = []
        self.lines: list[str] = []

    def ask(self, question: str) -> str:
        self.questions.append(question)
        return self.answer

    def data(self, line: str) -> None:
        self.lines.append(line)


class Keyboard(io.StringIO):
    """A stdin that is a terminal."""

    def isatty(self) -> bool:
        return True


def asked(
    monkeypatch: pytest.MonkeyPatch, terminal: Paper, *, yes: bool = False, keyboard: bool = True
) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard() if keyboard else io.StringIO())
    standing_in: Any = terminal
    confirm(standing_in, "Remove it?", yes=yes)


# -- before something is removed -----------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["y", "Y\n", " yes \n", "YES"])
def test_a_yes_is_a_yes(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    terminal = Paper(answer)
    asked(monkeypatch, terminal)
    assert terminal.questions == ["Remove it? [y/N] "]


@pytest.mark.parametrize("answer", ["", "\n", "n", "no", "yess", "ja"])
def test_anything_else_is_a_no(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    with pytest.raises(LlmrsError, match=r"^Nothing was removed\.$"):
        asked(monkeypatch, Paper(answer))


def test_who_said_yes_already_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Paper(is_terminal=False)
    asked(monkeypatch, terminal, yes=True, keyboard=False)
    assert terminal.questions == []


@pytest.mark.parametrize(("keyboard", "is_terminal"), [(False, True), (True, False), (False, False)])
def test_where_nobody_can_be_asked_nothing_is_removed(
    monkeypatch: pytest.MonkeyPatch, keyboard: bool, is_terminal: bool
) -> None:
    terminal = Paper("y", is_terminal=is_terminal)
    with pytest.raises(UsageError) as caught:
        asked(monkeypatch, terminal, keyboard=keyboard)
    assert caught.value.hint == "Add -y, or look first with --dry-run."
    assert terminal.questions == []


def test_without_a_stdin_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    standing_in: Any = Paper("y")
    with pytest.raises(UsageError):
        confirm(standing_in, "Remove it?", yes=False)


# -- time limits ---------------------------------------------------------------------------------------


@pytest.fixture
def alarm() -> Iterator[None]:
    """What the alarm did before is what it does afterwards."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


@pytest.fixture
def no_watchdog() -> Iterator[None]:
    """Leaves the alarm to the test: the runner's own time-out uses it too."""
    handler, (left, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left)


@pytest.mark.usefixtures("no_watchdog", "alarm")
def test_what_takes_too_long_is_ended_past_everything_that_catches_errors() -> None:
    def stubborn() -> None:
        while True:
            try:
                time.sleep(10)
            except Exception:
                continue

    with pytest.raises(TimedOut) as caught, time_limit(0.05):
        stubborn()
    assert caught.value.seconds == 0.05


@pytest.mark.usefixtures("no_watchdog", "alarm")
def test_a_limit_that_falls_into_a_destructor_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ignores what is raised there."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: ignored.append(found.exc_type))

    class Slow:
        def __del__(self) -> None:
            time.sleep(0.2)

    with pytest.raises(TimedOut), time_limit(0.05):
        Slow()
        time.sleep(10)
    assert ignored == [TimedOut]


@pytest.mark.usefixtures("no_watchdog", "alarm")
def test_what_cleans_up_after_a_limit_is_left_to_its_end() -> None:
    ends: list[str] = []
    with pytest.raises(TimedOut), time_limit(0.05):
        try:
            time.sleep(10)
        finally:
            with suppress(ValueError):
                time.sleep(2 * AGAIN)
                int("x")
            ends.append("clean")
    assert ends == ["clean"]


@pytest.mark.usefixtures("no_watchdog", "alarm")
def test_what_ends_in_time_hears_nothing_of_it() -> None:
    with time_limit(60.0):
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60


@pytest.mark.usefixtures("no_watchdog", "alarm")
def test_without_a_limit_there_is_no_alarm() -> None:
    with time_limit(None):
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


# -- progress in words ---------------------------------------------------------------------------------


@given(st.floats(0, 10**6))
def test_a_time_reads_back(seconds: float) -> None:
    parts = [int(part) for part in clock_text(seconds).split(":")]
    total = 0
    for part in parts:
        total = 60 * total + part
    assert total == round(seconds)
    assert len(parts) in (2, 3) and all(part < 60 for part in parts[1:])


def test_time_that_is_over_is_none() -> None:
    assert clock_text(-3) == "0:00"


def test_a_bar_says_speed_and_time_once_something_came() -> None:
    lines: list[str] = []
    clock = iter((0.0, 2.0, 4.0))
    bar = FetchBar("Fetching", lines.append, lambda: next(clock))
    for done in (100 << 20, 100 << 20, 300 << 20):
        bar.update(done, 500 << 20)
    assert ", " not in lines[0] and ", " not in lines[1]
    assert lines[2].endswith("/s, 0:04 left"), "what was there before does not count"


# -- tables and reports --------------------------------------------------------------------------------


def test_every_short_name_has_the_licence_of_the_longest_beginning() -> None:
    for alias in ALIASES.values():
        licence = licence_of(alias.repo)
        fitting = [beginning for beginning in LICENCES if alias.repo.startswith(beginning)]
        assert licence == LICENCES[max(fitting, key=len)], alias.repo


@dataclass
class Small:
    name: str
    values: list[int]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_report_is_json_for_programs_and_lines_for_people(as_json: bool) -> None:
    terminal = Paper()
    standing_in: Any = terminal
    tell(Small("a", [1, 2]), lambda r: [r.name, str(r.values)], standing_in, as_json=as_json)
    if as_json:
        assert [json.loads(line) for line in terminal.lines] == [{"name": "a", "values": [1, 2]}]
    else:
        assert terminal.lines == ["a", "[1, 2]"]


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_fits_a_terminal(llmrs: Run, topic: str) -> None:
    result = llmrs("help", topic)
    assert result.exit_code == 0
    assert result.stdout.strip()
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_a_topic_that_is_none_names_those_there_are(llmrs: Run) -> None:
    result = llmrs("help", "poetry")
    assert result.exit_code == 2
    assert "There is no topic 'poetry'" in result.stderr
    assert all(topic in result.stderr for topic in TOPICS)


# -- forms for answers ---------------------------------------------------------------------------------


def test_a_schema_stands_on_the_command_line_or_in_a_file(tmp_path: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))
    assert json_form(json.dumps(schema), json_mode=False) == schema
    assert json_form(str(path), json_mode=False) == schema


def test_without_a_word_there_is_no_form_and_json_mode_is_any_object() -> None:
    assert json_form(None, json_mode=False) is None
    assert json_form(None, json_mode=True) == {"type": "object"}


@pytest.mark.parametrize(
    ("schema", "kind", "part"),
    [("{", UsageError, "not a JSON object"), ("nowhere.json", ModelError, "no file 'nowhere.json'")],
)
def test_what_is_no_schema_is_said(schema: str, kind: type[LlmrsError], part: str) -> None:
    with pytest.raises(kind, match=part):
        json_form(schema, json_mode=False)


def test_two_forms_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="both given"):
        json_form("{}", json_mode=True)
