"""The fast CPU backend: packed weights and compiled loops, float32 activations and float32 keys and values.

Every method checks nothing that its caller promises and computes nothing itself: it makes room for a
result and calls one loop of `kernels.simd`. Threads: as many as the process may use (NUMBA_NUM_THREADS).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmrs_cli.engine.arrays import Array, Draws, Floats, StepArrays
from llmrs_cli.engine.backends.base import Backend, Hidden, RowLimits, Rows
from llmrs_cli.engine.backends.cpu_fill import Filler
from llmrs_cli.engine.backends.cpu_sampling import draw_rows, score_rows
from llmrs_cli.engine.backends.cpu_weights import CpuLinear, make_linear
from llmrs_cli.engine.backends.handles import Geometry, KvLayer, LayerWeights, Linear, RopeTable, Vector
from llmrs_cli.engine.backends.host_memory import available_bytes
from llmrs_cli.engine.backends.rows import HostRows
from llmrs_cli.engine.weights.packed import Dense, Stored
from llmrs_cli.kernels.simd import linear, program, softmax
from llmrs_cli.kernels.simd.crew import Crew, usable_threads
from llmrs_cli.kernels.simd.layout import LANES, Arena

NO_NORM = np.empty(0, np.float32)
READ_AHEAD = 8 << 20
"""Bytes of weights: on a laptop more costs memory at the moment of the peak, and no time is won."""
MORE_AHEAD, FEW_THREADS = 32 << 20, 4
"""For each thread beyond so many, which would wait for a single reader."""


@dataclass(frozen=True, slots=True)
class CpuKv:
    """One layer's part of the cache; see `kernels.simd.attention` for the order."""

    pool: Floats
    """Keys and values of all layers"""
    place: tuple[int, int, int, int, int]
    """floats of a block, first float of this layer in a block, Hkv, D, D up to a multiple of 16"""


