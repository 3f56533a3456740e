"""GGUF metadata as the keys of a config.json, so that `spec.from_config` stays the only judge.

Values are passed on as they are; what is missing stays missing and is refused there by name. Only what
config.json has no word for is decided here: parts of a model that a llama-kind GGUF may hold and we
cannot run, and the rotary factors of Llama 3, which GGUF stores as a tensor.
Source: docs/gguf.md of ggml-org/ggml, gguf-py/gguf/constants.py of ggml-org/llama.cpp.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.model import names
from llmrs_cli.engine.model.rope import inverse_frequencies
from llmrs_cli.engine.model.rope_config import yarn_magnitude
from llmrs_cli.engine.model.spec import MAX_HEAD, ModelSpec, RopeSpec
from llmrs_cli.engine.weights.gguf import Gguf, GgufTensor
from llmrs_cli.engine.weights.gguf_types import canonical
from llmrs_cli.engine.weights.packed import Weight
from llmrs_cli.engine.weights.parameters import WIDENED, Parameter
from llmrs_cli.errors import ModelError, quoted

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""Mistral is stored as llama."""
ROPE_FACTORS = "rope_freqs.weight"
_SCALING_KEYS = {
    "type",
    "factor",
    "original_context_length",
    "finetuned",
    "attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
}
_FORMS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_PACKED = "Q4_0"
"""The only block format that is 4-bit codes with whole zeros, as the kernels of a GPU read them."""


def gguf_config(gguf: Gguf) -> dict[str, Any]:
    """The metadata of a GGUF file as a config.json. Raises ModelError for what that cannot express."""
    kind = gguf.metadata.get("general.architecture")

    def get(key: str) -> Any:
        return gguf.metadata.get(f"{kind}.{key}")

    _refuse_the_inexpressible(gguf, str(kind))
    window = get("attention.sliding_window") or None
    name = "MistralForCausalLM" if kind == "llama" and window else ARCHITECTURES.get(str(kind), kind)
    embedding = gguf.tensors.get("token_embd.weight")
    config = {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": embedding.shape[0] if embedding else get("vocab_size"),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length"),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base"),
        "sliding_window": window,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in gguf.tensors,
        "bos_token_id": gguf.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _end_ids(gguf),
    }
    config["rope_scaling"] = _scaling(gguf, str(kind)) or _stored_factors(gguf, config)
    return config


def _refuse_the_inexpressible(gguf: Gguf, kind: str) -> None:
    def get(key: str) -> Any:
        return gguf.metadata.get(f"{kind}.{key}")

    if get("expert_count"):
        raise ModelError("The model is a mixture of experts, which is not supported.")
    if kind != "llama" and get("attention.sliding_window"):
        raise ModelError(f"A sliding window in a {quoted(kind)} GGUF file is not supported.")
    head = get("attention.key_length") or _quotient(get("embedding_length"), get("attention.head_count"))
    for key in ("attention.value_length", "rope.dimension_count"):
        if get(key) is not None and get(key) != head:
            raise ModelError(f"{kind}.{key} is {quoted(get(key))}; we run {quoted(head)}, the head size.")


def _quotient(total: Any, parts: Any) -> Any:
    return total // parts if isinstance(total, int) and isinstance(parts, int) and parts > 0 else None


