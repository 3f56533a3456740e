"""Products through cuBLASLt, with a NumPy model of it that reads what the descriptors say; no GPU."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.gemm import COMPUTE_32F, R_16BF, R_16F, R_32F, WORKSPACE, Gemm, Problem
from llmrs_cli.kernels.tune import Tuning
from tests.helpers.emulate import host

TYPES = pytest.mark.parametrize("bf16", [True, False], ids=["bf16", "f16"])
TRANSA, EPILOGUE, BIAS_POINTER = 3, 7, 8
BIAS = 4
ALGORITHM = np.dtype([("number", np.uint64)])


class NumpyLt:
    """Column-major products of whatever lies at the addresses; algorithms are numbers, all alike."""

    MatmulDescAttribute = SimpleNamespace(TRANSA=TRANSA, EPILOGUE=EPILOGUE, BIAS_POINTER=BIAS_POINTER)
    MatmulPreferenceAttribute = SimpleNamespace(MAX_WORKSPACE_BYTES=1)
    Epilogue = SimpleNamespace(BIAS=BIAS)
    matmul_heuristic_result_dtype = np.dtype([("algo", ALGORITHM), ("state", np.int32)])

    def __init__(self, states: tuple[int, ...]) -> None:
        self.states = states
        self.things: list[Any] = [None]
        self.ran: list[int] = []
        self.searches = 0
        self.limit = 0

    def _new(self, thing: Any) -> int:
        self.things.append(thing)
        return len(self.things) - 1

    def create(self) -> int:
        return self._new("handle")

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        assert (compute, scale) == (COMPUTE_32F, R_32F)
        return self._new({})

    def matmul_desc_set_attribute(self, operation: int, attribute: int, address: int, size: int) -> None:
        self.things[operation][attribute] = int.from_bytes(ctypes.string_at(address, size), "little")

    def matrix_layout_create(self, *layout: int) -> int:
        return self._new(layout)

    def matmul_preference_create(self) -> int:
        return self._new("preference")

    def matmul_preference_set_attribute(self, preference: int, name: int, address: int, size: int) -> None:
        self.limit = int.from_bytes(ctypes.string_at(address, size), "little")

    def matmul_preference_destroy(self, preference: int) -> None:
        assert self.things[preference] == "preference"
        self.things[preference] = None

    def matmul_algo_get_heuristic(self, *arguments: int) -> None:
        *_, most, results, count = arguments
        self.searches += 1
        kind = self.matmul_heuristic_result_dtype
        found = np.zeros(min(most, len(self.states)), kind)
        found["algo"]["number"] = 100 + np.arange(len(found))
        found["state"] = self.states[: len(found)]
        ctypes.memmove(results, found.ctypes.data, found.nbytes)
        ctypes.memmove(count, np.array([len(found)], np.int32).ctypes.data, 4)

    def matmul(
        self, handle: int, operation: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int, beta: int,
        c: int, c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int, size: int, stream: int,
    ) -> None:  # fmt: skip
        assert self.things[handle] == "handle" and size == WORKSPACE and workspace and stream == 77
        assert (c, c_layout) == (d, d_layout)
        self.ran.append(int.from_bytes(ctypes.string_at(algorithm, 8), "little"))
        said, out = self.things[operation], self.things[d_layout]
        assert said[TRANSA] == 1
        product = self.matrix(a, a_layout).T @ self.matrix(b, b_layout)
        product *= ctypes.c_float.from_address(alpha).value
        if said.get(EPILOGUE) == BIAS:
            rows, bias = out[1], said[BIAS_POINTER]
            product += widened(at(bias, (rows,), out[0]), out[0])[:, None]
        factor = ctypes.c_float.from_address(beta).value
        if factor:
            product += factor * self.matrix(d, d_layout)
        kind, rows, columns, pitch = out
        at(d, (columns, pitch), kind, rows)[:, :rows] = narrowed(product.T, kind)

    def matrix(self, address: int, layout: int) -> NDArray[np.float64]:
        kind, rows, columns, pitch = self.things[layout]
        return widened(at(address, (columns, pitch), kind, rows)[:, :rows].T, kind)


def at(address: int, shape: tuple[int, ...], kind: int, last: int = 0) -> NDArray[Any]:
    """The values at an address; of the last row only `last` need be there."""
    dtype = np.dtype(np.float32 if kind == R_32F else np.uint16)
    count = int(np.prod(shape)) - (shape[-1] - last if last else 0)
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)).view(
        dtype
    )
    strides = (shape[-1] * dtype.itemsize, dtype.itemsize)[-len(shape) :]
    visible = (*shape[:-1], last or shape[-1])
    return np.lib.stride_tricks.as_strided(flat, visible, strides, writeable=True)


def widened(values: NDArray[Any], kind: int) -> NDArray[np.float64]:
    if kind == R_16BF:
        return bf16_to_f32(np.ascontiguousarray(values)).astype(np.float64)
    return (values if kind == R_32F else np.ascontiguousarray(values).view(np.float16)).astype(np.float64)


def narrowed(values: NDArray[np.float64], kind: int) -> NDArray[Any]:
    narrow = values.astype(np.float32)
    if kind == R_32F:
        return narrow
    return f32_to_bf16(narrow) if kind == R_16BF else narrow.astype(np.float16).view(np.uint16)


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> NumpyLt:
    made = NumpyLt((0, 15, 0))
    stream = SimpleNamespace(ptr=77)
    cupy = SimpleNamespace(
        uint8=np.uint8,
        empty=lambda count, dtype: host(np.empty(count, dtype)),
        zeros=lambda shape, dtype: host(np.zeros(shape, dtype)),
        cuda=SimpleNamespace(get_current_stream=lambda: stream),
    )
    bindings = ModuleType("nvmath.bindings")
    bindings.cublasLt = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "nvmath", ModuleType("nvmath"))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", bindings)

    def timed(gemm: Gemm, problem: Problem, choice: Any, *arrays: Any) -> float:
        """One run, and less time the higher the algorithm's number."""
        gemm._run(problem, choice, arrays[0], arrays[1], arrays[2], arrays[3])
        return 1000.0 - int(choice.algorithm["number"][0])

    monkeypatch.setattr(Gemm, "_time", timed)
    monkeypatch.setattr("llmrs_cli.kernels.gemm._sweep", lambda: None)
    monkeypatch.setattr("llmrs_cli.kernels.gemm.TRIALS", 0)
    return made


