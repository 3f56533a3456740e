"""The names under which tensors are stored, and the shapes that a specification expects of them.

Our own names are those of Hugging Face (`model.layers.0.self_attn.q_proj.weight`); other spellings (a
wrapper's prefix, GGUF's short names) are translated to them once, when a checkpoint is opened.
"""

from __future__ import annotations

import re

from llmrs_cli.engine.model.spec import ModelSpec

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

ATTENTION_NORM = "input_layernorm.weight"
MLP_NORM = "post_attention_layernorm.weight"
Q_NORM, K_NORM = "self_attn.q_norm.weight", "self_attn.k_norm.weight"
Q, K, V, O = (f"self_attn.{kind}_proj" for kind in "qkvo")  # noqa: E741 (the paper's letters)
GATE, UP, DOWN = (f"mlp.{kind}_proj" for kind in ("gate", "up", "down"))


def in_layer(layer: int, name: str) -> str:
    """Full name of a tensor or module of one layer."""
    return f"model.layers.{layer}.{name}"


def linear_shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """(N, K) of each linear module of a layer."""
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    return {
        Q: (queries, spec.hidden),
        K: (keys, spec.hidden),
        V: (keys, spec.hidden),
        O: (spec.hidden, queries),
        GATE: (spec.ffn, spec.hidden),
        UP: (spec.ffn, spec.hidden),
        DOWN: (spec.hidden, spec.ffn),
    }


def biased(spec: ModelSpec) -> set[str]:
    """Linear modules that must come with a bias."""
    flags = {Q: spec.qkv_bias, K: spec.qkv_bias, V: spec.qkv_bias, O: spec.o_bias}
    flags |= dict.fromkeys((GATE, UP, DOWN), spec.mlp_bias)
    return {module for module, wanted in flags.items() if wanted}


def expected_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Every parameter that the model needs, by our name."""
    of_layer: dict[str, Shape] = {ATTENTION_NORM: (spec.hidden,), MLP_NORM: (spec.hidden,)}
    if spec.qk_norm:
        of_layer |= {Q_NORM: (spec.head_dim,), K_NORM: (spec.head_dim,)}
    shapes = linear_shapes(spec)
    of_layer |= {f"{module}.weight": shape for module, shape in shapes.items()}
    of_layer |= {f"{module}.bias": shapes[module][:1] for module in biased(spec)}
    found: dict[str, Shape] = {EMBEDDING: (spec.vocab, spec.hidden), NORM: (spec.hidden,)}
    for layer in range(spec.layers):
        found |= {in_layer(layer, name): shape for name, shape in of_layer.items()}
    if not spec.tied_head:
        found[HEAD] = (spec.vocab, spec.hidden)
    return found


def is_ignored(name: str, spec: ModelSpec) -> bool:
    """Whether a stored tensor may be left unread: a derived buffer, or the copy of a tied head."""
    return name.endswith(".rotary_emb.inv_freq") or (spec.tied_head and name == HEAD)


# -- other spellings ----------------------------------------------------------------------------------

_WRAPPERS = re.compile(r"^(module\.|_orig_mod\.|base_model\.model\.|language_model\.)+")


def from_hf(stored: str) -> str:
    """Our name of a tensor in a safetensors file: wrappers stripped, `model.` added where it is missing."""
    name = _WRAPPERS.sub("", stored)
    bare = name.removeprefix("model.language_model.")
    if bare != name or name.startswith(("layers.", "embed_tokens.", "norm.")):
        return "model." + bare
    return name


_GGUF_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": Q,
    "attn_k": K,
    "attn_v": V,
    "attn_output": O,
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": GATE,
    "ffn_up": UP,
    "ffn_down": DOWN,
}
_GGUF_BLOCK = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)")


def from_gguf(stored: str) -> str:
    """Our name of a tensor in a GGUF file; one that is in no table keeps its own."""
    if (block := _GGUF_BLOCK.fullmatch(stored)) and block[2] in _GGUF_LAYER:
        return in_layer(int(block[1]), f"{_GGUF_LAYER[block[2]]}.{block[3]}")
    stem, _, kind = stored.rpartition(".")
    return f"{_GGUF_TOP[stem]}.{kind}" if stem in _GGUF_TOP else stored
