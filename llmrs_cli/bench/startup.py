"""From the start of a process to its first token, with nothing compiled and again, weights in the page cache.

Random weights are written to a folder first, which is not timed; it is removed afterwards.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.quantise.files import awq_entries, awq_words
from llmrs_cli.engine.weights.checkpoint import Checkpoint
from llmrs_cli.engine.weights.packed import Dense, Packed4, Weight
from llmrs_cli.engine.weights.quantisation import read_quantisation
from llmrs_cli.engine.weights.writing import Entry, TensorFile
from llmrs_cli.errors import EngineFault, UsageError

STORED = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
CACHES = ("LLMRS_CACHE_DIR", "XDG_CACHE_HOME")
"""Where what is compiled is kept."""


def startup(
    checkpoint: Checkpoint,
    device: str,
    repeats: int,
    *,
    random_weights: bool,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Seconds of a start with empty caches, and the median of `repeats` more. Raises EngineFault if one fails."""
    with _on_disk(checkpoint, random_weights, say) as path, tempfile.TemporaryDirectory() as caches:
        _read_once(path)
        say("Starting with nothing compiled")
        cold = _start(path, device, caches)
        say("Starting again")
        warm = [_start(path, device, caches) for _ in range(repeats)]
    best = min(warm, key=lambda run: run["process_s"])
    loading = best["last_weight_s"] - best["first_weight_s"]
    rate = best["weight_bytes"] / max(loading, 1e-9) / 1e9
    found = {
        "cold_s": cold["process_s"],
        "warm_s": statistics.median(run["process_s"] for run in warm),
        "weights_gb_per_s": rate,
    }
    if "bus_gb_per_s" in best:
        found["weights_share_of_bus"] = rate / best["bus_gb_per_s"]
    return {**found, "cold": cold, "warm": best}


def _start(path: Path, device: str, caches: str) -> dict[str, Any]:
    """One process; its milestones and the seconds that it took until it had the token."""
    command = [sys.executable, "-m", "llmrs_cli.bench.first_token", str(path), device]
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        env={**os.environ, **dict.fromkeys(CACHES, caches)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
        problem = process.stderr.read()
    if process.returncode:
        last = problem.strip().splitlines()[-1:] or ["no word"]
        raise EngineFault(f"The process that was started to be timed failed: {last[0][:300]}")
    marks: dict[str, Any] = json.loads(line)
    # Its clock begins after the interpreter; the token was there a moment before the line.
    return {"process_s": seconds, **marks}


@contextmanager
def _on_disk(checkpoint: Checkpoint, random_weights: bool, say: Callable[[str], None]) -> Iterator[Path]:
    if not random_weights:
        yield checkpoint.path
        return
    with tempfile.TemporaryDirectory(prefix="llmrs-") as folder:
        say("Writing random weights")
        write_checkpoint(checkpoint, Path(folder))
        yield Path(folder)


def write_checkpoint(checkpoint: Checkpoint, folder: Path) -> None:
    """A model of random weights as a folder that `open_checkpoint` takes; 4-bit ones become AWQ's words.

    Raises UsageError for 4 bits in another format.
    """
    entries: dict[str, Entry] = {}
    for name, parameter in checkpoint.parameters.items():
        if parameter.form in STORED:
            entries[name] = Entry(STORED[parameter.form], parameter.shape)
            continue
        pieces = awq_entries(parameter.shape, _group(checkpoint, parameter.shape[1]))
        entries |= {f"{_module(name)}.{piece}": entry for piece, entry in pieces.items()}
    (folder / "config.json").write_text(json.dumps(checkpoint.config), encoding="utf-8")
    with TensorFile(folder / "model.safetensors", entries, {"format": "pt"}) as file:
        for name, parameter in checkpoint.parameters.items():
            for tensor, values in _tensors(name, parameter.read()).items():
                file.write(tensor, values.view(entries[tensor].kind))


def _group(checkpoint: Checkpoint, columns: int) -> int:
    """Columns of a 4-bit layer that share a scale."""
    found = read_quantisation(checkpoint.config)
    if found is None or found.method != "awq" or found.by_rows:
        raise UsageError("Random weights of 4 bits are written as AWQ only; name a model that is there.")
    return found.group_of(columns)


def _module(weight: str) -> str:
    return weight.removesuffix(".weight")


def _tensors(name: str, weight: Weight) -> dict[str, NDArray[Any]]:
    """What is stored of a weight: random codes are as random in another order, so their bytes are words as they are."""
    if isinstance(weight, Dense):
        return {name: weight.data}
    assert isinstance(weight, Packed4) and weight.zeros is not None
    n, k = weight.shape
    return {
        f"{_module(name)}.qweight": weight.codes.reshape(-1).view(np.int32).reshape(k, n // 8),
        f"{_module(name)}.qzeros": awq_words(weight.zeros),
        f"{_module(name)}.scales": np.ascontiguousarray(weight.scales.T),
    }


def _read_once(path: Path) -> None:
    """Bring the weights into the page cache."""
    for file in [path] if path.is_file() else sorted(path.glob("*.safetensors")):
        with file.open("rb", buffering=0) as source:
            while source.read(1 << 26):
                pass