class Case:
    """x (5, 24) and weights (16, 24) of one type, and their product in float64."""

    def __init__(self, bf16: bool, m: int = 5) -> None:
        rng = np.random.default_rng(m)
        self.kind = R_16BF if bf16 else R_16F
        self.x = host(narrowed(rng.standard_normal((m, 24)), self.kind))
        self.weight = host(narrowed(rng.standard_normal((16, 24)), self.kind))
        self.right = widened(np.asarray(self.x), self.kind) @ widened(np.asarray(self.weight), self.kind).T
        self.bias = rng.standard_normal(16)
        self.residual = rng.standard_normal((m, 16)).astype(np.float32)

    def narrow(self) -> Any:
        return host(np.zeros(self.right.shape, np.uint16))


def close(found: Any, wanted: NDArray[np.float64], kind: int) -> bool:
    step = {R_32F: 1e-6, R_16F: 2.0**-11, R_16BF: 2.0**-8}[kind]
    error = np.abs(widened(np.asarray(found), kind) - wanted)
    return bool((error <= step * np.abs(wanted) + 1e-5).all())


@TYPES
@pytest.mark.parametrize("m", [1, 5])
def test_a_product_and_its_bias(lt: NumpyLt, bf16: bool, m: int) -> None:
    case, gemm = Case(bf16, m), Gemm()
    out = case.narrow()
    gemm(bf16, case.x, case.weight, out)
    assert close(out, case.right, case.kind)
    bias = host(narrowed(case.bias, case.kind))
    gemm(bf16, case.x, case.weight, out, bias=bias)
    assert close(out, case.right + widened(np.asarray(bias), case.kind), case.kind)


