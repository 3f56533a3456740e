"""cuBLASLt products against float64, with bias and accumulation, also captured into a graph."""

from __future__ import annotations

import numpy as np
import pytest

from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.gemm import Gemm
from tests.gpu.halves import TYPES, cp, error, halves, rounding, widened


@pytest.fixture(scope="module")
def gemm(device: CudaDevice) -> Gemm:
    return Gemm()


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(17, 512, 96), (128, 4608, 3584), (1000, 352, 128), (33, 1001, 576)]
)
def test_product(gemm: Gemm, bf16: bool, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(m)
    w, w64 = halves(rng.standard_normal((n, k)) / 32, bf16)
    x, x64 = halves(rng.standard_normal((m, k)), bf16)
    bias = rng.standard_normal(n).astype(np.float32)
    narrow_bias, bias64 = halves(bias, bf16)
    narrow = cp.zeros((m, n), cp.uint16)
    gemm(bf16, x, w, narrow)
    assert error(widened(narrow, bf16), x64 @ w64.T) < rounding(bf16)
    if n % 8 == 0:
        gemm(bf16, x, w, narrow, bias=narrow_bias)
        assert error(widened(narrow, bf16), x64 @ w64.T + bias64) < rounding(bf16)
    residual = rng.standard_normal((m, n)).astype(np.float32)
    wide = cp.asarray(residual)
    gemm(bf16, x, w, wide, accumulate=True, alpha=16.0)
    assert error(cp.asnumpy(wide), 16 * (x64 @ w64.T) + residual) < 1e-5
    wide = cp.asarray(residual)
    gemm(bf16, x, w, wide, bias=cp.asarray(bias), accumulate=True)
    assert error(cp.asnumpy(wide), x64 @ w64.T + residual + bias) < 1e-5


def test_product_goes_to_some_columns_of_a_matrix(gemm: Gemm) -> None:
    rng = np.random.default_rng(1)
    w, w64 = halves(rng.standard_normal((128, 96)), False)
    x, x64 = halves(rng.standard_normal((40, 96)), False)
    residual = rng.standard_normal((40, 512)).astype(np.float32)
    out = cp.asarray(residual)
    gemm(False, x, w, out[:, 192:320], accumulate=True)
    found = cp.asnumpy(out)
    assert error(found[:, 192:320], x64 @ w64.T + residual[:, 192:320]) < 1e-5
    assert (found[:, :192] == residual[:, :192]).all()
    assert (found[:, 320:] == residual[:, 320:]).all()


def test_product_is_captured(gemm: Gemm) -> None:
    rng = np.random.default_rng(0)
    w, w64 = halves(rng.standard_normal((256, 128)), True)
    x, x64 = halves(rng.standard_normal((64, 128)), True)
    out = cp.zeros((64, 256), cp.float32)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        gemm(True, x, w, out)
        stream.begin_capture()
        gemm(True, x, w, out)
        graph = stream.end_capture()
        out.fill(0)
        graph.launch(stream)
        stream.synchronize()
    assert error(cp.asnumpy(out), x64 @ w64.T) < 1e-5
