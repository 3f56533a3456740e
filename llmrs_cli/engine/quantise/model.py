"""A whole model into 4 bits, a layer at a time: read, run over the calibration text, quantised, written, dropped.

At most one layer is held in float32, beside the residual streams of the calibration text and statistics of
the layer's inputs. Embedding and head, whose vocabulary may be larger than a layer, pass by some rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmrs_cli.engine.model import names
from llmrs_cli.engine.model.names import in_layer
from llmrs_cli.engine.model.rope import rope_tables
from llmrs_cli.engine.quantise.files import awq_tensors, entries, metadata, write_small_files
from llmrs_cli.engine.quantise.layer import LINEARS, no_inputs, read_layer
from llmrs_cli.engine.quantise.rounding import Values
from llmrs_cli.engine.weights.checkpoint import Checkpoint, open_checkpoint
from llmrs_cli.engine.weights.files import shown
from llmrs_cli.engine.weights.load import check_parameters
from llmrs_cli.engine.weights.packed import Weight
from llmrs_cli.engine.weights.store import SINGLE
from llmrs_cli.engine.weights.writing import TensorFile
from llmrs_cli.errors import ModelError, UsageError, quoted

GROUPS = (128, 64, 32)
"""Group sizes that others read too; the first that fits is the default."""
FEW_BITS = 5.0
"""Of a weight, with its share of scales: from so few nothing is won."""
SOURCE_HINT = "Name the model in 16 bits that it was made of."
SLAB = 1 << 18
"""Values of an embedding or a head that are held at once."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to quantise."""

    group: int
    plain: bool
    """Round to nearest, whatever the activations."""
    source: str = ""
    """What the files say the model was made of."""


def check_source(checkpoint: Checkpoint) -> None:
    """Raise ModelError if the model's layers are quantised to 4 bits already, or by a configuration, or if its tensors do
    not fit it."""
    if checkpoint.config.get("quantization_config"):
        raise ModelError(f"{shown(checkpoint.path)} is quantised already.", hint=SOURCE_HINT)
    check_parameters(checkpoint)
    if _layer_bits(checkpoint) <= FEW_BITS:
        raise ModelError("The layers of this model are in 4 bits already.", hint=SOURCE_HINT)


def _layer_bits(checkpoint: Checkpoint) -> float:
    """Bits that a weight of a layer's linears takes, with its share of scales."""
    stored = checkpoint.parameters.items()
    linears = [parameter for name, parameter in stored if name.removesuffix(".weight").endswith(LINEARS)]
    return 8 * sum(one.nbytes for one in linears) / sum(math.prod(one.shape) for one in linears)


def choose_group(checkpoint: Checkpoint, wanted: int | None) -> int:
    """The group size: as wanted, else the first of GROUPS that divides the inputs of every layer.

    Raises UsageError if it cannot be, ModelError for a model that no group size or AWQ's words fit.
    """
    shapes = names.linear_shapes(checkpoint.spec)
    if odd := [module for module, (n, _) in shapes.items() if n % 8]:
        raise ModelError(f"{odd[0]} has {shapes[odd[0]][0]} outputs; AWQ packs them by eights.")
    fitting = [group for group in GROUPS if all(k % group == 0 for _, k in shapes.values())]
    if not fitting:
        raise ModelError("The model has layers whose inputs are no multiple of 32, which AWQ cannot group.")
    if wanted is not None and wanted not in fitting:
        raise UsageError(
            f"--group-size {wanted} does not divide the inputs of every layer.",
            hint=f"{' or '.join(map(str, fitting))} would.",
        )
    return fitting[0] if wanted is None else wanted


def quantise_model(
    checkpoint: Checkpoint,
    folder: Path,
    windows: Sequence[Sequence[int]],
    recipe: Recipe,
) -> Iterator[float]:
    """Write the model in 4 bits to the empty `folder`; yields, layer by layer, the relative error of what it adds.

    `windows` are token ids of calibration texts. The error is ‖Δ‖/‖·‖ over the first of them, with the
    layer's true input. Raises ModelError for values that float16 cannot hold; the files are whole when the
    iterator ends.
    """
    with TensorFile(folder / SINGLE, entries(checkpoint, recipe.group), metadata(recipe.source)) as file:
        walk = _Walk(checkpoint, file, windows, recipe)
        for number in range(checkpoint.spec.layers):
            yield walk.layer(number)
        others = [names.NORM] if checkpoint.spec.tied_head else [names.NORM, names.HEAD]
        for name in others:
            for first, rows in _slabs(checkpoint, name):
                write_half(file, name, rows.dequantise(), first)
    write_small_files(checkpoint, folder, recipe.group)
    check_parameters(open_checkpoint(folder))


class _Walk:
    """From the embedding through the layers, with the residual stream of every calibration text."""

    def __init__(
        self, checkpoint: Checkpoint, file: TensorFile, windows: Sequence[Sequence[int]], recipe: Recipe
    ) -> None:
        self._checkpoint, self._file, self._recipe = checkpoint, file, recipe
        cos, sin = rope_tables(checkpoint.spec, max(len(window) for window in windows))
        self._rope = cos, sin
        self._streams = _embed(checkpoint, file, windows)

    def layer(self, number: int) -> float:
        """Quantise and write one layer; the relative error of what it adds."""
        layer = read_layer(self._checkpoint, number)
        inputs = no_inputs(self._checkpoint.spec, self._recipe.group)
        added = [layer.forward(x, self._rope, lambda fed, seen: inputs[fed].add(seen)) for x in self._streams]
        rounded = layer.quantise(inputs, self._recipe.group, plain=self._recipe.plain)
        for module, matrix in rounded.items():
            for piece, values in awq_tensors(matrix).items():
                self._file.write(in_layer(number, f"{module}.{piece}"), values)
        for name, vector in layer.vectors().items():
            write_half(self._file, in_layer(number, name), vector)
        change = layer.forward(self._streams[0], self._rope) - added[0]
        for x, y in zip(self._streams, added, strict=True):
            x += y
        return float(np.linalg.norm(change) / max(float(np.linalg.norm(added[0])), 1e-30))


def _embed(checkpoint: Checkpoint, file: TensorFile, windows: Sequence[Sequence[int]]) -> list[Values]:
    """Write the embedding; the rows (T, C) that each window's tokens take of it."""
    ids = [np.asarray(window, np.int64) for window in windows]
    streams = [np.empty((len(window), checkpoint.spec.hidden), np.float32) for window in windows]
    for first, rows in _slabs(checkpoint, names.EMBEDDING):
        values = rows.dequantise()
        write_half(file, names.EMBEDDING, values, first)
        for window, stream in zip(ids, streams, strict=True):
            here = (first <= window) & (window < first + len(values))
            stream[here] = values[window[here] - first]
    return streams


def _slabs(checkpoint: Checkpoint, name: str) -> Iterator[tuple[int, Weight]]:
    """Rows of a parameter of about SLAB values, each slab with the number of its first row."""
    parameter = checkpoint.parameters[name]
    return parameter.slabs(max(1, SLAB // math.prod(parameter.shape[1:])))


def write_half(file: TensorFile, name: str, values: Values, first: int = 0) -> None:
    """Rows of a tensor in float16, from row `first` on. Raises ModelError for values that it cannot hold."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float16)
    if not np.isfinite(narrow).all():
        raise ModelError(f"{quoted(name, 120)} holds values that float16 cannot.")
    file.write(name, narrow, first)