@TYPES
def test_a_sum_is_added_to_once_though_every_algorithm_is_tried_on_it(lt: NumpyLt, bf16: bool) -> None:
    case, gemm = Case(bf16), Gemm()
    out = host(case.residual)
    gemm(bf16, case.x, case.weight, out, accumulate=True, alpha=4.0)
    assert len(lt.ran) == 3 and close(out, 4 * case.right + case.residual, R_32F)
    gemm(bf16, case.x, case.weight, out, accumulate=True)
    assert len(lt.ran) == 4 and close(out, 5 * case.right + case.residual, R_32F)


def test_a_product_goes_to_some_columns_of_a_matrix(lt: NumpyLt) -> None:
    case, gemm = Case(False), Gemm()
    out = host(np.full((5, 40), 7.0, np.float32))
    gemm(False, case.x, case.weight, out[:, 8:24])
    assert close(out[:, 8:24], case.right, R_32F)
    assert (np.delete(np.asarray(out), np.s_[8:24], axis=1) == 7).all()


def test_the_fastest_algorithm_that_works_is_chosen_once_a_shape(lt: NumpyLt) -> None:
    case, gemm = Case(True), Gemm()
    for _ in range(3):
        gemm(True, case.x, case.weight, case.narrow())
    assert lt.ran == [100, 102, 102, 102, 102], "the second proposal is not for use"
    assert lt.searches == 1 and lt.limit == WORKSPACE
    gemm(True, case.x[:4], case.weight, case.narrow()[:4])
    assert lt.searches == 2


def test_each_call_has_the_bias_that_it_names(lt: NumpyLt) -> None:
    case, gemm, out = Case(False), Gemm(), Case(False).narrow()
    for factor in (1.0, 3.0):
        bias = host(narrowed(case.bias * factor, R_16F))
        gemm(False, case.x, case.weight, out, bias=bias)
        assert close(out, case.right + widened(np.asarray(bias), R_16F), R_16F)


def test_without_measuring_the_first_proposal_is_taken(lt: NumpyLt) -> None:
    case = Case(True)
    Gemm(measures=False)(True, case.x, case.weight, case.narrow())
    assert lt.ran == [100]


def test_a_choice_is_known_to_the_next_process(lt: NumpyLt, tmp_path: Path) -> None:
    case = Case(True)
    for _ in range(2):
        tuning = Tuning(tmp_path / "tuning", "gpu", "1")
        Gemm(tuning)(True, case.x, case.weight, case.narrow())
    assert lt.ran == [100, 102, 102, 102]
    assert next(tuning.lines()).startswith("cublaslt 5 x 16 x 24 bf16 ")


def test_a_product_that_nobody_offers_is_a_fault_with_its_shape(lt: NumpyLt) -> None:
    lt.states = (15,)
    case = Case(True)
    with pytest.raises(EngineFault, match=r"cuBLASLt has no algorithm for \(5, 24\) x 16\."):
        Gemm()(True, case.x, case.weight, case.narrow())


def test_problems_are_told_apart_by_all_that_an_algorithm_depends_on() -> None:
    base = Problem(5, 16, 24, True, wide=False, bias=False, accumulate=False, pitch=16)
    changes: list[dict[str, Any]] = [
        {"m": 6},
        {"n": 8},
        {"k": 8},
        {"bf16": False},
        {"wide": True},
        {"bias": True},
        {"accumulate": True},
        {"pitch": 40},
    ]
    names = [str(base), *(str(replace(base, **change)) for change in changes)]
    assert names[0] == "cublaslt 5 x 16 x 24 bf16" and names[-1] == "cublaslt 5 x 16 x 24 bf16 of 40"
    assert len(set(names)) == len(names)
