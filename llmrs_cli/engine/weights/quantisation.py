"""What `quantization_config` says: which format, which group size, which layers are said to be plain.

Whether a layer really is quantised is decided by its tensors (`quantised`). Anything that we do not run
exactly is refused here by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmrs_cli.engine.model.fields import Fields
from llmrs_cli.errors import ModelError, quoted

SUPPORTED = "awq (gemm, gemv), gptq and compressed-tensors (pack-quantized), each with 4 bits"
MAX_GROUP = 1 << 20


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
    by_rows: bool = False
    """AWQ's layout "gemv"."""
    activation_order: bool = False
    """GPTQ: columns may be in any order, so each layer must say its groups."""

    def group_of(self, columns: int) -> int:
        """G of a layer with K = `columns` inputs."""
        return columns if self.group == -1 else self.group


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
    _check_bits(fields, _spelled(fields, "bits", "w_bit"))
    version = (fields.text("version") or "gemm").lower()
    if version not in ("gemm", "gemv"):
        raise _unsupported(f"AWQ version {quoted(version)}")
    group = _group(fields, _spelled(fields, "group_size", "q_group_size"))
    return Quantisation("awq", group, _skipped(fields), by_rows=version == "gemv")


def _read_gptq(fields: Fields) -> Quantisation:
    _check_bits(fields, "bits")
    layout = fields.text("checkpoint_format") or "gptq"
    if layout not in ("gptq", "gptq_v2") or fields.flag("is_marlin_format", False):
        raise _unsupported(f"GPTQ layout {quoted(layout if layout != 'gptq' else 'marlin')}")
    if fields.get("dynamic"):
        raise _unsupported("GPTQ settings that differ by layer (dynamic)")
    return Quantisation(
        "gptq",
        _group(fields, "group_size"),
        _skipped(fields),
        zeros_less_one=layout == "gptq",
        activation_order=fields.flag("desc_act", False),
    )


def _spelled(fields: Fields, usual: str, old: str) -> str:
    """Under which of two names a setting is given."""
    return old if fields.get(usual) is None and fields.get(old) is not None else usual


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
