"""One question, one answer: as JSON, as a code block, as one of a few labels; and what must not be combined."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from llmrs_cli.errors import ExitCode
from tests.cli.conftest import MakeLadder, Run
from tests.helpers.byte_tokenizer import END_THINK, IM_END, THINK, byte_id, piece_ids
from tests.helpers.ladder import NEWLINE, TOP
from tests.helpers.screen import ScreenSession

END = "<|im_end|>"
A, B = byte_id(ord("A")), byte_id(ord("B"))


def test_json_is_one_object_with_the_answer_and_its_figures(llmrs: Run, ladder: MakeLadder) -> None:
    model = ladder(THINK, "de", END_THINK, "abc", END)
    result = llmrs("chat", model, "-p", "Hi", "-t", "0", "--seed", "3", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["text"], report["reasoning"], report["finish_reason"]) == ("abc", "de", "stop")
    assert report["usage"]["completion_tokens"] == 5
    assert (report["seed"], report["model"]) == (3, model)
    assert result.stdout.count("\n") == 1


def test_json_of_a_cut_answer_says_length(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder(), "-p", "Hi", "-t", "0", "--max-tokens", "1", "--json")
    assert json.loads(result.stdout)["finish_reason"] == "length"
    assert "--max-tokens" in result.stderr


FENCED = ("Try:\n```", "sh\n", "ls\n", "``", "`\nor:\n", "~~~\npwd\n~~~", END)


def test_extract_prints_the_first_code_block_alone(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder(*FENCED), "-p", "Hi", "-t", "0", "-x")
    assert (result.exit_code, result.stdout) == (0, "ls\n")


def test_extract_with_json(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder(*FENCED), "-p", "Hi", "-t", "0", "-x", "--json")
    assert json.loads(result.stdout)["text"] == "ls\n"


def test_extract_without_a_block_prints_all_and_says_so(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder(), "-p", "Hi", "-t", "0", "-x")
    assert result.stdout == "Hello world\n"
    assert "no code block" in result.stderr


def test_no_stream_prints_the_same(llmrs: Run, ladder: MakeLadder) -> None:
    assert llmrs("chat", ladder(), "-p", "Hi", "-t", "0", "--no-stream").stdout == "Hello world\n"


# -- choices ------------------------------------------------------------------------------------------


@pytest.fixture
def chooser(ladder: MakeLadder) -> str:
    """After a prompt A three times as likely as B."""
    return ladder("OK", table={NEWLINE: {A: 11.0986, B: 10.0}, A: {IM_END: 20.0}, B: {IM_END: 20.0}})


def test_the_likeliest_label_is_the_answer(llmrs: Run, chooser: str) -> None:
    result = llmrs("chat", chooser, "-p", "Which?", "--choices", "B, A", "--stats")
    assert (result.exit_code, result.stdout) == (0, "A\n")
    assert "A 75.1 %, B 24.9 %" in result.stderr


def test_probabilities_in_the_order_of_the_labels(llmrs: Run, chooser: str) -> None:
    result = llmrs("chat", chooser, "-p", "Which?", "--choices", "B,A", "--json")
    report = json.loads(result.stdout)
    assert report["choice"] == "A"
    assert list(report["probabilities"]) == ["B", "A"]
    assert report["probabilities"]["A"] == pytest.approx(0.75, abs=2e-3)


def test_choices_tell_a_model_not_to_think(llmrs: Run, ladder: MakeLadder) -> None:
    template = "{{- messages[-1].content }}{{ 'AB'[enable_thinking|int] + '\\n' }}"
    model = ladder("OK", chat_template=template, table={NEWLINE: {A: 12.0, B: 10.0}})
    assert llmrs("chat", model, "-p", "?", "--choices", "A,B").exit_code == 0


@pytest.mark.parametrize("typed", ["A", "A,A", "A,", ","])
def test_labels_that_are_no_choice(llmrs: Run, ladder: MakeLadder, typed: str) -> None:
    result = llmrs("chat", ladder(), "-p", "Hi", "--choices", typed)
    assert result.exit_code == ExitCode.USAGE
    assert "two different labels" in result.stderr


def test_a_label_in_quotes_may_hold_a_comma(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder(), "-p", "Hi", "--choices", '"a, b",c', "--json")
    assert list(json.loads(result.stdout)["probabilities"]) == ["a, b", "c"]


# -- forms --------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [7]}},
    "required": ["n"],
    "additionalProperties": False,
}


def test_a_schema_holds_the_answer_to_its_form(llmrs: Run, ladder: MakeLadder, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    for given in (json.dumps(SCHEMA), str(tmp_path / "schema.json")):
        result = llmrs("chat", ladder(), "-p", "Hi", "-t", "0", "--schema", given)
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout) == {"n": 7}


def test_json_mode_gives_an_object(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder(), "-p", "Hi", "-t", "0", "--json-mode", "--max-tokens", "1")
    assert result.stdout.startswith("{")


@pytest.mark.parametrize(
    ("args", "status", "part"),
    [
        (("--schema", "[1]"), ExitCode.MODEL, "no file"),
        (("--schema", "{"), ExitCode.USAGE, "not a JSON object"),
        (("--schema", '{"type": "nothing"}'), ExitCode.USAGE, "cannot be followed"),
        (("--schema", "{}", "--json-mode"), ExitCode.USAGE, "--schema and --json-mode"),
        (("--choices", "a,b", "--json-mode"), ExitCode.USAGE, "--choices and --schema"),
    ],
)
def test_forms_that_are_refused(
    llmrs: Run, ladder: MakeLadder, args: tuple[str, ...], status: int, part: str
) -> None:
    result = llmrs("chat", ladder(), "-p", "Hi", *args)
    assert (result.exit_code, result.stdout) == (status, "")
    assert part in result.stderr


# -- thinking and templates ---------------------------------------------------------------------------

SAYS_ITS_ARGUMENTS = (
    "{{- [enable_thinking is defined and enable_thinking, reasoning_effort is defined and reasoning_effort, "
    "x is defined and x]|tojson + messages[-1].content + '\\n' }}"
)


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ((), "[false, false, false]"),
        (("--think",), "[true, false, false]"),
        (("--think=off",), "[false, false, false]"),
        (("--think=high",), '[true, "high", false]'),
        (("--template-kwargs", '{"x": 3}'), "[false, false, 3]"),
        (("--think", "--template-kwargs", '{"enable_thinking": false}'), "[false, false, false]"),
    ],
)
def test_switches_reach_the_template(
    llmrs: Run, ladder: MakeLadder, flags: tuple[str, ...], arguments: str
) -> None:
    """The prompt's length tells which text the template made: one token a byte."""
    model = ladder(chat_template=SAYS_ITS_ARGUMENTS)
    result = llmrs("chat", model, "-p", "Hi", "-t", "0", "--json", *flags)
    assert json.loads(result.stdout)["usage"]["prompt_tokens"] == len(arguments + "Hi\n")