def _end_ids(gguf: Gguf) -> list[Any]:
    """End of text, of turn, of message: whichever are named, each once."""
    found = (gguf.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return [token for token in found if token is not None]


def _scaling(gguf: Gguf, kind: str) -> dict[str, Any] | None:
    """`rope_scaling` from the metadata keys, None if there is none."""
    prefix = f"{kind}.rope.scaling."
    found = {k.removeprefix(prefix): v for k, v in gguf.metadata.items() if k.startswith(prefix)}
    if unknown := found.keys() - _SCALING_KEYS:
        raise ModelError(f"Metadata key {quoted(prefix + min(unknown))} is not supported.")
    if found.get("type") in (None, "none"):
        return None
    section: dict[str, Any] = {"rope_type": found["type"], "factor": found.get("factor")}
    section["original_max_position_embeddings"] = found.get("original_context_length")
    for key in ("beta_fast", "beta_slow"):
        section[key] = found.get(f"yarn_{key}")
    if isinstance(sharpen := found.get("attn_factor"), float) and isinstance(section["factor"], float):
        section["attention_factor"] = sharpen * yarn_magnitude(max(section["factor"], 1.0))
    return {key: value for key, value in section.items() if value is not None}


def _stored_factors(gguf: Gguf, config: dict[str, Any]) -> dict[str, Any] | None:
    """`rope_scaling` of Llama 3 whose factors equal the stored tensor; any other tensor is refused."""
    tensor = gguf.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    theta = 10000.0 if config["rope_theta"] is None else config["rope_theta"]
    if math.prod(tensor.shape) > MAX_HEAD // 2 or not isinstance(theta, float) or not 2.0 <= theta <= 1e12:
        raise ModelError(f"The rotary factors in {ROPE_FACTORS} cannot be used.")
    stored = _read(tensor, None).dequantise().reshape(-1)
    if not np.isfinite(stored).all() or not 1.0 <= stored.max() <= 1e6:
        raise ModelError(f"The rotary factors in {ROPE_FACTORS} are no factors.")
    rope = RopeSpec("llama3", theta, float(stored.max()), 8192, 1.0, 4.0)
    dim = 2 * len(stored)
    expected = inverse_frequencies(RopeSpec(theta=theta), dim) / inverse_frequencies(rope, dim)
    if not np.allclose(stored, expected, rtol=1e-4):
        raise ModelError(
            f"The rotary factors in {ROPE_FACTORS} are not those of Llama 3, which are all we run."
        )
    return {
        "rope_type": rope.kind,
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_context,
    }


# -- tensors ------------------------------------------------------------------------------------------


def gguf_parameters(gguf: Gguf, spec: ModelSpec) -> dict[str, Parameter]:
    """Parameters by our names; rows of queries and keys in the order of Hugging Face."""
    found = {}
    for stored, tensor in gguf.tensors.items():
        if stored == ROPE_FACTORS:
            continue
        name = names.from_gguf(stored)
        found[name] = _parameter(tensor, _row_order(gguf, spec, name, tensor.shape[0]))
    return found


def _parameter(tensor: GgufTensor, order: NDArray[np.int64] | None) -> Parameter:
    form = _FORMS.get(tensor.format.name)
    if form is None:
        form = tensor.format.name if tensor.format.name == _PACKED else f"{tensor.format.name} {WIDENED}"
    in_place = order is None and len(tensor.shape) == 2
    return Parameter(
        tensor.shape,
        form,
        tensor.nbytes,
        (tensor.name,),
        lambda: _read(tensor, order),
        read_rows=partial(_rows, tensor) if in_place else None,
    )


def _rows(tensor: GgufTensor, chosen: slice) -> Weight:
    return canonical(tensor.format, tensor.rows(chosen), (chosen.stop - chosen.start, tensor.shape[1]))


def _read(tensor: GgufTensor, order: NDArray[np.int64] | None) -> Weight:
    weight = canonical(tensor.format, tensor.read(), tensor.shape)
    return weight if order is None else weight.rows(order)


def _row_order(gguf: Gguf, spec: ModelSpec, name: str, rows: int) -> NDArray[np.int64] | None:
    """Where each of our rows stands in the file: files of the llama kind rotate neighbours, not halves.

    They hold the rows of a head as 0, D/2, 1, D/2 + 1, …; None where the order is ours.
    """
    if gguf.metadata["general.architecture"] != "llama":
        return None
    heads = {names.Q: spec.heads, names.K: spec.kv_heads}
    module = next((m for m in heads if name.endswith((f".{m}.weight", f".{m}.bias"))), None)
    if module is None or rows != heads[module] * spec.head_dim:
        return None
    return np.arange(rows).reshape(heads[module], spec.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
