"""The CUDA backend: our own kernels on one NVIDIA GPU, with nothing on the host between two steps.

Weights, keys, values and activations are 16-bit, sums and the residual float32. Which products are our own, and which are
cuBLASLt's, `cuda_dense` and `cuda_packed` say. The body of a step, and its head, are recorded as
CUDA graphs when their sizes are met again; steps are staged, drawn and read asynchronously, so the
engine runs one step ahead of what it has read. The file is long because one class answers the whole contract;
what an answer is made of stands in the modules `cuda_*` and in `kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import cupy as cp
import numpy as np

from llmrs_cli.engine.arrays import Array, Draws, StepArrays
from llmrs_cli.engine.backends import cuda_packed, cuda_sizes
from llmrs_cli.engine.backends.base import Backend, Hidden, ModelSizes, RowLimits, Rows, Sizes, UnsupportedOp
from llmrs_cli.engine.backends.cuda_attention import Attention
from llmrs_cli.engine.backends.cuda_copies import with_copies
from llmrs_cli.engine.backends.cuda_dense import MEASURED, DenseProducts, Paths
from llmrs_cli.engine.backends.cuda_draws import Drawn, DrawPool
from llmrs_cli.engine.backends.cuda_fixed import FixedProducts
from llmrs_cli.engine.backends.cuda_linear import CudaLinear, load_linear
from llmrs_cli.engine.backends.cuda_memory import Arena, device_errors, explain, forgive_destructors
from llmrs_cli.engine.backends.cuda_packed import (
    PackedLinear,
    PackedProducts,
    load_packed,
    why_widened,
)
from llmrs_cli.engine.backends.cuda_results import CudaHidden, CudaLooks, PagedKv, Scaled
from llmrs_cli.engine.backends.cuda_rows import CudaRows, CudaStep
from llmrs_cli.engine.backends.cuda_staging import PAGE, StepKey, in_tiles, most_drawn, padded
from llmrs_cli.engine.backends.cuda_units import ModelUnits
from llmrs_cli.engine.backends.cuda_upload import Upload
from llmrs_cli.engine.backends.handles import (
    Geometry,
    KvLayer,
    LayerWeights,
    Linear,
    ModelWeights,
    RopeTable,
    Vector,
)
from llmrs_cli.engine.weights.packed import Dense, Stored
from llmrs_cli.kernels import attend_few
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.embed import embed
from llmrs_cli.kernels.gemm import Gemm
from llmrs_cli.kernels.graphs import Graphs
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import CubinCache, default_cache
from llmrs_cli.kernels.rms_norm import rms_norm
from llmrs_cli.kernels.silu_mul import headroom, silu_mul
from llmrs_cli.kernels.take_rows import take_rows
from llmrs_cli.kernels.tune import Tuning, default_folder

Result = TypeVar("Result")


class CudaBackend(Backend):
    """One GPU."""

    name = "cuda"
    block_size = PAGE
    lookahead = 1
    read_ahead = 2 << 30
    reorders = True
    sizes = Sizes(rows=256, context=32768, kv_bytes=None, busy_budget=1024, idle_budget=4096)

    def __init__(
        self,
        ordinal: int = 0,
        deterministic: bool = False,
        paths: Paths = MEASURED,
        packed: bool = True,
    ) -> None:
        """`deterministic`: a token's bits do not depend on what runs beside it, at a cost that bench prints.

        `packed`: 4-bit weights stay so where they can; else, and where bits are to be fixed, they are widened.
        """
        self.deterministic = deterministic
        self.packed = packed and not deterministic
        self.device = CudaDevice(ordinal, CubinCache(default_cache()))
        self._stream = cp.cuda.Stream(non_blocking=True)
        self._upload = Upload()
        self._arena = Arena()
        self._graphs, self._recorded_at = Graphs(), (0, 0)
        tuning = Tuning(default_folder(), self.device.name, self.device.library)
        self._gemm = Gemm(tuning, measures=not deterministic)
        # Sizes here change with the rows that draw.
        self._head_arena = Arena()
        self._fixed: FixedProducts | None = None
        self._paths = paths
        self._dense = DenseProducts(self.device, self._arena, self._gemm, paths)
        if deterministic:
            self._fixed = FixedProducts(self.device, self._gemm, self._arena)
        self._draws = DrawPool(self.device, self._head_arena)
        self._bf16: bool | None = None
        self._units = ModelUnits()
        self._attention = Attention(self.device, self._arena, 0 if deterministic else paths.prompt_tokens)
        self._shares = self.device.multiprocessors
        self._few: tuple[int, ...] = ()

    # -- loading ------------------------------------------------------------------------------------

    def prepare_linear(self, parts: Sequence[Stored], bias: Sequence[Dense | None], name: str) -> Linear:
        if self._bf16 is None:
            # All activations share one type; float16 only where the checkpoint says so or holds codes.
            dtypes = {part.dtype if isinstance(part, Dense) else "float16" for part in parts}
            self._bf16 = "float16" not in dtypes
        place = name.split()[-1]
        # The embedding is also a table of rows, which is read as 16 bits.
        if self.packed and name != "embedding" and why_widened(parts) is None:
            packed = load_packed(self.device, self._upload, parts, bias, self._bf16)
            self._units.add_packed(packed.matrix.layout, place)
            return packed
        loaded = load_linear(self.device, self._upload, parts, bias, self._bf16)
        self._units.add_dense(loaded.shape, place)
        return loaded

    def prepare_vector(self, values: Dense) -> Vector:
        return cp.asarray(values.dequantise())

    def prepare_rope(self, cos: Array, sin: Array) -> RopeTable:
        return cp.asarray(np.concatenate([cos, sin], axis=1).astype(np.float32))

    def alloc_kv(self, layers: int, blocks: int, kv_heads: int, head_dim: int) -> Sequence[KvLayer]:
        self._upload.close()  # all weights are loaded
        # All at once and in parallel, rather than one by one in the first steps.
        most = 0 if self.deterministic else self.sizes.idle_budget
        bf16, arch = self._bf16 is not False, self.device.loader.arch
        units = self._units.units(bf16, head_dim, arch, self.device.multiprocessors, most)
        self.device.build(units)
        self._shares = self._attention.shares(kv_heads, head_dim)
        if self._paths.few_attend and not self.deterministic:
            self._few = self._attention.few_sizes(head_dim)
        shape = blocks, kv_heads, PAGE, head_dim
        return [PagedKv(cp.zeros(shape, cp.uint16), cp.zeros(shape, cp.uint16)) for _ in range(layers)]

    def kv_bytes(self, layers: int, kv_heads: int, head_dim: int) -> int:
        return 2 * 2 * layers * PAGE * kv_heads * head_dim

    def open_rows(self, limits: RowLimits) -> CudaRows:
        self._arena.tokens = padded(limits.tokens) if limits.tokens else 0
        self._head_arena.tokens = most_drawn(limits.rows)
        rows = CudaRows(
            limits, self.device, self._arena, self._stream, self._shares, self.deterministic, self._few
        )
        self.device.synchronise()  # what was loaded on other streams
        self._graphs = Graphs()  # they hold addresses of the rows and caches before
        return rows

    def workspace_bytes(self, model: ModelSizes, limits: RowLimits) -> int:
        return cuda_sizes.workspace_bytes(model, limits, self.device.multiprocessors) + self._packed_bytes

    @property
    def _packed_bytes(self) -> int:
        """Buffers of products with 4-bit weights."""
        return cuda_packed.workspace_bytes(self.device.multiprocessors) if self.packed else 0

    def reserve(self, model: ModelSizes, limits: RowLimits) -> None:
        buffers = cuda_sizes.step_bytes(model, limits, self.device.multiprocessors) + self._packed_bytes
        with self._stream:
            cp.cuda.alloc(buffers)  # what is freed stays in CuPy's pool, for this stream

    def weight_bytes(self, shape: tuple[int, ...], form: str, nbytes: int) -> int:
        return cuda_sizes.weight_bytes(shape, form if self.packed else "float16", nbytes)

    def copy_bytes(self, shape: tuple[int, ...], form: str) -> int:
        return cuda_sizes.copy_bytes(shape, form) if self.packed else 0

    def copied(self, model: ModelWeights) -> ModelWeights:
        model = with_copies(self.device, self._upload, model)
        self._units.copied = True
        return model

    def free_bytes(self) -> int:
        free, _ = cp.cuda.runtime.memGetInfo()
        return int(free + cp.get_default_memory_pool().free_bytes())

    def use(self) -> None:
        self.device.use()

    # -- running ------------------------------------------------------------------------------------

    def run(self, key: Hashable, body: Callable[[], Result]) -> Result:
        at = self._arena.generation, self._head_arena.generation
        if at != self._recorded_at:  # recordings hold addresses from before
            self._graphs.forget_recordings()
            self._recorded_at = at
        return self._graphs.run(key, body, passing=isinstance(key, StepKey) and key.passing)

    def explain(self, error: BaseException) -> str | None:
        return explain(error, self.free_bytes)

    def looks(self) -> CudaLooks:
        return CudaLooks(self._bf16 is not False)

    def close(self) -> None:
        try:
            self._give_back()
        except device_errors():  # it has failed before, and says so again to every call
            forgive_destructors()

    def _give_back(self) -> None:
        self._upload.close()
        self.device.synchronise()
        self._graphs = Graphs()
        self._arena, self._head_arena = Arena(), Arena()
        cp.get_default_memory_pool().free_all_blocks()

    # -- fused ops ------------------------------------------------------------------------------------

    def embed(self, table: Linear, step: StepArrays) -> Hidden:
        assert isinstance(step, CudaStep)
        step.gather(self.device)
        return CudaHidden(self.embed_ids(table, step.ids))

    def norm_qkv_rope_store(
        self, hidden: Hidden, layer: LayerWeights, kv: KvLayer, rope: RopeTable, step: StepArrays
    ) -> Array:
        geometry, tokens = layer.geometry, len(hidden.residual)
        qkv = self._take("qkv", tokens, layer.qkv.shape[0])
        self._norm_linear("store", hidden, layer.attention_norm, geometry.eps, layer.qkv, qkv)
        assert isinstance(step, CudaStep)
        assert isinstance(kv, PagedKv)
        rotation = attend_few.Rotation(rope, layer.q_norm, layer.k_norm, geometry.eps)
        return self._attention.turn(self._is_bf16(layer.qkv), qkv, rotation, kv, step, geometry)

    def project_add(self, x: Array, weight: Linear, hidden: Hidden, norm: Vector | None = None) -> None:
        assert isinstance(hidden, CudaHidden)
        hidden.ahead = None
        values, alpha = (x.values, 1 / x.headroom) if isinstance(x, Scaled) else (x, 1.0)
        if isinstance(weight, PackedLinear):
            hidden.ahead = self._packed_products.plain("add", values, weight, hidden.residual, alpha, norm)
            return
        assert isinstance(weight, CudaLinear)
        if self._fixed is not None:
            self._fixed.linear(values, weight, hidden.residual, weight.bias, accumulate=True, alpha=alpha)
        else:
            hidden.ahead = self._dense.plain("add", values, weight, hidden.residual, alpha, norm)

    def norm_gate_up(self, hidden: Hidden, layer: LayerWeights) -> Scaled:
        out = self._take("activated", len(hidden.residual), layer.gate_up.shape[0] // 2)
        self._norm_linear("silu", hidden, layer.mlp_norm, layer.geometry.eps, layer.gate_up, out)
        return Scaled(out, headroom(self._is_bf16(layer.gate_up)))

    def choose(self, hidden: Hidden, mixed: Array, tokens: Array) -> tuple[Hidden, Array]:
        assert isinstance(hidden, CudaHidden)
        if len(tokens) == len(hidden.residual):
            return hidden, mixed
        count = len(tokens) if self._fixed is None else in_tiles(len(tokens))
        residual = self._head_arena.take("chosen", (count, hidden.residual.shape[1]), cp.float32)
        chosen = self._head_arena.take("chosen", (count, mixed.shape[1]), cp.uint16)
        rows = slice(len(tokens))
        take_rows(self.device, tokens, hidden.residual, mixed, residual[rows], chosen[rows])
        return CudaHidden(residual), chosen

    def head(self, hidden: Hidden, norm: Vector, eps: float, head: Linear) -> Array:
        logits = self._head_arena.take("logits", (len(hidden.residual), head.shape[0]), cp.float32)
        self._norm_linear("logits", hidden, norm, eps, head, logits)
        return logits

    def _norm_linear(
        self,
        epilogue: Epilogue,
        hidden: Hidden,
        norm: Vector,
        eps: float,
        weight: Linear,
        out: Array,
    ) -> None:
        """out = epilogue(linear(rms_norm(residual)))."""
        assert isinstance(hidden, CudaHidden)
        x = hidden.residual
        ahead = hidden.ahead if hidden.ahead and hidden.ahead.norm is norm else None
        if isinstance(weight, PackedLinear):
            self._packed_products.normed(epilogue, x, norm, eps, weight, out, ahead)
            return
        assert isinstance(weight, CudaLinear)
        if self._fixed is not None:
            self._fixed.norm_linear(epilogue, x, norm, eps, weight, out)
            return
        self._dense.normed(epilogue, x, norm, eps, weight, out, ahead)

    def _take(self, name: str, tokens: int, width: int) -> Array:
        """16-bit activations (tokens, width) in the arena."""
        return self._arena.take(name, (tokens, width), cp.uint16)

    @property
    def _packed_products(self) -> PackedProducts:
        return PackedProducts(self.device, self._arena, self._gemm, self._dense)

    @staticmethod
    def _is_bf16(weight: Linear) -> bool:
        assert isinstance(weight, CudaLinear | PackedLinear)
        return weight.bf16

    # -- primitive ops ------------------------------------------------------------------------------

    def rms_norm(self, x: Array, weight: Vector, eps: float) -> Array:
        out = self._take("normed", len(x), x.shape[1])
        rms_norm(self.device, self._bf16 is not False, x, weight, eps, out)
        return out

    def linear(self, x: Array, weight: Linear) -> Array:
        out = cp.empty((len(x), weight.shape[0]), cp.uint16)
        if isinstance(weight, PackedLinear):
            self._packed_products.plain("store", x, weight, out)
            return out
        assert isinstance(weight, CudaLinear)
        self._gemm(weight.bf16, x, weight.weight, out, weight.narrow_bias)
        return out

    def attention(self, q: Array, kv: KvLayer, step: StepArrays, geometry: Geometry) -> Array:
        assert isinstance(step, CudaStep)
        assert isinstance(kv, PagedKv)
        return self._attention.attend(self._bf16 is not False, q, kv, step, geometry)

    def silu_mul(self, gate_up: Array) -> Scaled:
        bf16 = self._bf16 is not False
        out = self._take("activated", len(gate_up), gate_up.shape[1] // 2)
        silu_mul(self.device, bf16, gate_up, out)
        return Scaled(out, headroom(bf16))

    def embed_ids(self, table: Linear, ids: Array) -> Array:
        assert isinstance(table, CudaLinear)
        residual = self._arena.take("residual", (len(ids), table.shape[1]), cp.float32)
        embed(self.device, table.bf16, table.weight, ids, residual)
        return residual

    def take_rows(self, x: Array, rows: Array) -> Array:
        return x[rows]

    def add_into(self, residual: Array, x: Array) -> None:
        raise UnsupportedOp("add_into", tuple(x.shape), "16 bit")

    def rope(self, x: Array, positions: Array, table: RopeTable) -> Array:
        raise UnsupportedOp("rope alone", tuple(x.shape), "16 bit")

    def store_kv(self, k: Array, v: Array, kv: KvLayer, slots: Array) -> None:
        raise UnsupportedOp("store_kv alone", tuple(k.shape), "16 bit")

    def split_heads(self, qkv: Array, geometry: Geometry) -> tuple[Array, Array, Array]:
        raise UnsupportedOp("split_heads alone", tuple(qkv.shape), "16 bit")

    # -- choosing tokens ------------------------------------------------------------------------------

    def sample(self, logits: Array, rows: Rows, step: StepArrays, mask: Array | None) -> Drawn:
        assert isinstance(rows, CudaRows)
        assert isinstance(step, CudaStep)
        return self._draws.sample(logits, rows.state, step, mask)

    def draw(self, head: Callable[[Array], Array], rows: Rows, step: StepArrays, mask: Array | None) -> Drawn:
        assert isinstance(rows, CudaRows)
        assert isinstance(step, CudaStep)
        if mask is not None or step.reports >= 0 or step.drawing is None:
            return self._draws.sample(head(step.sample_tokens), rows.state, step, mask)
        tokens, places = step.drawing

        def run() -> None:
            padded_step = replace(step, sample_tokens=tokens, sample_rows=places)
            self._draws.launch(head(tokens), rows.state, padded_step, 0)

        # What a body leaves has the same addresses at every size, and of rows that are chosen a head knows no more.
        self.run(("draw", len(tokens), len(tokens) == step.ids.size), run)
        return self._draws.launched(rows.results.current, len(tokens))

    def score(self, logits: Array, targets: Array, alternatives: int) -> Drawn:
        return self._draws.score(logits, targets, alternatives)

    def fetch(self, drawn: Any) -> Draws:
        assert isinstance(drawn, Drawn)
        return self._draws.fetch(drawn)
