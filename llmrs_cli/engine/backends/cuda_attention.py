"""Attention on the GPU: which kernel turns the projection into queries, keys and values, and which one reads the pages.

Prompts go through `rope_store` and `attend_prefill`, those of many tokens on Hopper through `attend_prompt`. Sequences with
one query have blocks of their own where all find room at once (`attend_few`, which turns them itself), and share one grid
evenly where not (`attend_decode`); the staging chooses. In a step of both, decode attention is launched after that of prompts
and runs beside it: the prompts' kernel lets it begin only when queries, keys and values are complete, so it waits for that
kernel only before it ends itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import cupy as cp

from llmrs_cli.engine.arrays import Array
from llmrs_cli.engine.backends.cuda_memory import Arena
from llmrs_cli.engine.backends.cuda_results import PagedKv, Projected
from llmrs_cli.engine.backends.cuda_rows import CudaStep
from llmrs_cli.engine.backends.handles import Geometry
from llmrs_cli.kernels import attend_decode, attend_few, attend_prefill, attend_prompt
from llmrs_cli.kernels.attend_few import Rotation
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_small import DEEP_SHARED
from llmrs_cli.kernels.rope_store import rope_store


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one backend, with buffers in its arena."""

    device: CudaDevice
    arena: Arena
    prompt_tokens: int = 0
    """Of a step at least, whose prompts go through `attend_prompt` where it serves them; 0: never"""

    @property
    def little(self) -> bool:
        """Whether a block gets less than 160 KiB of shared memory."""
        return self.device.shared_limit < DEEP_SHARED

    def shares(self, kv_heads: int, head_dim: int) -> int:
        """Blocks of decode attention for each key head."""
        return max(attend_decode.grid_blocks(self.device.multiprocessors, head_dim) // kv_heads, 1)

    def few_sizes(self, head_dim: int) -> tuple[int, ...]:
        """Numbers of blocks that `attend_few` may take."""
        return attend_few.sizes(head_dim, self.device.loader.arch, self.little)

    def turn(
        self, bf16: bool, qkv: Array, rotation: Rotation, kv: PagedKv, step: CudaStep, geometry: Geometry
    ) -> Array | Projected:
        """Queries of the projection qkv (T, (Hq + 2·Hkv)·D); keys and values go to their pages, now or in `attend`."""
        if step.few and not step.tiles:
            return Projected(qkv, rotation)
        q = self.arena.take("q", (len(qkv), geometry.heads, geometry.head_dim), cp.uint16)
        rope_store(
            self.device, bf16, qkv, step.positions, step.slots, rotation.table, (rotation.q_norm, rotation.k_norm),
            rotation.eps, q, kv.keys, kv.values, step.first_tile if step.few else None,
            self._attended(len(qkv), geometry),
        )  # fmt: skip
        return Projected(qkv, rotation, q) if step.few else q

    def attend(
        self, bf16: bool, q: Array | Projected, kv: PagedKv, step: CudaStep, geometry: Geometry
    ) -> Array:
        """(T, Hq·D) 16-bit, of what `turn` gave."""
        queries, qkv = (q.q, q.qkv) if isinstance(q, Projected) else (q, q)
        out = self._attended(len(qkv), geometry)
        if step.tiles:
            self._prefill(bf16, queries, kv, step, geometry, out)
        if isinstance(q, Projected):
            self._few(bf16, q, kv, step, geometry, out)
        elif step.decodes:
            self._decode(bf16, q, kv, step, geometry, out)
        return out

    def _attended(self, tokens: int, geometry: Geometry) -> Array:
        return self.arena.take("attended", (tokens, geometry.heads * geometry.head_dim), cp.uint16)

    def _prefill(
        self, bf16: bool, q: Array, kv: PagedKv, step: CudaStep, geometry: Geometry, out: Array
    ) -> None:
        served = attend_prompt.serves(geometry.head_dim, self.device.loader.arch)
        if served and 0 < self.prompt_tokens <= len(q):
            attend_prompt.attend_prompt(
                self.device, bf16, q, *_pages(kv, step), step.first_tile, out,
                self.arena.take("drawn", (1,), cp.int32), tiles=step.tiles, scale=geometry.scale,
                multiprocessors=self.device.multiprocessors, window=geometry.window or 0,
            )  # fmt: skip
            return
        attend_prefill.attend_prefill(
            self.device, bf16, q, *_pages(kv, step), step.first_tile, out, tiles=step.tiles,
            scale=geometry.scale, window=geometry.window or 0, little=self.little,
        )  # fmt: skip

    def _few(
        self, bf16: bool, q: Projected, kv: PagedKv, step: CudaStep, geometry: Geometry, out: Array
    ) -> None:
        attend_few.attend_few(
            self.device, bf16, q.qkv, *_pages(kv, step), step.first_page, out,
            plan=attend_few.default_plan(geometry.head_dim, step.few, self.little), scale=geometry.scale,
            rotation=q.rotation, window=geometry.window or 0, count=step.reached, late=step.tiles > 0,
        )  # fmt: skip

    def _decode(
        self, bf16: bool, q: Array, kv: PagedKv, step: CudaStep, geometry: Geometry, out: Array
    ) -> None:
        d, sequences = geometry.head_dim, step.context_lens.size
        blocks = attend_decode.grid_blocks(self.device.multiprocessors, d)
        slots = attend_decode.partial_slots(blocks, sequences, geometry.kv_heads)
        width = geometry.heads // geometry.kv_heads * (d + attend_decode.EXTRA)
        partials = self.arena.take("partials", (slots, width), cp.float32)
        arrivals = self.arena.take("arrivals", (sequences * geometry.kv_heads,), cp.int32)
        attend_decode.attend_decode(
            self.device, bf16, q, *_pages(kv, step), step.first_page, out, partials, arrivals,
            blocks=blocks, scale=geometry.scale, window=geometry.window or 0, little=self.little,
            at_once=blocks // self.device.multiprocessors, late=step.tiles > 0,
        )  # fmt: skip


def _pages(kv: PagedKv, step: CudaStep) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Where keys and values are, and whose they are."""
    return kv.keys, kv.values, step.block_tables, step.table_rows, step.context_lens, step.query_start
