"""The contract of a backend: which ops it supplies, with shapes and dtypes.

Letters: T tokens in this step, S sequences, R rows that need logits, C hidden, F feed-forward, Hq and
Hkv query and key heads, D head size, V vocabulary, NB blocks, BS block size, P rotary positions.

Two levels. *Primitive ops* are pure, one formula each; `reference` is their definition. *Fused ops* are
what the decoder calls; this class composes each from primitives, so a new backend works at once and a
fast one overrides them one at a time, each under test against the composition here.

Rules: an op reads only its arguments; what it changes is named (`store_kv`: the KV layer; `project_add`:
its hidden state; `Rows.*` and `sample`: the row state); an op that cannot serve its arguments raises
UnsupportedOp and never falls back by itself. This module holds no NumPy code and no device code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from llmrs_cli.engine.arrays import Array, Draws, RowSampling, StepArrays, StepBatch
from llmrs_cli.engine.backends.handles import (
    Geometry,
    KvLayer,
    LayerWeights,
    Linear,
    ModelWeights,
    RopeTable,
    Vector,
)
from llmrs_cli.engine.backends.looks import HostLooks, Looks
from llmrs_cli.engine.weights.packed import Dense, Stored
from llmrs_cli.errors import EngineFault

Result = TypeVar("Result")
HEAD_ROWS = 256
"""Rows of logits computed at a time: V · 256 float32 is what the head may take of the memory."""


class UnsupportedOp(EngineFault):
    """A backend has no kernel for these arguments: names the op, its shape and dtype."""

    def __init__(self, op: str, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__(f"No kernel for {op} of shape {shape} in {dtype}.")


@dataclass(slots=True)
class Hidden:
    """The residual stream of one step; a backend may subclass it to carry what its fusions need."""

    residual: Array
    """(T, C) float32, changed in place by `project_add`"""


@dataclass(frozen=True, slots=True)
class RowLimits:
    """How much row state to hold."""

    rows: int
    """Sequences that can run at once."""
    context: int
    """Tokens of the longest row, prompt and answer."""
    vocab: int
    tokens: int = 0
    """Of the largest step; 0: not known."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What the size of an engine's buffers follows from."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large an engine on a backend is when nobody says otherwise."""

    rows: int = 8
    context: int = 4096
    """Tokens; the model's own context where that is shorter."""
    kv_bytes: int | None = 160 << 20
    """KV cache beyond one full context, up to this; None: all that is free."""
    busy_budget: int = 64
    """Tokens a step while any row decodes."""
    idle_budget: int = 512
    """Tokens a step while none does."""


class Rows(ABC):
    """State that lives where the backend computes, one row per running sequence.

    Edits take effect in the order of the calls, at the next `begin`.
    """

    @abstractmethod
    def start(self, row: int, tokens: Sequence[int], sampling: RowSampling) -> None:
        """A sequence takes `row`: its known tokens and its sampling state; the block table is empty."""

    @abstractmethod
    def grant(self, row: int, first: int, blocks: Sequence[int]) -> None:
        """Write `blocks` into the row's block table from entry `first` on."""

    @abstractmethod
    def begin(self, batch: StepBatch) -> StepArrays:
        """Stage one step: gather its ids and expand its index arrays."""


