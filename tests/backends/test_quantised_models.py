"""Whole models in every 4-bit format give the logits of the same numbers stored plainly, on every backend of the host."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.forced import load
from llmrs_cli.engine.verify import forced_logits
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.convert import convert
from tests.helpers.tiny_model import TinyModel, tiny_config, tiny_tensors

MODEL = TinyModel("qwen2", layers=1)
GROUP = 32
IDS = tuple(int(n) for n in np.random.default_rng(1).integers(0, 300, 20))
Arrays = dict[str, NDArray[Any]]


class Codes:
    """One layer's numbers, as the formats' descriptions speak of them: (K, N), and the group of each input."""

    def __init__(self, rng: np.random.Generator, weight: NDArray[Any], order: NDArray[np.int64]) -> None:
        self.k, self.n = weight.shape[1], weight.shape[0]
        groups = self.k // GROUP
        self.codes = rng.integers(0, 16, (self.k, self.n))
        self.zeros = rng.integers(6, 10, (groups, self.n))
        self.scales = (rng.uniform(0.5, 1.5, (groups, self.n)) * self.k**-0.5 / 4.6).astype(np.float16)
        self.order = order[: self.k] if len(order) else np.arange(self.k) // GROUP

    def dense(self) -> NDArray[np.float32]:
        wide = (self.codes - self.zeros[self.order]) * self.scales[self.order].astype(np.float32)
        return np.ascontiguousarray(wide.T.astype(np.float32))


def words(values: NDArray[np.int64]) -> NDArray[np.int32]:
    """(…, 8·n) values of 4 bits → (…, n) words, the first in the lowest bits."""
    eights = values.reshape(*values.shape[:-1], -1, 8).astype(np.uint64) << np.arange(
        0, 32, 4, dtype=np.uint64
    )
    whole: NDArray[np.uint64] = eights.sum(-1, dtype=np.uint64)
    return whole.astype(np.uint32).view(np.int32)


def interleaved(values: NDArray[np.int64]) -> NDArray[np.int32]:
    return words(
        values.reshape(*values.shape[:-1], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].reshape(values.shape)
    )


def awq(c: Codes) -> Arrays:
    return {"qweight": interleaved(c.codes), "qzeros": interleaved(c.zeros), "scales": c.scales}


def awq_rows(c: Codes) -> Arrays:
    padding = ((0, 0), (0, -len(c.zeros) % 8))
    zeros, scales = np.pad(c.zeros.T, padding), np.pad(c.scales.T, padding)
    return {"qweight": words(c.codes.T), "qzeros": words(zeros), "scales": scales}


def gptq(c: Codes) -> Arrays:
    return {
        "qweight": words(c.codes.T).T,
        "qzeros": words(c.zeros - 1),
        "scales": c.scales,
        "g_idx": c.order.astype(np.int32),
    }


def compressed(c: Codes) -> Arrays:
    return {
        "weight_packed": words(c.codes.T),
        "weight_scale": c.scales.T,
        "weight_zero_point": words(c.zeros).T,
        "weight_shape": np.array([c.n, c.k], np.int64),
    }


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}
SECTIONS: dict[str, tuple[Callable[[Codes], Arrays], dict[str, Any]]] = {
    "awq gemm": (awq, AWQ | {"version": "gemm"}),
    "awq gemv": (awq_rows, AWQ | {"version": "gemv"}),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP}),
    "gptq desc_act": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}),
    "compressed": (
        compressed,
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": GROUP, "type": "int"}}},
        },
    ),
}


def write(folder: Path, name: str, *, head: bool = False) -> tuple[Path, Path]:
    """The model in a format, its head too if asked for, and its numbers stored plainly."""
    pack, section = SECTIONS[name]
    rng = np.random.default_rng(3)
    order = rng.permutation(np.arange(MODEL.hidden) // GROUP) if "desc_act" in name else np.empty(0, np.int64)
    packed: Arrays = {}
    plain: Arrays = {}
    for tensor, values in tiny_tensors(MODEL).items():
        if not tensor.endswith(("_proj.weight", "lm_head.weight") if head else "_proj.weight"):
            packed[tensor] = plain[tensor] = values
            continue
        own = order if values.shape[1] == MODEL.hidden else np.empty(0, np.int64)
        codes = Codes(rng, values, own)
        plain[tensor] = codes.dense()
        module = tensor.removesuffix(".weight")
        packed |= {f"{module}.{piece}": np.ascontiguousarray(array) for piece, array in pack(codes).items()}
    paths = folder / "packed", folder / "plain"
    for path, tensors, extra in zip(
        paths, (packed, plain), ({"quantization_config": section}, {}), strict=True
    ):
        path.mkdir()
        (path / "config.json").write_text(json.dumps(tiny_config(MODEL) | extra))
        save_file(tensors, path / "model.safetensors")
    return paths


@pytest.mark.parametrize("name", SECTIONS)
def test_a_model_in_any_format_gives_the_logits_of_its_numbers(
    backend: Backend, tmp_path: Path, name: str
) -> None:
    packed, plain = write(tmp_path, name)
    ours = forced_logits(load(open_checkpoint(packed), backend), IDS, 1)
    right = forced_logits(load(open_checkpoint(plain), ReferenceBackend()), IDS, 1)
    assert np.linalg.norm(ours - right) < 2e-5 * np.linalg.norm(right)


@pytest.mark.parametrize("name", ["awq gemm", "gptq desc_act"])
def test_a_head_in_4_bits_gives_the_logits_of_its_numbers(
    backend: Backend, tmp_path: Path, name: str
) -> None:
    packed, plain = write(tmp_path, name, head=True)
    ours = forced_logits(load(open_checkpoint(packed), backend), IDS, 1)
    right = forced_logits(load(open_checkpoint(plain), ReferenceBackend()), IDS, 1)
    assert np.linalg.norm(ours - right) < 2e-5 * np.linalg.norm(right)


@pytest.mark.parametrize("name", ["awq gemv", "gptq desc_act"])
def test_a_converted_model_gives_the_same_logits(backend: Backend, tmp_path: Path, name: str) -> None:
    packed, _ = write(tmp_path, name)
    (tmp_path / "converted").mkdir()
    list(convert(open_checkpoint(packed), "x", tmp_path / "converted"))
    ours, right = (
        forced_logits(load(open_checkpoint(path), backend), IDS, 1)
        for path in (tmp_path / "converted", packed)
    )
    np.testing.assert_array_equal(ours, right)
