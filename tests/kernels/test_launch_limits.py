"""What launchers refuse before anything runs, each with the sizes that it cannot serve; no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import attend_decode, attend_few, attend_prefill
from llmrs_cli.kernels.attend_few import FewPlan
from llmrs_cli.kernels.attend_prefill import PrefillShape
from tests.helpers.emulate import host
from tests.helpers.launches import Recorder, bits, floats, ints

SEQUENCES, PAGES, BLOCKS = 3, 4, 6
KV_HEADS = 2


def paged(d: int) -> dict[str, Any]:
    """What attention of any kind reads of the pages, with heads of this size."""
    return {
        "keys": bits(PAGES, KV_HEADS, 64, d),
        "values": bits(PAGES, KV_HEADS, 64, d),
        "tables": ints(SEQUENCES, 2),
        "rows": ints(SEQUENCES),
        "contexts": ints(SEQUENCES),
        "query_start": ints(SEQUENCES + 1),
    }


def decode(d: int = 64, group: int = 2, **changes: Any) -> Recorder:
    """A decode launch over heads of this size; `changes` replace arguments."""
    device, heads = Recorder(), KV_HEADS * group
    arguments: dict[str, Any] = {
        **paged(d),
        "q": bits(SEQUENCES, heads, d),
        "first_page": ints(SEQUENCES + 2),
        "out": bits(SEQUENCES, heads * d),
        "partials": floats(
            attend_decode.partial_slots(BLOCKS, SEQUENCES, KV_HEADS), group * (d + attend_decode.EXTRA)
        ),
        "arrivals": ints(SEQUENCES * KV_HEADS),
    } | changes
    attend_decode.attend_decode(device, True, blocks=BLOCKS, scale=0.1, **arguments)
    return device


def prefill(d: int = 64, shape: PrefillShape | None = None, **changes: Any) -> Recorder:
    device = Recorder()
    arguments: dict[str, Any] = {
        **paged(d),
        "q": bits(10, 4, d),
        "first_tile": ints(SEQUENCES + 1),
        "out": bits(10, 4 * d),
    } | changes
    attend_prefill.attend_prefill(device, True, tiles=5, scale=0.1, shape=shape, **arguments)
    return device


def few(
    d: int, group: int = 2, plan: FewPlan | None = None, count: int | None = None, **changes: Any
) -> Recorder:
    device, heads = Recorder(), group * KV_HEADS
    arguments: dict[str, Any] = {
        **paged(d),
        "qkv": bits(SEQUENCES, (heads + 2 * KV_HEADS) * d),
        "first_page": ints(SEQUENCES + 2),
        "out": bits(SEQUENCES, heads * d),
    } | changes
    turn = attend_few.Rotation(floats(9, d), None, None, 1e-6)
    attend_few.attend_few(
        device, True, plan=plan or FewPlan(8), scale=0.1, rotation=turn, count=count, **arguments
    )
    return device


# -- attention ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "group"), [(16, 1), (64, 16), (80, 3), (256, 1)])
def test_decode_attention_fills_the_grid_that_it_is_given(d: int, group: int) -> None:
    ((name, shape),) = decode(d, group).shapes
    assert name == "attend_decode" and shape.grid == (BLOCKS, 1, 1) and shape.block == (128, 1, 1)
    assert shape.shared == attend_decode.shared_bytes(d, group, little=False)


@pytest.mark.parametrize(
    ("launch", "name", "d", "group"),
    [
        *((decode, "attend_decode", d, group) for d, group in ((64, 17), (24, 1), (272, 1), (8, 2))),
        *((few, "attend_few", d, group) for d, group in ((48, 1), (256, 1), (64, 17))),
    ],
)
def test_heads_that_decode_attention_cannot_serve_are_named(
    launch: Callable[[int, int], Recorder], name: str, d: int, group: int
) -> None:
    with pytest.raises(EngineFault, match=f"{name} cannot serve {group} query heads a key head of size {d}"):
        launch(d, group)


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


@given(head_dim=st.integers(1, 16).map(lambda n: 16 * n))
def test_blocks_of_any_shape_take_whole_tiles(head_dim: int) -> None:
    shape = attend_prefill.shape_for(head_dim)
    assert shape.queries % attend_prefill.TILE == 0 and shape.resident in (1, 2)


@given(head_dim=st.sampled_from([16, 64, 128, 144, 256]), group=st.integers(1, 16))
def test_little_shared_memory_is_less(head_dim: int, group: int) -> None:
    few, many = (attend_decode.shared_bytes(head_dim, group, little) for little in (True, False))
    assert few < many
    shape = attend_prefill.shape_for(head_dim)
    few, many = (attend_prefill.shared_bytes(head_dim, shape, little) for little in (True, False))
    assert few < many if head_dim > 128 else few == many


# -- attention of a few sequences ------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "group"), [(32, 1), (64, 16), (96, 3), (128, 7)])
@pytest.mark.parametrize("blocks", [1, 2, 4, 8])
def test_each_key_head_of_a_sequence_has_blocks_of_its_own(d: int, group: int, blocks: int) -> None:
    plan = attend_few.default_plan(d, blocks, little=False)
    ((name, shape),) = few(d, group, plan).shapes
    assert name == f"attend_few_{blocks}" and shape.grid == (2 * blocks, SEQUENCES, 1)
    assert shape.block == (32 * plan.warps, 1, 1) and shape.shared == attend_few.shared_bytes(d, plan, group)
    assert shape.at_once == (0 if blocks > 2 else 2)


def test_sequences_that_nobody_has_get_no_blocks() -> None:
    ((_, shape),) = few(64, count=1).shapes
    assert shape.grid == (16, 1, 1)
    with pytest.raises(AssertionError):
        few(64, count=SEQUENCES + 1)


@pytest.mark.parametrize(("little", "all_shared"), [(False, 164), (True, 100)])
def test_two_blocks_fit_on_a_multiprocessor_wherever_heads_are_served(little: bool, all_shared: int) -> None:
    for d in attend_few.HEADS:
        taken = attend_few.shared_bytes(d, attend_few.default_plan(d, 1, little), 16)
        fit = 2 * (taken + 1024) <= all_shared << 10
        assert fit or not attend_few.serves(d, little)
        assert attend_few.serves(d, little) == (d in attend_few.HEADS and (not little or d <= 64))


@pytest.mark.parametrize("d", attend_few.HEADS)
def test_a_block_of_prompts_fits_beside_two_that_decode(d: int) -> None:
    taken = attend_few.shared_bytes(d, attend_few.default_plan(d, 1, little=False), 16)
    prompts = attend_prefill.shared_bytes(d, attend_prefill.shape_for(d), little=False)
    assert 2 * max(taken, (228 << 10) // 3) + prompts + 3 * 1024 + 256 <= 228 << 10


def test_clusters_are_for_hopper() -> None:
    assert attend_few.sizes(64, "sm_90a", little=False) == (8, 4, 2, 1)
    assert attend_few.sizes(64, "sm_80", little=False) == attend_few.sizes(64, "sm_89", little=True) == (1,)
    assert attend_few.sizes(256, "sm_90a", little=False) == attend_few.sizes(128, "sm_120", little=True) == ()


@pytest.mark.parametrize(
    ("decodes", "places", "blocks"),
    [(1, 66, 8), (8, 66, 8), (9, 66, 4), (16, 66, 4), (33, 66, 2), (34, 66, 1), (64, 66, 1), (67, 66, 0),
     (64, 132, 2), (132, 132, 1), (133, 132, 0)],
)  # fmt: skip
def test_as_many_blocks_share_a_head_as_run_at_once(decodes: int, places: int, blocks: int) -> None:
    assert attend_few.choose((8, 4, 2, 1), places, decodes, 320, 320 * decodes) == blocks


def test_contexts_that_one_block_would_be_long_busy_with_are_left_to_an_even_grid() -> None:
    sizes = (8, 4, 2, 1)
    assert attend_few.choose(sizes, 66, 1, 2000, 2000) == 8
    assert attend_few.choose(sizes, 66, 1, 32768, 32768) == 0
    assert attend_few.choose(sizes, 66, 64, 600, 64 * 320) == 1
    assert attend_few.choose(sizes, 66, 64, 4000, 63 * 320 + 4000) == 0
    assert attend_few.choose(sizes, 66, 64, 4000, 64 * 4000) == 1
    assert attend_few.choose((), 66, 1, 1, 1) == 0


@given(
    contexts=st.lists(st.integers(1, 5000), min_size=1, max_size=70),
    places=st.integers(1, 264),
    sizes=st.sampled_from([(8, 4, 2, 1), (1,)]),
)
def test_chosen_blocks_find_room_and_are_nearly_even(
    contexts: list[int], places: int, sizes: tuple[int, ...]
) -> None:
    decodes, longest, tokens = len(contexts), max(contexts), sum(contexts)
    blocks = attend_few.choose(sizes, places, decodes, longest, tokens)
    assert blocks == 0 or blocks in sizes
    if blocks:
        assert blocks * decodes <= places and longest / blocks <= 1.25 * tokens / places + 256
        assert not any(size > blocks and size * decodes <= places for size in sizes)


def test_a_projection_is_wider_than_its_queries() -> None:
    with pytest.raises(EngineFault, match="qkv must be"):
        few(64, qkv=bits(SEQUENCES, 4 * 64))
