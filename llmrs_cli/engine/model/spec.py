"""What a model is: sizes and switches read from its configuration, frozen, and checked once.

`ModelSpec` says everything the decoder branches on. It comes from a Hugging Face `config.json`
(`from_config`) or from GGUF metadata, which `weights.gguf_config` first turns into the same keys. Anything
that we cannot run exactly is refused here by name; nothing is ignored that would change a token. No code
that a configuration names (`auto_map`) is ever looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from llmrs_cli.engine.backends.handles import Geometry
from llmrs_cli.engine.model.fields import MAX_CONTEXT, Fields
from llmrs_cli.engine.model.rope_config import RopeSpec as RopeSpec
from llmrs_cli.engine.model.rope_config import rope_from_config, stretched_context
from llmrs_cli.errors import ModelError, quoted

Dtype = Literal["float32", "float16", "bfloat16"]

MAX_LAYERS = 1_000
MAX_WIDTH = 1 << 20
"""Of C, F and heads · D."""
MIN_HEAD, MAX_HEAD = 4, 1024
MAX_VOCAB = 1 << 22


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A dense decoder of the Llama kind."""

    family: str
    """llama, mistral, qwen2 or qwen3."""
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
    dtype: Dtype | None
    """As the configuration says; None: what the tensors say."""
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """End tokens of the configuration; the generation configuration may add more."""

    def geometry(self, layer: int) -> Geometry:
        """Attention sizes of one layer."""
        window = self.window if self.window and layer >= self.first_window_layer else None
        return Geometry(self.heads, self.kv_heads, self.head_dim, self.eps, window)


@dataclass(frozen=True, slots=True)
class _Family:
    """How one architecture reads its configuration; defaults are those of transformers."""

    name: str
    always_qkv_bias: bool = False
    """Queries, keys and values have a bias whatever the configuration says, the output has none."""
    reads_attention_bias: bool = False
    reads_mlp_bias: bool = False
    qk_norm: bool = False
    window: Literal["none", "always", "flag"] = "none"
    """`sliding_window` is unknown to it, always honoured, or only under `use_sliding_window`."""
    default_head_dim: int | None = None
    default_window: int | None = None


FAMILIES = {
    "LlamaForCausalLM": _Family("llama", reads_attention_bias=True, reads_mlp_bias=True),
    "MistralForCausalLM": _Family("mistral", window="always", default_window=4096),
    "Qwen2ForCausalLM": _Family("qwen2", always_qkv_bias=True, window="flag", default_window=4096),
    "Qwen3ForCausalLM": _Family(
        "qwen3",
        reads_attention_bias=True,
        qk_norm=True,
        window="flag",
        default_head_dim=128,
        default_window=4096,
    ),
}
"""The architectures that we run, under the names of `config.json`."""


def from_config(config: Mapping[str, object], generation: Mapping[str, object] | None = None) -> ModelSpec:
    """Read a `config.json` (old and new spellings) and, if there is one, a `generation_config.json`.

    Raises ModelError that names the field, its value and what would do.
    """
    fields = Fields(config, "config.json")
    family = _family(fields)
    if (act := fields.text("hidden_act")) not in (None, "silu", "swish"):
        raise ModelError(f"Activation {quoted(act)} is not supported; we run silu.")
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    hidden = fields.integer("hidden_size", 1, MAX_WIDTH)
    vocab = fields.integer("vocab_size", 1, MAX_VOCAB)
    heads, kv_heads, head_dim = _heads(fields, family, hidden)
    trained = fields.integer("max_position_embeddings", 1, MAX_CONTEXT)
    rope = rope_from_config(fields, trained)
    window, first_window_layer = _window(fields, family, layers)
    attention_bias = family.reads_attention_bias and fields.flag("attention_bias", False)
    return ModelSpec(
        family=family.name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=fields.integer("intermediate_size", 1, MAX_WIDTH),
        vocab=vocab,
        eps=fields.number("rms_norm_eps", 1e-12, 0.1, 1e-6),
        rope=rope,
        max_context=stretched_context(rope, trained),
        tied_head=fields.flag("tie_word_embeddings", False),
        qkv_bias=family.always_qkv_bias or attention_bias,
        o_bias=attention_bias,
        mlp_bias=family.reads_mlp_bias and fields.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
        window=window,
        first_window_layer=first_window_layer,
        dtype=_dtype(fields),
        bos_id=next(_token_ids(fields, "bos_token_id", vocab), None),
        eos_ids=_eos_ids(fields, generation, vocab),
    )


