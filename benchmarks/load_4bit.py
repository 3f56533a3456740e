"""How long 4-bit files of a 7B model take to load on the CPU, from the page cache.

    python benchmarks/load_4bit.py [OUT.json]

A few layers of Qwen2.5-7B's shapes are written with random words (AWQ, GPTQ, converted, and a converted copy that was
moved and so is checked), with as large a part of its embedding and head, read once so that they are cached, and loaded. Seconds are given for that part and, in
proportion, for the model with all 28 layers; and the same for reading them as a GPU takes them, with nothing unpacked.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from llmrs_cli.engine.backends.registry import open_backend
from llmrs_cli.engine.model.names import linear_shapes
from llmrs_cli.engine.model.spec import from_config
from llmrs_cli.engine.weights.ahead import files_of
from llmrs_cli.engine.weights.checkpoint import Checkpoint, open_checkpoint
from llmrs_cli.engine.weights.convert import convert
from llmrs_cli.engine.weights.load import load_model

LAYERS, ALL_LAYERS, GROUP, REPEATS = 3, 28, 128, 9
VOCAB = 152064
GPU_AHEAD = 2 << 30
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCAB * LAYERS // ALL_LAYERS,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float16",
    "tie_word_embeddings": False,
}
QUANTISED = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": "gptq_v2"},
}


def write(folder: Path, method: str) -> Path:
    """A model folder with random words."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": QUANTISED[method]}))
    rng = np.random.default_rng(0)
    hidden = CONFIG["hidden_size"]
    table = rng.standard_normal((CONFIG["vocab_size"], hidden), np.float32).astype(np.float16)
    tensors: dict[str, Any] = {
        "model.embed_tokens.weight": table,
        "lm_head.weight": table,
        "model.norm.weight": np.ones(hidden, np.float16),
    }

    def words(*shape: int) -> Any:
        return rng.integers(-(2**31), 2**31, shape, dtype=np.int32)

    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{start}{norm}.weight"] = np.ones(hidden, np.float16)
        for module, (n, k) in linear_shapes(from_config(CONFIG)).items():
            shape = (k, n // 8) if method == "awq" else (k // 8, n)
            tensors[f"{start}{module}.qweight"] = words(*shape)
            tensors[f"{start}{module}.qzeros"] = words(k // GROUP, n // 8)
            tensors[f"{start}{module}.scales"] = np.full((k // GROUP, n), 0.01, np.float16)
            if module[-6] in "qkv":
                tensors[f"{start}{module}.bias"] = np.zeros(n, np.float16)
    save_file(tensors, folder / "model.safetensors")
    return folder


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Wall seconds and processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - processor


def measured(folders: dict[str, Path]) -> dict[str, Any]:
    """Of each, the best by the clock of REPEATS rounds: all take their turns, so that each meets the same machine."""
    checkpoints = {name: open_checkpoint(path) for name, path in folders.items()}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _, (name, checkpoint) in product(range(REPEATS), checkpoints.items()):
        with closing(open_backend("cpu")) as backend:
            loaded = timed(partial(load_model, checkpoint, backend, context=64))
        found.setdefault((name, "on the CPU"), []).append(loaded)
        found.setdefault((name, "as a GPU takes them"), []).append(timed(partial(read_all, checkpoint)))
    return {
        name: {"bytes": sum(parameter.nbytes for parameter in checkpoint.parameters.values())}
        | {way: seconds(*min(found[name, way])) for way in ("on the CPU", "as a GPU takes them")}
        for name, checkpoint in checkpoints.items()
    }


def read_all(checkpoint: Checkpoint) -> None:
    """Every parameter as its file holds it, several at a time."""
    with files_of(checkpoint.parameters, GPU_AHEAD, stored=True) as read:
        for name in checkpoint.parameters:
            read(name)


def seconds(wall: float, processor: float) -> dict[str, float]:
    """As measured, and for the whole model."""
    return {
        "seconds": wall,
        "processor seconds": processor,
        "seconds for the model": wall * ALL_LAYERS / LAYERS,
        "processor seconds for the model": processor * ALL_LAYERS / LAYERS,
    }


def main() -> None:
    found: dict[str, Any] = {
        "machine": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "load average": os.getloadavg()[0],  # far above the cores, seconds mean little; processor seconds do
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folders = {method: write(folder / method, method) for method in QUANTISED}
        folders["converted"] = folder / "converted"
        folders["converted"].mkdir()
        list(convert(open_checkpoint(folders["awq"]), "awq", folders["converted"]))
        folders["converted and moved"] = shutil.copytree(folders["converted"], folder / "moved")
        found |= measured(folders)
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "benchmarks/load-4bit.json")
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
