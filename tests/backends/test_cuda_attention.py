"""Which attention kernels a step runs, in which order and on how many blocks; on a GPU that only pretends."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.backends.base import RowLimits
from llmrs_cli.engine.backends.cuda_staging import padded, stage
from llmrs_cli.engine.model.decoder import run_body
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.engine.weights.random import random_checkpoint
from llmrs_cli.kernels import attend_few, attend_prompt
from llmrs_cli.kernels.launch import Kernel, Shape
from tests.helpers.fake_cuda import cuda_backend
from tests.helpers.launches import tensor_map
from tests.helpers.steps import batch, greedy
from tests.helpers.tiny_model import TinyModel, write_tiny

SIZES = (8, 4, 2, 1)
SHARES = 66
"""Of a GPU with 132 multiprocessors and a model with four key heads."""
Chunks = Sequence[tuple[int, int, int, bool]]
MODEL = TinyModel(vocab=320)
LARGE_HEADS = TinyModel(heads=8, kv_heads=1, head_dim=128, family="llama", vocab=320)


def decoding(*contexts: int) -> list[tuple[int, int, int, bool]]:
    return [(row, context - 1, 1, True) for row, context in enumerate(contexts)]


# -- the choice -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "blocks"), [(1, 8), (8, 8), (9, 4), (16, 4), (17, 2), (32, 2), (33, 1), (64, 1), (65, 0)]
)
def test_the_fewer_sequences_the_more_blocks_each_has(count: int, blocks: int) -> None:
    made = stage(batch(*decoding(*[320] * count)), 256, SHARES, few=SIZES)
    assert made.few == blocks and made.reached == (padded(count) if blocks else 0)


def test_a_recording_holds_for_every_number_of_sequences_that_is_padded_to_it() -> None:
    found = {
        (made.sizes.tokens, made.few, made.reached)
        for count in range(25, 33)
        for made in [stage(batch(*decoding(*[320] * count)), 256, SHARES, few=SIZES)]
    }
    assert found == {(32, 2, 32)}


def test_beside_prompts_nothing_depends_on_how_many_decode() -> None:
    keys = set()
    for count in range(1, 67):
        made = stage(batch(*decoding(*[256] * count), (66, 0, 256 - count, False)), 256, SHARES, few=SIZES)
        keys.add((made.sizes.tokens, made.few, made.reached, made.tiles))
    assert keys == {(256, 1, SHARES, 4)}


def test_prompts_beside_them_take_no_blocks_from_those_that_decode() -> None:
    chunks = [*decoding(*[320] * 64), (64, 0, 128, False)]
    made = stage(batch(*chunks), 256, SHARES, few=SIZES)
    assert (made.few, made.reached) == (1, SHARES)
    behind = stage(batch(*chunks[60:], *chunks[:60]), 65, SHARES, few=SIZES)
    assert (behind.few, behind.reached) == (1, 65)


def test_sequences_that_decode_far_behind_prompts_share_the_whole_grid() -> None:
    prompts = [(row, 0, 2, False) for row in range(SHARES)]
    made = stage(batch(*prompts, (SHARES, 255, 1, True)), 256, SHARES, few=SIZES)
    assert (made.few, made.reached, made.decodes) == (0, 0, True)
    assert stage(batch(*prompts[1:], (SHARES, 255, 1, True)), 256, SHARES, few=SIZES).few == 1


def test_few_long_contexts_beside_prompts_share_the_whole_grid() -> None:
    """Where they decode alone, a cluster of blocks shares each."""
    assert stage(batch(*decoding(2000)), 256, SHARES, few=SIZES).few == 8
    assert stage(batch(*decoding(2000), (1, 0, 100, False)), 256, SHARES, few=SIZES).few == 0


@pytest.mark.parametrize("tokens", [200, 2000])
def test_tiles_are_as_many_as_one_prompt_of_the_step_would_have(tokens: int) -> None:
    tiles = {
        stage(batch(*decoding(*[320] * count), (256, 0, tokens - count, False)), 257, SHARES).tiles
        for count in range(min(tokens - 1, 256))
    }
    assert tiles == {1 << (tokens // 64).bit_length()}
    short = [(row, 0, 20, False) for row in range(10)]
    assert stage(batch(*short), 257, SHARES).tiles == 16


@pytest.mark.parametrize(
    ("contexts", "blocks"),
    [([2000], 8), ([32768], 0), ([320] * 63 + [600], 1), ([320] * 63 + [4000], 0), ([4000] * 64, 1)],
)
def test_uneven_contexts_are_evened_out(contexts: list[int], blocks: int) -> None:
    assert stage(batch(*decoding(*contexts)), 256, SHARES, few=SIZES).few == blocks


def test_what_the_gpu_cannot_is_not_chosen() -> None:
    chunks = decoding(100, 200)
    assert stage(batch(*chunks), 4, SHARES).few == 0
    assert stage(batch(*chunks), 4, SHARES, few=(1,)).few == 1
    assert stage(batch((0, 0, 50, True)), 4, SHARES, few=SIZES).few == 0


@given(
    chunks=st.lists(
        st.tuples(st.integers(0, 3000), st.one_of(st.just(1), st.integers(1, 200))), min_size=1, max_size=80
    ),
    shares=st.integers(1, 264),
)
def test_every_sequence_of_a_step_has_its_blocks(chunks: list[tuple[int, int]], shares: int) -> None:
    made = stage(
        batch(*((row, start, count, False) for row, (start, count) in enumerate(chunks))),
        80,
        shares,
        few=SIZES,
    )
    contexts = [start + count for start, count in chunks if count == 1]
    assert made.few * len(contexts) <= shares
    # What a recording is found by says how many it looks at.
    assert made.reached == (min(shares if made.tiles else made.sizes.tokens, 80) if made.few else 0)
    if made.few:
        assert made.decodes and all(count > 1 for _, count in chunks[made.reached :])
        assert max(contexts) / made.few <= attend_few.SPREAD * sum(contexts) / shares + attend_few.FREE_TOKENS


# -- what is launched ---------------------------------------------------------------------------------------


@pytest.fixture
def backend() -> Iterator[Any]:
    with cuda_backend() as opened:
        yield opened


class Seen:
    """The attention of the first layer: names, grids, and the last parameter of each."""

    def __init__(
        self, backend: Any, tmp_path: Any, chunks: Chunks, rows: int = 70, tiny: TinyModel = MODEL
    ) -> None:
        self.launches: list[tuple[str, Shape, int]] = []
        checkpoint = random_checkpoint(write_tiny(tmp_path, tiny))
        model, spec = load_model(checkpoint, backend), checkpoint.spec
        kv = backend.alloc_kv(spec.layers, rows * 16, spec.kv_heads, spec.head_dim)
        self.kv_heads = spec.kv_heads
        state = backend.open_rows(RowLimits(rows, 1024, spec.vocab))
        for row, start, count, _ in chunks:
            state.start(row, range(start + count), greedy())
            state.grant(row, 0, range(row * 16, row * 16 + 16))
        self.step = state.begin(batch(*chunks))
        launch = backend.device.launch

        def listen(kernel: Kernel, shape: Shape, slots: bytes) -> None:
            if kernel.unit.stem.startswith(("attend", "rope")):
                last = struct.unpack_from("<i", slots, kernel.offsets[-1])[0]
                self.launches.append((kernel.name, shape, last))
            launch(kernel, shape, slots)

        backend.device.launch = listen
        partial(run_body, backend, model, kv, self.step)()
        self.launches = self.launches[: len(self.launches) // spec.layers]

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.launches]


def test_sequences_that_only_decode_take_one_launch(backend: Any, tmp_path: Any) -> None:
    seen = Seen(backend, tmp_path, decoding(*[100] * 20))
    ((name, shape, late),) = seen.launches
    assert name == f"attend_few_{seen.step.few}"
    assert shape.grid == (seen.step.few * seen.kv_heads, 24, 1) and not late


def test_beside_prompts_decode_attention_comes_last_and_does_not_wait(backend: Any, tmp_path: Any) -> None:
    seen = Seen(backend, tmp_path, [*decoding(*[100] * 20), (20, 0, 130, False)])
    assert seen.names == ["rope_store", "attend_prefill", f"attend_few_{seen.step.few}"]
    rope, _, few = seen.launches
    assert rope[2] == 70  # rows in whose sequences it looks for the first prompt
    assert few[1].grid == (seen.kv_heads, 70, 1) and few[2] == 1


def test_one_long_context_is_shared_by_the_whole_grid(backend: Any, tmp_path: Any) -> None:
    chunks = [*decoding(*[20] * 60, 1000)]
    seen = Seen(backend, tmp_path, chunks)
    assert seen.names == ["rope_store", "attend_decode"] and seen.launches[1][2] == 0
    assert seen.launches[0][2] == 0
    beside = Seen(backend, tmp_path, [*chunks, (61, 0, 130, False)])
    assert beside.names == ["rope_store", "attend_prefill", "attend_decode"] and beside.launches[2][2] == 1


def test_prompts_alone_have_no_decode_attention(backend: Any, tmp_path: Any) -> None:
    assert Seen(backend, tmp_path, [(0, 0, 130, False)]).names == ["rope_store", "attend_prefill"]


def test_what_is_recorded_differs_where_the_kernels_do(backend: Any) -> None:
    backend._few = SIZES
    rows = backend.open_rows(RowLimits(80, 5000, 100))
    for row in range(80):
        rows.start(row, range(4990), greedy())
    even, uneven = (rows.begin(batch(*decoding(*[320] * 31, last))).key for last in (320, 4900))
    prompts = [rows.begin(batch(*decoding(*[320] * n), (70, 0, 192 - n, False))).key for n in (20, 60)]
    assert len({even, uneven, *prompts}) == 4


def test_fixed_bits_have_one_kernel(tmp_path: Any) -> None:
    with cuda_backend(deterministic=True) as backend:
        seen = Seen(backend, tmp_path, decoding(100, 200))
        assert seen.names == ["rope_store", "attend_prefill"] and seen.step.few == 0


def test_small_heads_of_a_gpu_without_clusters(backend: Any, tmp_path: Any) -> None:
    backend.device.loader.arch, backend.device.shared_limit = "sm_89", 99 << 10
    seen = Seen(backend, tmp_path, decoding(100, 200))
    assert seen.names == ["attend_few_1"]
    assert seen.launches[0][1].shared == attend_few.shared_bytes(32, attend_few.default_plan(32, 1, True), 2)


@pytest.mark.parametrize(
    ("arch", "tiny", "kernel"),
    [
        ("sm_90a", LARGE_HEADS, "attend_prompt"),
        ("sm_90a", MODEL, "attend_prefill"),
        ("sm_80", LARGE_HEADS, "attend_prefill"),
    ],
)
def test_prompts_take_the_kernel_for_hopper_where_it_serves_them(
    backend: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, arch: str, tiny: TinyModel, kernel: str
) -> None:
    monkeypatch.setattr(attend_prompt, "tensor_map", tensor_map)
    chunks = [*decoding(*[100] * 20), (20, 0, 130, False)]
    backend.device.loader.arch = arch
    assert "attend_prefill" in Seen(backend, tmp_path, chunks, tiny=tiny).names
    backend._attention = replace(backend._attention, prompt_tokens=1)
    seen = Seen(backend, tmp_path, chunks, tiny=tiny)
    assert seen.names == ["rope_store", kernel, f"attend_few_{seen.step.few}"]
    assert seen.launches[2][2] == 1
