"""LADDER: a checkpoint in the real on-disk format whose replies a test scripts.

The logits depend on the last token alone: the embedding is 100 · identity, every projection is zero, so
the normed hidden state is (almost) the one-hot vector of the last token, and column t of the head holds
the logits wanted after token t. A chain is a list of distinct ids, each with the top logit after the
one before; a text with repeated bytes needs whole pieces. Blind to attention and KV errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.helpers.byte_tokenizer import (
    ADDED,
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    SPECIALS,
    byte_id,
    byte_tokenizer_json,
    piece_ids,
    tokenizer_config,
)

VOCAB = 1024
FFN, HEADS = 64, 2
TOP, FLOOR = 20.0, -20.0
NEWLINE = byte_id(10)
"""The last token of a prompt that the chat template rendered: replies hang on it by default."""

Table = Mapping[int, Mapping[int, float]]
"""Last token → {next token: logit}; what is not named gets FLOOR."""
Step = str | int
"""One token of a reply: a raw id, a special token, one byte, or a whole piece."""


@dataclass(frozen=True)
class Ladder:
    """What to write. `reply` follows `after`; `table` adds or replaces logits."""

    reply: Sequence[Step] = ("Hello", " world", "<|im_end|>")
    after: int = NEWLINE
    table: Table = field(default_factory=dict)
    family: str = "llama"
    """llama, qwen2 or qwen3 (norms of q and k are ones)"""
    vocab: int = VOCAB
    """Rows of the embedding, and the hidden size."""
    context: int = 2048
    eos: Any = (IM_END, END_OF_TEXT)
    """eos_token_id of generation_config.json: an int, a list, None (null)."""
    generation: Mapping[str, Any] | None = field(default_factory=dict)
    """Further keys of generation_config.json; None: the file is absent."""
    chat_template: str | None = CHAT_TEMPLATE
    tied: bool = False
    """Head = embedding: the last token repeats for ever."""
    awq: bool = False
    """Quantised linears, all zero."""
    tokenizer: bool = True
    dtype: type[np.floating[Any]] = np.float16


def write_ladder(folder: Path, ladder: Ladder | None = None) -> Path:
    """Write the checkpoint into `folder` (made if need be) and return it."""
    ladder = Ladder() if ladder is None else ladder
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config(ladder))
    if ladder.generation is not None:
        eos = list(ladder.eos) if isinstance(ladder.eos, tuple) else ladder.eos
        _write_json(folder / "generation_config.json", {"eos_token_id": eos, **ladder.generation})
    if ladder.tokenizer:
        (folder / "tokenizer.json").write_bytes(byte_tokenizer_json(_extra_pieces(ladder.reply)))
        _write_json(folder / "tokenizer_config.json", tokenizer_config(ladder.chat_template))
    save_file(_tensors(ladder), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def step_ids(reply: Sequence[Step]) -> list[int]:
    """The ids of a scripted reply, as `write_ladder` lays them out."""
    pieces = piece_ids(_extra_pieces(reply))
    return [_step_id(step, pieces) for step in reply]


def chain(ids: Sequence[int], after: int = NEWLINE) -> dict[int, dict[int, float]]:
    """A table in which each id has the top logit after the one before; the first follows `after`."""
    links = list(zip([after, *ids], ids, strict=False))
    starts = [last for last, _ in links]
    assert len(set(starts)) == len(starts), "a chain needs distinct ids: use whole pieces"
    return {last: {following: TOP} for last, following in links}


def head(ladder: Ladder) -> NDArray[np.float32]:
    """(V, V): row v, column t is the logit of v after t."""
    weights = np.full((ladder.vocab, ladder.vocab), FLOOR, np.float32)
    table: Table = {**chain(step_ids(ladder.reply), ladder.after), **ladder.table}
    for last, logits in table.items():
        for token, logit in logits.items():
            weights[token, last] = logit
    return weights


def _is_byte(step: str) -> bool:
    return len(step.encode()) == 1


def _extra_pieces(reply: Sequence[Step]) -> list[str]:
    known = SPECIALS | ADDED
    return [s for s in reply if isinstance(s, str) and not _is_byte(s) and s not in known]


def _step_id(step: Step, pieces: Mapping[str, int]) -> int:
    if isinstance(step, int):
        return step
    if _is_byte(step):
        return byte_id(step.encode()[0])
    return (SPECIALS | ADDED | dict(pieces))[step]


def _config(ladder: Ladder) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [
            {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[ladder.family] + "ForCausalLM"
        ],
        "model_type": ladder.family,
        "vocab_size": ladder.vocab,
        "hidden_size": ladder.vocab,
        "intermediate_size": FFN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": ladder.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": ladder.tied,
        "torch_dtype": np.dtype(ladder.dtype).name,
    }
    if ladder.awq:
        config["quantization_config"] = AWQ_CONFIG
    return config


AWQ_GROUP = 64
AWQ_CONFIG = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": AWQ_GROUP,
    "zero_point": True,
    "version": "gemm",
}
AWQ_ZERO = np.uint32(0x88888888).astype(np.int32)
"""Eight codes, or eight zeros, of 8: weight 0 with any scale."""


def _tensors(ladder: Ladder) -> dict[str, NDArray[Any]]:
    c, q, kv = ladder.vocab, 64 * HEADS, 64
    tensors: dict[str, NDArray[Any]] = {
        "model.embed_tokens.weight": 100 * np.eye(c, dtype=ladder.dtype),
        "model.norm.weight": np.full(c, 1 / np.sqrt(c), ladder.dtype),
    }
    layer = "model.layers.0."
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{layer}{norm}.weight"] = np.ones(c, ladder.dtype)
    if ladder.family == "qwen3":
        for norm in ("q_norm", "k_norm"):
            tensors[f"{layer}self_attn.{norm}.weight"] = np.ones(64, ladder.dtype)
    for name, n, k in (
        ("self_attn.q_proj", q, c),
        ("self_attn.k_proj", kv, c),
        ("self_attn.v_proj", kv, c),
        ("self_attn.o_proj", c, q),
        ("mlp.gate_proj", FFN, c),
        ("mlp.up_proj", FFN, c),
        ("mlp.down_proj", c, FFN),
    ):
        tensors |= _zero_linear(layer + name, n, k, ladder)
        if ladder.family == "qwen2" and name[-6] in "qkv":
            tensors[f"{layer}{name}.bias"] = np.zeros(n, ladder.dtype)
    if not ladder.tied:
        tensors["lm_head.weight"] = head(ladder).astype(ladder.dtype)
    return tensors


def _zero_linear(name: str, n: int, k: int, ladder: Ladder) -> dict[str, NDArray[Any]]:
    if not ladder.awq:
        return {f"{name}.weight": np.zeros((n, k), ladder.dtype)}
    groups = k // AWQ_GROUP
    return {
        f"{name}.qweight": np.full((k, n // 8), AWQ_ZERO, np.int32),
        f"{name}.qzeros": np.full((groups, n // 8), AWQ_ZERO, np.int32),
        f"{name}.scales": np.ones((groups, n), np.float16),
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1))
