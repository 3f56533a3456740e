"""Decode attention of one step with its arrays, in its two forms; and a body of a model as a recorded graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np

from benchmarks.chain import random_bits
from benchmarks.qwen_shapes import MODELS
from llmrs_cli.engine.arrays import StepBatch
from llmrs_cli.engine.backends.base import RowLimits
from llmrs_cli.engine.backends.cuda import CudaBackend
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.engine.model.decoder import run_body
from llmrs_cli.engine.sampling import row_sampling
from llmrs_cli.engine.types import SamplingParams
from llmrs_cli.kernels import attend_decode as decode
from llmrs_cli.kernels.attend_few import FewPlan, Rotation, attend_few, default_plan
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.rope_store import rope_store

REPLAYS = 9


def ints(values: Any) -> Any:
    return cp.asarray(np.asarray(list(values), np.int32))


@dataclass(slots=True)
class DecodeCase:
    """Decode attention over random caches, one pair of them for each layer of a chain."""

    device: CudaDevice
    kv: list[tuple[Any, Any]]
    qkv: Any
    table: Any
    positions: Any
    slots: Any
    fixed: list[Any]
    """tables, rows, contexts, query_start, first_page"""
    heads: int
    blocks: int
    q: Any
    out: Any
    partials: Any
    arrivals: Any

    @property
    def d(self) -> int:
        return int(self.q.shape[2])

    def turn(self, layer: int) -> None:
        """Norm, rotation and store, in a kernel of their own."""
        rope_store(
            self.device,
            True,
            self.qkv,
            self.positions,
            self.slots,
            self.table,
            (None, None),
            1e-6,
            self.q,
            *self.kv[layer],
        )

    def two_kernels(self, layer: int = 0) -> tuple[Any, Any, Any]:
        """(out, keys, values) after rotation and decode attention."""
        self.turn(layer)
        decode.attend_decode(
            self.device, True, self.q, *self.kv[layer], *self.fixed, self.out, self.partials, self.arrivals,
            blocks=self.blocks, scale=self.d**-0.5, at_once=self.blocks // self.device.multiprocessors,
        )  # fmt: skip
        return self.out, *self.kv[layer]

    def one_kernel(self, layer: int = 0, plan: FewPlan | None = None) -> tuple[Any, Any, Any]:
        """The same by blocks of their own for each key head of a sequence."""
        attend_few(
            self.device, True, self.qkv, *self.kv[layer], *self.fixed, self.out, scale=self.d**-0.5,
            plan=plan or default_plan(self.d, 8, little=False), rotation=Rotation(self.table, None, None, 1e-6),
        )  # fmt: skip
        return self.out, *self.kv[layer]

    def forget_newest(self) -> None:
        """Poison what a step writes."""
        self.out.fill(0x7FC0)
        for page, at in zip((self.slots // 64).get(), (self.slots % 64).get(), strict=True):
            for part in self.kv[0]:
                part[int(page), :, int(at)] = 0x7FC0


def decode_case(
    device: CudaDevice,
    contexts: Sequence[int],
    heads: int,
    kv_heads: int,
    d: int,
    copies: int,
    chunk: int = 0,
) -> DecodeCase:
    """`chunk`: pages of a part, 0 as the engine chooses."""
    count = len(contexts)
    pages = [-(-c // 64) for c in contexts]
    total = sum(pages)
    order = np.random.default_rng(0).permutation(total).astype(np.int32)
    tables, cut = np.full((count, max(pages)), -1, np.int32), np.cumsum([0, *pages])
    for s, own in enumerate(pages):
        tables[s, :own] = order[cut[s] : cut[s + 1]]
    newest = np.array(contexts) - 1
    slots = tables[np.arange(count), newest // 64] * 64 + newest % 64
    blocks = decode.grid_blocks(device.multiprocessors, d)
    chunk = chunk or decode.chunk_pages(total, max(pages), blocks // kv_heads)
    angles = np.outer(np.arange(max(contexts) + 1), 1e6 ** -(np.arange(d // 2) * 2 / d))
    width = heads // kv_heads * (d + decode.EXTRA)
    return DecodeCase(
        device=device,
        kv=[
            tuple(random_bits(total * kv_heads * 64 * d, 1.0).reshape(total, kv_heads, 64, d) for _ in range(2))  # type: ignore[misc]
            for _ in range(copies)
        ],
        qkv=random_bits(count * (heads + 2 * kv_heads) * d, 1.0).reshape(count, -1),
        table=cp.asarray(np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)),
        positions=ints(newest),
        slots=ints(slots),
        fixed=[ints(tables.reshape(-1)).reshape(tables.shape), ints(range(count)), ints(contexts),
               ints(range(count + 1)), ints([*cut, chunk])],
        heads=heads,
        blocks=blocks,
        q=cp.zeros((count, heads, d), cp.uint16),
        out=cp.zeros((count, heads * d), cp.uint16),
        partials=cp.zeros((decode.partial_slots(blocks, count, kv_heads), width), cp.float32),
        arrivals=cp.zeros(count * kv_heads, cp.int32),
    )  # fmt: skip


def run_of_body(
    backend: CudaBackend, model: ModelWeights, name: str, decodes: int, context: int, prompt: int = 0
) -> Callable[[], object]:
    """The body of one step, twice run: `decodes` rows of `context` tokens, and a prompt's chunk if given."""
    _, _, _, kv_heads, d, _, vocab, _ = MODELS[name]
    rows = decodes + bool(prompt)
    width = -(-max(context, prompt) // backend.block_size)
    kv = backend.alloc_kv(len(model.layers), rows * width, kv_heads, d)
    for layer in kv:
        layer.keys[...] = random_bits(layer.keys.size, 1.0).reshape(layer.keys.shape)
        layer.values[...] = random_bits(layer.values.size, 1.0).reshape(layer.values.shape)
    state = backend.open_rows(RowLimits(rows, max(context, prompt) + 1, vocab))
    starts, counts = [context - 1] * decodes + [0] * bool(prompt), [1] * decodes + [prompt] * bool(prompt)
    for row in range(rows):
        length = starts[row] + counts[row]
        tokens = np.random.default_rng(row).integers(0, vocab, length).tolist()
        state.start(row, tokens, row_sampling(SamplingParams(max_tokens=1, temperature=0.0), length, 0))
        state.grant(row, 0, range(row * width, (row + 1) * width))
    none = np.zeros(rows, np.int32)
    batch = StepBatch(
        np.arange(rows, dtype=np.int32), np.array(starts, np.int32), np.array(counts, np.int32),
        none.astype(np.bool_), none,
    )  # fmt: skip
    step = state.begin(batch)

    def run() -> object:
        return run_body(backend, model, kv, step)

    for _ in range(2):  # loads kernels, chooses algorithms, and lets buffers grow
        run()
    cp.cuda.get_current_stream().synchronize()
    return run


def body_us(
    backend: CudaBackend, model: ModelWeights, name: str, decodes: int, context: int, prompt: int = 0
) -> float:
    """A replay of the recorded body of one step, as in `run_of_body`."""
    run = run_of_body(backend, model, name, decodes, context, prompt)
    stream = cp.cuda.get_current_stream()
    stream.begin_capture()
    run()
    return replay_us(stream.end_capture(), stream)


def replay_us(graph: Any, stream: Any, replays: int = REPLAYS) -> float:
    """Median of single replays, each behind another so that its launch does not show."""
    times = []
    for _ in range(replays):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        graph.launch(stream)
        start.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, end) * 1e3)
    return statistics.median(times)
