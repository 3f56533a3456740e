"""Random weights in the shapes of Qwen2.5, made on the GPU itself: for variants of kernels and steps that are timed there."""

from __future__ import annotations

import cupy as cp
import numpy as np

from benchmarks.chain import random_bits
from benchmarks.qwen_shapes import MODELS
from llmrs_cli.engine.backends.cuda import CudaBackend
from llmrs_cli.engine.backends.cuda_linear import CudaLinear
from llmrs_cli.engine.backends.handles import Geometry, LayerWeights, ModelWeights


def linear(n: int, k: int, bias: bool = False) -> CudaLinear:
    weight = random_bits(n * k, 0.02).reshape(n, k)
    return CudaLinear(
        weight,
        cp.zeros(n, cp.float32) if bias else None,
        cp.zeros(n, cp.uint16) if bias else None,
        True,
        "random",
    )


def random_model(backend: CudaBackend, name: str, context: int) -> ModelWeights:
    c, layers, heads, kv_heads, d, f, vocab, tied = MODELS[name]
    backend._bf16 = True
    geometry = Geometry(heads, kv_heads, d, 1e-6)
    ones = cp.ones(c, cp.float32)
    angles = np.outer(np.arange(context + 1), 1e6 ** -(np.arange(d // 2) * 2 / d))
    rope = backend.prepare_rope(np.cos(angles), np.sin(angles))
    stack = tuple(
        LayerWeights(
            geometry=geometry,
            attention_norm=ones,
            qkv=linear((heads + 2 * kv_heads) * d, c, bias=True),
            q_norm=None,
            k_norm=None,
            o=linear(c, heads * d),
            mlp_norm=ones,
            gate_up=linear(2 * f, c),
            down=linear(c, f),
        )
        for _ in range(layers)
    )
    embedding = linear(vocab, c)
    return ModelWeights(embedding, rope, stack, ones, embedding if tied else linear(vocab, c), 1e-6)