@pytest.mark.parametrize("flag", [(), ("-R",)])
def test_thoughts_go_to_stderr_or_nowhere(llmrs: Run, ladder: MakeLadder, flag: tuple[str, ...]) -> None:
    result = llmrs("chat", ladder(THINK, "de", END_THINK, "abc", END), "-p", "Hi", "-t", "0", *flag)
    assert result.stdout == "abc\n"
    assert ("de" in result.stderr) is not bool(flag)


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("--template-kwargs", "[1]"), "not a JSON object"),
        (("--template-kwargs", "{"), "not a JSON object"),
        (("--template-kwargs", '{"messages": 1}'), "may not be named"),
        (("--choices", "a,b", "-x"), "--choices and -x"),
        (("-c", "--session", "x"), "-c and --session"),
        (("--session", "../x"), "cannot be the name"),
        (("-c",), "no session to go on with"),
        (("--overflow", "none"), "'error', 'oldest', 'summarize'"),
        (("--timeout", "0"), "--timeout"),
    ],
)
def test_what_is_refused(llmrs: Run, ladder: MakeLadder, args: tuple[str, ...], part: str) -> None:
    result = llmrs("chat", ladder(), "-p", "Hi", *args)
    assert result.exit_code == ExitCode.USAGE
    assert part in result.stderr


# -- time ---------------------------------------------------------------------------------------------


def test_a_timeout_ends_with_124_and_keeps_what_was_said(llmrs: Run, ladder: MakeLadder) -> None:
    abc, de = piece_ids()["abc"], piece_ids()["de"]
    endless = ladder("abc", "de", table={de: {abc: TOP}}, context=20_000)
    result = llmrs("chat", endless, "-p", "Hi", "-t", "0", "--timeout", "1.5")
    assert result.exit_code == ExitCode.TIMEOUT
    assert result.stdout.startswith("abcde") and result.stdout.endswith("\n")
    assert "limit of 1.5 s" in result.stderr


