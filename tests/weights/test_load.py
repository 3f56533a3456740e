"""Loading: every tensor is proven to fit before any is read, then each reaches the backend once."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.model import names
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.engine.weights.packed import Dense, Packed4
from llmrs_cli.errors import ModelError
from tests.helpers.naive import naive_logits
from tests.helpers.tiny_model import TinyModel, write_tiny
from tests.weights.recorder import Prepared, Recorder

CHECKPOINTS = Path(__file__).parent.parent / "data" / "golden" / "checkpoints"
UP = names.in_layer(0, "mlp.up_proj.weight")

Tensors = dict[str, NDArray[Any]]


def edited(folder: Path, change: Any, model: TinyModel | None = None) -> Path:
    """A tiny checkpoint whose tensors went through `change`."""
    write_tiny(folder, model)
    tensors: Tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors")
    return folder


def refusal(folder: Path) -> str:
    checkpoint = open_checkpoint(folder)
    recorder = Recorder()
    with pytest.raises(ModelError) as caught:
        load_model(checkpoint, recorder.backend)
    assert not recorder.linears and not recorder.vectors, "the proof comes before the first read"
    return str(caught.value)


def logits(folder: Path, ids: tuple[int, ...] = (5, 6, 7)) -> NDArray[np.float64]:
    return naive_logits(load_model(open_checkpoint(folder), ReferenceBackend()), ids)


# -- golden answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", sorted(CHECKPOINTS.iterdir()), ids=lambda path: path.name)
def test_every_golden_checkpoint_gives_its_logits(folder: Path) -> None:
    """The independent float64 model of the tests over what was loaded; tolerance of the golden answers."""
    model = load_model(open_checkpoint(folder), ReferenceBackend())
    for row in json.loads((folder / "expected.json").read_text()):
        last = naive_logits(model, row["prompt_ids"])[-1]
        np.testing.assert_allclose(last[:16], row["first_logits_head"], atol=2e-3)
        assert int(last.argmax()) == row["greedy_ids"][0] or row["top2_margin"][0] < 1e-3


# -- what the backend gets ------------------------------------------------------------------------------


def test_parts_come_apart_and_in_order(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny(tmp_path, TinyModel("qwen2")))
    recorder = Recorder()
    model = load_model(checkpoint, recorder.backend)
    assert [call.name for call in recorder.linears] == [
        "embedding",
        *(f"layer {i} {part}" for i in range(2) for part in ("qkv", "o", "gate_up", "down")),
        "head",
    ]
    qkv = model.layers[1].qkv
    assert isinstance(qkv, Prepared)
    assert [part.shape for part in qkv.parts] == [(128, 128), (64, 128), (64, 128)]
    assert [bias.shape for bias in qkv.bias if bias is not None] == [(128,), (64,), (64,)]
    stored = load_file(tmp_path / "model.safetensors")
    for part, letter in zip(qkv.parts, "qkv", strict=True):
        np.testing.assert_array_equal(
            part.dequantise(), stored[names.in_layer(1, f"self_attn.{letter}_proj.weight")]
        )
    assert model.layers[0].o.bias == (None,)  # type: ignore[attr-defined]
    assert model.layers[0].q_norm is None


def test_a_tied_head_is_the_very_handle_of_the_embedding(tmp_path: Path) -> None:
    recorder = Recorder()
    model = load_model(open_checkpoint(write_tiny(tmp_path, TinyModel(tied=True))), recorder.backend)
    assert model.head is model.embedding
    assert "head" not in [call.name for call in recorder.linears]


def test_progress_counts_every_byte_once_and_ends_at_the_total(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    checkpoint = open_checkpoint(write_tiny(tmp_path))
    load_model(checkpoint, Recorder().backend, lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls) and len({total for _, total in calls}) == 1
    assert calls[-1][0] == calls[-1][1] == sum(p.nbytes for p in checkpoint.parameters.values())


def test_rotary_tables_cover_the_context_or_less_if_asked(tmp_path: Path) -> None:
    checkpoint, recorder = open_checkpoint(write_tiny(tmp_path)), Recorder()
    load_model(checkpoint, recorder.backend)
    assert recorder.rope == (512, 16)
    load_model(checkpoint, recorder.backend, context=100)
    assert recorder.rope == (100, 16)
    load_model(checkpoint, recorder.backend, context=10_000)
    assert recorder.rope == (512, 16)


def test_awq_layers_arrive_packed_with_their_biases(tmp_path: Path) -> None:
    model = load_model(
        open_checkpoint(write_tiny(tmp_path, TinyModel("qwen2", awq=True))), Recorder().backend
    )
    qkv = model.layers[0].qkv
    assert isinstance(qkv, Prepared)
    assert all(isinstance(part, Packed4) for part in qkv.parts)
    assert all(isinstance(bias, Dense) for bias in qkv.bias)


# -- heads ----------------------------------------------------------------------------------------------


def test_a_tied_checkpoint_needs_no_head_and_its_logits_are_those_of_the_embedding(tmp_path: Path) -> None:
    tied = write_tiny(tmp_path / "tied", TinyModel(tied=True))
    copy = edited(tmp_path / "loose", lambda t: t | {names.HEAD: t[names.EMBEDDING]})
    np.testing.assert_array_equal(logits(tied), logits(copy))


def test_an_untied_checkpoint_without_a_head_is_refused_by_name(tmp_path: Path) -> None:
    message = refusal(edited(tmp_path, lambda t: {k: v for k, v in t.items() if k != names.HEAD}))
    assert "1 missing: 'lm_head.weight'" in message


def test_a_stored_copy_of_a_tied_head_is_not_read(tmp_path: Path) -> None:
    plain = write_tiny(tmp_path / "plain", TinyModel(tied=True))
    other = edited(
        tmp_path / "copy", lambda t: t | {names.HEAD: 0 * t[names.EMBEDDING]}, TinyModel(tied=True)
    )
    np.testing.assert_array_equal(logits(plain), logits(other))


# -- missing, unexpected, misshapen ---------------------------------------------------------------------


def test_what_is_missing_extra_and_misshapen_stands_in_one_message(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> Tensors:
        del tensors[UP]
        tensors["model.layers.0.mlp.extra.weight"] = np.zeros((2, 2), np.float16)
        tensors[names.NORM] = np.zeros(7, np.float16)
        return tensors

    message = refusal(edited(tmp_path, change))
    assert f"1 missing: '{UP}'" in message
    assert "1 unexpected: 'model.layers.0.mlp.extra.weight'" in message
    assert f"1 misshapen: '{names.NORM}' is (7,), not (128,)" in message
    assert str(tmp_path) in message


def test_many_missing_tensors_are_counted_and_ten_are_named(tmp_path: Path) -> None:
    message = refusal(edited(tmp_path, lambda t: {k: v for k, v in t.items() if "layers.1" not in k}))
    missing = message.split("missing: ")[1]
    assert missing.count("model.layers.1") == 10 and "(12 in all)" in missing


def test_tensors_under_foreign_names_are_shown_beside_the_expected_ones(tmp_path: Path) -> None:
    message = refusal(edited(tmp_path, lambda t: {f"transformer.{k}": v for k, v in t.items()}))
    assert "'model.embed_tokens.weight'" in message and "'transformer.model.embed_tokens.weight'" in message


@pytest.mark.parametrize(
    ("old", "new"),
    [("model.", ""), ("", "module."), ("", "language_model."), ("model.", "model.language_model.")],
)
def test_known_prefixes_load_with_equal_logits(tmp_path: Path, old: str, new: str) -> None:
    def rename(tensors: Tensors) -> Tensors:
        return {new + k.removeprefix(old) if k.startswith(old) else k: v for k, v in tensors.items()}

    plain = write_tiny(tmp_path / "plain")
    np.testing.assert_array_equal(logits(plain), logits(edited(tmp_path / "renamed", rename)))


def test_names_that_differ_only_in_their_prefix_are_refused(tmp_path: Path) -> None:
    folder = edited(tmp_path, lambda t: t | {f"module.{UP}": t[UP]})
    with pytest.raises(ModelError, match="differ only in their prefix"):
        open_checkpoint(folder)


def test_a_bias_that_the_architecture_does_not_have_is_unexpected(tmp_path: Path) -> None:
    bias = UP.replace("weight", "bias")
    message = refusal(edited(tmp_path, lambda t: t | {bias: np.ones(256, np.float16)}))
    assert f"1 unexpected: '{bias}'" in message


def test_a_bias_beside_a_quantised_layer_is_used(tmp_path: Path) -> None:
    """GPTQ and AWQ writers give every layer one; it counts."""
    bias, awq = UP.replace("weight", "bias"), TinyModel(awq=True)
    plain = logits(write_tiny(tmp_path / "plain", awq))
    zero = edited(tmp_path / "zero", lambda t: t | {bias: np.zeros(256, np.float16)}, awq)
    np.testing.assert_array_equal(plain, logits(zero))
    five = edited(tmp_path / "five", lambda t: t | {bias: np.full(256, 5, np.float16)}, awq)
    assert not np.allclose(plain, logits(five))


def test_the_bias_of_quantised_qwen_attention_counts(tmp_path: Path) -> None:
    def with_bias(value: float) -> Any:
        return lambda t: {k: np.full_like(v, value) if k.endswith("_proj.bias") else v for k, v in t.items()}

    awq = TinyModel("qwen2", awq=True)
    five = edited(tmp_path / "five", with_bias(5.0), awq)
    none = edited(tmp_path / "none", with_bias(0.0), awq)
    assert not np.allclose(logits(five), logits(none))


def test_awq_equals_the_dense_model_of_the_same_numbers(tmp_path: Path) -> None:
    packed = write_tiny(tmp_path / "packed", TinyModel("qwen2", awq=True))
    checkpoint = open_checkpoint(packed)
    dense = {name: parameter.read().dequantise() for name, parameter in checkpoint.parameters.items()}
    folder = write_tiny(tmp_path / "dense", TinyModel("qwen2"))
    save_file(dense, folder / "model.safetensors")
    np.testing.assert_allclose(logits(packed), logits(folder), rtol=1e-5, atol=1e-5)


# -- a file that changes underneath ---------------------------------------------------------------------


def test_a_file_truncated_during_the_load_ends_in_one_sentence_or_sound_weights(tmp_path: Path) -> None:
    """Whatever the moment: no signal, no garbage."""
    pristine = write_tiny(tmp_path / "m") / "model.safetensors"
    data = pristine.read_bytes()
    good = logits(tmp_path / "m")
    for run in range(20):
        pristine.write_bytes(data)
        checkpoint = open_checkpoint(tmp_path / "m")
        moment = threading.Timer(run * 3e-4, os.truncate, (pristine, len(data) // 2))
        moment.start()
        try:
            model = load_model(checkpoint, ReferenceBackend())
        except ModelError as error:
            assert "changed" in str(error) or "ends" in str(error)
        else:
            np.testing.assert_array_equal(naive_logits(model, (5, 6, 7)), good)
        moment.join()
