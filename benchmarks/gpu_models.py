"""Every figure of whole models on a GPU in one call, beside what is aimed at; JSON for each model.

    python3 -m benchmarks.gpu_models FOLDER [7b 3b 0.5b 7b-awq] [--scenarios single,throughput,…]

Runs `llmrs bench` with random weights in the real shapes, a process a model, and prints one table at the end.
Figures of other engines are those of vLLM 0.24 on one H200, same shapes, median of repeats; whether it had rested before
first tokens and prefill, as ours has half a second, is not known.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCENARIOS = (
    "startup",
    "single",
    "throughput",
    "prefill",
    "sampled",
    "prefix",
    "long",
    "mixed",
    "deterministic",
    "profile",
)


@dataclass(frozen=True)
class Target:
    """One figure: where it stands in the report, what it must reach, what vLLM reaches."""

    name: str
    path: tuple[str, ...]
    bound: float
    other: float | None
    least: bool = True
    """The figure must be at least `bound`; else at most."""

    def found(self, scenarios: dict[str, Any]) -> float | None:
        value: Any = scenarios
        for key in self.path:
            if not isinstance(value, dict) or key not in value:
                return None
            value = value[key]
        return float(value)

    def met(self, value: float) -> bool:
        return value >= self.bound if self.least else value <= self.bound


def most(name: str, path: str, bound: float, other: float | None = None) -> Target:
    return Target(name, tuple(path.split(".")), bound, other, least=False)


def least(name: str, path: str, bound: float, other: float | None = None) -> Target:
    return Target(name, tuple(path.split(".")), bound, other)


TARGETS = {
    "7b": (
        most("ms a token, one request", "single.token_ms", 3.6, 4.86),
        most("first token after 256, ms", "single.first_token_ms", 9, 10),
        most("first token after 1,200, ms", "single.first_token_1200_ms", 24, 29),
        least("tok/s, 64 of 256 running", "throughput.running_64.tokens_per_s", 11_000, 8_034),
        least("tok/s, all 256 running", "throughput.running_256.tokens_per_s", 14_500, 12_188),
        least("device busy, 64 running", "throughput.running_64.device_busy", 0.97),
        least("prefill 16 x 2,048, tok/s", "prefill.tokens_per_s", 50_000, 46_400),
        most("start to first token, s", "startup.warm_s", 8, 70),
        least("sampled over greedy, one row", "sampled.rows_1.sampled_share", 0.95),
        least("sampled over greedy, 64 rows", "sampled.rows_64.sampled_share", 0.95),
        least("sooner with a cached prefix", "prefix.times_sooner", 5),
    ),
    "3b": (
        most("ms a token, one request", "single.token_ms", 2.0, 3.00),
        most("first token after 256, ms", "single.first_token_ms", 6, 33),
        most("first token after 1,200, ms", "single.first_token_1200_ms", 12, 30),
        least("tok/s, 64 of 256 running", "throughput.running_64.tokens_per_s", 21_000, 13_020),
        least("prefill 16 x 2,048, tok/s", "prefill.tokens_per_s", 110_000, 98_300),
        most("start to first token, s", "startup.warm_s", 5),
    ),
    "0.5b": (
        most("ms a token, one request", "single.token_ms", 0.65, 1.53),
        most("first token after 256, ms", "single.first_token_ms", 3, 16.3),
        most("first token after 1,200, ms", "single.first_token_1200_ms", 4, 17),
        least("tok/s, 64 of 256 running", "throughput.running_64.tokens_per_s", 45_000, 21_173),
        least("device busy, 64 running", "throughput.running_64.device_busy", 0.85),
        least("prefill 16 x 2,048, tok/s", "prefill.tokens_per_s", 480_000, 454_300),
        most("start to first token, s", "startup.warm_s", 4),
        least("sampled over greedy, one row", "sampled.rows_1.sampled_share", 0.90),
        least("sampled over greedy, 64 rows", "sampled.rows_64.sampled_share", 0.90),
    ),
    "7b-awq": (
        most("ms a token, one request", "single.token_ms", 1.7, 3.78),
        most("first token after 256, ms", "single.first_token_ms", 9, 11),
        most("first token after 1,200, ms", "single.first_token_1200_ms", 27, 31),
        least("tok/s, 64 of 256 running", "throughput.running_64.tokens_per_s", 12_000, 7_931),
        least("prefill 16 x 2,048, tok/s", "prefill.tokens_per_s", 47_000, 45_200),
        most("start to first token, s", "startup.warm_s", 6),
    ),
}


def command(model: str, scenarios: list[str]) -> list[str]:
    chosen = [part for name in scenarios for part in ("-s", name)]
    return [
        sys.executable, "-m", "llmrs_cli", "bench", f"qwen2.5-{model}", "--random-weights", "--device", "cuda",
        "--json", *chosen,
    ]  # fmt: skip


def measure(model: str, scenarios: list[str]) -> dict[str, Any]:
    """The report of one model, with how it was made."""
    asked = command(model, scenarios)
    began = time.perf_counter()
    run = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(run.stdout)
    return {
        "command": "llmrs " + " ".join(asked[3:]),
        "took_s": round(time.perf_counter() - began, 1),
        **report,
    }


def table(model: str, scenarios: dict[str, Any]) -> list[str]:
    lines = []
    for target in TARGETS[model]:
        value = target.found(scenarios)
        if value is not None:
            mark = "ok" if target.met(value) else "MISSED"
            sign = ">=" if target.least else "<="
            other = "" if target.other is None else f"   vLLM {target.other:g}"
            lines.append(
                f"{model:>6}  {target.name:<32}{value:>12.4g}  {sign} {target.bound:<8g}{mark:<7}{other}"
            )
    return lines


IN_README = (
    "ms a token, one request",
    "tok/s, 64 of 256 running",
    "first token after 1,200, ms",
    "prefill 16 x 2,048, tok/s",
    "start to first token, s",
)
"""Targets that the README shows."""


def readme_table(records: Sequence[dict[str, Any]]) -> str:
    """Rows of the README's table: what was found for each model, with vLLM's figure in brackets."""
    scenarios = {record["model"].removeprefix("qwen2.5-"): record["scenarios"] for record in records}
    head = f"| Qwen2.5 | {' | '.join(scenarios)} |", "| --- |" + " --- |" * len(scenarios)
    rows = (
        f"| {name} | {' | '.join(_cell(m, name, found) for m, found in scenarios.items())} |"
        for name in IN_README
    )
    return "\n".join((*head, *rows))


def _cell(model: str, name: str, scenarios: dict[str, Any]) -> str:
    target = next(target for target in TARGETS[model] if target.name == name)
    value = target.found(scenarios)
    if value is None:
        return ""
    return _figure(value) if target.other is None else f"{_figure(value)} ({_figure(target.other)})"


def _figure(value: float) -> str:
    """Three digits that count, or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=[])
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    chosen = parser.parse_args()
    lines: list[str] = []
    for model in chosen.models or TARGETS:
        report = measure(model, chosen.scenarios.split(","))
        (chosen.folder / f"gpu-{model}.json").write_text(json.dumps(report, indent=1) + "\n")
        lines += table(model, report["scenarios"])
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
