"""Small configurations of each family, as their config.json spells them."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def config(architecture: str = "LlamaForCausalLM", **changes: Any) -> Config:
    """A configuration of 64 hidden components and 4 heads; `changes` replace keys, `...` removes one."""
    base: Config = {
        "architectures": [architecture],
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "sliding_window": None,
    }
    return {key: value for key, value in (base | changes).items() if value is not ...}
