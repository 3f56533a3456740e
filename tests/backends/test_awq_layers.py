"""AWQ on every backend of the host: real failures of other engines, and how far the fast backend may lie from the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from llmrs_cli.engine.backends.base import Backend, Hidden
from llmrs_cli.engine.backends.handles import Geometry, LayerWeights
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.forced import load
from llmrs_cli.engine.verify import forced_logits
from llmrs_cli.engine.weights.awq import awq_weight
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.engine.weights.packed import Dense, Words4
from tests.conftest import DATA
from tests.helpers.canonical import words4
from tests.helpers.naive import forced_logits as all_logits
from tests.helpers.tiny_model import TinyModel, write_tiny
from tests.helpers.tolerances import assert_close

PARITY = 1e-4
"""‖Δlogits‖ / ‖logits‖ of float32 activations against float64 sums, every position given the same tokens."""
CLEAR = 1e-2
"""A lead of the best logit over the second that such an error cannot turn over."""


def product(backend: Backend, x: Any, weight: Words4) -> NDArray[np.float32]:
    found: NDArray[np.float32] = backend.linear(x, backend.prepare_linear([weight], [None], "test"))
    return found


@pytest.mark.parametrize("eights", [1, 2, 3])
def test_words_hold_even_outputs_first(backend: Backend, eights: int) -> None:
    """0x75316420 is 0, 1, 2 … 7 in AWQ's order; read plainly it would be 0, 2, 4, 6, 1 …"""
    qweight = np.full((32, eights), 0x75316420, np.int32)
    scales, x = np.full((1, 8 * eights), 0.5, np.float16), np.ones((1, 32), np.float32)
    zeros = np.zeros((1, eights), np.int32)
    plain = product(backend, x, awq_weight(qweight, zeros, scales, 32))
    assert plain.tolist() == [[0, 16, 32, 48, 64, 80, 96, 112] * eights]
    shifted = product(backend, x, awq_weight(qweight, zeros - 2004318072, scales, 32))
    assert shifted.tolist() == [[-128, -112, -96, -80, -64, -48, -32, -16] * eights]


@pytest.mark.parametrize("outputs", [64, 192, 896, 128, 4864])
def test_any_width_keeps_its_last_columns_with_any_number_of_tokens(backend: Backend, outputs: int) -> None:
    rng = np.random.default_rng(outputs)
    weight = words4(rng, "awq", outputs, 64, 32)
    handle = backend.prepare_linear([weight], [None], "test")
    for tokens in (1, 7, 8, 9, 17):
        x = rng.standard_normal((tokens, 64)).astype(np.float32)
        wanted = x.astype(np.float64) @ weight.dequantise().T.astype(np.float64)
        assert_close("linear", backend.name, backend.linear(x, handle), wanted)


def test_one_group_of_all_inputs_is_the_dense_product(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    weight = words4(rng, "awq", 32, 96, 96)
    x = rng.standard_normal((3, 96)).astype(np.float32)
    wanted = x.astype(np.float64) @ weight.dequantise().T.astype(np.float64)
    assert_close("linear", backend.name, product(backend, x, weight), wanted)


def test_biases_of_quantised_layers_count(backend: Backend, tmp_path: Path) -> None:
    """q, k and v with a bias of 5: as the same numbers stored plainly, and not as without it."""
    model = TinyModel("qwen2", awq=True, layers=1)
    logits = {}
    for bias in (5.0, 0.0):
        folder = write_tiny(tmp_path / str(bias), model)
        path = folder / "model.safetensors"
        tensors = load_file(path)
        for name in tensors:
            if name.endswith(".bias"):
                tensors[name] = np.full_like(tensors[name], bias)
        save_file(tensors, path)
        logits[bias] = forced_logits(load(open_checkpoint(folder), backend), (5, 9, 200, 31), 1)
    packed = open_checkpoint(tmp_path / "5.0")
    plain = {name: parameter.read().dequantise() for name, parameter in packed.parameters.items()}
    config = packed.config | {"torch_dtype": "float32"}
    del config["quantization_config"]
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config))
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    right = forced_logits(load(open_checkpoint(tmp_path / "plain"), ReferenceBackend()), (5, 9, 200, 31), 1)
    assert np.linalg.norm(logits[5.0] - right) < 2e-5 * np.linalg.norm(right)
    assert np.linalg.norm(logits[5.0] - logits[0.0]) > 1e-2 * np.linalg.norm(right)


def test_an_activation_beyond_float16_does_not_become_infinite(backend: Backend) -> None:
    """300 · silu(300) is 90,000 where float16 ends at 65,504; down makes 9 of it."""
    size = 32

    def one_row(value: float) -> Words4:
        """Row 0 sums to `value`, all others to zero."""
        codes = np.zeros((size, size // 8), np.int32)
        codes[:, 0] = 1
        return awq_weight(
            codes, np.zeros((1, size // 8), np.int32), np.full((1, size), value, np.float16), size
        )

    gate_up = backend.prepare_linear([one_row(300 / size)] * 2, [None] * 2, "gate_up")
    down = backend.prepare_linear([one_row(1e-4)], [None], "down")
    norm = backend.prepare_vector(Dense(np.ones(size, np.float32)))
    layer = LayerWeights(Geometry(1, 1, 16, 0.0), norm, down, None, None, down, norm, gate_up, down)
    hidden = Hidden(np.ones((1, size), np.float32))
    backend.project_add(backend.norm_gate_up(hidden, layer), down, hidden)
    assert hidden.residual[0, 0] == pytest.approx(1 + 9, rel=1e-3)
    assert (hidden.residual[0, 1:] == 1).all()


AWQ = ["tiny-llama-awq-g64-skip", "tiny-qwen2-awq-g128", "tiny-qwen2-outliers-awq-g128"]


@pytest.mark.parametrize("name", AWQ)
def test_stored_answers_are_read_as_the_reference_reads_them(fast: Backend, name: str) -> None:
    """Every position of prompt and stored answer, given the right tokens so far."""
    folder = DATA / "golden" / "checkpoints" / name
    checkpoint = open_checkpoint(folder)
    rows = json.loads((folder / "expected.json").read_text())
    ids = [row["prompt_ids"] + row["greedy_ids"] for row in rows]
    counts, vocab, oracle = [len(own) for own in ids], checkpoint.spec.vocab, ReferenceBackend()
    found = all_logits(fast, load_model(checkpoint, fast), ids, counts, vocab)
    wanted = all_logits(oracle, load_model(checkpoint, oracle), ids, counts, vocab)
    for ours, right in zip(found, wanted, strict=True):
        assert np.linalg.norm(ours - right) < PARITY * np.linalg.norm(right)
        best = np.sort(right, axis=-1)
        clear = best[:, -1] - best[:, -2] > CLEAR
        assert clear.sum() > len(right) // 2
        assert (ours.argmax(-1) == right.argmax(-1))[clear].all()
