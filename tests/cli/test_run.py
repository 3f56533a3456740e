"""`llmrs run MODEL [PROMPT]`: the same answers as chat, with the prompt as an argument."""

from __future__ import annotations

import os
from pathlib import Path

from llmrs_cli.errors import ExitCode
from tests.cli.conftest import MakeLadder, Run
from tests.helpers.screen import ScreenSession


def test_the_prompt_is_an_argument_and_may_be_several_words(llmrs: Run, ladder: MakeLadder) -> None:
    model = ladder()
    one = llmrs("run", model, "Why is it?", "-t", "0")
    assert (one.exit_code, one.stdout) == (0, "Hello world\n")
    assert llmrs("run", model, "-t", "0", "Why", "is", "it?").stdout == one.stdout


def test_piped_text_comes_behind_the_prompt(llmrs: Run, ladder: MakeLadder) -> None:
    model = ladder(chat_template="{{- messages[-1].content + '\\n' }}")
    piped = llmrs("run", model, "Sum", "up:", "-t", "0", "--json", stdin="text")
    typed = llmrs("run", model, "Sum up:\n\ntext", "-t", "0", "--json", "--no-stdin")
    assert piped.stdout.split('"usage"')[1].split("}")[0] == typed.stdout.split('"usage"')[1].split("}")[0]


def test_without_a_prompt_stdin_is_the_question(llmrs: Run, ladder: MakeLadder) -> None:
    assert llmrs("run", ladder(), "-t", "0", stdin="Hi").stdout == "Hello world\n"


def test_without_a_model_it_says_so(llmrs: Run) -> None:
    result = llmrs("run")
    assert result.exit_code == ExitCode.USAGE
    assert "No model is named" in result.stderr


def test_verbose_is_stats(llmrs: Run, ladder: MakeLadder) -> None:
    assert "tok/s" in llmrs("run", ladder(), "Hi", "-t", "0", "--verbose").stderr


def test_on_a_terminal_it_talks(ladder: MakeLadder, environment: Path) -> None:
    with ScreenSession(["run", ladder(), "-t", "0"], dict(os.environ)) as opened:
        opened.wait_for_prompt()
        opened.press("/bye\r")
        assert opened.end() == 0
