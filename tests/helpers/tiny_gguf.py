"""Small GGUF models: the tensors of `tiny_model` under GGUF's names, with llama's order of q and k rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.helpers.gguf_file import GgufFile, Tensor, plain
from tests.helpers.tiny_model import TinyModel, tiny_tensors

F32, F16 = 0, 1

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_metadata(model: TinyModel, **changes: Any) -> dict[str, Any]:
    """Metadata of the model; `changes` replace keys, with `__` for a dot, and `...` removes one."""
    kind = model.family
    base = {
        "general.architecture": kind,
        f"{kind}.block_count": model.layers,
        f"{kind}.context_length": model.context,
        f"{kind}.embedding_length": model.hidden,
        f"{kind}.feed_forward_length": model.ffn,
        f"{kind}.attention.head_count": model.heads,
        f"{kind}.attention.head_count_kv": model.kv_heads,
        f"{kind}.attention.key_length": model.head_size,
        f"{kind}.attention.value_length": model.head_size,
        f"{kind}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{kind}.rope.freq_base": 10000.0,
        f"{kind}.rope.dimension_count": model.head_size,
    }
    changed = base | {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not ...}


def gguf_name(name: str) -> str:
    """GGUF's name of a tensor of Hugging Face."""
    stem, _, kind = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def paired(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of q or k as llama files hold them: the halves of a head interleaved."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def stored_tensors(model: TinyModel) -> list[Tensor]:
    """Matrices in float16, vectors in float32."""
    found = []
    for name, values in tiny_tensors(model).items():
        heads = model.heads if "q_proj" in name else model.kv_heads if "k_proj" in name else 0
        stored = paired(values, heads) if heads and model.family == "llama" else values
        stored = stored.astype("<f2" if stored.ndim == 2 else "<f4")
        kind = F16 if stored.ndim == 2 else F32
        found.append(Tensor(gguf_name(name), stored.shape[::-1], kind, stored.tobytes()))
    return found


def write_tiny_gguf(
    path: Path, model: TinyModel, *, extra: list[Tensor] | None = None, **changes: Any
) -> Path:
    """Write the model's file; `changes` as in `tiny_metadata`, `extra` tensors come last."""
    metadata = [(key, plain(value)) for key, value in tiny_metadata(model, **changes).items()]
    path.write_bytes(GgufFile(metadata, stored_tensors(model) + (extra or [])).build())
    return path
