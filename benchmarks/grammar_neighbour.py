"""What a row under a grammar costs the one beside it, on the CPU: the neighbour's milliseconds between tokens.

    python -m benchmarks.grammar_neighbour MODEL.gguf [--rounds 5] [--out benchmarks/grammar-neighbour.json]

The neighbour is compared with itself beside as many rows that are free, since a row more makes every step longer.
Forms: a long list of objects in JSON, and a grammar of which every text can be read in very many ways, so that a mask takes longer
with each token and none is in time in the end. Rounds take turns, so that what else the machine does hits all alike;
the steps of the engine for each token of the neighbour's, which are 1 if nobody keeps it from a step, it cannot hit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from llmrs_cli.engine import TokenEvent
from llmrs_cli.text import grammar
from llmrs_cli.text.generate import GenerateOptions, Generation, TextEngine

TOKENS = 150
"""Of the neighbour, in a round."""
AMBIGUOUS = 'start: x\nx: "a" | "b" | x x'
RECORDS = {
    "type": "array",
    "minItems": 500,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "tags": {"enum": ["a", "b", "c"]},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}
"""Nobody comes to its end."""
FORMS: dict[str, Callable[[], str]] = {
    "free": lambda: "",
    "json": lambda: grammar.json_schema(RECORDS),
    "ambiguous": lambda: grammar.lark(AMBIGUOUS),
}
COMPANY = (0, 1, 6)
"""Rows beside the neighbour."""


class Round(NamedTuple):
    """What the neighbour had, and what was beside it meanwhile."""

    gaps: list[float]
    """Seconds between its tokens, but for the first few."""
    steps: int
    drawn: int
    """Tokens of the company."""


def measured(engine: TextEngine, form: str, rows: int, seed: int) -> Round:
    """A round beside so many rows of that form."""
    never = tuple((id, -100.0) for id in engine.eos_ids)
    company = GenerateOptions(max_tokens=1500, temperature=1.0, grammar=FORMS[form](), logit_bias=never)
    others: SimpleQueue[TokenEvent] = SimpleQueue()
    beside = [start(engine, company, seed + n, others.put) for n in range(rows)]
    for _ in range(5 * rows):
        assert others.get().finish is None  # all have begun, nearly
    times: list[float] = []
    ended: SimpleQueue[None] = SimpleQueue()

    def note(event: TokenEvent) -> None:
        times.append(time.perf_counter())
        if event.finish is not None:
            ended.put(None)

    before = engine.stats().steps
    start(engine, GenerateOptions(max_tokens=TOKENS, ignore_eos=True), seed, note)
    ended.get()
    steps, drawn = engine.stats().steps - before, others.qsize()
    for one in beside:
        one.cancel()
    ends = 0
    while ends < rows:
        ends += others.get().finish is not None
    return Round([b - a for a, b in zip(times[8:], times[9:], strict=False)], steps, drawn)


def start(
    engine: TextEngine, options: GenerateOptions, seed: int, sink: Callable[[TokenEvent], None]
) -> Generation:
    prompt = engine.encode(f"Number {seed} is", markers=False)
    return engine.start(prompt, options, sink=sink, keeps=False)


def summary(rounds: list[Round]) -> dict[str, float]:
    """Milliseconds, over all rounds; steps, and the company's tokens, for one of the neighbour's."""
    gaps = sorted(1e3 * gap for one in rounds for gap in one.gaps)
    tokens = TOKENS * len(rounds)
    return {
        "p50_ms": round(statistics.median(gaps), 2),
        "p95_ms": round(gaps[int(0.95 * len(gaps))], 2),
        "max_ms": round(gaps[-1], 2),
        "steps_a_token": round(sum(one.steps for one in rounds) / tokens, 2),
        "company_tokens_a_token": round(sum(one.drawn for one in rounds) / tokens, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = [(form, rows) for form in FORMS for rows in COMPANY if rows or form == "free"]
    found: dict[str, list[Round]] = {f"{rows} {form}": [] for form, rows in cases}
    with TextEngine.open(arguments.model, device="cpu", context=2048, rows=8) as engine:
        for number in range(arguments.rounds + 1):
            for form, rows in cases:
                result = measured(engine, form, rows, 10 * number)
                if number:  # the first round only warms up
                    found[f"{rows} {form}"].append(result)
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the end",
        "model": arguments.model.name,
        "rounds": arguments.rounds,
        "tokens": TOKENS,
        "beside": {name: summary(rounds) for name, rounds in found.items()},
    }
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
