"""What Python programs import; `llmrs_cli` offers the same names, and loads this module when one is used.

    from llmrs_cli import GenerateOptions, open_model

    with open_model("smollm2-135m") as model:
        prompt = model.render([{"role": "user", "content": "Capital of Peru?"}])
        print(model.start(prompt.ids, GenerateOptions(max_tokens=20)).result().choices[0].text)

A model is found, checked and fetched as on the command line, with nothing said: what goes wrong is an
`LlmrsError`, whose `message` and `hint` are sentences for people.
"""

from __future__ import annotations

from pathlib import Path

from llmrs_cli.cli.models import choose, open_engine
from llmrs_cli.cli.options import ModelOptions
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import LlmrsError
from llmrs_cli.text.generate import GenerateOptions, GenerationResult, TextEngine, TextEvent

__all__ = ["GenerateOptions", "GenerationResult", "LlmrsError", "TextEngine", "TextEvent", "open_model"]


def open_model(
    model: str | Path | None = None,
    *,
    device: str | None = None,
    context: int | None = None,
    rows: int | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> TextEngine:
    """Load a model, after fetching what is missing; to be closed, or used in a `with` statement.

    `model`: an alias, owner/repo, a folder or a .gguf file; a `Path` is always a folder or file. `device`:
    auto, cuda, cuda:N, cpu or reference. `context`: tokens of prompt and answer; `rows`: requests that run at
    once. What is None holds as on the command line: variables such as LLMRS_MODEL, then the settings file,
    then what suits the machine. Raises ModelError, AccessError, NetworkError, DoesNotFitError or UsageError.
    """
    named = str(model.absolute()) if isinstance(model, Path) else model
    silent = Terminal(None, None)
    chosen = choose(ModelOptions(named, device, context, rows, offline, revision), silent)
    return open_engine(chosen, silent, rows=rows)
