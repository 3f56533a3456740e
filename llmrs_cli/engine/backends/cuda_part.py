"""4-bit weights on their way to the GPU: they go up as their files hold them, and nothing is unpacked on the host."""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.backends.cuda_upload import Upload
from llmrs_cli.engine.weights.packed import Packed4, Stored, Tiles4, Words4
from llmrs_cli.kernels.repack import Kind, Part

Four = Packed4 | Words4 | Tiles4


def on_device(part: Stored, upload: Upload, first: int = 0, turns: int = 1) -> Part | None:
    """`part` on the GPU, to stand in a stack from row `first` on; None for a form that no kernel reads.

    Call it with the upload's stream as the current one.
    """
    if not isinstance(part, Four) or part.shape[1] % 8:
        return None
    scales = half_scales(part)
    if scales is None or (isinstance(part, Packed4) and part.zeros is None):
        return None
    values = _arrays(part, scales)
    codes, *heads = (None if own is None else _sent(own, upload) for own in values)
    kind: Kind = "canonical" if isinstance(part, Packed4) else "tiles"
    less_one = False
    if isinstance(part, Words4):
        kind, less_one = part.kind, part.less_one
    return Part(kind, codes, heads[0], heads[1], part.shape, part.group, less_one, first, turns)


def half_scales(part: Four) -> NDArray[np.float16] | None:
    """The scales in float16, empty where they stand among the codes; None if float16 changes one."""
    if isinstance(part, Tiles4):
        return np.empty(0, np.float16)
    if part.scales.dtype == np.float16:
        return part.scales  # type: ignore[return-value]
    with np.errstate(over="ignore"):
        narrow = part.scales.astype(np.float16)
    return narrow if np.array_equal(narrow.astype(np.float32), part.scales) else None


def _arrays(part: Four, scales: NDArray[np.float16]) -> tuple[NDArray[Any] | None, ...]:
    """Codes, scales and zeros as the kernels name them."""
    if isinstance(part, Tiles4):
        return part.tiles.view(np.uint32), None, None
    halves = np.ascontiguousarray(scales).view(np.uint16)
    if isinstance(part, Words4):
        return part.codes, halves, part.zeros
    assert part.zeros is not None
    return np.ascontiguousarray(part.codes).view(np.uint32), halves, part.zeros.astype(np.uint16)


def _sent(values: NDArray[Any], upload: Upload) -> Any:
    array = cp.empty(values.shape, values.dtype)
    upload.put(array, np.ascontiguousarray(values))
    return array
