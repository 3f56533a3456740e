"""GGUF models equal the same model in safetensors: configuration, names, order of rows, rotary factors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.model import names
from llmrs_cli.engine.weights.checkpoint import Checkpoint, open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.engine.weights.packed import Dense, Packed4, Packed8
from llmrs_cli.errors import ModelError
from tests.helpers.gguf_file import Tensor
from tests.helpers.naive import naive_logits
from tests.helpers.tiny_gguf import write_tiny_gguf
from tests.helpers.tiny_model import TinyModel, write_tiny

DATA = Path(__file__).parent.parent / "data"
LLAMA = TinyModel("llama")


def opened(folder: Path, model: TinyModel = LLAMA, **changes: Any) -> Checkpoint:
    return open_checkpoint(write_tiny_gguf(folder / "x.gguf", model, **changes))


def refusal(folder: Path, model: TinyModel = LLAMA, **changes: Any) -> str:
    with pytest.raises(ModelError) as caught:
        opened(folder, model, **changes)
    return str(caught.value)


def logits(checkpoint: Checkpoint) -> Any:
    return naive_logits(load_model(checkpoint, ReferenceBackend()), (5, 6, 7, 8))


# -- the same model twice -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_answers_alike_from_both_formats(tmp_path: Path, family: Any, tied: bool) -> None:
    """The llama kind stores rows of q and k interleaved: without undoing that the logits differ."""
    model = TinyModel(family, tied=tied, config={"torch_dtype": None})
    ours, theirs = opened(tmp_path, model), open_checkpoint(write_tiny(tmp_path / "hf", model))
    for field in ("family", "hidden", "heads", "kv_heads", "head_dim", "vocab", "tied_head", "max_context"):
        assert getattr(ours.spec, field) == getattr(theirs.spec, field)
    assert ours.spec.dtype == "float16"
    np.testing.assert_allclose(logits(ours), logits(theirs), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "nbytes", "form"),
    [(2, 18, "Q4_0"), (3, 20, "Q4_1 (16-bit on a GPU)"), (8, 34, "Q8_0 (16-bit on a GPU)")],
)
def test_what_a_gpu_widens_says_so(tmp_path: Path, kind: int, nbytes: int, form: str) -> None:
    extra = [Tensor("blk.9.attn_q.weight", (32, 2), kind, bytes(2 * nbytes))]
    parameters = opened(tmp_path, extra=extra).parameters
    assert parameters["model.layers.9.self_attn.q_proj.weight"].form == form
    assert parameters["model.layers.0.self_attn.q_proj.weight"].form == "float16"


def test_biases_of_llama_attention_are_put_in_order_too(tmp_path: Path) -> None:
    """A bias per row of q, stored interleaved as the rows are."""
    model = TinyModel("llama", layers=1, heads=2, kv_heads=2, hidden=8, ffn=32)
    extra = [
        Tensor(f"blk.0.attn_{part}.bias", (8,), 0, np.arange(8, dtype="<f4").tobytes())
        for part in ("q", "k", "v", "output")
    ]
    parameters = opened(tmp_path, model, extra=extra).parameters
    assert parameters[names.in_layer(0, f"{names.Q}.bias")].read().dequantise().tolist() == [
        0,
        2,
        1,
        3,
        4,
        6,
        5,
        7,
    ]
    assert parameters[names.in_layer(0, f"{names.V}.bias")].read().dequantise().tolist() == list(range(8))


def test_a_folder_that_holds_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "x.gguf", LLAMA)
    assert open_checkpoint(tmp_path).path == path


def test_a_missing_tensor_is_named_in_our_words(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, llama__block_count=3)
    with pytest.raises(ModelError, match="9 missing: 'model.layers.2"):
        load_model(checkpoint, ReferenceBackend())


# -- metadata -------------------------------------------------------------------------------------------


def test_a_model_without_an_output_tensor_is_tied(tmp_path: Path) -> None:
    assert opened(tmp_path, TinyModel("llama", tied=True)).spec.tied_head
    assert not opened(tmp_path).spec.tied_head


def test_end_tokens_of_every_role_are_gathered(tmp_path: Path) -> None:
    ids: dict[str, Any] = {
        "tokenizer__ggml__eos_token_id": 7,
        "tokenizer__ggml__eot_token_id": 9,
        "tokenizer__ggml__bos_token_id": 1,
    }
    spec = opened(tmp_path, **ids).spec
    assert (spec.eos_ids, spec.bos_id) == ((7, 9), 1)


def test_optional_keys_have_the_defaults_of_the_family(tmp_path: Path) -> None:
    absent = [
        "attention__head_count_kv",
        "attention__key_length",
        "attention__value_length",
        "rope__freq_base",
    ]
    model = TinyModel("llama", kv_heads=4)
    spec = opened(tmp_path, model, **{f"llama__{key}": ... for key in absent}).spec
    assert (spec.kv_heads, spec.head_dim, spec.rope.theta) == (4, 32, 10000.0)


@pytest.mark.parametrize("key", ["block_count", "context_length", "embedding_length", "attention.head_count"])
def test_a_missing_size_is_refused(tmp_path: Path, key: str) -> None:
    changes: dict[str, Any] = {"llama__" + key: ...}
    assert "config.json has no" in refusal(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"general__architecture": "falcon"}, "'falcon' is not supported"),
        ({"general__architecture": ...}, "None is not supported"),
        ({"general__architecture": 5}, "not supported"),
        ({"general__architecture": [1, 2]}, "[1, 2] is not supported"),
        ({"llama__expert_count": [1, 2]}, "mixture of experts"),
        ({"llama__attention__sliding_window": [4, 4]}, "sliding_window"),
        ({"llama__attention__key_length": [32, 32]}, "the head size"),
        ({"llama__rope__freq_base": [1.0, 2.0]}, "rope_theta"),
        ({"llama__rope__scaling__type": [1.0, 2.0]}, "rope_type"),
        ({"llama__expert_count": 8}, "mixture of experts"),
        ({"llama__rope__dimension_count": 16}, "rope.dimension_count is 16"),
        ({"llama__attention__value_length": 16}, "attention.value_length is 16"),
        ({"llama__attention__head_count_kv": [2, 2]}, "num_key_value_heads"),
        ({"llama__attention__head_count": 0}, "num_attention_heads"),
        ({"llama__embedding_length": "128"}, "hidden_size"),
        ({"llama__rope__freq_base": float("nan")}, "rope_theta"),
        ({"llama__rope__scaling__type": "longrope", "llama__rope__scaling__factor": 2.0}, "'longrope'"),
        ({"llama__rope__scaling__type": "linear"}, "no factor"),
        ({"llama__rope__scaling__yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ({"llama__block_count": 10**9}, "num_hidden_layers"),
    ],
)
def test_metadata_that_we_cannot_run_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], cause: str
) -> None:
    assert cause in refusal(tmp_path, **changes)


def test_a_window_makes_llama_a_mistral_and_is_refused_elsewhere(tmp_path: Path) -> None:
    spec = opened(tmp_path, llama__attention__sliding_window=64).spec
    assert (spec.family, spec.window) == ("mistral", 64)
    assert "sliding window" in refusal(tmp_path, TinyModel("qwen2"), qwen2__attention__sliding_window=64)


def test_yarn_is_read_with_its_sharpening(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 128, "yarn_beta_fast": 16.0}
    keys: dict[str, Any] = {f"llama__rope__scaling__{key}": value for key, value in scaling.items()}
    rope = opened(tmp_path, **keys).spec.rope
    assert (rope.kind, rope.factor, rope.original_context, rope.beta_fast) == ("yarn", 4.0, 128, 16.0)
    assert rope.attention_factor is None
    sharper = opened(tmp_path, **keys, llama__rope__scaling__attn_factor=2.0).spec.rope
    assert sharper.attention_factor == pytest.approx(2 * 1.138629, rel=1e-6)


# -- rotary factors of Llama 3 --------------------------------------------------------------------------


def llama3_factors(theta: float, dim: int, factor: float) -> Any:
    """As converters write them: how much slower each pair turns."""
    waves = 2 * np.pi * theta ** (np.arange(0, dim, 2) / dim)
    smooth = np.clip((8192 / waves - 1) / 3, 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype("<f4")


def factors(values: Any) -> Tensor:
    return Tensor("rope_freqs.weight", (len(values),), 0, values.tobytes())


def test_stored_factors_of_llama3_are_recognised(tmp_path: Path) -> None:
    tensor = factors(llama3_factors(500000.0, 32, 32.0))
    spec = opened(tmp_path, llama__rope__freq_base=500000.0, extra=[tensor]).spec
    assert (spec.rope.kind, spec.rope.factor, spec.rope.original_context) == ("llama3", 32.0, 8192)


@pytest.mark.parametrize(
    "values",
    [
        np.full(16, 2, "<f4"),
        np.full(16, np.nan, "<f4"),
        np.full(16, -1, "<f4"),
        np.zeros(16, "<f4"),
        np.ones(7, "<f4") * 3,
        np.ones(100_000, "<f4"),
    ],
)
def test_other_stored_factors_are_refused(tmp_path: Path, values: Any) -> None:
    assert "rope_freqs.weight" in refusal(tmp_path, extra=[factors(values)])


@pytest.mark.parametrize("theta", [-5.0, 0.0, float("nan"), 10000])
def test_stored_factors_need_a_usable_base(tmp_path: Path, theta: float) -> None:
    tensor = factors(llama3_factors(500000.0, 32, 8.0))
    assert "rope_freqs.weight" in refusal(tmp_path, llama__rope__freq_base=theta, extra=[tensor])


# -- the built-in model ---------------------------------------------------------------------------------


def test_the_built_in_model_keeps_its_weights_packed(smollm2: Path) -> None:
    checkpoint = open_checkpoint(smollm2)
    spec = checkpoint.spec
    assert (spec.layers, spec.hidden, spec.heads, spec.kv_heads, spec.head_dim) == (30, 576, 9, 3, 64)
    assert (spec.vocab, spec.max_context, spec.tied_head, spec.eos_ids) == (49152, 8192, True, (2,))
    kinds = {
        name: parameter.read() for name, parameter in checkpoint.parameters.items() if ".layers.0." in name
    }
    assert {type(weight) for name, weight in kinds.items() if "_proj" in name} == {Packed4}
    assert {type(weight) for name, weight in kinds.items() if "norm" in name} == {Dense}
    assert isinstance(checkpoint.parameters[names.EMBEDDING].read(), Packed8)


def test_the_built_in_model_continues_as_it_should(smollm2: Path) -> None:
    """Teacher-forced over the golden answer to the first question, in float64."""
    row = json.loads((DATA / "golden" / "smollm2-135m-q4_1-greedy.json").read_text())[0]
    model = load_model(open_checkpoint(smollm2), ReferenceBackend(), context=256)
    answer = row["greedy_ids"][:6]
    found = naive_logits(model, row["prompt_ids"] + answer[:-1])[-len(answer) :]
    assert found.argmax(-1).tolist() == answer
    second, best = np.sort(found, axis=-1)[:, -2:].T
    np.testing.assert_allclose(best - second, row["top2_margin"][: len(answer)], atol=2e-3)
