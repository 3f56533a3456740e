"""Asks a model one question, or talks to it.

llmrs chat [MODEL] [-p TEXT] [-f FILE]... [-s SYSTEM]
"""

from __future__ import annotations

import click

from llmrs_cli.cli.ask import Ask, ask_options
from llmrs_cli.cli.options import ModelOptions, Sampling, model_options, quiet_option, sampling_options
from llmrs_cli.cli.parameters import text
from llmrs_cli.cli.terminal import Terminal


@click.command("chat")
@model_options()
@click.option("-p", "--prompt", type=text, metavar="TEXT", help="Ask this and leave.")
@ask_options
@sampling_options
@quiet_option
def command(model: ModelOptions, prompt: str | None, ask: Ask, sampling: Sampling, quiet: bool) -> int:
    """Talk to a model, or ask it one question.

    With -p, -f, piped input or away from a terminal, one question is answered and llmrs leaves: the prompt
    comes first, then after a blank line each file and what is piped in. Else a conversation begins; /help
    lists what can be typed, and every answer is saved (llmrs sessions).

    stdout carries the answer and nothing else; thinking, notices and figures go to stderr.

    \b
      llmrs chat qwen2.5-3b
      llmrs chat -c                                   go on where you left
      git diff | llmrs chat -p "Write a commit message."
      llmrs chat -p "Is this spam?" -f mail.txt --choices yes,no --json
      llmrs chat -p "A shell script that ..." -x > script.sh
    """
    from llmrs_cli.cli.talking import ask_or_talk

    return ask_or_talk(model, prompt, ask, sampling, Terminal.standard(quiet=quiet))