class CpuBackend(Backend):
    """Numba loops in float32."""

    name = "cpu"
    block_size = softmax.BLOCK
    reorders = True

    def __init__(self, cache: Path | None = None, threads: int | None = None) -> None:
        """`cache`: folder for compiled loops, the user's own by default; `threads`: one per core by default."""
        self._loops = program.load(program.default_cache() if cache is None else cache)
        self.notice = self._loops.notice
        """Why compiled loops are not kept, or None."""
        self.threads = usable_threads() if threads is None else threads
        self.read_ahead = READ_AHEAD + MORE_AHEAD * max(self.threads - FEW_THREADS, 0)
        self._crew = Crew(self.threads, self._loops.help_out)
        self._board = self._crew.board
        self._arena = Arena()
        self._filler = Filler(self._loops, self.threads)

    # -- loading ------------------------------------------------------------------------------------

    def prepare_linear(self, parts: Sequence[Stored], bias: Sequence[Dense | None], name: str) -> Linear:
        assert len({part.shape[1] for part in parts}) == 1, name
        return make_linear(parts, bias, self._arena, self._filler)

    def prepare_vector(self, values: Dense) -> Vector:
        return np.array(values.dequantise(), np.float32)

    def prepare_rope(self, cos: Array, sin: Array) -> RopeTable:
        return np.array(cos, np.float32, order="C"), np.array(sin, np.float32, order="C")

    def alloc_kv(self, layers: int, blocks: int, kv_heads: int, head_dim: int) -> Sequence[KvLayer]:
        """Zeros, which the system hands out page by page: a block costs memory when it is first used."""
        width = -(-head_dim // LANES) * LANES
        each = kv_heads * self.block_size * (head_dim + width)
        pool = np.zeros(blocks * layers * each, np.float32)
        return [CpuKv(pool, (layers * each, i * each, kv_heads, head_dim, width)) for i in range(layers)]

    def kv_bytes(self, layers: int, kv_heads: int, head_dim: int) -> int:
        width = -(-head_dim // LANES) * LANES
        return 4 * layers * self.block_size * kv_heads * (head_dim + width)

    def open_rows(self, limits: RowLimits) -> HostRows:
        return HostRows(limits, self.block_size)

    def free_bytes(self) -> int:
        return available_bytes()

    # -- primitive ops ------------------------------------------------------------------------------

    def rms_norm(self, x: Array, weight: Vector, eps: float) -> Array:
        rows = np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1])
        out = np.empty_like(rows)
        self._loops.rms_norm(rows, weight, eps, out)
        return out.reshape(x.shape)

    def linear(self, x: Array, weight: Linear) -> Array:
        assert isinstance(weight, CpuLinear)
        return self._product(np.ascontiguousarray(x, np.float32), NO_NORM, 0.0, weight)

    def rope(self, x: Array, positions: Array, table: RopeTable) -> Array:
        out = np.array(x, np.float32, order="C")
        self._loops.rotate(out, positions, *table)
        return out

    def store_kv(self, k: Array, v: Array, kv: KvLayer, slots: Array) -> None:
        assert isinstance(kv, CpuKv)
        self._loops.store_kv(np.ascontiguousarray(k), np.ascontiguousarray(v), kv.pool, kv.place, slots)

    def attention(self, q: Array, kv: KvLayer, step: StepArrays, geometry: Geometry) -> Array:
        assert isinstance(kv, CpuKv)
        out = np.empty((len(q), geometry.heads * geometry.head_dim), np.float32)
        self._loops.attend(
            self._board,
            np.ascontiguousarray(q),
            kv.pool,
            kv.place,
            step.query_start,
            step.context_lens,
            np.ascontiguousarray(step.block_tables),
            geometry.scale,
            geometry.window or 0,
            out,
        )
        return out

    def silu_mul(self, gate_up: Array) -> Array:
        out = np.empty((len(gate_up), gate_up.shape[1] // 2), np.float32)
        self._loops.silu_mul(np.ascontiguousarray(gate_up), out)
        return out

    def split_heads(self, qkv: Array, geometry: Geometry) -> tuple[Array, Array, Array]:
        heads = qkv.reshape(len(qkv), -1, geometry.head_dim)
        first_value = geometry.heads + geometry.kv_heads
        return heads[:, : geometry.heads], heads[:, geometry.heads : first_value], heads[:, first_value:]

    def add_into(self, residual: Array, x: Array) -> None:
        residual += x

    def take_rows(self, x: Array, rows: Array) -> Array:
        return x[rows]

    def close(self) -> None:
        self._crew.close()

    def embed_ids(self, table: Linear, ids: Array) -> Array:
        assert isinstance(table, CpuLinear) and table.inputs is None
        self._crew.wake()  # a step begins
        out = np.empty((len(ids), table.shape[1]), np.float32)
        self._loops.embed(table.stream, table.order, ids, out)
        return out

    # -- fused ops ------------------------------------------------------------------------------------

    def norm_qkv_rope_store(
        self, hidden: Hidden, layer_weights: LayerWeights, kv: KvLayer, rope: RopeTable, step: StepArrays
    ) -> Array:
        assert isinstance(kv, CpuKv)
        geometry = layer_weights.geometry
        qkv = self._product(hidden.residual, layer_weights.attention_norm, geometry.eps, layer_weights.qkv)
        q = np.empty((len(qkv), geometry.heads, geometry.head_dim), np.float32)
        self._loops.finish_qkv(
            self._board,
            qkv,
            step.positions,
            step.slots,
            *rope,
            NO_NORM if layer_weights.q_norm is None else layer_weights.q_norm,
            NO_NORM if layer_weights.k_norm is None else layer_weights.k_norm,
            geometry.eps,
            kv.pool,
            kv.place,
            q,
        )
        return q

    def project_add(self, x: Array, weight: Linear, hidden: Hidden, norm: Vector | None = None) -> None:
        assert isinstance(weight, CpuLinear)
        self._multiply(x, NO_NORM, 0.0, weight, linear.ADD, hidden.residual)

    def norm_gate_up(self, hidden: Hidden, layer_weights: LayerWeights) -> Array:
        weight = layer_weights.gate_up
        assert isinstance(weight, CpuLinear)
        if not weight.halves:
            return super().norm_gate_up(hidden, layer_weights)
        out = np.empty((len(hidden.residual), weight.shape[0] // 2), np.float32)
        norm, eps = layer_weights.mlp_norm, layer_weights.geometry.eps
        self._multiply(hidden.residual, norm, eps, weight, linear.GATE, out)
        return out

    def head(self, hidden: Hidden, norm: Vector, eps: float, head: Linear) -> Array:
        return self._product(hidden.residual, norm, eps, head)

    def _product(self, x: Floats, norm: Vector, eps: float, weight: Any) -> Floats:
        out = np.empty((len(x), weight.shape[0]), np.float32)
        self._multiply(x, norm, eps, weight, linear.STORE, out)
        return out

    def _multiply(
        self, x: Floats, norm: Vector, eps: float, weight: CpuLinear, mode: int, out: Floats
    ) -> None:
        if weight.inputs is not None:
            x, norm = np.take(x, weight.inputs, axis=1), norm[weight.inputs] if len(norm) else norm
        self._loops.linear(
            self._board,
            x,
            norm,
            eps,
            weight.stream,
            weight.tiles,
            weight.bias,
            weight.order,
            mode,
            out,
        )

    # -- choosing tokens ------------------------------------------------------------------------------

    def sample(self, logits: Array, rows: Rows, step: StepArrays, mask: Array | None) -> Draws:
        assert isinstance(rows, HostRows)
        chosen, lengths = step.sample_rows, step.positions[step.sample_tokens] + 1
        states = [rows.sampling[int(row)] for row in chosen]
        draws = draw_rows(logits, states, chosen, lengths, rows.tokens, mask, self._loops, self._board)
        rows.append(chosen, lengths, draws.ids)
        return draws

    def score(self, logits: Array, targets: Array, alternatives: int) -> Draws:
        return score_rows(logits, targets, alternatives, self._loops, self._board)

    def fetch(self, drawn: Any) -> Draws:
        assert isinstance(drawn, Draws)
        return drawn
