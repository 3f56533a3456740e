"""16-bit copies of 4-bit weights, for steps of many tokens on a GPU that has the memory for both.

The values are those that a kernel would widen codes to, and `dequantise` rounds them once instead of in each step.
"""

from __future__ import annotations

from dataclasses import replace

import cupy as cp

from llmrs_cli.engine.backends.cuda_linear import CudaLinear
from llmrs_cli.engine.backends.cuda_packed import PackedLinear
from llmrs_cli.engine.backends.cuda_upload import Upload
from llmrs_cli.engine.backends.handles import Linear, ModelWeights
from llmrs_cli.kernels.dequantise import dequantise
from llmrs_cli.kernels.device import CudaDevice


def with_copies(device: CudaDevice, upload: Upload, model: ModelWeights) -> ModelWeights:
    """The model with a copy beside each packed linear of its layers, complete when `upload` is closed. Raises MemoryError."""

    def both(linear: Linear) -> Linear:
        return beside(device, upload, linear)

    layers = (
        replace(
            layer,
            qkv=both(layer.qkv),
            o=both(layer.o),
            gate_up=both(layer.gate_up),
            down=both(layer.down),
        )
        for layer in model.layers
    )
    return replace(model, layers=tuple(layers))


def beside(device: CudaDevice, upload: Upload, linear: Linear) -> Linear:
    """A packed linear with its copy; others as they are."""
    if not isinstance(linear, PackedLinear):
        return linear
    with upload.stream:  # behind the words themselves
        values = cp.empty(linear.shape, cp.uint16)
        dequantise(device, linear.bf16, linear.matrix, values)
    note = f"{linear.note}, and in 16 bits"
    copy = CudaLinear(values, linear.bias, linear.narrow_bias, linear.bf16, note)
    return replace(linear, copy=copy, note=note)
