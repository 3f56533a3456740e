"""AWQ's files: which tensors a quantised model has, and the small files beside them.

The layout is that of AutoAWQ's "gemm" (see `weights.awq`), which vLLM and transformers read; everything that is
not quantised is float16, which both expect beside it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.model import names
from llmrs_cli.engine.quantise.layer import LINEARS
from llmrs_cli.engine.quantise.rounding import Rounded
from llmrs_cli.engine.weights.awq import ORDER
from llmrs_cli.engine.weights.checkpoint import CONFIG, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG, Checkpoint
from llmrs_cli.engine.weights.writing import Entry

COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
)
"""Files of a model folder that are as true of the quantised model."""


def entries(checkpoint: Checkpoint, group: int) -> dict[str, Entry]:
    """Every tensor of the quantised model."""
    found: dict[str, Entry] = {}
    for name, parameter in checkpoint.parameters.items():
        if names.is_ignored(name, checkpoint.spec):
            continue
        module = name.removesuffix(".weight")
        if not module.endswith(LINEARS):
            found[name] = Entry("F16", parameter.shape)
            continue
        n, k = parameter.shape
        found[f"{module}.qweight"] = Entry("I32", (k, n // 8))
        found[f"{module}.qzeros"] = Entry("I32", (k // group, n // 8))
        found[f"{module}.scales"] = Entry("F16", (k // group, n))
    return found


def awq_tensors(rounded: Rounded) -> dict[str, NDArray[Any]]:
    """qweight, qzeros and scales of one layer."""
    return {
        "qweight": _words(rounded.codes),
        "qzeros": _words(rounded.zeros),
        "scales": np.ascontiguousarray(rounded.scales.T),
    }


def _words(values: NDArray[np.uint8]) -> NDArray[np.int32]:
    """(N, K) values of 4 bits → (K, N/8) words, eight outputs each in the order of AWQ."""
    words = np.zeros((values.shape[1], len(values) // 8), np.uint32)
    for nibble, output in enumerate(ORDER):
        words |= values[output::8].T.astype(np.uint32) << np.uint32(4 * nibble)
    return words.view(np.int32)


def write_small_files(checkpoint: Checkpoint, folder: Path, group: int) -> None:
    """config.json that names the quantisation, and tokenizer, templates and licence as they were."""
    config = {key: value for key, value in checkpoint.config.items() if value is not None}
    config.pop("dtype", None)
    config |= {"torch_dtype": "float16", "quantization_config": quantisation_config(group)}
    config.setdefault("hidden_act", "silu")
    _write_json(folder / CONFIG, config)
    if checkpoint.path.is_dir():
        for name in COPIED:
            if (checkpoint.path / name).is_file():
                shutil.copyfile(checkpoint.path / name, folder / name)
        return
    if checkpoint.tokenizer_json is not None:
        (folder / TOKENIZER).write_bytes(checkpoint.tokenizer_json)
        fast = {"tokenizer_class": "PreTrainedTokenizerFast"}
        _write_json(folder / TOKENIZER_CONFIG, fast | checkpoint.tokenizer_config)
    if checkpoint.chat_template is not None:
        (folder / TEMPLATE).write_text(checkpoint.chat_template, encoding="utf-8")


def quantisation_config(group: int) -> dict[str, Any]:
    """As AutoAWQ writes it."""
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
