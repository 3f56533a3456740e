"""AWQ's files: which tensors a quantised model has, and the small files beside them.

The layout is that of AutoAWQ's "gemm" (see `weights.awq`), which vLLM and transformers read; everything that is
not quantised is float16, which both expect beside it. Read once by AutoAWQ 0.2.9 in transformers 4.51.3 and by vLLM
0.32.0 (`benchmarks/other_reader.py`): SmolLM2 and tiny models of three families had all their tensors and no other,
the 252 layers were those that we read, bit for bit, and greedy answers ours, but for one tie.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli import __version__
from llmrs_cli.engine.model import names
from llmrs_cli.engine.quantise.layer import LINEARS
from llmrs_cli.engine.quantise.rounding import Rounded
from llmrs_cli.engine.weights.checkpoint import Checkpoint
from llmrs_cli.engine.weights.companions import CONFIG, copy_companions, plain_config, write_json
from llmrs_cli.engine.weights.store import SINGLE, read_metadata
from llmrs_cli.engine.weights.words import AWQ_ORDER
from llmrs_cli.engine.weights.writing import Entry

_SOURCE = "quantized_from"


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
        found |= {f"{module}.{piece}": entry for piece, entry in awq_entries(parameter.shape, group).items()}
    return found


def awq_entries(shape: tuple[int, ...], group: int) -> dict[str, Entry]:
    """The tensors of one layer of (N, K) weights, K a multiple of the group."""
    n, k = shape
    return {
        "qweight": Entry("I32", (k, n // 8)),
        "qzeros": Entry("I32", (k // group, n // 8)),
        "scales": Entry("F16", (k // group, n)),
    }


def awq_tensors(rounded: Rounded) -> dict[str, NDArray[Any]]:
    """qweight, qzeros and scales of one layer."""
    return {
        "qweight": awq_words(rounded.codes),
        "qzeros": awq_words(rounded.zeros),
        "scales": np.ascontiguousarray(rounded.scales.T),
    }


def awq_words(values: NDArray[np.uint8]) -> NDArray[np.int32]:
    """(N, K) values of 4 bits → (K, N/8) words, eight outputs each in the order of AWQ."""
    words = np.zeros((values.shape[1], len(values) // 8), np.uint32)
    for nibble, output in enumerate(AWQ_ORDER):
        words |= values[output::8].T.astype(np.uint32) << np.uint32(4 * nibble)
    return words.view(np.int32)


def write_small_files(checkpoint: Checkpoint, folder: Path, group: int) -> None:
    """config.json that names the quantisation, and tokenizer, templates and licence as they were."""
    config = plain_config(checkpoint)
    config.pop("dtype", None)
    config |= {"torch_dtype": "float16", "quantization_config": quantisation_config(group)}
    write_json(folder / CONFIG, config)
    copy_companions(checkpoint, folder)


def metadata(source: str) -> dict[str, str]:
    """What the safetensors file says of itself: PyTorch's order of axes, as its readers want, and its source."""
    return {"format": "pt", _SOURCE: source, "made_by": f"llmrs {__version__}"}


def quantised_from(path: Path) -> str | None:
    """What the model in the folder `path` was quantised from by us; None: nothing that we know of."""
    file = path / SINGLE
    return read_metadata(file).get(_SOURCE) if file.is_file() else None


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