def test_a_clock_that_jumps_ends_nothing(
    llmrs: Run, ladder: MakeLadder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(10**6, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    result = llmrs("chat", ladder(), "-p", "Hi", "-t", "0", "--timeout", "600", "--json")
    assert result.exit_code == 0
    assert 0 <= json.loads(result.stdout)["seconds"]["total"] < 600


# -- sessions -----------------------------------------------------------------------------------------


def test_one_question_is_saved_only_if_a_session_is_named(
    llmrs: Run, ladder: MakeLadder, environment: Path
) -> None:
    folder = environment / ".local/state/llmrs/sessions"
    llmrs("chat", ladder(), "-p", "Hi", "-t", "0")
    assert not folder.exists()
    llmrs("chat", ladder(), "-p", "one", "-t", "0", "--session", "x")
    llmrs("chat", ladder(), "-p", "two", "-t", "0", "-c")
    llmrs("chat", ladder(), "-p", "three", "-t", "0", "-c", "--no-save")
    turns = json.loads((folder / "x.json").read_text())["turns"]
    assert [turn["question"] for turn in turns] == ["one", "two"]


def test_a_session_goes_on_with_its_own_model_unless_one_is_named(llmrs: Run, ladder: MakeLadder) -> None:
    llmrs("chat", ladder("abc", END), "-p", "one", "-t", "0", "--session", "x")
    assert llmrs("chat", "-p", "two", "-t", "0", "-c").stdout == "abc\n"
    assert llmrs("chat", ladder("de", END), "-p", "three", "-t", "0", "--session", "x").stdout == "de\n"


def test_a_session_that_outgrew_its_context_is_refused_or_shortened_aloud(
    llmrs: Run, ladder: MakeLadder
) -> None:
    run = ("chat", ladder(), "-t", "0", "--ctx", "100", "--session", "x", "--max-tokens", "5")
    llmrs(*run, "-p", "a" * 40)
    refused = llmrs(*run, "-p", "b" * 40)
    assert refused.exit_code == ExitCode.USAGE
    assert "100" in refused.stderr and refused.stdout == ""
    shortened = llmrs(*run, "-p", "b" * 40, "--overflow", "oldest")
    assert (shortened.exit_code, shortened.stdout) == (0, "Hello world\n")
    assert "no longer sent" in shortened.stderr


def test_an_answer_on_a_terminal_is_markdown_and_in_a_pipe_it_is_not(
    llmrs: Run, ladder: MakeLadder, environment: Path
) -> None:
    model = ladder("The", " **", "bold", "**", END)
    assert llmrs("chat", model, "-p", "Hi", "-t", "0").stdout == "The **bold**\n"
    shown = {}
    for name, extra in {"": {}, "NO_COLOR": {"NO_COLOR": "1"}, "dumb": {"TERM": "dumb"}}.items():
        with ScreenSession(["chat", model, "-p", "Hi", "-t", "0"], {**os.environ, **extra}) as opened:
            assert opened.end() == 0
        shown[name] = opened
    assert "The bold" in shown[""].text and b"\x1b[1mbold" in shown[""].raw
    for name in ("NO_COLOR", "dumb"):
        assert "The **bold**" in shown[name].text
        assert b"\x1b[1m" not in shown[name].raw


@pytest.mark.parametrize(
    "escape", ["\x1b]52;c;eA==\x07", "\x1b[31m", "\x9b1m", "\x07", "\x1b]8;;http://x\x1b\\"]
)
def test_markdown_lets_no_sequence_of_the_model_through(
    ladder: MakeLadder, environment: Path, escape: str
) -> None:
    model = ladder("The", *byte_ids_apart(escape), "abc", END)
    with ScreenSession(["chat", model, "-p", "Hi", "-t", "0"], dict(os.environ)) as opened:
        assert opened.end() == 0
    assert escape.encode() not in opened.raw
    assert b"\x1b]" not in opened.raw and b"\x07" not in opened.raw and b"\x1b[31m" not in opened.raw


def byte_ids_apart(text: str) -> list[str]:
    """A piece for every two characters, so that a sequence arrives in parts."""
    return [text[start : start + 2] for start in range(0, len(text), 2)]
