"""attend_prompt.cu compiles for Hopper: nothing spills, and no wgmma waits for another because registers are short."""

from __future__ import annotations

import pytest

from llmrs_cli.kernels.attend_prompt import HEADS, PromptShape, serves, shape_for, unit
from llmrs_cli.kernels.loader import ARCHITECTURES
from tests.helpers.compiled import report, resources

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and nvidia-cuda-nvrtc are not installed")

OTHERS = ((128, PromptShape(2, 64, 4)), (128, PromptShape(3, 64, 3)), (64, PromptShape(3, 64, 4)))
"""Shapes that no GPU is given: offered to measurements, in bfloat16."""


@pytest.mark.parametrize(
    ("bf16", "head_dim", "shape"),
    [
        *((bf16, d, shape_for(d)) for bf16 in (True, False) for d in HEADS),
        *((True, *other) for other in OTHERS),
    ],
)
def test_products_run_on_without_spills(bf16: bool, head_dim: int, shape: PromptShape) -> None:
    built = unit(bf16, head_dim, shape)
    (kernel,) = resources(built, "sm_90a")
    assert kernel.name == "attend_prompt" and kernel.local_bytes == 0
    assert "serialized" not in report(built, "sm_90a")


def test_other_gpus_and_heads_are_left_to_another_kernel() -> None:
    served = [(arch, d) for arch in ARCHITECTURES for d in range(16, 257, 16) if serves(d, arch)]
    assert served == [("sm_90a", d) for d in HEADS]
