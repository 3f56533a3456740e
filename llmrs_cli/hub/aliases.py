"""The short names of models: which repository each means and what its configuration is expected to say.

One table. An alias always means the instruction-tuned model. The expected configuration lets a fit check
or a benchmark with random weights run before the first byte is downloaded; `doctor` compares it with the
Hub. Sources: the config.json and generation_config.json of the repositories named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

BUILT_IN = "smollm2-135m"
"""The one model that needs no Hub: a single file inside a Python package (`hub.builtin`)."""


@dataclass(frozen=True, slots=True)
class Alias:
    """What a short name stands for."""

    name: str
    repo: str
    gated: bool
    """The Hub wants a licence to be accepted before it hands the files out."""
    config: Mapping[str, object]
    """Keys of config.json, as the repository is expected to have them."""
    file: str | None = None
    """The model is this one file rather than the repository's safetensors."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes that differ between the members of a family."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool


_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "torch_dtype": "bfloat16",
}
_QWEN3 = {
    **_QWEN2,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "max_position_embeddings": 40960,
    "head_dim": 128,
    "attention_bias": False,
}
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
}
_SMOLLM2 = {**_LLAMA, "max_position_embeddings": 8192, "bos_token_id": 1, "eos_token_id": 2}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def _llama3(factor: float) -> dict[str, object]:
    rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return {
        **_LLAMA,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {**rope, "original_max_position_embeddings": 8192},
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
    }


def _alias(
    name: str,
    repo: str,
    base: Mapping[str, object],
    shape: _Shape,
    *,
    gated: bool = False,
    file: str | None = None,
) -> Alias:
    sizes = {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
    }
    return Alias(name, repo, gated, {**base, **sizes}, file)


def _awq(alias: Alias) -> Alias:
    """The 4-bit variant that the same publisher offers beside `alias`."""
    config = {**alias.config, "torch_dtype": "float16", "quantization_config": _AWQ}
    return replace(alias, name=f"{alias.name}-awq", repo=f"{alias.repo}-AWQ", config=config)


def _table() -> dict[str, Alias]:
    qwen25 = [
        _alias(f"qwen2.5-{size.lower()}", f"Qwen/Qwen2.5-{size}-Instruct", _QWEN2, shape)
        for size, shape in {
            "0.5B": _Shape(896, 24, 14, 2, 4864, 151936, True),
            "1.5B": _Shape(1536, 28, 12, 2, 8960, 151936, True),
            "3B": _Shape(2048, 36, 16, 2, 11008, 151936, True),
            "7B": _Shape(3584, 28, 28, 4, 18944, 152064, False),
            "14B": _Shape(5120, 48, 40, 8, 13824, 152064, False),
        }.items()
    ]
    qwen3 = [
        _alias(f"qwen3-{size.lower()}", f"Qwen/Qwen3-{size}", _QWEN3, shape)
        for size, shape in {
            "0.6B": _Shape(1024, 28, 16, 8, 3072, 151936, True),
            "1.7B": _Shape(2048, 28, 16, 8, 6144, 151936, True),
            "4B": _Shape(2560, 36, 32, 8, 9728, 151936, True),
            "8B": _Shape(4096, 36, 32, 8, 12288, 151936, False),
        }.items()
    ]
    llama = [
        _alias(
            f"llama{version}-{size.lower()}",
            f"meta-llama/Llama-{version}-{size}-Instruct",
            base,
            shape,
            gated=True,
        )
        for version, size, base, shape in (
            ("3.2", "1B", _llama3(32.0), _Shape(2048, 16, 32, 8, 8192, 128256, True)),
            ("3.2", "3B", _llama3(32.0), _Shape(3072, 28, 24, 8, 8192, 128256, True)),
            ("3.1", "8B", _llama3(8.0), _Shape(4096, 32, 32, 8, 14336, 128256, False)),
        )
    ]
    smollm2 = [
        _alias(
            f"smollm2-{size.lower()}",
            f"HuggingFaceTB/SmolLM2-{size}-Instruct",
            {**_SMOLLM2, "rope_theta": theta},
            shape,
            file="SmolLM2-135M-Instruct.Q4_1.gguf" if size == "135M" else None,
        )
        for size, theta, shape in (
            ("135M", 100000.0, _Shape(576, 30, 9, 3, 1536, 49152, True)),
            ("360M", 100000.0, _Shape(960, 32, 15, 5, 2560, 49152, True)),
            ("1.7B", 130000.0, _Shape(2048, 24, 32, 32, 8192, 49152, True)),
        )
    ]
    awq = [_awq(alias) for alias in [*qwen25, *qwen3] if alias.name not in ("qwen3-0.6b", "qwen3-1.7b")]
    return {alias.name: alias for alias in [*smollm2, *qwen25, *qwen3, *llama, *awq]}


ALIASES: Mapping[str, Alias] = _table()
"""Short name → what it stands for, the built-in model first."""
