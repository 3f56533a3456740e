"""SmolLM2-135M Q4_1 on the CPU: llmrs and llama.cpp in turns on the same machine, medians of rounds.

    python -m benchmarks.cpu_smollm2 MODEL.gguf --llama PYTHON [--rounds 9] [--out benchmarks/cpu-smollm2.json]

PYTHON has llama-cpp-python (built with GGML_NATIVE=OFF and AVX-512 on). Both sides stay loaded and are
asked in turns, so that what else the machine does hits both. llmrs runs its whole engine, scheduler and
sampler included; llama.cpp computes logits and is not asked to choose. Rates are tokens a second.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

WARM_UP = 1
"""Rounds before the counted ones."""
CASES: dict[str, dict[str, Any]] = {
    "prompt of 128": {"what": "prompt", "prompt": 128, "count": 1},
    "prompt of 512": {"what": "prompt", "prompt": 512, "count": 1},
    "decode after 16": {"what": "decode", "prompt": 16, "count": 64},
    "decode after 512": {"what": "decode", "prompt": 512, "count": 16},
}
EIGHT: dict[str, Any] = {"what": "decode", "prompt": 16, "count": 64, "rows": 8}


class Side:
    """A child process that measures on request."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        assert self._read() == "ready"
        self.ready_after = time.perf_counter() - self.started

    def ask(self, prompt: int, **case: Any) -> float:
        ids = [(7919 * i + 13) % 40000 + 100 for i in range(prompt)]
        stdin: IO[str] | None = self.process.stdin
        assert stdin is not None
        stdin.write(json.dumps({"prompt": ids, **case}) + "\n")
        stdin.flush()
        return float(self._read())

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def peak_mebibytes(self) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# -- our side, in a process of its own ------------------------------------------------------------------


def serve(model: str) -> None:
    """Measure the engine on request, one JSON line in, one number out."""
    from llmrs_cli.engine.api import open_engine
    from llmrs_cli.engine.backends.registry import open_backend
    from llmrs_cli.engine.weights.checkpoint import open_checkpoint

    engine = open_engine(open_checkpoint(Path(model)), open_backend("cpu"), context=1024)
    run(engine, [5], 1, 1)
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        case = json.loads(line)
        prompt = [token + number for token in case["prompt"]]  # another one each time: no cached prefix
        first, rest = run(engine, prompt, case["count"] + 1, case.get("rows", 1))
        rate = len(prompt) / first if case["what"] == "prompt" else case["count"] * case.get("rows", 1) / rest
        print(rate, flush=True)
    engine.close()


def run(engine: Any, prompt: list[int], count: int, rows: int) -> tuple[float, float]:
    """Seconds until all rows have their first token, and from there to the end."""
    from llmrs_cli.engine.types import Request, SamplingParams

    params = SamplingParams(max_tokens=count, ignore_eos=True)
    for row in range(rows):
        engine.submit(Request(f"{time.monotonic()}-{row}", tuple(token + row for token in prompt), params))
    started = time.perf_counter()
    first, seen = started, set()
    while engine.has_work:
        for event in engine.step():
            seen.add(event.request_id)
            if len(seen) == rows and first == started:
                first = time.perf_counter()
    return first - started, time.perf_counter() - first


# -- both sides in turns ----------------------------------------------------------------------------------


def compare(model: str, llama: str, rounds: int, threads: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.cpu_smollm2", "--serve", model]
    cold, warm = start_times(command)
    ours = Side(command)
    theirs = Side([llama, str(Path(__file__).with_name("cpu_llamacpp.py")), model, str(threads)])
    rates: dict[str, dict[str, list[float]]] = {case: {"llmrs": [], "llama.cpp": []} for case in CASES}
    eight: list[float] = []
    for number in range(WARM_UP + rounds):
        for case, numbers in CASES.items():
            pair = ours.ask(**numbers), theirs.ask(**numbers)
            if number >= WARM_UP:
                for side, rate in zip(("llmrs", "llama.cpp"), pair, strict=True):
                    rates[case][side].append(rate)
        together = ours.ask(**EIGHT)
        if number >= WARM_UP:
            eight.append(together)
    memory = {"llmrs": ours.peak_mebibytes(), "llama.cpp": theirs.peak_mebibytes()}
    ours.close()
    theirs.close()
    medians = {
        case: {side: round(statistics.median(values), 1) for side, values in sides.items()}
        for case, sides in rates.items()
    }
    ratios = {case: round(sides["llmrs"] / sides["llama.cpp"], 2) for case, sides in medians.items()}
    together = statistics.median(eight)
    return {
        "medians": medians,
        "llmrs over llama.cpp": ratios,
        "eight rows": round(together, 1),
        "eight rows over one": round(together / medians["decode after 16"]["llmrs"], 2),
        "peak MiB": memory,
        "seconds to the first token, nothing compiled": round(cold, 1),
        "seconds to the first token, second start": round(warm, 2),
        "all": rates | {"eight rows": eight},
    }


def start_times(command: list[str]) -> tuple[float, float]:
    """Process start to first token, with an empty folder for compiled loops and again."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)  # noqa: PTH101
        env = os.environ | {"LLMRS_CACHE_DIR": folder}
        times = []
        for _ in range(3):
            side = Side(command, env)
            times.append(side.ready_after)
            side.close()
    return times[0], min(times[1:])


def machine() -> dict[str, Any]:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0].split(":")[1].strip() if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--llama", help="interpreter that has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("cpu-smollm2.json"))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen.model)
        return
    report = {
        "date": datetime.date.today().isoformat(),
        "command": "python -m benchmarks.cpu_smollm2 SmolLM2-135M-Instruct.Q4_1.gguf --llama PYTHON",
        "machine": machine(),
        "threads": chosen.threads,
        "rounds": chosen.rounds,
        **compare(chosen.model, chosen.llama, chosen.rounds, chosen.threads),
    }
    report["machine"]["load after"] = round(os.getloadavg()[0], 2)
    chosen.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: value for key, value in report.items() if key != "all"}, indent=1))


if __name__ == "__main__":
    main()
