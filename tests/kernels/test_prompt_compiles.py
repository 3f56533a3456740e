"""attend_prompt.cu compiles for Hopper: nothing spills, and no wgmma waits for another because registers are short."""

from __future__ import annotations

import pytest

from llmrs_cli.kernels.attend_prompt import HEADS, PromptShape, serves, shape_for, unit
from llmrs_cli.kernels.loader import ARCHITECTURES, compile_unit
from llmrs_cli.kernels.resources import parse

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and nvidia-cuda-nvrtc are not installed")

OTHERS = ((128, PromptShape(2, 64, 4)), (128, PromptShape(3, 64, 3)), (64, PromptShape(3, 64, 4)))
"""Shapes that wait for their measurement."""


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize(("head_dim", "shape"), [*((d, shape_for(d)) for d in HEADS), *OTHERS])
def test_products_run_on_without_spills(bf16: bool, head_dim: int, shape: PromptShape) -> None:
    log = compile_unit(unit(bf16, head_dim, shape), "sm_90a").log
    (kernel,) = parse(log)
    assert kernel.name == "attend_prompt" and kernel.local_bytes == 0
    assert "serialized" not in log


def test_other_gpus_and_heads_are_left_to_another_kernel() -> None:
    served = [(arch, d) for arch in ARCHITECTURES for d in range(16, 257, 16) if serves(d, arch)]
    assert served == [("sm_90a", d) for d in HEADS]
