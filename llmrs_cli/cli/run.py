"""`llmrs run MODEL [PROMPT]`: `llmrs chat` for fingers that know it this way.

llmrs run MODEL [PROMPT]...
"""

from __future__ import annotations

import click

from llmrs_cli.cli.ask import Ask, ask_options
from llmrs_cli.cli.options import ModelOptions, Sampling, model_options, quiet_option, sampling_options
from llmrs_cli.cli.parameters import text
from llmrs_cli.cli.terminal import Terminal


@click.command("run")
@model_options(required=True)
@click.argument("words", metavar="[PROMPT]...", nargs=-1, type=text)
@ask_options
@sampling_options
@quiet_option
def command(model: ModelOptions, words: tuple[str, ...], ask: Ask, sampling: Sampling, quiet: bool) -> int:
    """Run a model: answer PROMPT, or talk if there is none.

    The same as llmrs chat, with the prompt as an argument. Nothing runs in the background: the model is
    loaded, answers, and is gone. Options stand before the prompt or behind it.

    \b
      llmrs run qwen2.5-3b
      llmrs run qwen2.5-3b "Why is the sky blue?"
      cat notes.txt | llmrs run qwen2.5-3b Sum up:
    """
    from llmrs_cli.cli.talking import ask_or_talk

    prompt = " ".join(words) if words else None
    return ask_or_talk(model, prompt, ask, sampling, Terminal.standard(quiet=quiet))
