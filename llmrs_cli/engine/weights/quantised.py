"""Which parameters of a safetensors checkpoint are quantised, and how each one is put together.

A layer is quantised if its tensors are (`.qweight` exists), whatever the configuration lists; the
configuration gives the format and the group size. A list that contradicts the tensors is reported. The
formats themselves are `awq`, `gptq` and `compressed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from llmrs_cli.engine.model.fields import Fields
from llmrs_cli.engine.weights.awq import awq_weight
from llmrs_cli.engine.weights.compressed import compressed_weight
from llmrs_cli.engine.weights.gptq import check_order, gptq_weight
from llmrs_cli.engine.weights.packed import Packed4, bf16_to_f32
from llmrs_cli.engine.weights.parameters import Parameter, dense_parameter
from llmrs_cli.engine.weights.store import StoredTensor, Tensors, few
from llmrs_cli.errors import ModelError, quoted

SUPPORTED = "awq (gemm), gptq and compressed-tensors (pack-quantized), each with 4 bits"
MAX_GROUP = 1 << 20
_FLOATS = ("F16", "F32", "BF16")
_WORDS = ("I32",)


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What `quantization_config` says about every quantised layer."""

    method: Literal["awq", "gptq", "compressed-tensors"]
    group: int
    """G; -1: one group of all inputs."""
    skipped: tuple[str, ...] = ()
    """Parts of names of layers that are said to be plain."""
    zeros_less_one: bool = False
    """GPTQ's first format."""

    def group_of(self, columns: int) -> int:
        """G of a layer with K = `columns` inputs."""
        return columns if self.group == -1 else self.group


# -- configuration ------------------------------------------------------------------------------------


def read_quantisation(config: Mapping[str, object]) -> Quantisation | None:
    """From the `quantization_config` of a config.json; None if there is none.

    Raises ModelError that names a method, bit width or layout that we do not run.
    """
    section = Fields(config, "config.json").table("quantization_config")
    if not section:
        return None
    fields = Fields(section, "quantization_config")
    method = fields.text("quant_method")
    if method == "awq":
        return _read_awq(fields)
    if method == "gptq":
        return _read_gptq(fields)
    if method == "compressed-tensors":
        return _read_compressed(fields)
    raise _unsupported(f"method {quoted(method)}")


def _unsupported(what: str) -> ModelError:
    return ModelError(f"Quantisation with {what} is not supported; we run {SUPPORTED}.")


def _read_awq(fields: Fields) -> Quantisation:
    """Both spellings: that of transformers and that of AutoAWQ's own quant_config.json."""
    old = "w_bit" in fields.values
    _check_bits(fields, "w_bit" if old else "bits")
    version = (fields.text("version") or "gemm").lower()
    if version != "gemm":
        raise _unsupported(f"AWQ version {quoted(version)}")
    return Quantisation("awq", _group(fields, "q_group_size" if old else "group_size"), _skipped(fields))


def _read_gptq(fields: Fields) -> Quantisation:
    _check_bits(fields, "bits")
    layout = fields.text("checkpoint_format") or "gptq"
    if layout not in ("gptq", "gptq_v2"):
        raise _unsupported(f"GPTQ layout {quoted(layout)}")
    if fields.get("dynamic"):
        raise _unsupported("GPTQ settings that differ by layer (dynamic)")
    return Quantisation("gptq", _group(fields, "group_size"), _skipped(fields), layout == "gptq")


def _read_compressed(fields: Fields) -> Quantisation:
    layout = fields.text("format")
    if layout != "pack-quantized":
        raise _unsupported(f"compressed-tensors format {quoted(layout)}")
    schemes = [_read_scheme(scheme) for scheme in (fields.table("config_groups") or {}).values()]
    if len(set(schemes)) != 1:
        raise _unsupported(f"{len(set(schemes))} different compressed-tensors groups")
    return Quantisation("compressed-tensors", schemes[0])


def _read_scheme(scheme: object) -> int:
    """The group size of one entry of `config_groups`."""
    fields = Fields(scheme if isinstance(scheme, dict) else {}, "config_groups")
    if fields.get("input_activations"):
        raise _unsupported("quantised activations")
    weights = Fields(fields.table("weights") or {}, "weights of config_groups")
    _check_bits(weights, "num_bits")
    if weights.text("type") not in (None, "int"):
        raise _unsupported(f"weights of type {quoted(weights.get('type'))}")
    if weights.text("strategy") == "channel":
        return -1
    return _group(weights, "group_size")


