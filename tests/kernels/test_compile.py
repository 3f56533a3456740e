"""Every kernel compiles for every architecture, without a GPU, and keeps to its registers.

A kernel that spills is right and several times too slow, so local memory fails here. What the report of resources says
of the sources as they are is taken from it, and one unit of each source shows that it is true; the rest is compiled.
`python -m benchmarks.kernel_resources` brings the report up to date, so that this takes little time.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from benchmarks import kernel_resources
from benchmarks.qwen_shapes import MODELS, linears
from llmrs_cli.engine.backends.cuda_staging import large_sizes
from llmrs_cli.kernels import attend_few, attend_prefill
from llmrs_cli.kernels.catalog import HOPPER, all_units, head_units, many_units, packed_units, wide_units
from llmrs_cli.kernels.loader import ARCHITECTURES, Unit, nvrtc_version
from llmrs_cli.kernels.resources import Resources, parse
from tests.helpers.compiled import resources, spills

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and nvidia-cuda-nvrtc are not installed")

MAX_UNITS = 60
LARGE = large_sizes(4096)
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


def one_of_each_source() -> list[kernel_resources.Job]:
    """A unit of each source, on one architecture after the other."""
    sources: dict[str, list[kernel_resources.Job]] = {}
    for job in kernel_resources.all_jobs():
        sources.setdefault(job[1].stem, []).append(job)
    turns = zip(sorted(sources), cycle(ARCHITECTURES))
    return [next((job for job in sources[stem] if job[0] == arch), sources[stem][-1]) for stem, arch in turns]


@pytest.mark.timeout(300)
def test_the_report_says_what_the_compiler_does() -> None:
    jobs = one_of_each_source()
    assert {unit.stem for _, unit in jobs} >= {
        unit.stem for arch in ARCHITECTURES for unit in all_units(arch)
    }
    assert {arch for arch, _ in jobs} == set(ARCHITECTURES)
    fresh = kernel_resources.lines_of(jobs, {})
    assert fresh == kernel_resources.lines_of(jobs, kernel_resources.recorded())


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


# -- 4-bit weights: each architecture, 16-bit type and size of groups -------------------------------------

SOME = [("sm_80", packed_units(True, 64, "sm_80")[0]), (HOPPER, packed_units(False, 32, HOPPER)[-1])]


@pytest.mark.timeout(900)
def test_no_kernel_for_4_bit_weights_takes_local_memory() -> None:
    """Hundreds of units, which are left to the report where it knows them."""
    jobs = kernel_resources.packed_jobs()
    covered = {(arch, *sorted(unit.macros)[:2]) for arch, unit in jobs if unit.stem == "dequantise"}
    assert len(covered) == len(ARCHITECTURES) * 2 * 3
    lines = kernel_resources.lines_of(jobs, kernel_resources.recorded())
    assert len(lines) >= len(jobs) > 500
    assert kernel_resources.spilling(lines) == []


def test_a_changed_source_option_or_compiler_is_not_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = SOME[0]
    report = tmp_path / "report.txt"
    line = f"{kernel_resources.key(job)} a line"
    report.write_text(f"# by NVRTC {nvrtc_version()}\n{line}\n")
    assert kernel_resources.recorded(report) == {kernel_resources.key(job): [line]}
    keys = {kernel_resources.key(other) for other in (*SOME, ("sm_86", job[1]))}
    with monkeypatch.context() as patch:
        patch.setattr("llmrs_cli.kernels.loader.spliced", lambda stem: "other source")
        keys.add(kernel_resources.key(job))
    assert len(keys) == len(SOME) + 2
    report.write_text(f"# by NVRTC 1.0\n{line}\n")
    assert kernel_resources.recorded(report) == kernel_resources.recorded(tmp_path / "none") == {}


def test_a_line_with_local_memory_is_seen() -> None:
    good, bad = ("k sm_80 u: k 9 registers, 0 bytes local", "k sm_80 u: k 9 registers, 10 bytes local")
    assert kernel_resources.spilling([good, bad]) == [bad]


# -- 16-bit weights and many tokens -----------------------------------------------------------------------


def wide(bf16: bool, *names: str) -> tuple[Unit, ...]:
    """The units with which Qwen2.5 multiplies more than a few tokens on an H200."""
    shapes = [linear for name in names for linear in linears(name)]
    return wide_units(bf16, shapes, HOPPER, 132) + many_units(bf16, shapes, LARGE, HOPPER, 132)


@pytest.mark.parametrize(("bf16", "names"), [(True, tuple(MODELS)), (False, ("0.5b",))])
def test_products_of_many_tokens_compile(bf16: bool, names: tuple[str, ...]) -> None:
    units = wide(bf16, *names)
    assert len(units) >= 4 * len(names)
    lines = kernel_resources.lines_of([(HOPPER, unit) for unit in units], kernel_resources.recorded())
    assert len(lines) >= len(units) and kernel_resources.spilling(lines) == []


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
