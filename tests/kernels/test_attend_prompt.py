"""The launches of attend_prompt, without a GPU: its grid, its shared memory, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import attend_prompt
from llmrs_cli.kernels.attend_prompt import PromptShape
from tests.helpers.launches import Recorder, bits, floats, ints, tensor_map

SEQUENCES, PAGES, KV_HEADS, LIMIT = 3, 4, 2, 227 << 10


@pytest.fixture(autouse=True, scope="module")
def maps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attend_prompt, "tensor_map", tensor_map)
        yield


def launch(
    d: int = 64,
    group: int = 2,
    tiles: int = 5,
    multiprocessors: int = 132,
    shape: PromptShape | None = None,
    **changes: Any,
) -> Recorder:
    device, heads = Recorder(), KV_HEADS * group
    arguments: dict[str, Any] = {
        "q": bits(10, heads, d),
        "keys": bits(PAGES, KV_HEADS, 64, d),
        "values": bits(PAGES, KV_HEADS, 64, d),
        "tables": ints(SEQUENCES, 2),
        "rows": ints(SEQUENCES),
        "contexts": ints(SEQUENCES),
        "query_start": ints(SEQUENCES + 1),
        "first_tile": ints(SEQUENCES + 1),
        "out": bits(10, heads * d),
        "drawn": ints(1),
    } | changes
    attend_prompt.attend_prompt(
        device, True, tiles=tiles, multiprocessors=multiprocessors, scale=0.1, shape=shape, **arguments
    )
    return device


@given(
    d=st.sampled_from(attend_prompt.HEADS),
    group=st.integers(1, 8),
    tiles=st.integers(1, 300),
    multiprocessors=st.integers(1, 200),
)
def test_a_grid_fills_the_gpu_once_and_no_more_than_there_is_to_do(
    d: int, group: int, tiles: int, multiprocessors: int
) -> None:
    ((name, shape),) = launch(d, group, tiles, multiprocessors).shapes
    items = tiles * KV_HEADS * -(-group // 2)
    assert name == "attend_prompt" and shape.grid == (min(multiprocessors, items), 1, 1)
    assert items * 128 >= tiles * KV_HEADS * group * 64


@pytest.mark.parametrize("d", attend_prompt.HEADS)
@pytest.mark.parametrize(
    "shape", [None, PromptShape(2, 64, 4), PromptShape(3, 64, 3), PromptShape(2, 128, 2, False)]
)
def test_queries_and_stages_fit_in_shared_memory(d: int, shape: PromptShape | None) -> None:
    ((_, found),) = launch(d, shape=shape).shapes
    shape = shape or attend_prompt.shape_for(d)
    assert found.block == (128 * shape.groups + 128, 1, 1)
    rows = 2 * shape.groups * 64 + 2 * shape.stages * shape.keys
    assert found.shared == rows * d * 2 + 1024 and found.shared + 1024 <= LIMIT


def test_maps_describe_the_pages_of_one_key_head_as_rows() -> None:
    keys = bits(PAGES, KV_HEADS, 64, 128)
    (passed,) = launch(128, keys=keys).passed
    assert passed["keys"] == (keys.data.ptr, PAGES * KV_HEADS * 64, 128, 64)
    assert (passed["heads"], passed["kv_heads"], passed["table_width"], passed["sequences"]) == (4, 2, 2, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"d": 96},
        {"d": 32},
        {"q": bits(10, 5, 64), "out": bits(10, 5 * 64)},
        {"keys": bits(PAGES, KV_HEADS, 32, 64)},
        {"values": bits(PAGES + 1, KV_HEADS, 64, 64)},
    ],
)
def test_heads_and_pages_that_it_does_not_know_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(EngineFault, match="attend_prompt cannot"):
        launch(**changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [("out", bits(9, 256)), ("first_tile", ints(SEQUENCES)), ("drawn", floats(1)), ("drawn", ints(2))],
)
def test_an_array_that_does_not_fit_is_named(name: str, value: Any) -> None:
    with pytest.raises(EngineFault, match=f"Kernel attend_prompt: {name} must be"):
        launch(**{name: value})