class Backend(ABC):
    """One way to compute. Built complete by `registry.open_backend`; not shared between threads."""

    name: ClassVar[str]
    block_size: ClassVar[int]
    """Tokens per KV block."""
    lookahead: ClassVar[int] = 0
    """Steps launched before the oldest one's tokens are read: 0 or 1."""
    sizes: ClassVar[Sizes] = Sizes()
    """Of an engine by default."""
    read_ahead: int = 0
    """Bytes of weights that may be read from files before they are asked for; 0 reads one after the other."""
    reorders: ClassVar[bool] = False
    """Whether 4-bit weights are given to `prepare_linear` as their files hold them (`Words4`, `Tiles4`)."""

    # -- loading ------------------------------------------------------------------------------------

    @abstractmethod
    def prepare_linear(self, parts: Sequence[Stored], bias: Sequence[Dense | None], name: str) -> Linear:
        """Stack `parts` (all of K columns) along N and reorder them for this backend's kernels.

        `bias` has one entry per part; None stands for zeros. `name` is for messages, and its last word the place in a
        model: qkv, o, gate_up, down, head, or embedding, whose handle must serve `embed_ids` too.
        """

    @abstractmethod
    def prepare_vector(self, values: Dense) -> Vector:
        """(N,) → float32 in the backend's memory."""

    @abstractmethod
    def prepare_rope(self, cos: Array, sin: Array) -> RopeTable:
        """Two (P, D/2) float32 NumPy arrays → the backend's table."""

    @abstractmethod
    def alloc_kv(self, layers: int, blocks: int, kv_heads: int, head_dim: int) -> Sequence[KvLayer]:
        """Storage for `blocks` blocks of `block_size` tokens in each of `layers` layers."""

    @abstractmethod
    def kv_bytes(self, layers: int, kv_heads: int, head_dim: int) -> int:
        """Bytes that one block takes over all layers."""

    @abstractmethod
    def open_rows(self, limits: RowLimits) -> Rows:
        """Row state for a new engine."""

    def workspace_bytes(self, model: ModelSizes, limits: RowLimits) -> int:
        """Bytes that an engine takes beside weights and KV blocks. Here: float32 activations of its largest
        step and logits of `HEAD_ROWS` rows, an upper estimate."""
        width = 2 * model.hidden + (2 * model.heads + 2 * model.kv_heads) * model.head_dim + 3 * model.ffn
        return 4 * (limits.tokens * width + HEAD_ROWS * model.vocab)

    def reserve(self, model: ModelSizes, limits: RowLimits) -> None:  # noqa: B027 (a host's memory is found when needed)
        """Take now what steps will need, so that nobody else can have taken it by then. Raises MemoryError."""

    def weight_bytes(self, shape: tuple[int, ...], form: str, nbytes: int) -> int:
        """Bytes that a parameter takes once it is prepared: of this shape, stored as `form` in `nbytes`."""
        return nbytes

    def copy_bytes(self, shape: tuple[int, ...], form: str) -> int:
        """Bytes that `copied` takes for a parameter."""
        return 0

    def copied(self, model: ModelWeights) -> ModelWeights:
        """The model with copies of weights that many tokens are multiplied with sooner than with the weights themselves."""
        return model

    @abstractmethod
    def free_bytes(self) -> int:
        """Memory that could still be taken, in bytes."""

    def use(self) -> None:  # noqa: B027 (most backends do not mind)
        """From now on the calling thread is the one that uses the backend."""

    # -- running ------------------------------------------------------------------------------------

    def run(self, key: Hashable, body: Callable[[], Result]) -> Result:
        """Call `body` and return what it returns.

        A backend with graphs may record the call under `key` and replay it later; it then returns what
        the recorded call returned, whose arrays the replay has filled anew.
        """
        return body()

    def explain(self, error: BaseException) -> str | None:
        """What an exception of a library beneath means, in a sentence; None if it is none of theirs."""
        return None

    def looks(self) -> Looks:
        """How what the fused ops gave for the model that is loaded is compared."""
        return HostLooks()

    def close(self) -> None:  # noqa: B027 (nothing to give back is a valid answer)
        """Give back what the backend holds; it is not used afterwards."""

    # -- primitive ops ------------------------------------------------------------------------------

    @abstractmethod
    def rms_norm(self, x: Array, weight: Vector, eps: float) -> Array:
        """x / sqrt(mean(x²) + eps) · weight over the last axis: (…, C) → (…, C)."""

    @abstractmethod
    def linear(self, x: Array, weight: Linear) -> Array:
        """(T, K) → (T, N): x · Wᵀ + bias."""

    @abstractmethod
    def rope(self, x: Array, positions: Array, table: RopeTable) -> Array:
        """Rotate (T, H, D) by position: halves (a, b) → (a·cos - b·sin, b·cos + a·sin)."""

    @abstractmethod
    def store_kv(self, k: Array, v: Array, kv: KvLayer, slots: Array) -> None:
        """Write (T, Hkv, D) keys and values to their slots. Changes `kv`."""

    @abstractmethod
    def attention(self, q: Array, kv: KvLayer, step: StepArrays, geometry: Geometry) -> Array:
        """Causal attention over paged keys: (T, Hq, D) → (T, Hq·D).

        Query i of a sequence with n queries and context c sees keys 0 … c - n + i (and only the last
        `window` of them, if there is one). Query head h reads key head h · Hkv // Hq.
        """

    @abstractmethod
    def silu_mul(self, gate_up: Array) -> Array:
        """(T, 2F) → (T, F): gate · sigmoid(gate) · up."""

    @abstractmethod
    def split_heads(self, qkv: Array, geometry: Geometry) -> tuple[Array, Array, Array]:
        """(T, (Hq + 2·Hkv)·D) → q (T, Hq, D), k and v (T, Hkv, D); views where possible."""

    @abstractmethod
    def add_into(self, residual: Array, x: Array) -> None:
        """residual += x. Changes `residual`."""

    @abstractmethod
    def take_rows(self, x: Array, rows: Array) -> Array:
        """(T, C), (R,) → (R, C)."""

    @abstractmethod
    def embed_ids(self, table: Linear, ids: Array) -> Array:
        """(T,) → (T, C) float32 rows of the table."""

    # -- fused ops: what the decoder calls ------------------------------------------------------------

    def embed(self, table: Linear, step: StepArrays) -> Hidden:
        """The residual stream of the step's tokens."""
        return Hidden(self.embed_ids(table, step.ids))

    def norm_qkv_rope_store(
        self, hidden: Hidden, layer: LayerWeights, kv: KvLayer, rope: RopeTable, step: StepArrays
    ) -> Array:
        """Norm, qkv projection, optional per-head norms, rotation; stores k and v, returns q (T, Hq, D)."""
        geometry = layer.geometry
        normed = self.rms_norm(hidden.residual, layer.attention_norm, geometry.eps)
        q, k, v = self.split_heads(self.linear(normed, layer.qkv), geometry)
        if layer.q_norm is not None:
            q = self.rms_norm(q, layer.q_norm, geometry.eps)
        if layer.k_norm is not None:
            k = self.rms_norm(k, layer.k_norm, geometry.eps)
        k = self.rope(k, step.positions, rope)
        self.store_kv(k, v, kv, step.slots)
        return self.rope(q, step.positions, rope)

    def attend(self, q: Array, kv: KvLayer, step: StepArrays, geometry: Geometry) -> Array:
        """Paged causal attention over any mix of chunk lengths: (T, Hq, D) → (T, Hq·D)."""
        return self.attention(q, kv, step, geometry)

    def project_add(self, x: Array, weight: Linear, hidden: Hidden, norm: Vector | None = None) -> None:
        """Residual += linear(x). Changes `hidden`; `norm` is what reads it next, for a backend that can work ahead."""
        self.add_into(hidden.residual, self.linear(x, weight))

    def norm_gate_up(self, hidden: Hidden, layer: LayerWeights) -> Array:
        """Norm, gate and up projections, SiLU·mul: → (T, F)."""
        normed = self.rms_norm(hidden.residual, layer.mlp_norm, layer.geometry.eps)
        return self.silu_mul(self.linear(normed, layer.gate_up))

    def choose(self, hidden: Hidden, mixed: Array, tokens: Array) -> tuple[Hidden, Array]:
        """The residual stream and `mixed` (T, W) of the chosen tokens, (R,) indices into T, ascending: R rows or more of
        either, the first R theirs. They are arrays of their own, unless all T are chosen."""
        return Hidden(self.take_rows(hidden.residual, tokens)), self.take_rows(mixed, tokens)

    def head(self, hidden: Hidden, norm: Vector, eps: float, head: Linear) -> Array:
        """Logits (R, V) float32 of the residual stream of R tokens."""
        return self.linear(self.rms_norm(hidden.residual, norm, eps), head)

    # -- choosing tokens ------------------------------------------------------------------------------

    @abstractmethod
    def sample(self, logits: Array, rows: Rows, step: StepArrays, mask: Array | None) -> Any:
        """Draw one token per row of (R, V) logits and append it to its row; returns a handle for `fetch`.

        A function of (logits, the row's sampling state, seed, position, choice): never of the batch.
        `mask`, if given, is (R, ceil(V/32)) uint32, bit set = allowed (grammars). Changes `rows`.
        """

    def draw(self, head: Callable[[Array], Array], rows: Rows, step: StepArrays, mask: Array | None) -> Any:
        """`sample` from the logits that `head` computes of tokens, (R,) indices into T; a backend with graphs may record
        both as one, and draw for more rows than are asked for: the first R are they."""
        return self.sample(head(step.sample_tokens), rows, step, mask)

    @abstractmethod
    def fetch(self, drawn: Any) -> Draws:
        """Wait for a `sample` or `score` handle and bring it to the host."""

    @abstractmethod
    def score(self, logits: Array, targets: Array, alternatives: int) -> Any:
        """Log-softmax of (P, V) logits at `targets` (P,), with the best `alternatives`; for `fetch`."""
