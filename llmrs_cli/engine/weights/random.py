"""A checkpoint of random weights for a configuration alone: measures speed without a download.

Values are cut from one block of noise, each parameter from another place, so that a model of 15 GB takes
as long as its memory traffic. Their size is that of a freshly initialised model, so that every logit is
finite. The answers mean nothing.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.model import names
from llmrs_cli.engine.model.spec import Dtype, ModelSpec, from_config
from llmrs_cli.engine.weights.checkpoint import Checkpoint, read_config
from llmrs_cli.engine.weights.packed import Dense, Packed4, Weight, f32_to_bf16
from llmrs_cli.engine.weights.parameters import Parameter
from llmrs_cli.engine.weights.quantisation import read_quantisation

DEVIATION = 0.02
"""Standard deviation of every weight that is no norm."""
BLOCK = 4_194_301
"""Values of noise; a prime, so that rows of a matrix never repeat in step."""
_CODE_DEVIATION = math.sqrt((16**2 - 1) / 12)
"""Of codes spread evenly over 0…15."""


def random_checkpoint(source: Path | ModelSpec, *, seed: int = 0) -> Checkpoint:
    """A checkpoint for a folder that holds config.json (nothing else is needed) or for a specification.

    Linear layers are 4-bit where the configuration names a quantisation that we run. There is no
    tokenizer: the model runs on token ids. Raises ModelError like `open_checkpoint`.
    """
    if isinstance(source, ModelSpec):
        return _checkpoint(Path("random"), source, {}, {}, None, seed)
    config, generation = read_config(source)
    spec = from_config(config, generation)
    quantisation = read_quantisation(config)
    group_of = None if quantisation is None else quantisation.group_of
    return _checkpoint(source, spec, config, generation, group_of, seed)


def _checkpoint(
    path: Path,
    spec: ModelSpec,
    config: dict[str, Any],
    generation: dict[str, Any],
    group_of: Callable[[int], int] | None,
    seed: int,
) -> Checkpoint:
    noise = _Noise(spec.dtype or "bfloat16", seed)
    return Checkpoint(
        path=path,
        spec=spec,
        config=config,
        generation=generation,
        parameters={
            name: _parameter(name, shape, noise, group_of)
            for name, shape in names.expected_shapes(spec).items()
        },
        tokenizer_json=None,
        tokenizer_config={},
        chat_templates={},
        identity=hashlib.sha256(f"random {seed} {spec} {group_of is not None}".encode()).hexdigest(),
        notes=("The weights are random: answers mean nothing.",),
    )


def _parameter(
    name: str, shape: names.Shape, noise: _Noise, group_of: Callable[[int], int] | None
) -> Parameter:
    if len(shape) == 2 and group_of is not None and name not in (names.EMBEDDING, names.HEAD):
        rows, columns = shape
        group = group_of(columns)
        nbytes = rows * (-(-columns // 2) + 3 * -(-columns // group))
        return Parameter(shape, "4-bit", nbytes, (name,), partial(noise.packed, name, rows, columns, group))
    draw = noise.ones if name.endswith("norm.weight") else noise.dense
    width = 4 if noise.dtype == "float32" else 2
    return Parameter(shape, noise.dtype, math.prod(shape) * width, (name,), partial(draw, name, shape))


class _Noise:
    """Blocks of random values, made when first needed, by whichever thread; weights are cut from them."""

    def __init__(self, dtype: Dtype, seed: int) -> None:
        self.dtype = dtype
        self._random = np.random.default_rng(seed)
        self._lock = Lock()
        self._values: NDArray[Any] | None = None
        self._bytes: NDArray[np.uint8] | None = None

    def ones(self, name: str, shape: names.Shape) -> Weight:
        return Dense(_stored(np.ones(shape, np.float32), self.dtype))

    def dense(self, name: str, shape: names.Shape) -> Weight:
        """Normal values of DEVIATION."""
        with self._lock:
            if self._values is None:
                values = self._random.standard_normal(BLOCK, np.float32) * np.float32(DEVIATION)
                self._values = _stored(values, self.dtype)
        return Dense(_cut(self._values, name, math.prod(shape)).reshape(shape))

    def packed(self, name: str, rows: int, columns: int, group: int) -> Weight:
        """Even codes, zeros 6…9, scales that give DEVIATION or half of it."""
        with self._lock:
            if self._bytes is None:
                self._bytes = self._random.integers(0, 256, BLOCK, np.uint8)
        width, groups = -(-columns // 2), -(-columns // group)
        small = _cut(self._bytes, name + ".scale", rows * groups).reshape(rows, groups)
        return Packed4(
            codes=_cut(self._bytes, name, rows * width).reshape(rows, width),
            scales=((0.5 + small / 512) * (DEVIATION / _CODE_DEVIATION)).astype(np.float16),
            zeros=np.uint8(6) + (small & np.uint8(3)),
            offsets=None,
            group=group,
            columns=columns,
        )


def _stored(values: NDArray[np.float32], dtype: Dtype) -> NDArray[Any]:
    return f32_to_bf16(values) if dtype == "bfloat16" else values.astype(dtype)


def _cut(block: NDArray[Any], name: str, count: int) -> NDArray[Any]:
    """`count` values of the endless repetition of `block`, from a place that depends on the name."""
    turned = np.roll(block, zlib.crc32(name.encode()) % len(block))
    found = np.empty(count, block.dtype)
    for start in range(0, count, len(block)):
        found[start : start + len(block)] = turned[: count - start]
    return found
