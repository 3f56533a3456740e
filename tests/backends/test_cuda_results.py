"""What the CUDA backend's ops give, read as numbers, and what lies at the end of float16 counted; on a pretended GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from llmrs_cli.engine.weights.packed import f32_to_bf16
from tests.helpers.fake_cuda import cuda_backend

VALUES = np.array([[1.5, -65504, 65472], [np.inf, np.nan, -0.25], [65504, 65504, 65504]], np.float32)
"""Of three tokens, the last of which a step does not have."""


@pytest.fixture
def results() -> Iterator[ModuleType]:
    with cuda_backend():
        yield sys.modules["llmrs_cli.engine.backends.cuda_results"]


def bits(bf16: bool, values: Any = VALUES) -> Any:
    return f32_to_bf16(values) if bf16 else np.asarray(values, np.float16).view(np.uint16)


@pytest.mark.parametrize("bf16", [False, True])
def test_bits_are_read_as_the_numbers_they_stand_for(results: Any, bf16: bool) -> None:
    looks = results.CudaLooks(bf16)
    small = np.array([[1.5, -0.25], [96, 0], [7, 7]], np.float32)
    np.testing.assert_array_equal(looks.numbers(bits(bf16, small), 2), small[:2])
    scaled = results.Scaled(bits(bf16, small), 1 / 16)
    np.testing.assert_array_equal(looks.numbers(scaled, 2), 16 * small[:2])
    np.testing.assert_array_equal(looks.numbers(small, 2), small[:2])
    assert looks.numbers(results.Projected(bits(bf16, small), None), 2) is None


def test_numbers_are_a_copy(results: Any) -> None:
    residual = np.ones((2, 4), np.float32)
    found = results.CudaLooks(False).numbers(residual, 2)
    residual[...] = 5
    assert (found == 1).all()


def test_what_lies_at_the_end_of_float16_or_beyond_is_counted(results: Any) -> None:
    looks, stored = results.CudaLooks(False), bits(False)
    assert looks.saturated(stored, 2) == 3
    assert looks.saturated(results.Scaled(stored, 1 / 16), 2) == 3
    assert looks.saturated(results.Projected(stored, None), 1) == 1
    assert looks.saturated_kv(results.PagedKv(stored, stored[:1])) == 7


def test_a_norm_of_few_tokens_stores_its_products_before_it_divides(results: Any) -> None:
    residual = np.array([[1e5, 3e5, -6e5], [9e9, 0, 0]], np.float32)
    norm = np.array([1, 2, 2], np.float32)
    assert results.CudaLooks(False).saturated_norm(residual, norm, 1) == 1
    assert results.CudaLooks(False).saturated_norm(residual, norm, 2) == 2


def test_bfloat16_has_room_for_all(results: Any) -> None:
    looks, stored = results.CudaLooks(True), bits(True)
    assert looks.saturated(stored, 3) == looks.saturated_kv(results.PagedKv(stored, stored)) == 0
    assert looks.saturated_norm(VALUES, VALUES[0], 3) == 0


def test_the_backend_looks_as_its_model_is_stored(results: Any) -> None:
    with cuda_backend() as backend:
        assert backend.looks().bf16 is True
        backend._bf16 = False
        assert backend.looks().bf16 is False
