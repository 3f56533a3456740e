"""The head in 8 bits, for those who ask: of a 4-bit model it is a quarter of what a decode step reads.

A view of a checkpoint: its head is rounded while it is read. An embedding that is also the head stays as it
is for looking tokens up, so such a model takes a little more memory and reads less of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from llmrs_cli.engine.model import names
from llmrs_cli.engine.weights.checkpoint import Checkpoint, open_checkpoint
from llmrs_cli.engine.weights.packed import Dense, Packed8
from llmrs_cli.engine.weights.parameters import Parameter
from llmrs_cli.errors import ModelError, quoted

GROUP = 32
"""Columns that share a scale."""
_SLAB_ROWS = 4096


def open_model(path: Path, *, small_head: bool = False) -> Checkpoint:
    """`open_checkpoint`, and with `small_head` the head in 8 bits."""
    checkpoint = open_checkpoint(path)
    return with_small_head(checkpoint) if small_head else checkpoint


def with_small_head(checkpoint: Checkpoint) -> Checkpoint:
    """`checkpoint` with its head in 8 bits; as it is, with a note, if the head is quantised already.

    Raises ModelError if there is no head, or one that 8 bits cannot hold.
    """
    source = names.EMBEDDING if checkpoint.spec.tied_head else names.HEAD
    stored = checkpoint.parameters.get(source)
    if stored is None or len(stored.shape) != 2:
        raise ModelError(f"The model has no {quoted(source)}.")
    if stored.is_quantised:
        note = f"The head is quantised already, {stored.form}, so it stays as it is."
        return replace(checkpoint, notes=(*checkpoint.notes, note))
    rows, columns = stored.shape
    nbytes = rows * (columns + 2 * -(-columns // GROUP))
    small = Parameter(stored.shape, f"8 bits, group {GROUP}", nbytes, stored.stored, partial(_read, stored))
    return replace(
        checkpoint,
        spec=replace(checkpoint.spec, tied_head=False),
        parameters={**checkpoint.parameters, names.HEAD: small},
        identity=f"{checkpoint.identity} 8-bit head",
    )


def _read(stored: Parameter) -> Packed8:
    weight = stored.read()
    assert isinstance(weight, Dense)
    rows, columns = stored.shape
    codes = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, -(-columns // GROUP)), np.float16)
    for first in range(0, rows, _SLAB_ROWS):
        part = slice(first, first + _SLAB_ROWS)
        rounded = round_to_8_bits(weight.rows(part), GROUP)
        codes[part], scales[part] = rounded.codes, rounded.scales
    return Packed8(codes, scales, GROUP)


def round_to_8_bits(weight: Dense, group: int) -> Packed8:
    """(N, K) values to codes of -127 … 127 with a float16 scale for each group of a row.

    Raises ModelError for values that are no numbers or so large that their scale is none.
    """
    values = weight.dequantise()
    rows, columns = values.shape
    padded = np.zeros((rows, -(-columns // group) * group), np.float32)
    padded[:, :columns] = values
    groups = padded.reshape(rows, -1, group)
    exact = np.abs(groups).max(axis=-1) / np.float32(127)
    with np.errstate(over="ignore"):
        scales = exact.astype(np.float16)
    # Rounded up, so that no code is cut.
    scales = np.where(scales < exact, np.nextafter(scales, np.float16(np.inf)), scales)
    if not np.isfinite(scales).all():
        raise ModelError("The head holds values that 8 bits cannot.")
    steps = np.where(scales == 0, np.float16(1), scales).astype(np.float32)[..., None]
    codes = np.clip(np.rint(groups / steps), -127, 127).astype(np.int8)
    return Packed8(np.ascontiguousarray(codes.reshape(rows, -1)[:, :columns]), scales, group)