def _family(fields: Fields) -> _Family:
    """The row of FAMILIES that `architectures` names, or `model_type` where that is missing."""
    named = fields.items("architectures")
    if named:
        known = {name: row for name, row in FAMILIES.items() if name in named}
        found: object = named[0]
    else:
        found = fields.require("model_type")
        known = {name: row for name, row in FAMILIES.items() if row.name == found}
    if len(known) != 1:
        raise ModelError(f"Architecture {quoted(found)} is not supported; we run {', '.join(FAMILIES)}.")
    return next(iter(known.values()))


def _heads(fields: Fields, family: _Family, hidden: int) -> tuple[int, int, int]:
    """(Hq, Hkv, D): Hkv divides Hq, D is even."""
    heads = fields.integer("num_attention_heads", 1, MAX_WIDTH)
    kv_heads = fields.integer("num_key_value_heads", 1, MAX_WIDTH, heads)
    if heads % kv_heads:
        fields.refuse("num_key_value_heads", f"a divisor of num_attention_heads, which is {heads}")
    head_dim = _head_dim(fields, family, hidden, heads)
    if head_dim % 2 or head_dim < MIN_HEAD or heads * head_dim > MAX_WIDTH:
        raise ModelError(f"A head size of {head_dim} with {heads} heads in {fields.source} cannot be run.")
    if fields.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
        fields.refuse("partial_rotary_factor", "1, which is all we run")
    return heads, kv_heads, head_dim


def _head_dim(fields: Fields, family: _Family, hidden: int, heads: int) -> int:
    if "head_dim" not in fields.values and family.default_head_dim:
        return family.default_head_dim
    if fields.get("head_dim") is None:
        if hidden % heads:
            fields.refuse("num_attention_heads", f"a divisor of hidden_size, which is {hidden}")
        return hidden // heads
    return fields.integer("head_dim", MIN_HEAD, MAX_HEAD)


def _window(fields: Fields, family: _Family, layers: int) -> tuple[int | None, int]:
    """The sliding window in tokens and the first layer that has it; (None, layers) where none has."""
    size = _window_size(fields, family)
    first = fields.integer("max_window_layers", 0, MAX_WIDTH, 28) if family.window == "flag" else 0
    kinds = fields.items("layer_types")
    if kinds is not None:
        sliding = [kind == "sliding_attention" for kind in kinds]
        first = sliding.index(True) if True in sliding else layers
        known = all(kind in ("full_attention", "sliding_attention") for kind in kinds)
        if not known or len(kinds) != layers or sliding != [i >= first for i in range(layers)]:
            fields.refuse("layer_types", f"{layers} times full_attention, then sliding_attention")
        if first < layers and size is None:
            fields.refuse("sliding_window", "set where layer_types has sliding_attention")
    return (size, first) if size is not None and first < layers else (None, layers)


def _window_size(fields: Fields, family: _Family) -> int | None:
    if family.window == "flag" and not fields.flag("use_sliding_window", False):
        return None
    if "sliding_window" not in fields.values:
        return family.default_window
    if fields.get("sliding_window") is None:
        return None
    if family.window == "none":
        fields.refuse("sliding_window", f"absent or null in a {family.name} model")
    return fields.integer("sliding_window", 1, MAX_CONTEXT)


_DTYPES: dict[str, Dtype] = {
    "float32": "float32",
    "float": "float32",
    "float16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
}


def _dtype(fields: Fields) -> Dtype | None:
    """`dtype` before the older `torch_dtype`; "auto" and absent: None."""
    name = fields.text("dtype")
    if name is None:
        name = fields.text("torch_dtype")
    if name is None or name == "auto":
        return None
    if (dtype := _DTYPES.get(name.removeprefix("torch."))) is None:
        raise ModelError(
            f"Weights of dtype {quoted(name)} are not supported; we run float32, float16, bfloat16."
        )
    return dtype


def _token_ids(fields: Fields, name: str, vocab: int) -> Iterator[int]:
    """An id, a list of ids, or nothing; an id outside the vocabulary can never be drawn and is dropped."""
    value = fields.get(name)
    for token in value if isinstance(value, list) else [value]:
        if token is None:
            continue
        if isinstance(token, bool) or not isinstance(token, int):
            fields.refuse(name, "a token id, a list of them, or null")
        if 0 <= token < vocab:
            yield token


def _eos_ids(fields: Fields, generation: Mapping[str, object] | None, vocab: int) -> tuple[int, ...]:
    """End tokens of both files, each once, those of the generation configuration first."""
    sources = [Fields(generation or {}, "generation_config.json"), fields]
    return tuple(dict.fromkeys(i for source in sources for i in _token_ids(source, "eos_token_id", vocab)))
