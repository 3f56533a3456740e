"""Which parameters of a safetensors checkpoint are quantised, and how each one is put together.

A layer is quantised if its tensors are (`.qweight` exists), whatever the configuration lists; the
configuration gives the format and the group size (`quantisation`). A list that contradicts the tensors is
reported. The formats themselves are `awq`, `gptq` and `compressed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from llmrs_cli.engine.weights.awq import awq_rows_weight, awq_weight
from llmrs_cli.engine.weights.compressed import compressed_weight
from llmrs_cli.engine.weights.gptq import gptq_weight, in_groups
from llmrs_cli.engine.weights.packed import Packed4, Stored, Words4, bf16_to_f32, canonical
from llmrs_cli.engine.weights.parameters import WIDENED, Parameter, dense_parameter
from llmrs_cli.engine.weights.quantisation import Quantisation
from llmrs_cli.engine.weights.store import StoredTensor, Tensors, few
from llmrs_cli.errors import ModelError, quoted

_FLOATS = ("F16", "F32", "BF16")
_WORDS = ("I32",)

_PIECES = {
    "awq": ("qweight", "qzeros", "scales"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "compressed-tensors": (
        "weight_packed",
        "weight_scale",
        "weight_zero_point",
        "weight_shape",
        "weight_g_idx",
    ),
}
"""The tensors of one quantised layer; the first is what makes it one."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """The stored tensors of one quantised linear layer."""

    name: str
    pieces: Mapping[str, StoredTensor]

    def need(self, piece: str, dtypes: tuple[str, ...], shape: tuple[int, ...] | None = None) -> StoredTensor:
        """The tensor `piece`; raises ModelError unless it exists in one of `dtypes` and in `shape`."""
        tensor = self.pieces.get(piece)
        if tensor is None:
            raise ModelError(f"{quoted(self.name, 120)} is quantised but has no {piece}.")
        if tensor.dtype not in dtypes:
            raise ModelError(f"{quoted(tensor.name, 120)} has dtype {tensor.dtype}, not {dtypes[0]}.")
        if shape is not None and tensor.shape != shape:
            raise ModelError(
                f"{quoted(tensor.name, 120)} has shape {tensor.shape}; {shape} would fit its layer."
            )
        if shape is None and (len(tensor.shape) != 2 or 0 in tensor.shape):
            raise ModelError(f"{quoted(tensor.name, 120)} has shape {tensor.shape}, which is no matrix.")
        return tensor

    def parameter(self, shape: tuple[int, int], form: str, read: Callable[[], Stored]) -> Parameter:
        """`read` may give what is as the file holds it."""
        nbytes = sum(tensor.nbytes for tensor in self.pieces.values())
        names = tuple(tensor.name for tensor in self.pieces.values())
        return Parameter(shape, form, nbytes, names, lambda: canonical(read()), read)


def build_parameters(tensors: Tensors, quantisation: Quantisation | None) -> dict[str, Parameter]:
    """Parameters by our names; `tensors` are keyed by our names too."""
    if quantisation is None:
        if packed := [n for n in tensors if n.endswith((".qweight", ".weight_packed"))]:
            raise ModelError(f"config.json names no quantisation, but there are {few(packed)}.")
        return {name: dense_parameter(tensor) for name, tensor in tensors.items()}
    layers = _quantised_layers(tensors, _PIECES[quantisation.method])
    for layer in layers:
        _check_skipped(layer.name, quantisation)
    used = {f"{layer.name}.{piece}" for layer in layers for piece in layer.pieces}
    plain = {name: dense_parameter(tensor) for name, tensor in tensors.items() if name not in used}
    build = {"awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed}[quantisation.method]
    return plain | {f"{layer.name}.weight": build(layer, quantisation) for layer in layers}


def _quantised_layers(tensors: Tensors, pieces: tuple[str, ...]) -> list[_Layer]:
    names = [name.removesuffix("." + pieces[0]) for name in tensors if name.endswith("." + pieces[0])]
    return [
        _Layer(name, {p: tensors[f"{name}.{p}"] for p in pieces if f"{name}.{p}" in tensors})
        for name in names
    ]


def _check_skipped(name: str, quantisation: Quantisation) -> None:
    for part in quantisation.skipped:
        if part in name:
            raise ModelError(
                f"modules_to_not_convert lists {quoted(part)}, but {quoted(name, 120)} is quantised.",
                hint="The configuration and the weights do not belong together.",
            )


def _awq(layer: _Layer, quantisation: Quantisation) -> Parameter:
    if quantisation.by_rows:
        return _awq_rows(layer, quantisation)
    columns, width = layer.need("qweight", _WORDS).shape
    group = quantisation.group_of(columns)
    groups = -(-columns // group)
    layer.need("qzeros", _WORDS, (groups, width))
    layer.need("scales", _FLOATS, (groups, 8 * width))

    def read() -> Words4:
        words, zeros = layer.pieces["qweight"].read(), layer.pieces["qzeros"].read()
        return awq_weight(words, zeros, _scales(layer.pieces["scales"]), group)

    return layer.parameter((8 * width, columns), f"4-bit AWQ, group {group}", read)


def _awq_rows(layer: _Layer, quantisation: Quantisation) -> Parameter:
    """The layout "gemv": rows of zeros and scales are padded, by how much depends on who wrote them."""
    outputs, width = layer.need("qweight", _WORDS).shape
    columns = 8 * width
    group = quantisation.group_of(columns)
    zeros = layer.need("qzeros", _WORDS)
    if zeros.shape[0] != outputs or 8 * zeros.shape[1] * group < columns:
        raise ModelError(f"{quoted(zeros.name, 120)} has shape {zeros.shape}, which does not fit its layer.")
    layer.need("scales", _FLOATS, (outputs, 8 * zeros.shape[1]))

    def read() -> Packed4:
        words, zeros = layer.pieces["qweight"].read(), layer.pieces["qzeros"].read()
        return awq_rows_weight(words, zeros, _scales(layer.pieces["scales"]), group)

    return layer.parameter((outputs, columns), f"4-bit AWQ, group {group}", read)


def _gptq(layer: _Layer, quantisation: Quantisation) -> Parameter:
    rows, outputs = layer.need("qweight", _WORDS).shape
    columns = rows * 8
    group = quantisation.group_of(columns)
    groups = -(-columns // group)
    layer.need("scales", _FLOATS, (groups, outputs))
    layer.need("qzeros", _WORDS, (groups, -(-outputs // 8)))
    if quantisation.activation_order or "g_idx" in layer.pieces:
        layer.need("g_idx", _WORDS, (columns,))

    def read() -> Stored:
        words, zeros = layer.pieces["qweight"].read(), layer.pieces["qzeros"].read()
        weight = gptq_weight(
            words,
            zeros,
            _scales(layer.pieces["scales"]),
            group,
            stored_less_one=quantisation.zeros_less_one,
            name=layer.name,
        )
        return _in_groups(layer, "g_idx", weight)

    form = f"GPTQ in activation order, 4-bit {WIDENED}" if quantisation.activation_order else "4-bit GPTQ"
    return layer.parameter((outputs, columns), f"{form}, group {group}", read)


def _compressed(layer: _Layer, quantisation: Quantisation) -> Parameter:
    outputs, width = layer.need("weight_packed", _WORDS).shape
    columns = _stored_columns(layer, outputs, width)
    group = quantisation.group_of(columns)
    groups = -(-columns // group)
    layer.need("weight_scale", _FLOATS, (outputs, groups))
    if "weight_zero_point" in layer.pieces:
        layer.need("weight_zero_point", _WORDS, (-(-outputs // 8), groups))
    if "weight_g_idx" in layer.pieces:
        layer.need("weight_g_idx", _WORDS, (columns,))

    def read() -> Stored:
        zeros = layer.pieces.get("weight_zero_point")
        weight = compressed_weight(
            layer.pieces["weight_packed"].read(),
            _scales(layer.pieces["weight_scale"]),
            None if zeros is None else zeros.read(),
            group,
            columns,
        )
        return _in_groups(layer, "weight_g_idx", weight)

    form = "4-bit compressed-tensors"
    if "weight_g_idx" in layer.pieces:
        form = f"compressed-tensors in activation order, 4-bit {WIDENED}"
    return layer.parameter((outputs, columns), f"{form}, group {group}", read)


def _stored_columns(layer: _Layer, outputs: int, width: int) -> int:
    """K, from the two numbers of `weight_shape`."""
    rows, columns = layer.need("weight_shape", ("I64", "I32"), (2,)).read().tolist()
    if rows != outputs or columns < 1 or -(-columns // 8) != width:
        raise ModelError(
            f"{quoted(layer.name, 120)} says its shape is ({rows}, {columns}), which its data is not."
        )
    return int(columns)


def _in_groups(layer: _Layer, piece: str, weight: Packed4 | Words4) -> Stored:
    """`weight` with its columns sorted, if the tensor `piece` gives the group of each."""
    return in_groups(weight, layer.pieces[piece].read(), layer.name) if piece in layer.pieces else weight


def _scales(tensor: StoredTensor) -> NDArray[Any]:
    values = tensor.read()
    return bf16_to_f32(values) if tensor.dtype == "BF16" else values
