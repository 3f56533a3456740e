"""Every kernel compiles for every architecture, without a GPU, and keeps to its registers.

A kernel that spills is right and several times too slow, so local memory fails here.
"""

from __future__ import annotations

import pytest

from benchmarks.qwen_shapes import MODELS, linears
from llmrs_cli.engine.backends.cuda_staging import large_sizes
from llmrs_cli.kernels import attend_few, attend_prefill
from llmrs_cli.kernels.catalog import HOPPER, all_units, head_units, many_units, packed_units, wide_units
from llmrs_cli.kernels.loader import ARCHITECTURES, Unit
from llmrs_cli.kernels.resources import Resources, parse
from tests.helpers.compiled import resources, spills

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and nvidia-cuda-nvrtc are not installed")

MAX_UNITS = 60
LARGE = large_sizes(2048)
"""Of steps that `linear_many` serves."""
GOLDEN_HEAD_DIMS = 16, 32
"""Head sizes of the tiny golden checkpoints, compiled for one architecture only."""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_there_are_not_too_many_units(arch: str) -> None:
    units = all_units(arch)
    assert len(set(units)) == len(units) <= MAX_UNITS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_kernel_takes_local_memory(arch: str) -> None:
    assert spills(all_units(arch), arch) == []


@pytest.mark.parametrize("head_dim", [96, 128])
def test_two_blocks_that_decode_find_registers_beside_one_of_prompts(head_dim: int) -> None:
    plan = attend_few.default_plan(head_dim, 1, little=False)
    prompts = attend_prefill.unit(True, head_dim, attend_prefill.shape_for(head_dim))
    (most, *_), (beside, *_) = (
        sorted((kernel.registers for kernel in resources(unit, "sm_90a")), reverse=True)
        for unit in (attend_few.unit(True, head_dim, plan), prompts)
    )
    threads = 32 * plan.warps
    assert threads * (2 * in_eights(most) + in_eights(beside)) <= 1 << 16


def in_eights(registers: int) -> int:
    """What a thread is given."""
    return -(-registers // 8) * 8


@pytest.mark.parametrize("head_dim", GOLDEN_HEAD_DIMS)
def test_small_heads_compile(head_dim: int) -> None:
    assert spills(head_units(True, head_dim, "sm_80"), "sm_80") == []


@pytest.mark.parametrize(("arch", "bf16", "group"), [("sm_90a", False, 32), ("sm_80", True, 64)])
def test_small_groups_of_4_bit_weights_compile(arch: str, bf16: bool, group: int) -> None:
    assert spills(packed_units(bf16, group, arch), arch) == []


def wide(bf16: bool, *names: str) -> tuple[Unit, ...]:
    """The units with which Qwen2.5 multiplies more than a few tokens on an H200."""
    shapes = [linear for name in names for linear in linears(name)]
    return wide_units(bf16, shapes, HOPPER, 132) + many_units(bf16, shapes, LARGE, HOPPER, 132)


@pytest.mark.parametrize(("bf16", "names"), [(True, tuple(MODELS)), (False, ("0.5b",))])
def test_products_of_many_tokens_compile(bf16: bool, names: tuple[str, ...]) -> None:
    units = wide(bf16, *names)
    assert len(units) >= 4 * len(names)
    assert spills(units, HOPPER) == []


def test_what_serves_two_models_is_built_once() -> None:
    both, one = wide(True, "7b", "3b"), wide(True, "3b")
    assert len(set(both)) == len(both) and set(one) <= set(both)
    assert wide(True, "3b", "3b") == one


@pytest.mark.parametrize("arch", [arch for arch in ARCHITECTURES if arch != HOPPER])
def test_other_gpus_have_no_use_for_them(arch: str) -> None:
    assert wide_units(True, linears("7b"), arch, 132) == ()
    assert many_units(True, linears("7b"), LARGE, arch, 132) == ()


def test_a_spill_is_seen() -> None:
    log = (
        "ptxas info    : Compiling entry function 'k' for 'sm_80'\n"
        "ptxas info    : Function properties for k\n"
        "ptxas         .     8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers\n"
    )
    assert parse(log) == [Resources("k", 255, 36)]
