"""TINY-Llama, TINY-Qwen2, TINY-Qwen3: small random checkpoints in the real on-disk format.

Two layers, grouped heads, the byte tokenizer of `byte_tokenizer` and a chat template; dense or AWQ. The
weights are a function of (shape, seed), so a test may compare runs, backends and formats. They mean
nothing: for scripted replies use `ladder`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.helpers.byte_tokenizer import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    byte_tokenizer_json,
    tokenizer_config,
)

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True)
class TinyModel:
    """What to write; about 700 kB dense in float16, 300 kB in AWQ."""

    family: Literal["llama", "qwen2", "qwen3"] = "qwen2"
    awq: bool = False
    tied: bool = False
    seed: int = 0
    vocab: int = 320
    """Rows of the embedding: the tokenizer has 308 ids, the rest is padding."""
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int | None = None
    """None: hidden / heads, or twice that for Qwen3."""
    ffn: int = 256
    context: int = 512
    group: int = 64
    dtype: type[np.floating[Any]] = np.float16
    tokenizer: bool = True
    chat_template: str | None = CHAT_TEMPLATE
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json that replace or extend ours."""

    @property
    def head_size(self) -> int:
        """D"""
        return self.head_dim or self.hidden // self.heads * (2 if self.family == "qwen3" else 1)


def write_tiny(folder: Path, model: TinyModel | None = None) -> Path:
    """Write the checkpoint into `folder` (made if need be) and return it."""
    model = TinyModel() if model is None else model
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {
        "config.json": tiny_config(model),
        "generation_config.json": {"eos_token_id": [IM_END, END_OF_TEXT]},
    }
    if model.tokenizer:
        (folder / "tokenizer.json").write_bytes(byte_tokenizer_json())
        files["tokenizer_config.json"] = tokenizer_config(model.chat_template)
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=1))
    save_file(tiny_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tiny_config(model: TinyModel) -> dict[str, Any]:
    """Content of config.json."""
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[model.family]],
        "model_type": model.family,
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": model.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": model.tied,
        "eos_token_id": IM_END,
        "torch_dtype": np.dtype(model.dtype).name,
    }
    if model.awq:
        config["quantization_config"] = {
            "quant_method": "awq",
            "bits": 4,
            "group_size": model.group,
            "zero_point": True,
            "version": "gemm",
        }
    return config | dict(model.config)


def tiny_tensors(model: TinyModel) -> dict[str, NDArray[Any]]:
    """Every tensor of the checkpoint by its Hugging Face name."""
    rng = np.random.default_rng(model.seed)
    c, q, kv = model.hidden, model.heads * model.head_size, model.kv_heads * model.head_size
    tensors = {"model.embed_tokens.weight": _normal(rng, (model.vocab, c), 1.0, model)}
    for i in range(model.layers):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}{norm}.weight"] = _norm(rng, c, model)
        if model.family == "qwen3":
            for norm in ("q_norm", "k_norm"):
                tensors[f"{layer}self_attn.{norm}.weight"] = _norm(rng, model.head_size, model)
        for name, n, k in (
            ("self_attn.q_proj", q, c),
            ("self_attn.k_proj", kv, c),
            ("self_attn.v_proj", kv, c),
            ("self_attn.o_proj", c, q),
            ("mlp.gate_proj", model.ffn, c),
            ("mlp.up_proj", model.ffn, c),
            ("mlp.down_proj", c, model.ffn),
        ):
            tensors |= _linear(rng, layer + name, n, k, model)
            if model.family == "qwen2" and name[-6] in "qkv":
                tensors[f"{layer}{name}.bias"] = _normal(rng, (n,), 0.5, model)
    tensors["model.norm.weight"] = _norm(rng, c, model)
    if not model.tied:
        tensors["lm_head.weight"] = _normal(rng, (model.vocab, c), 2 / np.sqrt(c), model)
    return tensors


def _normal(
    rng: np.random.Generator, shape: tuple[int, ...], deviation: float, model: TinyModel
) -> NDArray[Any]:
    return (rng.standard_normal(shape) * deviation).astype(model.dtype)


def _norm(rng: np.random.Generator, size: int, model: TinyModel) -> NDArray[Any]:
    return (1 + 0.2 * rng.standard_normal(size)).astype(model.dtype)


def _linear(rng: np.random.Generator, name: str, n: int, k: int, model: TinyModel) -> dict[str, NDArray[Any]]:
    """Deviation of about 1/√k either way; AWQ words are random codes, zeros 6…9 and random scales."""
    if not model.awq:
        return {f"{name}.weight": _normal(rng, (n, k), k**-0.5, model)}
    groups = k // model.group
    zeros = rng.integers(6, 10, (groups, n // 8, 8), dtype=np.uint32)
    words = (zeros << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    code_deviation = 4.6
    scales = rng.uniform(0.5, 1.5, (groups, n)) * k**-0.5 / code_deviation
    return {
        f"{name}.qweight": rng.integers(-(2**31), 2**31, (k, n // 8), dtype=np.int32),
        f"{name}.qzeros": words.view(np.int32),
        f"{name}.scales": scales.astype(np.float16),
    }
