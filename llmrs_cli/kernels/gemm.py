"""Large matrix products through cuBLASLt, with our own handle, workspace and choice of algorithm.

CuPy refuses cuBLAS during stream capture and offers no cuBLASLt, so this goes through nvmath's bindings.
cuBLASLt is column-major: row-major out (M, N) = x (M, K) · W (N, K)ᵀ is its (N × M) = Wᵀᵀ · xᵀ, with W
transposed and x not. The algorithm of a shape is the fastest of what cuBLASLt proposes: known from `tune`, or
timed on first use, which must not fall into a capture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.tune import Tuning

WORKSPACE = 32 << 20
"""Bytes; what NVIDIA recommends on Hopper."""
CANDIDATES = 16
TRIALS = 5
COLD_BYTES = 128 << 20
"""Written before each trial, more than any cache: in a step, weights come from memory, and what is fastest on
weights that the trial before left in the cache is often slow there."""
R_32F, R_16F, R_16BF = 0, 2, 14
COMPUTE_32F = 68


@dataclass(frozen=True, slots=True)
class Problem:
    """What an algorithm is chosen for; out is float32 or 16-bit."""

    m: int
    n: int
    k: int
    bf16: bool
    wide: bool
    """float32 output"""
    bias: bool
    accumulate: bool
    pitch: int
    """Elements from one row of `out` to the next; N, or more where `out` is some columns of a matrix."""

    def __str__(self) -> str:
        """Key of the choice, and what `llmrs doctor --tuning` shows."""
        kind = f"{'bf16' if self.bf16 else 'f16'}{' to f32' if self.wide else ''}"
        extras = f"{' +bias' if self.bias else ''}{' +out' if self.accumulate else ''}"
        extras += f" of {self.pitch}" if self.pitch != self.n else ""
        return f"cublaslt {self.m} x {self.n} x {self.k} {kind}{extras}"


@dataclass(frozen=True, slots=True)
class _Choice:
    """Descriptors and the algorithm of one problem."""

    operation: int
    weight: int
    x: int
    out: int
    algorithm: Any
    """(1,) record of matmul_algo_dtype"""


@dataclass(slots=True)
class Gemm:
    """cuBLASLt on one GPU; one per device, used from one thread."""

    tuning: Tuning = field(default_factory=lambda: Tuning(None, "", ""))
    """Where choices are kept; by default nowhere."""
    measures: bool = True
    """False takes what cuBLASLt proposes first, so that the choice depends on nothing but the shape."""
    _lt: Any = field(init=False)
    _handle: int = field(init=False)
    _workspace: Any = field(init=False)
    _choices: dict[Problem, _Choice] = field(init=False, default_factory=dict)
    _one: Any = field(init=False)
    _zero: Any = field(init=False)

    def __post_init__(self) -> None:
        import cupy
        from nvmath.bindings import cublasLt

        self._lt = cublasLt
        self._handle = cublasLt.create()
        self._workspace = cupy.empty(WORKSPACE, cupy.uint8)
        self._one, self._zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def __call__(
        self,
        bf16: bool,
        x: Any,
        weight: Any,
        out: Any,
        bias: Any = None,
        accumulate: bool = False,
        alpha: float = 1.0,
    ) -> None:
        """out = alpha · x · Wᵀ (+ bias) (+ out): x (M, K) and weight (N, K) 16-bit, out (M, N) 16-bit or float32.

        bias (N,) has the type of `out`, which may be some columns of a larger matrix. Enqueued on CuPy's current
        stream.
        """
        (m, k), n = x.shape, weight.shape[0]
        assert weight.shape[1] == k and out.shape == (m, n), (x.shape, weight.shape, out.shape)
        wide, pitch = out.dtype == np.float32, out.strides[0] // out.itemsize if m > 1 else n
        assert out.strides[1] == out.itemsize and pitch >= n, out.strides
        problem = Problem(m, n, k, bf16, wide, bias is not None, accumulate, pitch)
        choice = self._choices.get(problem)
        if choice is None:
            choice = self._choose(problem, x, weight, bias, out)
            self._choices[problem] = choice
        self._run(problem, choice, x, weight, out, bias, alpha)

    def _run(
        self, problem: Problem, choice: _Choice, x: Any, weight: Any, out: Any, bias: Any, alpha: float = 1.0
    ) -> None:
        import cupy

        if bias is not None:
            self._set(choice.operation, self._lt.MatmulDescAttribute.BIAS_POINTER, bias.data.ptr, np.uint64)
        beta = self._one if problem.accumulate else self._zero
        factor = self._one if alpha == 1 else np.array([alpha], np.float32)
        self._lt.matmul(
            self._handle, choice.operation, factor.ctypes.data, weight.data.ptr, choice.weight, x.data.ptr,
            choice.x, beta.ctypes.data, out.data.ptr, choice.out, out.data.ptr, choice.out,
            choice.algorithm.ctypes.data, self._workspace.data.ptr, WORKSPACE,
            cupy.cuda.get_current_stream().ptr,
        )  # fmt: skip

    def _set(self, operation: int, attribute: int, value: int, kind: Any) -> None:
        held = np.array([value], kind)
        self._lt.matmul_desc_set_attribute(operation, attribute, held.ctypes.data, held.nbytes)

    def _choose(self, problem: Problem, x: Any, weight: Any, bias: Any, out: Any) -> _Choice:
        """Descriptors and the fastest algorithm; runs every candidate, on a scratch output if `out` is a sum."""
        import cupy

        operation = self._operation(problem)
        narrow = R_16BF if problem.bf16 else R_16F
        layout = self._lt.matrix_layout_create
        weights = layout(narrow, problem.k, problem.n, problem.k)
        xs = layout(narrow, problem.k, problem.m, problem.k)
        outs = layout(R_32F if problem.wide else narrow, problem.n, problem.m, problem.pitch)
        scratch = cupy.zeros((problem.m, problem.pitch), out.dtype) if problem.accumulate else out
        if bias is not None:
            self._set(operation, self._lt.MatmulDescAttribute.BIAS_POINTER, bias.data.ptr, np.uint64)
        choices = [
            _Choice(operation, weights, xs, outs, algorithm)
            for algorithm in self._proposals(problem, operation, weights, xs, outs)
        ]
        if not self.measures:
            return choices[0]
        named = {choice.algorithm.tobytes().hex(): choice for choice in choices}
        sweep = _sweep()
        best = self.tuning.choose(
            str(problem),
            {
                name: partial(self._time, problem, choice, x, weight, scratch, bias, sweep)
                for name, choice in named.items()
            },
            rounds=1 + TRIALS,
        )
        return named[best]

    def _operation(self, problem: Problem) -> int:
        lt, attributes = self._lt, self._lt.MatmulDescAttribute
        operation: int = lt.matmul_desc_create(COMPUTE_32F, R_32F)
        self._set(operation, attributes.TRANSA, 1, np.int32)
        if problem.bias:
            self._set(operation, attributes.EPILOGUE, int(lt.Epilogue.BIAS), np.uint32)
        return operation

    def _proposals(self, problem: Problem, operation: int, weight: int, x: int, out: int) -> list[Any]:
        lt = self._lt
        preference = lt.matmul_preference_create()
        size = np.array([WORKSPACE], np.uint64)
        limit = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        lt.matmul_preference_set_attribute(preference, limit, size.ctypes.data, size.nbytes)
        results = np.zeros(CANDIDATES, lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        lt.matmul_algo_get_heuristic(
            self._handle, operation, weight, x, out, out, preference, CANDIDATES, results.ctypes.data,
            count.ctypes.data,
        )  # fmt: skip
        lt.matmul_preference_destroy(preference)
        found = [results[i : i + 1]["algo"].copy() for i in range(int(count[0])) if results[i]["state"] == 0]
        if not found:
            raise EngineFault(f"cuBLASLt has no algorithm for ({problem.m}, {problem.k}) x {problem.n}.")
        return found

    def _time(
        self, problem: Problem, choice: _Choice, x: Any, weight: Any, out: Any, bias: Any, sweep: Any
    ) -> float:
        """Microseconds of one run on cold weights."""
        from cupy.cuda import Event, get_current_stream, get_elapsed_time

        stream, start, end = get_current_stream(), Event(), Event()
        if sweep is not None:
            sweep.memset_async(0, COLD_BYTES, stream)
        start.record(stream)
        self._run(problem, choice, x, weight, out, bias)
        end.record(stream)
        end.synchronize()
        return float(get_elapsed_time(start, end)) * 1e3


def _sweep() -> Any:
    """Memory for trials to begin with, given back after them; None where there is none left."""
    from cupy.cuda.memory import Memory, MemoryPointer, OutOfMemoryError

    try:
        return MemoryPointer(Memory(COLD_BYTES), 0)
    except OutOfMemoryError:
        return None
