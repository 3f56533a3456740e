"""Attention of the CPU backend where keys are cut into pieces, heads are odd, and blocks hold rubbish."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from llmrs_cli.engine.backends.cpu import CpuBackend
from tests.backends.test_ops import Case, Pages
from tests.helpers.tolerances import assert_close


@pytest.fixture(scope="module", params=[1, 2, 5], ids=lambda n: f"{n} threads")
def cpu(request: pytest.FixtureRequest) -> Iterator[CpuBackend]:
    backend = CpuBackend(threads=request.param)
    yield backend
    backend.close()


CASES = [
    Case((1,), (513,), heads=3, kv_heads=1, head_dim=64),
    Case((1,), (1300,), heads=4, kv_heads=2, head_dim=16),
    Case((2,), (700,), heads=2, kv_heads=1, head_dim=32, window=300),
    Case((1,), (700,), heads=14, kv_heads=2, head_dim=64),
    Case((1, 40), (600, 70), heads=7, kv_heads=1, head_dim=80),
    Case((3, 1), (20, 35), heads=2, kv_heads=1, head_dim=10),
    Case((1, 9), (17, 33), heads=4, kv_heads=4, head_dim=48),
    Case((129,), (257,), heads=2, kv_heads=1, head_dim=8),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_row_sees_its_keys(cpu: CpuBackend, case: Case) -> None:
    pages = Pages(cpu, case)
    pages.fill()
    assert_close("attention", "cpu", pages.attend(), pages.wanted())


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[6]], ids=str)
def test_slots_after_the_context_may_hold_anything(cpu: CpuBackend, case: Case) -> None:
    pages = Pages(cpu, case)
    pages.kv.pool[:] = np.nan  # padding columns, other heads and blocks included
    pages.fill()
    assert_close("attention", "cpu", pages.attend(), pages.wanted())


def test_a_nan_stays_in_its_sequence(cpu: CpuBackend) -> None:
    case = Case((1, 1), (40, 40))
    pages = Pages(cpu, case)
    pages.values[0][7] = np.nan
    pages.fill()
    got = pages.attend()
    assert np.isnan(got[0]).all()
    assert_close("attention", "cpu", got[1:], pages.wanted()[1:])


def test_scores_far_apart_neither_overflow_nor_vanish(cpu: CpuBackend) -> None:
    case = Case((1,), (300,), heads=2, kv_heads=1, head_dim=16)
    pages = Pages(cpu, case)
    pages.keys[0] *= 1e3
    pages.fill()
    got = pages.attend()
    assert np.isfinite(got).all()
    assert_close("attention", "cpu", got, pages.wanted())
