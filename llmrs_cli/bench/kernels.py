"""Each op of a model's layer alone: time, bytes, operations, and the share of what the hardware gives at best.

Ops are called as the decoder calls them, so what is timed is what a step runs, whichever kernel serves that
size. The weights are those of a model of so many layers that one op's weights alone exceed every cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrs_cli.bench.ceilings import Ceilings
from llmrs_cli.engine.arrays import Array, RowSampling, StepArrays, StepBatch
from llmrs_cli.engine.backends.base import Backend, Hidden, RowLimits
from llmrs_cli.engine.backends.handles import KvLayer, LayerWeights, Linear, ModelWeights, Vector
from llmrs_cli.engine.memory import COPIES_SHARE, copy_bytes
from llmrs_cli.engine.model.names import DOWN, EMBEDDING, GATE, HEAD, UP, K, O, Q, V, in_layer, linear_shapes
from llmrs_cli.engine.model.spec import ModelSpec
from llmrs_cli.engine.sampling import row_sampling
from llmrs_cli.engine.types import SamplingParams
from llmrs_cli.engine.weights.checkpoint import Checkpoint
from llmrs_cli.engine.weights.load import load_model

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Tokens of a step."""
DECODES = ((64, 4096), (64, 384), (256, 384), (16, 1024), (1, 300), (1, 4096), (1, 32768))
"""Sequences and the context of each."""
PREFILLS = (2048, 8192)
SPREAD = 200 << 20
"""Bytes that the weights of the smallest op are spread over."""
MOST_LAYERS = 128
KV_BYTES = 1 << 30
"""That the keys and values of one attention shape are spread over."""
HEAD_ROWS = 256
LINEARS: Mapping[str, tuple[str, ...]] = {"qkv": (Q, K, V), "o": (O,), "gate_up": (GATE, UP), "down": (DOWN,)}
Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """One op at one size."""

    op: str
    tokens: int
    context: int
    """Of each sequence in attention; 0 for the others."""
    us: float
    gb_per_s: float
    tflop_per_s: float
    share: float
    """Of the ceiling that binds it: the longer of a pure read of its bytes and a large product's rate."""
    bound: str
    """memory or compute"""


@dataclass(frozen=True, slots=True)
class Work:
    """What an op must do at least."""

    size: int
    """Bytes."""
    operations: int


@dataclass(slots=True)
class Bed:
    """A loaded model and a backend to call ops on."""

    spec: ModelSpec
    sizes: Mapping[str, int]
    """Bytes of the weights of one layer's linears and of the head."""
    backend: Backend
    model: ModelWeights
    top: Ceilings

    def timing(self, op: str, tokens: int, work: Work, calls: Sequence[Call], context: int = 0) -> Timing:
        """Time `calls`, which all do `work`."""
        seconds = self.top.clock.seconds(calls)
        reading, computing = self.top.read_seconds(work.size), work.operations / self.top.operations()
        return Timing(
            op,
            tokens,
            context,
            seconds * 1e6,
            work.size / seconds / 1e9,
            work.operations / seconds / 1e12,
            max(reading, computing) / seconds,
            "memory" if reading > computing else "compute",
        )


