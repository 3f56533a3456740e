"""Several answers to one question, and what is said about how answers are drawn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.cli.drafts import finished
from llmrs_cli.engine import FinishReason
from llmrs_cli.errors import ExitCode
from llmrs_cli.text.events import TextEvent
from llmrs_cli.text.reasoning import Opening
from tests.cli.conftest import MakeLadder, Run
from tests.helpers.byte_tokenizer import END_THINK, IM_END, THINK, byte_id, piece_ids
from tests.helpers.ladder import NEWLINE, TOP
from tests.helpers.screen import ScreenSession

END = "<|im_end|>"
A, B = byte_id(ord("A")), byte_id(ord("B"))
ABC, DE = piece_ids()["abc"], piece_ids()["de"]


@pytest.fixture
def coin(ladder: MakeLadder) -> str:
    """A model whose answer is A or B, as likely as not."""
    return ladder("A", table={NEWLINE: {A: TOP, B: TOP}, A: {IM_END: TOP}, B: {IM_END: TOP}})


def test_answers_are_told_apart_by_an_empty_line(llmrs: Run, coin: str) -> None:
    result = llmrs("chat", coin, "-p", "Hi", "-t", "1", "--seed", "5", "--n", "12")
    assert (result.exit_code, result.stderr) == (0, "")
    answers = result.stdout.split("\n\n")
    assert len(answers) == 12
    assert {answer.strip() for answer in answers} == {"A", "B"}
    again = llmrs("run", coin, "Hi", "-t", "1", "--seed", "5", "--n", "12", "--json")
    report = json.loads(again.stdout)
    assert report["texts"] == [answer.strip() for answer in answers]
    assert (report["seed"], set(report["finish_reasons"])) == (5, {"stop"})
    assert report["usage"]["completion_tokens"] == 24


def test_thoughts_and_code_of_each(llmrs: Run, ladder: MakeLadder) -> None:
    model = ladder(THINK, "de", END_THINK, "Try:\n```", "sh\n", "ls\n", "``", "`\n", END)
    result = llmrs("chat", model, "-p", "Hi", "-t", "0", "--n", "2", "-x")
    assert result.stdout == "ls\n\nls\n"
    assert result.stderr.split() == ["de", "de"]
    report = json.loads(llmrs("chat", model, "-p", "Hi", "-t", "0", "--n", "2", "-x", "--json").stdout)
    assert (report["texts"], report["reasonings"]) == (["ls\n"] * 2, ["de"] * 2)


def test_cut_answers_are_counted_and_figures_shown_on_request(llmrs: Run, ladder: MakeLadder) -> None:
    said = llmrs("chat", ladder(), "-p", "Hi", "-t", "0", "--n", "3", "--max-tokens", "1", "--stats").stderr
    assert "3 of 3 answers were cut" in said
    assert "3 answers, 3 tokens, " in said


@pytest.mark.parametrize("args", [["-c"], ["--session", "x"], ["--choices", "a,b"]], ids=lambda args: args[0])
def test_what_does_not_go_together_is_refused(llmrs: Run, ladder: MakeLadder, args: list[str]) -> None:
    result = llmrs("chat", ladder(), "-p", "Hi", "--n", "2", *args)
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert "--n" in result.stderr


def test_an_interrupt_prints_what_there_is(ladder: MakeLadder) -> None:
    endless = ladder("abc", "de", table={DE: {ABC: TOP}})
    process = subprocess.Popen(
        [sys.executable, "-m", "llmrs_cli", "chat", endless, "-p", "Hi", "-t", "0", "--n", "2"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    assert b"Writing answer 1 of 2" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, b"Traceback" in err) == (130, False)
    answers = out.decode().split("\n\n")
    assert len(answers) == 2 and all(answer.startswith("abc") for answer in answers)


@given(st.data(), st.integers(1, 4))
def test_answers_come_whole_and_in_order_however_they_are_interleaved(
    data: st.DataObject, count: int
) -> None:
    pieces = st.lists(st.sampled_from(["a", "<thi", "nk>", "</think>", "\n", ""]), max_size=5)
    texts = [data.draw(pieces) for _ in range(count)]
    left = [
        [TextEvent(i, text) for text in parts] + [TextEvent(i, "", finish_reason=FinishReason.STOP)]
        for i, parts in enumerate(texts)
    ]
    events = []
    while any(left):
        choice = data.draw(st.sampled_from([i for i, rest in enumerate(left) if rest]))
        events.append(left[choice].pop(0))
    found = list(finished(iter(events), count, Opening.ANSWER))
    assert [draft.text for draft in found] == ["".join(parts) for parts in texts]


# -- what decides how they are drawn --------------------------------------------------------------------


MODELS_OWN = {"temperature": 0.5, "top_p": 0.9}


def test_verbose_says_commit_device_sampling_and_context(llmrs: Run, ladder: MakeLadder) -> None:
    model = ladder(generation=MODELS_OWN)
    said = llmrs("chat", model, "-p", "Hi", "-v", "--ctx", "99").stderr
    assert f"{model} on reference; temperature 0.5, top-p 0.9 (from the model); context 99 tokens." in said
    assert "tok/s" in said
    assert "Drawn" not in llmrs("chat", model, "-p", "Hi").stderr, "nothing is said into a pipe unasked"


def test_a_terminal_shows_what_the_model_decides_and_nothing_else(ladder: MakeLadder) -> None:
    cases = [
        (ladder(generation=MODELS_OWN), ["-t", "0"], "Drawn with temperature 0, top-p 0.9 (from the model)."),
        (ladder(), [], None),
    ]
    for model, options, line in cases:
        with ScreenSession(["chat", model, "-p", "Hi", *options], dict(os.environ)) as session:
            assert session.end() == 0
        assert (line is not None) == ("Drawn with" in session.text)
        assert line is None or line in session.text


def test_a_batch_says_what_the_model_decides(llmrs: Run, ladder: MakeLadder) -> None:
    model = ladder(generation=MODELS_OWN)
    row = '{"prompt": "Hi"}'
    assert "Drawn with temperature 0.5, top-p 0.9" in llmrs("batch", "-", "-m", model, stdin=row).stderr
    assert "Drawn" not in llmrs("batch", "-", "-m", model, "-q", stdin=row).stderr
    assert "Drawn" not in llmrs("batch", "-", "-m", ladder(), stdin=row).stderr
