"""What a model is: sizes and switches read from its configuration, frozen, and checked once.

`ModelSpec` says everything the decoder branches on. It comes from a Hugging Face `config.json`
(`from_config`) or from GGUF metadata, which `weights.gguf` first turns into the same keys. Anything
that we cannot run exactly is refused here by name; nothing is ignored that would change a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmrs_cli.engine.backends.handles import Geometry


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How positions rotate queries and keys; `model.rope` turns it into tables."""

    kind: Literal["default", "linear", "llama3", "yarn", "dynamic"] = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_context: int | None = None
    """Context the model was first trained for (llama3, yarn, dynamic)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """On cosines and sines; None: 0.1·ln(factor) + 1 (yarn)."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A dense decoder of the Llama kind."""

    family: str
    """Key of the tensor-name table: llama, mistral, qwen2, qwen3."""
    hidden: int
    """C"""
    layers: int
    heads: int
    """Hq"""
    kv_heads: int
    """Hkv"""
    head_dim: int
    """D"""
    ffn: int
    """F"""
    vocab: int
    """V: rows of the embedding, padding included"""
    eps: float
    rope: RopeSpec
    max_context: int
    """Tokens of prompt and answer that the model was made for."""
    tied_head: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    window: int | None
    """Sliding window of the layers from `first_window_layer` on, or None."""
    first_window_layer: int
    dtype: Literal["float32", "float16", "bfloat16"] | None
    """As the configuration says; None: what the tensors say."""
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """End tokens of the configuration; the generation configuration may add more."""

    def geometry(self, layer: int) -> Geometry:
        """Attention sizes of one layer."""
        window = self.window if self.window and layer >= self.first_window_layer else None
        return Geometry(self.heads, self.kv_heads, self.head_dim, self.eps, window)