def _check_bits(fields: Fields, name: str) -> None:
    if (bits := fields.integer(name, 1, 64)) != 4:
        raise _unsupported(f"{bits} bits")


def _group(fields: Fields, name: str) -> int:
    if (group := fields.integer(name, -1, MAX_GROUP)) == 0:
        fields.refuse(name, "a positive number or -1")
    return group


def _skipped(fields: Fields) -> tuple[str, ...]:
    names = fields.items("modules_to_not_convert") or []
    return tuple(name for name in names if isinstance(name, str) and name)


# -- tensors ------------------------------------------------------------------------------------------

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

    def parameter(self, shape: tuple[int, int], form: str, read: Any) -> Parameter:
        nbytes = sum(tensor.nbytes for tensor in self.pieces.values())
        return Parameter(shape, form, nbytes, tuple(tensor.name for tensor in self.pieces.values()), read)


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
    columns, width = layer.need("qweight", _WORDS).shape
    group = quantisation.group_of(columns)
    groups = -(-columns // group)
    layer.need("qzeros", _WORDS, (groups, width))
    layer.need("scales", _FLOATS, (groups, 8 * width))

    def read() -> Packed4:
        words, zeros = layer.pieces["qweight"].read(), layer.pieces["qzeros"].read()
        return awq_weight(words, zeros, _scales(layer.pieces["scales"]), group)

    return layer.parameter((8 * width, columns), f"4-bit AWQ, group {group}", read)


def _gptq(layer: _Layer, quantisation: Quantisation) -> Parameter:
    rows, outputs = layer.need("qweight", _WORDS).shape
    columns = rows * 8
    group = quantisation.group_of(columns)
    groups = -(-columns // group)
    layer.need("scales", _FLOATS, (groups, outputs))
    layer.need("qzeros", _WORDS, (groups, -(-outputs // 8)))
    if "g_idx" in layer.pieces:
        layer.need("g_idx", _WORDS, (columns,))

    def read() -> Packed4:
        if "g_idx" in layer.pieces:
            check_order(layer.pieces["g_idx"].read(), group, layer.name)
        words, zeros = layer.pieces["qweight"].read(), layer.pieces["qzeros"].read()
        return gptq_weight(
            words,
            zeros,
            _scales(layer.pieces["scales"]),
            group,
            stored_less_one=quantisation.zeros_less_one,
            name=layer.name,
        )

    return layer.parameter((outputs, columns), f"4-bit GPTQ, group {group}", read)


def _compressed(layer: _Layer, quantisation: Quantisation) -> Parameter:
    outputs, width = layer.need("weight_packed", _WORDS).shape
    columns = _stored_columns(layer, outputs, width)
    group = quantisation.group_of(columns)
    groups = -(-columns // group)
    layer.need("weight_scale", _FLOATS, (outputs, groups))
    if "weight_zero_point" in layer.pieces:
        layer.need("weight_zero_point", _WORDS, (-(-outputs // 8), groups))

    def read() -> Packed4:
        if "weight_g_idx" in layer.pieces:
            check_order(layer.pieces["weight_g_idx"].read(), group, layer.name)
        zeros = layer.pieces.get("weight_zero_point")
        return compressed_weight(
            layer.pieces["weight_packed"].read(),
            _scales(layer.pieces["weight_scale"]),
            None if zeros is None else zeros.read(),
            group,
            columns,
        )

    return layer.parameter((outputs, columns), f"4-bit compressed-tensors, group {group}", read)


def _stored_columns(layer: _Layer, outputs: int, width: int) -> int:
    """K, from the two numbers of `weight_shape`."""
    rows, columns = layer.need("weight_shape", ("I64", "I32"), (2,)).read().tolist()
    if rows != outputs or columns < 1 or -(-columns // 8) != width:
        raise ModelError(
            f"{quoted(layer.name, 120)} says its shape is ({rows}, {columns}), which its data is not."
        )
    return int(columns)


def _scales(tensor: StoredTensor) -> NDArray[Any]:
    values = tensor.read()
    return bf16_to_f32(values) if tensor.dtype == "BF16" else values
