"""Use the engine from Python: one answer as it grows, then many at once.

python examples/library.py [MODEL]
"""

from __future__ import annotations

import sys

from llmrs_cli import GenerateOptions, LlmrsError, TextEngine, open_model

PLACES = ["Peru", "Norway", "Kenya"]


def ask(model: TextEngine, question: str) -> tuple[int, ...]:
    """The question as the model's chat template writes it."""
    return model.render([{"role": "user", "content": question}]).ids


def main(name: str | None) -> None:
    options = GenerateOptions(max_tokens=40, temperature=0)
    with open_model(name) as model:
        for event in model.start(ask(model, "Who are you?"), options):
            print(event.text, end="", flush=True)
        print()
        # All of these run together; each is ready when it is asked for its result.
        runs = [model.start(ask(model, f"What is the capital of {place}?"), options) for place in PLACES]
        for place, run in zip(PLACES, runs, strict=True):
            print(f"{place}: {run.result().choices[0].text}")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else None)
    except LlmrsError as error:
        sys.exit(f"{error.message} {error.hint or ''}")