def layers_for(spec: ModelSpec, spread: int = SPREAD) -> int:
    """Layers of the model that ops are timed on: o, the smallest linear, fills `spread` bytes in 16 bits."""
    smallest = 2 * spec.hidden * spec.heads * spec.head_dim
    return min(MOST_LAYERS, max(2, -(-spread // smallest)))


def lay(checkpoint: Checkpoint, backend: Backend, top: Ceilings) -> Bed:
    """Load a model to time ops on; `layers_for` says how many layers it should have.

    With copies of its weights where they take as little of the memory as an engine gives them.
    """
    spec, parameters = checkpoint.spec, checkpoint.parameters
    sizes = {
        op: sum(parameters[in_layer(0, f"{module}.weight")].nbytes for module in modules)
        for op, modules in LINEARS.items()
    }
    sizes["head"] = parameters[EMBEDDING if spec.tied_head else HEAD].nbytes
    copies = copy_bytes(checkpoint, backend)
    model = load_model(checkpoint, backend)
    if copies and copies * COPIES_SHARE <= backend.free_bytes():
        model = backend.copied(model)
    return Bed(spec, sizes, backend, model, top)


def time_linears(bed: Bed, sizes: Sequence[int]) -> Iterator[Timing]:
    """Every linear, as fused in a layer, over the tokens of a step."""
    spec, backend, model = bed.spec, bed.backend, bed.model
    for tokens in sizes:
        kv, step = _one_chunk(bed, tokens)
        hidden = backend.embed(model.embedding, step)
        first = model.layers[0]
        q = backend.norm_qkv_rope_store(hidden, first, kv, model.rope, step)
        mixed = backend.attend(q, kv, step, first.geometry)
        activated = backend.norm_gate_up(hidden, first)
        calls = _layer_calls(bed, kv, step, mixed, activated)
        for op, (n, k) in _shapes(spec).items():
            work = Work(bed.sizes[op] + 2 * tokens * (n + k), 2 * tokens * n * k)
            yield bed.timing(op, tokens, work, calls[op])
        if tokens <= HEAD_ROWS:
            work = Work(
                bed.sizes["head"] + tokens * (2 * spec.hidden + 4 * spec.vocab),
                2 * tokens * spec.vocab * spec.hidden,
            )
            head = _head_call(bed, hidden)
            yield bed.timing("head", tokens, work, [head])


def _layer_calls(
    bed: Bed, kv: KvLayer, step: StepArrays, mixed: Array, activated: Array
) -> dict[str, list[Call]]:
    """By op, a call for each layer; what a product before it leaves for its norm is there."""
    backend, layers = bed.backend, bed.model.layers

    def added(x: Array, weight: Linear, norm: Vector) -> Hidden:
        hidden = backend.embed(bed.model.embedding, step)
        backend.project_add(x, weight, hidden, norm)
        return hidden

    def qkv(layer: LayerWeights) -> Call:
        hidden = added(activated, layer.down, layer.attention_norm)
        return lambda: backend.norm_qkv_rope_store(hidden, layer, kv, bed.model.rope, step)

    def gate_up(layer: LayerWeights) -> Call:
        hidden = added(mixed, layer.o, layer.mlp_norm)
        return lambda: backend.norm_gate_up(hidden, layer)

    def add(x: Array, weight: Linear, norm: Vector) -> Call:
        hidden = added(x, weight, norm)
        return lambda: backend.project_add(x, weight, hidden, norm)

    return {
        "qkv": [qkv(layer) for layer in layers],
        "o": [add(mixed, layer.o, layer.mlp_norm) for layer in layers],
        "gate_up": [gate_up(layer) for layer in layers],
        "down": [add(activated, layer.down, layer.attention_norm) for layer in layers],
    }


def _head_call(bed: Bed, hidden: Hidden) -> Call:
    model = bed.model
    return lambda: bed.backend.head(hidden, model.norm, model.eps, model.head)


def _shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of the linears of a layer."""
    shapes = linear_shapes(spec)
    return {
        op: (sum(shapes[module][0] for module in modules), shapes[modules[0]][1])
        for op, modules in LINEARS.items()
    }


def time_attention(
    bed: Bed, decodes: Sequence[tuple[int, int]], prefills: Sequence[int], kv_bytes: int = KV_BYTES
) -> Iterator[Timing]:
    """Decoding sequences of equal contexts, and prompts of one chunk."""
    spec = bed.spec
    token = 4 * spec.kv_heads * spec.head_dim
    for sequences, context in decodes:
        copies = max(1, min(8, kv_bytes // (sequences * context * token)))
        calls = _decode_calls(bed, sequences, context, copies)
        work = Work(sequences * context * token, 4 * sequences * context * spec.heads * spec.head_dim)
        yield bed.timing("attend", sequences, work, calls, context)
    for length in prefills:
        work = Work(length * token, 2 * length * length * spec.heads * spec.head_dim)
        yield bed.timing("attend", length, work, [_prefill_call(bed, length)], length)


def _prefill_call(bed: Bed, length: int) -> Call:
    """Attention of a prompt that is computed at once."""
    backend, layer = bed.backend, bed.model.layers[0]
    kv, step = _one_chunk(bed, length)
    hidden = backend.embed(bed.model.embedding, step)
    q = backend.norm_qkv_rope_store(hidden, layer, kv, bed.model.rope, step)
    return lambda: backend.attend(q, kv, step, layer.geometry)


def _decode_calls(bed: Bed, sequences: int, context: int, copies: int) -> list[Call]:
    """Attention of one new token of every sequence, over filled caches."""
    backend, model = bed.backend, bed.model
    width = -(-context // backend.block_size)
    caches = backend.alloc_kv(copies, sequences * width, bed.spec.kv_heads, bed.spec.head_dim)
    rows = backend.open_rows(RowLimits(sequences, context, bed.spec.vocab))
    layer = model.layers[0]
    for row in range(sequences):
        rows.start(row, _ids(bed, context), NEUTRAL)
        rows.grant(row, 0, range(row * width, (row + 1) * width))
        for start in range(0, context, PREFILLS[-1]):
            step = rows.begin(_chunks([(row, start, min(PREFILLS[-1], context - start))]))
            hidden = backend.embed(model.embedding, step)
            for kv in caches:
                backend.norm_qkv_rope_store(hidden, layer, kv, model.rope, step)
    step = rows.begin(_chunks([(row, context - 1, 1) for row in range(sequences)]))
    hidden = backend.embed(model.embedding, step)
    q = backend.norm_qkv_rope_store(hidden, layer, caches[0], model.rope, step)
    return [lambda kv=kv: backend.attend(q, kv, step, layer.geometry) for kv in caches]  # type: ignore[misc]


def _one_chunk(bed: Bed, tokens: int) -> tuple[KvLayer, StepArrays]:
    """A cache, and a step of one prompt; its first `HEAD_ROWS` tokens are scored."""
    backend = bed.backend
    width = -(-tokens // backend.block_size)
    (kv,) = backend.alloc_kv(1, width, bed.spec.kv_heads, bed.spec.head_dim)
    rows = backend.open_rows(RowLimits(1, tokens + 1, bed.spec.vocab))
    rows.start(0, _ids(bed, tokens + 1), NEUTRAL)
    rows.grant(0, 0, range(width))
    return kv, rows.begin(_chunks([(0, 0, tokens)], scored=min(tokens, HEAD_ROWS)))


def _ids(bed: Bed, count: int) -> list[int]:
    found: list[int] = np.random.default_rng(count).integers(0, bed.spec.vocab, count).tolist()
    return found


def _chunks(chunks: Sequence[tuple[int, int, int]], scored: int = 0) -> StepBatch:
    """(row, start, count) each; none draws a token."""
    rows, starts, counts = np.array(chunks, np.int32).T
    nothing = np.zeros(len(chunks), np.int32)
    return StepBatch(
        rows.copy(), starts.copy(), counts.copy(), nothing.astype(np.bool_), nothing + np.int32(scored)
    )


NEUTRAL: RowSampling = row_sampling(SamplingParams(max_tokens=1), 1, 0)


def series(timings: Sequence[Timing], label: str) -> dict[str, list[tuple[float, float]]]:
    """Shares over the tokens of a step, for a chart."""
    found: dict[str, list[tuple[float, float]]] = {}
    for timing in timings:
        if not timing.context:
            found.setdefault(f"{label} {timing.op}", []).append((timing.tokens, timing.share))
    return found


def figures(timing: Timing) -> dict[str, Any]:
    """For JSON."""
    return {name: getattr(timing, name) for name in Timing.__slots__}
