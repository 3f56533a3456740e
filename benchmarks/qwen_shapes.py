"""The shapes of Qwen2.5: what kernels are measured on, and compiled for ahead of a GPU."""

from __future__ import annotations

from llmrs_cli.kernels.linear_small import Epilogue

# C, layers, heads, kv heads, head size, F, vocabulary, tied
MODELS = {
    "7b": (3584, 28, 28, 4, 128, 18944, 152064, False),
    "3b": (2048, 36, 16, 2, 128, 11008, 151936, True),
    "0.5b": (896, 24, 14, 2, 64, 4864, 151936, True),
}


def linears(name: str) -> tuple[tuple[int, int, Epilogue], ...]:
    """(N, K, what follows) of the matrices of a layer, and of the head."""
    c, _, heads, kv_heads, d, f, vocab, _ = MODELS[name]
    return (
        ((heads + 2 * kv_heads) * d, c, "store"),
        (c, heads * d, "add"),
        (2 * f, c, "silu"),
        (c, f, "add"),
        (vocab, c, "logits"),
    )
