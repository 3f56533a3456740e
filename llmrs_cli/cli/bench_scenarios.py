"""`llmrs bench --scenario`: runs loads of fixed sizes on one loaded model, and shows their figures."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmrs_cli import __version__
from llmrs_cli.cli.bench_names import ALONE, LOADS
from llmrs_cli.cli.terminal import Terminal

if TYPE_CHECKING:
    from llmrs_cli.bench.workplace import Workplace
    from llmrs_cli.cli.status import Status
    from llmrs_cli.engine.weights.checkpoint import Checkpoint

PROFILED = (1, 64)
"""Rows of the steps that are taken apart."""
PROFILE_PROMPT = 256


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run, on what."""

    model: str
    device: str
    scenarios: tuple[str, ...]
    scale: float
    repeats: int
    random_weights: bool
    memory: int | None
    deterministic: bool


def run(checkpoint: Checkpoint, choice: Choice, terminal: Terminal, as_json: bool) -> None:
    """Run the scenarios in their order and print their figures."""
    found = measure(checkpoint, choice, terminal)
    report = {
        "model": choice.model,
        "device": choice.device,
        "random_weights": choice.random_weights,
        "deterministic": choice.deterministic,
        "scale": choice.scale,
        "repeats": choice.repeats,
        "machine": platform.platform(),
        "llmrs": __version__,
        "scenarios": found,
    }
    for line in [json.dumps(report)] if as_json else describe(report):
        terminal.data(line)


def measure(checkpoint: Checkpoint, choice: Choice, terminal: Terminal) -> dict[str, dict[str, Any]]:
    """Figures by scenario."""
    names = list(
        dict.fromkeys(
            name for chosen in choice.scenarios for name in (LOADS if chosen == "all" else (chosen,))
        )
    )
    found: dict[str, dict[str, Any]] = {}
    with terminal.working(f"Loading {choice.model}") as status:
        # Before this process takes memory of the device for itself.
        if "startup" in names:
            found["startup"] = _startup(checkpoint, choice, status)
        if "deterministic" in names:
            found["deterministic"] = _cost_of_determinism(checkpoint, choice, status)
        if rest := [name for name in names if name not in ALONE]:
            with _place(checkpoint, choice, choice.deterministic, status) as place:
                for name in rest:
                    status.say(f"Measuring {name}")
                    found[name] = _scenario(name, place)
    return found


@contextmanager
def _place(
    checkpoint: Checkpoint, choice: Choice, deterministic: bool, status: Status
) -> Iterator[Workplace]:
    from llmrs_cli.bench.workplace import Workplace
    from llmrs_cli.engine.backends.registry import open_backend

    with closing(open_backend(choice.device, deterministic=deterministic)) as backend:
        yield Workplace(checkpoint, backend, choice.scale, choice.repeats, status.update, choice.memory or 0)


def _scenario(name: str, place: Workplace) -> dict[str, Any]:
    from llmrs_cli.bench.profile import profile
    from llmrs_cli.bench.scenarios import SCENARIOS

    if name != "profile":
        return SCENARIOS[name](place)
    prompt = place.scaled(PROFILE_PROMPT)
    return {
        f"rows_{rows}": profile(place, rows, prompt)
        for rows in dict.fromkeys(place.scaled(rows) for rows in PROFILED)
    }


def _startup(checkpoint: Checkpoint, choice: Choice, status: Status) -> dict[str, Any]:
    from llmrs_cli.bench.startup import startup

    return startup(
        checkpoint, choice.device, choice.repeats, random_weights=choice.random_weights, say=status.say
    )


def _cost_of_determinism(checkpoint: Checkpoint, choice: Choice, status: Status) -> dict[str, Any]:
    """Single requests and crowds with bits that may differ and with fixed ones."""
    found: dict[str, Any] = {}
    for kind, deterministic in (("usual", False), ("fixed", True)):
        status.say(f"Measuring {kind} bits")
        with _place(checkpoint, choice, deterministic, status) as place:
            single, crowds = _scenario("single", place), _scenario("throughput", place)
        found[kind] = {
            "token_ms": single["token_ms"],
            **{f"{name}_tokens_per_s": crowd["tokens_per_s"] for name, crowd in crowds.items()},
        }
    usual, fixed = found["usual"], found["fixed"]
    ratios = {name: fixed[name] / usual[name] for name in usual}
    return {**found, "times_as_much": ratios}


def describe(report: Mapping[str, Any]) -> Iterator[str]:
    """The figures for people."""
    kind = " (random weights)" if report["random_weights"] else ""
    yield f"{report['model']}{kind} on {report['device']}, {report['machine']}, medians of {report['repeats']}"
    for name, figures in report["scenarios"].items():
        yield name
        yield from _lines(figures, "  ")


def _lines(figures: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{'part':<34}{'calls':>7}{'us':>10}{'each':>9}{'share':>8}"
            for part in value:
                yield (
                    f"{indent}{part['name']:<34}{part['calls']:>7}{part['us']:>10.1f}{part['each_us']:>9.2f}"
                    f"{part['share']:>8.1%}"
                )
        else:
            yield f"{indent}{name:<34}{_figure(value)}"


def _figure(value: float) -> str:
    """Whole numbers whole, others to four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
