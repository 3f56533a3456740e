"""How large an engine can be: weights, workspace and KV cache against the memory there is.

Made before anything is loaded, so that what cannot fit is refused at once and with numbers. What weights and
workspace take is the backend's to say: an upper estimate on the host, exact to the buffer on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmrs_cli.engine.backends.base import Backend, ModelSizes, RowLimits
from llmrs_cli.engine.limits import EngineLimits
from llmrs_cli.engine.model.spec import ModelSpec
from llmrs_cli.errors import DoesNotFitError, UsageError

if TYPE_CHECKING:
    from llmrs_cli.engine.weights.checkpoint import Checkpoint

SHARE = 0.9
"""Of the free memory that an engine takes at most when nobody names a size."""
COPIES_SHARE = 8
"""Copies of weights are made where there is so many times their size left for KV cache and copies."""
LEAST_CONTEXT = 512
"""Tokens; a context that nobody asked for is not made smaller than this to fit."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes in bytes, and the engine that they allow."""

    limits: EngineLimits
    weights: int
    workspace: int
    kv: int
    available: int
    copies: int = 0
    """Of weights in a form in which many tokens are multiplied sooner; they are made if this is not 0"""

    def __str__(self) -> str:
        copies = f" + copies {size(self.copies)}" if self.copies else ""
        whole = self.weights + self.copies + self.workspace + self.kv
        return (
            f"weights {size(self.weights)}{copies} + workspace {size(self.workspace)} + KV cache {size(self.kv)}"
            f" = {size(whole)}, available {size(self.available)}"
        )


def plan_memory(
    spec: ModelSpec,
    backend: Backend,
    weights: int,
    *,
    context: int | None = None,
    rows: int | None = None,
    memory: int | None = None,
    held: int = 0,
    copies: int = 0,
) -> MemoryPlan:
    """Fit an engine for `spec` with `weights` bytes of weights into `memory` (or what is free).

    The KV cache holds at least one full context and at most one for each row. Between the two it stays
    modest (what the backend takes by default, or half the weights), unless memory was asked for, or rows
    and context both: then it takes what is left. A context that was asked for is kept or refused
    (DoesNotFitError); one that was not shrinks to fit. `held` bytes of `memory` are taken by whoever asks,
    for weights that are loaded, say. `copies` are what a backend would like to take beside the weights to be faster, and
    takes where memory is plenty.
    """
    sizes, block_size = backend.sizes, backend.block_size
    if context is not None and not 2 <= context <= spec.max_context:
        raise UsageError(f"The context must be from 2 to {spec.max_context} tokens, not {context}.")
    available = available_bytes(backend, memory, held)
    exact = sizes.kv_bytes is None or memory is not None or None not in (rows, context)
    rows = sizes.rows if rows is None else rows
    busy = max(sizes.busy_budget, 2 * rows)
    idle = max(sizes.idle_budget, busy)
    block = backend.kv_bytes(spec.layers, spec.kv_heads, spec.head_dim)
    usual = min(sizes.context, spec.max_context)
    # Row state grows with the context; what it may be at most is taken off before the context is known.
    row_limits = RowLimits(rows, context or usual, spec.vocab, idle)
    workspace = backend.workspace_bytes(model_sizes(spec), row_limits)
    left = max(0, available - weights - workspace)
    copies = copies if copies * COPIES_SHARE <= left else 0
    room = (left - copies) // block
    tokens = context or _fitting_context(usual, room * block_size)
    one = -(-tokens // block_size)
    most = room if exact else min(room, max(sizes.kv_bytes or 0, weights // 2) // block)
    blocks = max(one, min(one * rows, most))
    cut_from = usual if context is None and tokens < usual else 0
    limits = EngineLimits(rows, tokens, blocks, block_size, busy, idle, block // block_size, cut_from)
    plan = MemoryPlan(limits, weights, workspace, blocks * block, available, copies)
    if blocks > room:
        raise DoesNotFitError(
            f"A context of {tokens} tokens does not fit: {plan}.",
            hint="Choose a smaller model or context (--ctx), or give the engine more memory (--gpu-memory).",
        )
    return plan


def available_bytes(backend: Backend, memory: int | None, held: int) -> int:
    """What was asked for, or a share of what is free. Raises DoesNotFitError if more is asked for than there is."""
    free = backend.free_bytes() + held
    if memory is None:
        return int(free * SHARE)
    if memory > free:
        raise DoesNotFitError(
            f"{size(memory)} of memory were asked for; {size(free)} are free.",
            hint="Ask for less, or end what else uses the memory.",
        )
    return memory


def _fitting_context(usual: int, room: int) -> int:
    """The usual context, or what fits into `room` tokens of KV cache, but no less than is of use."""
    return min(usual, max(room, LEAST_CONTEXT))


def model_sizes(spec: ModelSpec) -> ModelSizes:
    """What backends are told of a model before it is loaded."""
    return ModelSizes(
        spec.layers, spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.ffn, spec.vocab
    )


def weight_bytes(checkpoint: Checkpoint, backend: Backend) -> int:
    """Bytes of a model's weights on a backend."""
    parameters = checkpoint.parameters.values()
    return sum(backend.weight_bytes(p.shape, p.form, p.nbytes) for p in parameters)


def copy_bytes(checkpoint: Checkpoint, backend: Backend) -> int:
    """Bytes of the copies that a backend would make of a model's weights."""
    return sum(backend.copy_bytes(p.shape, p.form) for p in checkpoint.parameters.values())


def size(count: int) -> str:
    """Bytes for people: '1.5 GiB', '320 MiB'."""
    return f"{count / 2**30:.1f} GiB" if abs(count) >= 2**30 else f"{count / 2**20:.0f} MiB"
