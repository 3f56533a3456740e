"""The reference backend: every op in plain NumPy, sums in float64, results in float32. It is the definition.

Written to be read and trusted, not to be fast: fused ops are the compositions of `base.Backend`, and a
linear layer keeps its canonical parts (for a mapped checkpoint no copy at all) and widens one slab of
them at a time, so that a model of any size that fits on the disk can be checked against it. A step costs
one widening of all weights however many tokens it holds; check many tokens at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import Array, Draws, Floats, Ints, StepArrays
from llmrs_cli.engine.backends import reference_sampling
from llmrs_cli.engine.backends.base import Backend, RowLimits, Rows
from llmrs_cli.engine.backends.handles import Geometry, KvLayer, Linear, RopeTable, Vector
from llmrs_cli.engine.backends.host_memory import available_bytes
from llmrs_cli.engine.backends.rows import HostRows
from llmrs_cli.engine.weights.packed import Dense, Stored

SLAB_VALUES = 1 << 18
"""Weights widened to float64 at a time: 2 MiB, which stay in a core's cache until they are used."""
QUERY_SLICE = 256
"""Queries whose scores are held at a time, so that a long prompt does not need context² of memory."""


@dataclass(frozen=True, slots=True)
class CanonicalLinear:
    """Canonical parts stacked along N, and a bias."""

    parts: tuple[Stored, ...]
    bias: Floats | None
    """(N,)"""

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def note(self) -> str:
        return "canonical " + " + ".join(sorted({type(part).__name__ for part in self.parts}))

    def slabs(self) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """(first row, float64 rows) until all N rows are given."""
        start = 0
        for part in self.parts:
            rows, columns = part.shape
            height = max(1, SLAB_VALUES // columns)
            for first in range(0, rows, height):
                slab = part.rows(slice(first, first + height))
                yield start + first, slab.dequantise().astype(np.float64)
            start += rows

    def rows(self, ids: Ints) -> Floats:
        """(T,) row numbers → (T, K) float32."""
        out = np.empty((len(ids), self.shape[1]), np.float32)
        start = 0
        for part in self.parts:
            here = (ids >= start) & (ids < start + part.shape[0])
            out[here] = part.rows(ids[here] - start).dequantise()
            start += part.shape[0]
        return out


@dataclass(frozen=True, slots=True)
class PagedKv:
    """Keys and values of one layer."""

    keys: Floats
    """(NB, BS, Hkv, D)"""
    values: Floats
    """(NB, BS, Hkv, D)"""

    def gather(self, blocks: Ints, length: int) -> tuple[Floats, Floats]:
        """The first `length` keys and values of a sequence: (length, Hkv, D) each."""
        tail = self.keys.shape[2:]
        return self.keys[blocks].reshape(-1, *tail)[:length], self.values[blocks].reshape(-1, *tail)[:length]


class ReferenceBackend(Backend):
    """NumPy in float64."""

    name = "reference"
    block_size = 16

    # -- loading ------------------------------------------------------------------------------------

    def prepare_linear(self, parts: Sequence[Stored], bias: Sequence[Dense | None], name: str) -> Linear:
        assert len({part.shape[1] for part in parts}) == 1, name
        assert len(bias) == len(parts), name
        return CanonicalLinear(tuple(parts), _stack_bias(parts, bias))

    def prepare_vector(self, values: Dense) -> Vector:
        return values.dequantise()

    def prepare_rope(self, cos: Array, sin: Array) -> RopeTable:
        return np.asarray(cos, np.float32), np.asarray(sin, np.float32)

    def alloc_kv(self, layers: int, blocks: int, kv_heads: int, head_dim: int) -> Sequence[KvLayer]:
        shape = blocks, self.block_size, kv_heads, head_dim
        return [PagedKv(np.zeros(shape, np.float32), np.zeros(shape, np.float32)) for _ in range(layers)]

    def kv_bytes(self, layers: int, kv_heads: int, head_dim: int) -> int:
        return 2 * 4 * layers * self.block_size * kv_heads * head_dim

    def open_rows(self, limits: RowLimits) -> HostRows:
        return HostRows(limits, self.block_size)

    def free_bytes(self) -> int:
        return available_bytes()

    # -- primitive ops ------------------------------------------------------------------------------

    def rms_norm(self, x: Array, weight: Vector, eps: float) -> Array:
        wide = x.astype(np.float64)
        scale = 1.0 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
        return (wide * scale * weight).astype(np.float32)

    def linear(self, x: Array, weight: Linear) -> Array:
        assert isinstance(weight, CanonicalLinear)
        wide = x.astype(np.float64)
        out = np.empty((len(x), weight.shape[0]), np.float64)
        for first, slab in weight.slabs():
            out[:, first : first + len(slab)] = wide @ slab.T
        if weight.bias is not None:
            out += weight.bias
        return out.astype(np.float32)

    def rope(self, x: Array, positions: Array, table: RopeTable) -> Array:
        cos, sin = (part[positions][:, None, :].astype(np.float64) for part in table)
        a, b = np.split(x.astype(np.float64), 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(np.float32)

    def store_kv(self, k: Array, v: Array, kv: KvLayer, slots: Array) -> None:
        blocks, offsets = np.divmod(slots, self.block_size)
        kv.keys[blocks, offsets] = k
        kv.values[blocks, offsets] = v

    def attention(self, q: Array, kv: KvLayer, step: StepArrays, geometry: Geometry) -> Array:
        out = np.empty((len(q), geometry.heads * geometry.head_dim), np.float32)
        for s, context in enumerate(step.context_lens):
            blocks = step.block_tables[s, : -(-int(context) // self.block_size)]
            keys, values = kv.gather(blocks, int(context))
            end = int(step.query_start[s + 1])
            for first in range(int(step.query_start[s]), end, QUERY_SLICE):
                last = min(first + QUERY_SLICE, end)
                seen = int(context) - (end - last)
                out[first:last] = attend_last(q[first:last], keys[:seen], values[:seen], geometry)
        return out

    def silu_mul(self, gate_up: Array) -> Array:
        gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
        # exp of a large argument may overflow to infinity: the quotient is then the right zero.
        with np.errstate(over="ignore"):
            return (gate / (1.0 + np.exp(-gate)) * up).astype(np.float32)

    def split_heads(self, qkv: Array, geometry: Geometry) -> tuple[Array, Array, Array]:
        heads = qkv.reshape(len(qkv), -1, geometry.head_dim)
        first_value = geometry.heads + geometry.kv_heads
        return heads[:, : geometry.heads], heads[:, geometry.heads : first_value], heads[:, first_value:]

    def add_into(self, residual: Array, x: Array) -> None:
        residual += x

    def take_rows(self, x: Array, rows: Array) -> Array:
        return x[rows]

    def embed_ids(self, table: Linear, ids: Array) -> Array:
        assert isinstance(table, CanonicalLinear)
        return table.rows(ids)

    # -- choosing tokens ------------------------------------------------------------------------------

    def sample(self, logits: Array, rows: Rows, step: StepArrays, mask: Array | None) -> Draws:
        assert isinstance(rows, HostRows)
        positions = step.positions[step.sample_tokens] + 1
        states = [rows.sampling[int(row)] for row in step.sample_rows]
        known = [rows.tokens[row, :n] for row, n in zip(step.sample_rows, positions, strict=True)]
        draws = reference_sampling.draw_rows(logits, states, known, mask)
        rows.append(step.sample_rows, positions, draws.ids)
        return draws

    def score(self, logits: Array, targets: Array, alternatives: int) -> Draws:
        return reference_sampling.score(logits, targets, alternatives)

    def fetch(self, drawn: Any) -> Draws:
        assert isinstance(drawn, Draws)
        return drawn


def attend_last(q: Floats, keys: Floats, values: Floats, geometry: Geometry) -> Floats:
    """Causal attention of the last n of c tokens: q (n, Hq, D), keys and values (c, Hkv, D) → (n, Hq·D)."""
    n, context = len(q), len(keys)
    position = np.arange(context - n, context)[:, None]
    key = np.arange(context)[None, :]
    visible = key <= position
    if geometry.window is not None:
        visible &= key > position - geometry.window
    group = geometry.heads // geometry.kv_heads
    # (Hkv, group, n, D) · (Hkv, 1, D, c)
    grouped = q.reshape(n, geometry.kv_heads, group, -1).transpose(1, 2, 0, 3).astype(np.float64)
    wide_keys = keys.transpose(1, 2, 0)[:, None].astype(np.float64)
    scores = np.where(visible, grouped @ wide_keys * geometry.scale, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = weights @ values.transpose(1, 0, 2)[:, None].astype(np.float64)
    result: Floats = mixed.transpose(2, 0, 1, 3).reshape(n, -1).astype(np.float32)
    return result


def _stack_bias(parts: Sequence[Stored], bias: Sequence[Dense | None]) -> Floats | None:
    """One bias over all parts, zeros for those without one; None if none has one."""
    if all(own is None for own in bias):
        return None
    pieces = [
        np.zeros(part.shape[0], np.float32) if own is None else own.dequantise()
        for part, own in zip(parts, bias, strict=True)
    ]
    return np.concatenate(pieces)
