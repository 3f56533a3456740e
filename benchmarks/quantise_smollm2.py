"""What 4 bits cost SmolLM2-135M: perplexity before and after `llmrs quantize`, with and without activations.

    python benchmarks/quantise_smollm2.py [OUT.json]

The source is the built-in model (GGUF Q4_1, widened to float32 on the way): its own rounding is on both sides of
the comparison. The text is the first 30,000 characters of the language topics that come with Python.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.forced import load
from llmrs_cli.engine.verify import forced_logits
from llmrs_cli.engine.weights.small_head import open_model

MODEL, GROUP, CHARACTERS = "smollm2-135m", "64", 30_000
QUESTION = "What is the capital of France?"


def llmrs(*arguments: str) -> str:
    """stdout of a command line."""
    run = subprocess.run(
        [sys.executable, "-m", "llmrs_cli", *arguments], check=True, capture_output=True, text=True
    )
    return run.stdout


def quantised(folder: Path, text: Path, *flags: str) -> dict[str, Any]:
    """The report of `llmrs quantize`, and what the model then answers."""
    command = (
        "quantize",
        MODEL,
        "-o",
        str(folder),
        "--group-size",
        GROUP,
        "--eval",
        str(text),
        "--json",
        *flags,
    )
    report: dict[str, Any] = json.loads(llmrs(*command))
    question = ("chat", str(folder), "-p", QUESTION, "-t", "0", "--no-stdin", "--max-tokens", "40")
    report["answer"] = llmrs(*question).strip()
    report["command"] = " ".join(("llmrs", *command)).replace(str(folder), "DIR").replace(str(text), "TEXT")
    for key in ("output", "before.file", "after.file"):
        _forget(report, key)
    return report


def small_head(folder: Path, text: Path) -> dict[str, Any]:
    """What `--quantize-head` costs and saves on the 4-bit model, whose head is its embedding in float16.

    That embedding was in 8 bits once (GGUF Q8_0), so its error here is smaller than a head of 16 bits has.
    """
    found: dict[str, Any] = {"logit_error": logit_error(folder)}
    for name, flags in (("plain", ()), ("8 bits", ("--quantize-head",))):
        scored = json.loads(llmrs("eval", str(text), str(folder), "--json", *flags))
        nbytes = open_model(folder, small_head=bool(flags)).bytes_a_step
        found[name] = {"perplexity": scored["perplexity"], "bytes a step": nbytes}
    return found


def logit_error(folder: Path) -> float:
    """‖Δlogits‖/‖logits‖ over a short text, by the reference."""
    ids = [(7919 * i + 13) % 40000 + 100 for i in range(64)]
    plain, small = (
        forced_logits(load(open_model(folder, small_head=small), ReferenceBackend()), ids, 1)
        for small in (False, True)
    )
    return float(np.linalg.norm(small - plain) / np.linalg.norm(plain))


def _forget(report: dict[str, Any], key: str) -> None:
    """Leave out a path that means nothing elsewhere."""
    *outer, last = key.split(".")
    for name in outer:
        report = report[name]
    del report[last]


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "benchmarks/quantise-smollm2.json")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "topics.txt"
        text.write_text("\n".join(topics[key] for key in sorted(topics))[:CHARACTERS], encoding="utf-8")
        found = {
            "python": platform.python_version(),
            "machine": platform.platform(),
            "awq": quantised(folder / "awq", text),
            "head": small_head(folder / "awq", text),
            "rtn": quantised(folder / "rtn", text, "--rtn"),
        }
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
