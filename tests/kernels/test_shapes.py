"""How launches are spread and what they take, computed on the host; no GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.kernels import attend_decode, attend_prefill, linear_rows, sample
from llmrs_cli.kernels.linear_small import (
    DEEP_SHARED,
    MAX_NORM_TOKENS,
    MAX_TOKENS,
    SmallPlan,
    default_plan,
    early_steps,
    fits,
    passes,
    shared_bytes,
)

BLOCK_LIMITS = {
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_89": 99 << 10,
    "sm_90a": 227 << 10,
    "sm_120": 99 << 10,
}
"""Shared memory that a block may take, by architecture."""
HALF = (228 << 10) // 2 - 1024
"""Of a Hopper multiprocessor, less what the system keeps of it for each block."""


@pytest.mark.parametrize("limit", BLOCK_LIMITS.values(), ids=BLOCK_LIMITS)
@given(n=st.integers(8, 200_000), steps=st.integers(1, 1000), m=st.integers(1, MAX_TOKENS))
def test_small_linears_fit_every_gpu(limit: int, n: int, steps: int, m: int) -> None:
    plan = default_plan(n, steps * 32, 132, limit)
    assert shared_bytes(plan, m, steps * 32, normed=False) <= limit
    assert 1 <= plan.split <= plan.warps
    assert plan.warps % plan.split == 0
    assert plan.split <= steps
    assert 1 <= plan.blocks <= 132


@given(k=st.integers(1, 4000).map(lambda v: v * 8), m=st.integers(1, MAX_NORM_TOKENS))
def test_a_norm_is_fused_only_where_it_fits(k: int, m: int) -> None:
    plan = SmallPlan(132, 8)
    assert fits(plan, m, k, DEEP_SHARED) == (shared_bytes(plan, m, k, normed=True) <= DEEP_SHARED)
    if fits(plan, m, k, DEEP_SHARED):
        assert all(fits(plan, fewer, k, DEEP_SHARED) for fewer in range(1, m))


def test_a_ring_leaves_half_to_the_next_kernel() -> None:
    plan = default_plan(3584, 3584, 132, BLOCK_LIMITS["sm_90a"])
    assert shared_bytes(plan, 1, 3584, normed=False) <= HALF
    assert shared_bytes(plan, 1, 3584, normed=True) <= HALF


@given(
    size=st.sampled_from([(1, 8), (1, 16), (2, 8), (2, 16), (4, 8)]),
    units=st.integers(1, 10_000),
    together=st.sampled_from([1, 16]),
)
def test_no_pass_has_more_rows_than_its_tiles(size: tuple[int, int], units: int, together: int) -> None:
    """The arithmetic of linear_small.cu."""
    tiles, warps = size
    plan = SmallPlan(132, 4, warps=warps, tiles=tiles)
    n = units * together
    turns, share = passes(plan, n, together)
    count = turns * plan.blocks * (plan.warps // plan.split)
    starts = [(index * share >> 32) * together for index in range(count)] + [n]
    rows = [after - before for before, after in zip(starts, starts[1:], strict=False)]
    assert min(rows) >= 0 and max(rows) <= 16 * tiles


@given(
    m=st.integers(1, MAX_TOKENS),
    normed=st.booleans(),
    n=st.integers(1, 40_000),
    k=st.integers(1, 40_000),
    depth=st.integers(2, 8),
)
def test_what_is_asked_for_before_the_wait_is_part_of_the_ring(
    m: int, normed: bool, n: int, k: int, depth: int
) -> None:
    early = early_steps(m, normed, n, k, depth)
    assert 0 <= early <= depth and (m == 1 or early == depth)
    assert early_steps(1, True, n, k, depth) <= early_steps(1, False, n, k, depth)


@pytest.mark.parametrize("head_dim", [16, 64, 96, 128])
@pytest.mark.parametrize("group", [1, 7, 8])
def test_two_blocks_of_decode_attention_share_a_multiprocessor(head_dim: int, group: int) -> None:
    assert attend_decode.grid_blocks(132, head_dim) == 264
    assert attend_decode.shared_bytes(head_dim, group, little=False) <= HALF


@pytest.mark.parametrize("arch", ["sm_86", "sm_89", "sm_120"])
@pytest.mark.parametrize("group", [1, 16])
def test_attention_fits_gpus_with_little_shared_memory(arch: str, group: int) -> None:
    for head_dim in (64, 96, 128, 256):
        assert attend_decode.shared_bytes(head_dim, group, little=True) <= BLOCK_LIMITS[arch]
        shape = attend_prefill.shape_for(head_dim)
        assert attend_prefill.shared_bytes(head_dim, shape, little=True) <= BLOCK_LIMITS[arch]


@given(pages=st.lists(st.integers(0, 4000), min_size=1, max_size=300), shares=st.integers(1, 300))
def test_chunks_are_few_enough_to_merge_and_to_hold(pages: list[int], shares: int) -> None:
    chunk = attend_decode.chunk_pages(sum(pages), max(pages), shares)
    assert all(-(-own // chunk) <= attend_decode.MAX_PARTS for own in pages)
    kv_heads = 4
    # The slot of a chunk: its first page on the line over the chunk size, plus the number of its pair.
    slots = set()
    line = 0
    for sequence, own in enumerate(pages):
        for head in range(kv_heads):
            for first in range(0, own, chunk):
                slots.add((line + first) // chunk + sequence * kv_heads + head)
            line += own
    chunks = kv_heads * sum(-(-own // chunk) for own in pages)
    assert len(slots) == chunks
    assert max(slots, default=0) < attend_decode.partial_slots(shares * kv_heads, len(pages), kv_heads)


@given(rows=st.integers(1, 256), vocab=st.integers(1, 300_000))
def test_the_sampler_counts_without_overflow(rows: int, vocab: int) -> None:
    blocks = sample.blocks_for(rows, vocab, 132)
    quads = -(-vocab // 4)
    widest = 4 * max((quads * (b + 1) // blocks) - (quads * b // blocks) for b in range(blocks))
    # A warp counts its share of the slice in 16 bits, and the lanes of a warp look at a block each.
    assert -(-widest // (4 * sample.THREADS)) * 4 * 32 < 2**16
    assert blocks <= 32


QWEN = [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944), (152064, 3584)]
"""(N, K) of the products of Qwen2.5-7B."""


@pytest.mark.parametrize(("n", "k"), QWEN)
def test_rows_of_a_known_model_are_spread_evenly(n: int, k: int) -> None:
    plan = linear_rows.default_plan(n, k, 132)
    assert linear_rows.balance(plan, n, k) >= 0.65
    assert linear_rows.shared_bytes(plan, 1, n, k) <= HALF


@given(n=st.integers(1, 200_000), k=st.integers(1, 4000).map(lambda v: v * 8), warps=st.sampled_from([8, 16]))
def test_rows_are_split_into_whole_groups_of_warps(n: int, k: int, warps: int) -> None:
    plan = linear_rows.default_plan(n, k, 132, warps)
    assert warps % plan.split == 0
    assert 1 <= plan.blocks <= 132
    assert 0 < linear_rows.balance(plan, n, k) <= 1
