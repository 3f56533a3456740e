"""What launchers refuse before anything runs, each with the sizes that it cannot serve; no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import attend_decode, attend_prefill, linear_mid
from llmrs_cli.kernels.attend_decode import Rotation
from llmrs_cli.kernels.attend_prefill import PrefillShape
from llmrs_cli.kernels.launch import Kernel, Shape
from llmrs_cli.kernels.linear_mid import MidPlan, MidScratch
from tests.helpers.emulate import host

SEQUENCES, PAGES, BLOCKS = 3, 4, 6


class Recorder:
    """A device that keeps what it is asked to run."""

    def __init__(self) -> None:
        self.shapes: list[tuple[str, Shape]] = []

    def launch(self, kernel: Kernel, shape: Shape, slots: bytes) -> None:
        self.shapes.append((kernel.name, shape))


def bits(*shape: int) -> Any:
    return host(np.zeros(shape, np.uint16))


def ints(*shape: int) -> Any:
    return host(np.zeros(shape, np.int32))


def floats(*shape: int) -> Any:
    return host(np.zeros(shape, np.float32))


def decode(d: int = 64, group: int = 2, kv_heads: int = 2, **changes: Any) -> Recorder:
    """A decode launch over heads of this size; `changes` replace arguments."""
    device, heads = Recorder(), kv_heads * group
    arguments: dict[str, Any] = {
        "q": bits(SEQUENCES, heads, d),
        "keys": bits(PAGES, kv_heads, 64, d),
        "values": bits(PAGES, kv_heads, 64, d),
        "tables": ints(SEQUENCES, 2),
        "rows": ints(SEQUENCES),
        "contexts": ints(SEQUENCES),
        "query_start": ints(SEQUENCES + 1),
        "first_page": ints(SEQUENCES + 2),
        "out": bits(SEQUENCES, heads * d),
        "partials": floats(
            attend_decode.partial_slots(BLOCKS, SEQUENCES, kv_heads), group * (d + attend_decode.EXTRA)
        ),
        "arrivals": ints(SEQUENCES * kv_heads),
    } | changes
    attend_decode.attend_decode(device, True, blocks=BLOCKS, scale=0.1, **arguments)
    return device


def prefill(d: int = 64, shape: PrefillShape | None = None, **changes: Any) -> Recorder:
    device = Recorder()
    arguments: dict[str, Any] = {
        "q": bits(10, 4, d),
        "keys": bits(PAGES, 2, 64, d),
        "values": bits(PAGES, 2, 64, d),
        "tables": ints(SEQUENCES, 2),
        "rows": ints(SEQUENCES),
        "contexts": ints(SEQUENCES),
        "query_start": ints(SEQUENCES + 1),
        "first_tile": ints(SEQUENCES + 1),
        "out": bits(10, 4 * d),
    } | changes
    attend_prefill.attend_prefill(device, True, tiles=5, scale=0.1, shape=shape, **arguments)
    return device


def middle(plan: MidPlan, m: int, n: int, k: int, epilogue: Any = "store", **changes: Any) -> Recorder:
    device = Recorder()
    sums, tiles = linear_mid.scratch_sizes(plan, m, n)
    scratch = changes.pop("scratch", None) or MidScratch(floats(sums), ints(tiles))
    columns = n // 2 if epilogue == "silu" else n
    out = floats(m, columns) if epilogue in ("add", "logits") else bits(m, columns)
    linear_mid.linear_mid(device, True, plan, epilogue, bits(n, k), bits(m, k), out, scratch, **changes)
    return device


# -- attention ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "group"), [(16, 1), (64, 16), (80, 3), (256, 1)])
def test_decode_attention_fills_the_grid_that_it_is_given(d: int, group: int) -> None:
    ((name, shape),) = decode(d, group).shapes
    assert name == "attend_decode" and shape.grid == (BLOCKS, 1, 1) and shape.block == (128, 1, 1)
    assert shape.shared == attend_decode.shared_bytes(d, group, little=False)


@pytest.mark.parametrize(("d", "group"), [(64, 17), (24, 1), (272, 1), (8, 2)])
def test_heads_that_decode_attention_cannot_serve_are_named(d: int, group: int) -> None:
    with pytest.raises(
        EngineFault, match=f"attend_decode cannot serve {group} query heads a key head of size {d}"
    ):
        decode(d, group)


@pytest.mark.parametrize("d", [16, 80, 256])
def test_heads_that_do_not_rotate_take_no_projection(d: int) -> None:
    turn = Rotation(floats(9, d), None, None, 1e-5)
    with pytest.raises(EngineFault, match=f"of size {d}"):
        decode(d, q=bits(SEQUENCES, (4 + 4) * d), rotation=turn)


def test_a_projection_is_wider_than_its_queries() -> None:
    turn = Rotation(floats(9, 64), floats(64), floats(64), 1e-5)
    assert decode(q=bits(SEQUENCES, (4 + 4) * 64), rotation=turn).shapes
    with pytest.raises(EngineFault, match="q must be"):
        decode(q=bits(SEQUENCES, 4 * 64), rotation=turn)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partials", floats(5, 2 * 68)),
        ("partials", floats(13, 2 * 67)),
        ("arrivals", ints(SEQUENCES * 2 - 1)),
    ],
)
def test_scratch_that_is_too_small_is_never_launched_on(name: str, value: Any) -> None:
    with pytest.raises(AssertionError):
        decode(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("query_start", ints(SEQUENCES)),
        ("first_page", ints(SEQUENCES + 1)),
        ("contexts", ints(SEQUENCES + 1)),
        ("values", bits(PAGES, 2, 64, 32)),
        ("keys", floats(PAGES, 2, 64, 64)),
        ("rows", host(np.zeros((SEQUENCES,), np.int64))),
    ],
)
def test_an_array_that_does_not_fit_the_others_is_named(name: str, value: Any) -> None:
    with pytest.raises(EngineFault, match="Kernel attend_decode: "):
        decode(**{name: value})


def test_prompts_have_a_block_for_each_head_and_tile() -> None:
    ((name, shape),) = prefill().shapes
    assert name == "attend_prefill" and shape.grid == (4, 5, 1)
    ((_, wide),) = prefill(shape=PrefillShape(4, 2, 2)).shapes
    assert wide.block == shape.block == (128, 1, 1)


@pytest.mark.parametrize(
    ("d", "shape"), [(24, None), (272, None), (64, PrefillShape(2, 1, 1)), (64, PrefillShape(3, 2, 1))]
)
def test_prompts_that_attention_cannot_serve_are_refused(d: int, shape: PrefillShape | None) -> None:
    with pytest.raises(EngineFault, match=f"attend_prefill cannot serve heads of size {d}"):
        prefill(d, shape)


@given(head_dim=st.integers(1, 16).map(lambda n: 16 * n), tokens=st.integers(0, 4096))
def test_blocks_of_any_shape_take_whole_tiles(head_dim: int, tokens: int) -> None:
    for arch in ("sm_80", "sm_90a", ""):
        shape = attend_prefill.shape_for(head_dim, tokens, arch)
        assert shape.queries % attend_prefill.TILE == 0 and shape.resident in (1, 2)


@given(head_dim=st.sampled_from([16, 64, 128, 144, 256]), group=st.integers(1, 16))
def test_little_shared_memory_is_less(head_dim: int, group: int) -> None:
    few, many = (attend_decode.shared_bytes(head_dim, group, little) for little in (True, False))
    assert few < many
    shape = attend_prefill.shape_for(head_dim)
    few, many = (attend_prefill.shared_bytes(head_dim, shape, little) for little in (True, False))
    assert few < many if head_dim > 128 else few == many


# -- linears of middle sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize("epilogue", linear_mid.EPILOGUES)
def test_a_plan_is_the_shape_of_its_launch(epilogue: Any) -> None:
    plan = linear_mid.default_plan(20, 256, 192, 5)
    ((name, shape),) = middle(plan, 20, 256, 192, epilogue).shapes
    assert name == "linear_mid_any" and shape.grid == (plan.blocks, 1, 1)
    assert shape.block == (plan.warps * 32, 1, 1) and shape.shared == plan.shared


@pytest.mark.parametrize(
    ("plan", "k"), [(MidPlan(1, 32), 36), (MidPlan(7, 32), 192), (MidPlan(2, 32, warps=16), 64)]
)
def test_work_that_does_not_divide_is_refused(plan: MidPlan, k: int) -> None:
    """k in eights; no more blocks than there are steps."""
    with pytest.raises(
        EngineFault, match=rf"linear_mid cannot serve 20 tokens of \(256, {k}\) with {plan.blocks}"
    ):
        middle(plan, 20, 256, k)


def test_sums_need_their_room() -> None:
    plan = MidPlan(2, 32)
    sums, tiles = linear_mid.scratch_sizes(plan, 20, 256)
    for scratch in (MidScratch(floats(sums - 1), ints(tiles)), MidScratch(floats(sums), ints(tiles - 1))):
        with pytest.raises(AssertionError):
            middle(plan, 20, 256, 192, scratch=scratch)


@given(m=st.integers(1, 600), n=st.integers(1, 5000), k=st.integers(1, 500), gpus=st.integers(1, 200))
def test_a_default_plan_is_one_that_is_served(m: int, n: int, k: int, gpus: int) -> None:
    plan = linear_mid.default_plan(m, n, 8 * k, gpus)
    sums, tiles = linear_mid.scratch_sizes(plan, m, n)
    assert plan.blocks <= tiles * -(-8 * k // linear_mid.COLUMNS) and plan.blocks <= gpus
    assert sums == 2 * plan.blocks * plan.rows * plan.tokens
    assert (tiles * -(-8 * k // linear_mid.COLUMNS) + 1) * plan.blocks < 2**32


@given(m=st.integers(1, 256), n=st.integers(1, 256))
def test_more_tokens_never_take_a_smaller_tile(m: int, n: int) -> None:
    less, more = sorted((m, n))
    assert less <= linear_mid.tile_tokens(less) <= linear_mid.tile_tokens(more)
