"""The host side of the CUDA backend, on a GPU that only pretends: staging, row edits, draws, running behind.

Longer than most files: all of it needs the fake GPU, for which the backend's modules are imported anew.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.api import Engine, open_engine
from llmrs_cli.engine.backends.base import RowLimits
from llmrs_cli.engine.backends.cuda_sizes import (
    LAYER_LAUNCHES,
    activation_bytes,
    head_bytes,
    recordings,
    row_bytes,
)
from llmrs_cli.engine.backends.cuda_staging import (
    DRAWN,
    FIXED_TOKENS,
    PREFILL_QUERIES,
    Sizes,
    cuts,
    most_drawn,
    padded,
    stage,
)
from llmrs_cli.engine.backends.rows import HostRows
from llmrs_cli.engine.memory import model_sizes
from llmrs_cli.engine.types import FinishReason, Request, SamplingParams
from llmrs_cli.engine.weights.random import random_checkpoint
from llmrs_cli.errors import DoesNotFitError
from llmrs_cli.kernels.graphs import MOST
from tests.helpers.fake_cuda import Device, Event, RuntimeFailure, Stream, cuda_backend, drawn
from tests.helpers.steps import batch, greedy, start_alike
from tests.helpers.tiny_model import TinyModel, write_tiny

SECTIONS = tuple(cuts(Sizes(1, 1, 1, 1))[0])
Step = list[tuple[int, int, int, bool, int]]


@pytest.fixture
def backend() -> Iterator[Any]:
    with cuda_backend() as opened:
        yield opened


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Up to 6 chunks of different rows: (row, start, count, samples, scored)."""
    rows = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True))
    chunks = []
    for row in rows:
        count = draw(st.one_of(st.just(1), st.integers(1, 90)))
        scored = draw(st.sampled_from([0, count]))
        chunks.append((row, draw(st.integers(0, 100)), count, draw(st.booleans()), scored))
    return chunks


@given(steps(), st.integers(1, 300))
def test_every_section_says_what_the_chunks_say(chunks: Step, shares: int) -> None:
    made = stage(batch(*chunks), 8, shares)
    at, length = cuts(made.sizes)
    assert len(made.words) == length
    part = {name: made.words[at[name]].tolist() for name in SECTIONS}
    count, total = len(chunks), sum(chunk[2] for chunk in chunks)
    assert made.sizes.tokens == padded(total) >= total
    assert part["contexts"][:count] == [start + n for _, start, n, *_ in chunks]
    assert part["contexts"][count:] == [0] * (8 - count)
    ends = np.cumsum([0, *(chunk[2] for chunk in chunks)]).tolist()
    assert part["query_start"] == ends + [total] * (8 - count)
    tokens = [(row, position) for row, start, n, *_ in chunks for position in range(start, start + n)]
    padding = made.sizes.tokens - total
    assert part["token_rows"] == [row for row, _ in tokens] + [-1] * padding
    assert part["positions"] == [position for _, position in tokens] + [0] * padding
    pages = [-(-(start + 1) // 64) if n == 1 else 0 for _, start, n, *_ in chunks]
    assert part["first_page"][: count + 1] == np.cumsum([0, *pages]).tolist()
    assert made.decodes == any(pages)
    tiles = [0 if n == 1 else -(-n // PREFILL_QUERIES) for _, _, n, *_ in chunks]
    assert part["first_tile"][: count + 1] == np.cumsum([0, *tiles]).tolist()
    assert made.tiles >= sum(tiles) and made.tiles.bit_count() == bool(made.tiles) == (sum(tiles) > 0)
    drawing = [i for i, chunk in enumerate(chunks) if chunk[3]]
    assert made.drawn == len(drawing)
    unused = len(part["sample_rows"]) - len(drawing)
    assert len(drawing) <= made.sizes.samples <= len(part["sample_tokens"]) == len(part["sample_rows"])
    # As many as tokens only where each of these draws: then nobody need gather them.
    assert (made.sizes.samples == made.sizes.tokens) == (total == len(drawing))
    assert made.sizes.samples in (len(drawing), made.sizes.tokens, *DRAWN)
    assert part["sample_tokens"] == [ends[i + 1] - 1 for i in drawing] + [0] * unused
    assert part["sample_rows"] == [chunks[i][0] for i in drawing] + [-1] * unused
    scored = [ends[i] + j for i, chunk in enumerate(chunks) for j in range(chunk[4])]
    assert part["scored_tokens"] == scored


def test_what_a_recording_reads_stands_at_one_address_for_one_padded_size() -> None:
    few, many = cuts(Sizes(8, 64, 1, 0))[0], cuts(Sizes(8, 64, 60, 9))[0]
    assert SECTIONS[-1] == "scored_tokens"
    assert [few[name] for name in SECTIONS[:-1]] == [many[name] for name in SECTIONS[:-1]]


def test_what_a_head_reads_stands_at_one_address_for_all_sizes() -> None:
    few, many = cuts(Sizes(8, 64, 1, 0))[0], cuts(Sizes(8, 2048, 6, 9))[0]
    assert all(few[name] == many[name] for name in ("result", "sample_tokens", "sample_rows"))
    assert few["positions"].start == many["positions"].start


def test_a_full_step_in_which_not_all_tokens_draw_has_a_size_of_its_own_for_them() -> None:
    drawn = {
        stage(
            batch(*((row, 5, 1, True) for row in range(count)), (255, 0, 256 - count, False)), 256, 66
        ).sizes
        for count in range(133, 255)
    }
    assert drawn == {Sizes(256, 256, 255, 0)}


@given(st.integers(1, 600), st.data())
def test_every_row_that_draws_has_a_place_and_a_size_that_is_met_again(
    rows: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, rows))
    fixed = data.draw(st.booleans())
    chunks = [(row, 5, 1, True) for row in range(count)]
    if longer := data.draw(st.integers(0, 300)):
        chunks[-1] = (count - 1, 0, longer, data.draw(st.booleans()))
    made = stage(batch(*chunks), rows, 66, fixed)
    at, _ = cuts(made.sizes)
    places = at["sample_rows"].stop - at["sample_rows"].start
    assert made.drawn <= made.sizes.samples <= places
    if 0 < made.drawn <= DRAWN[-1]:
        assert made.sizes.samples in (*DRAWN, made.sizes.tokens)
        assert made.sizes.samples <= (most_drawn(rows) if not fixed else places)


def test_staged_arrays_are_those_of_the_host(backend: Any) -> None:
    limits = RowLimits(6, 300, 100)
    host, gpu = HostRows(limits, backend.block_size), backend.open_rows(limits)
    start_alike(3, host, gpu)
    for chunks in (
        [(4, 0, 150, False, 20), (0, 7, 1, True)],
        [(2, 63, 3, True), (4, 150, 1, True), (5, 0, 2, False)],
    ):
        wanted, found = host.begin(batch(*chunks)), gpu.begin(batch(*chunks))
        found.gather(backend.device, len(found.scored_tokens))
        count = len(wanted.ids)
        for name in ("ids", "positions", "slots"):
            assert getattr(found, name)[:count].tolist() == getattr(wanted, name).tolist(), name
        assert (found.slots[count:] == -1).all()
        for name in ("sample_tokens", "sample_rows", "scored_tokens", "scored_targets"):
            assert getattr(found, name).tolist() == getattr(wanted, name).tolist(), name


def test_a_recorded_body_reads_nothing_of_the_tokens_that_another_step_scored(
    backend: Any, tmp_path: Any
) -> None:
    engine = open_random(backend, tmp_path, context=256, rows=2, memory=1 << 30)
    scored: list[int] = []
    launch = backend.device.launch

    def listen(kernel: Any, shape: Any, slots: bytes) -> None:
        if kernel.name == "gather" and Stream.tape is not None:
            scored.append(int.from_bytes(slots[72:76], "little"))
        launch(kernel, shape, slots)

    backend.device.launch = listen
    for i in range(4):  # prompts of one size are recorded the second time
        params = SamplingParams(2, prompt_logprobs=1, ignore_eos=True)
        drain(engine, Request(f"r{i}", tuple(range(i, 90 + i)), params))
    assert scored and set(scored) == {0}
    engine.close()


def test_equal_sizes_share_their_arrays_until_a_buffer_moves(backend: Any) -> None:
    rows = backend.open_rows(RowLimits(4, 300, 100))
    for row in range(4):
        rows.start(row, range(200), greedy())
    one = batch((0, 5, 1, True), (1, 9, 1, True))
    first = rows.begin(one)
    assert rows.begin(batch((2, 7, 1, True), (3, 1, 1, True))) is first
    assert rows.begin(batch((2, 7, 1, True))) is not first
    backend._arena.take("ids", (1 << 17,), np.int32)
    assert rows.begin(one) is not first


def open_random(backend: Any, tmp_path: Any, **wishes: Any) -> Engine:
    folder = write_tiny(tmp_path, TinyModel(vocab=320))
    return open_engine(random_checkpoint(folder), backend, **wishes)


def drain(engine: Engine, *requests: Request) -> None:
    """Run requests to their end."""
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()


def test_an_engine_one_step_ahead_gives_every_token_once(backend: Any, tmp_path: Any) -> None:
    engine = open_random(backend, tmp_path, context=256, rows=4, memory=1 << 30)
    assert engine.lookahead == 1
    lengths = {f"r{i}": (3 + 20 * i, 1 + 7 * i) for i in range(9)}
    for name, (prompt, answer) in lengths.items():
        params = SamplingParams(max_tokens=answer, ignore_eos=True)
        engine.submit(Request(name, tuple(range(prompt)), params))
    found: dict[str, list[int]] = {name: [] for name in lengths}
    while engine.has_work:
        for event in engine.step():
            found[event.request_id] += event.tokens
            assert event.finish in (None, FinishReason.LENGTH)
    engine.check()
    engine.close()
    for name, (prompt, answer) in lengths.items():
        follows = [{drawn(row, prompt - 1 + i) for row in range(4)} for i in range(answer)]
        assert len(found[name]) == answer
        assert all(token in may for token, may in zip(found[name], follows, strict=True))


def test_decoding_replays_recordings_and_launches_little_else(backend: Any, tmp_path: Any) -> None:
    engine = open_random(backend, tmp_path, context=256, rows=4, memory=1 << 30)
    for i in range(4):
        engine.submit(Request(f"r{i}", (1, 2, 3), SamplingParams(max_tokens=100, ignore_eos=True)))
    for _ in range(20):
        engine.step()
    backend.device.launched.clear()
    for _ in range(10):
        engine.step()
    assert dict(backend.device.launched) == {"scatter": 10}
    engine.close()


def test_any_number_of_rows_of_one_padded_size_shares_its_recordings(backend: Any, tmp_path: Any) -> None:
    engine = open_random(backend, tmp_path, context=256, rows=8, memory=1 << 30)

    def decode(rows: int) -> None:
        ask = SamplingParams(max_tokens=40, ignore_eos=True)
        drain(engine, *(Request(f"{rows}-{i}", (1, 2, 3), ask) for i in range(rows)))

    decode(8)
    before = set(backend._graphs._kept)
    for rows in (5, 6, 7):
        decode(rows)
    assert {key[0] for key in set(backend._graphs._kept) - before} <= {"draw"}  # of their prompts
    assert {key[0] for key in before if key[0] != "draw"} == {8}
    engine.close()


def test_heads_of_chosen_rows_share_a_recording_whatever_the_step(backend: Any, tmp_path: Any) -> None:
    engine = open_random(backend, tmp_path, context=512, rows=4, memory=1 << 30)
    for length in (40, 100, 150, 300):
        drain(engine, Request(f"r{length}", tuple(range(length, 0, -1)), SamplingParams(max_tokens=1)))
    assert set(backend._graphs._kept) == {("draw", 1, False)}
    assert not backend._graphs._passing
    engine.close()


def test_recordings_are_as_many_as_the_plan_has_memory_for(backend: Any, tmp_path: Any) -> None:
    """Whatever is asked for; gate and up are a product of their own here, which takes the most launches."""
    backend.device.loader.arch = "sm_80"
    engine = open_random(backend, tmp_path, context=512, rows=16, memory=1 << 30)
    draw, layers = random.Random(3), random_checkpoint(tmp_path).spec.layers
    for name in range(400):
        prompt, answer = draw.randint(1, 200), draw.randint(1, 12)
        ask = SamplingParams(max_tokens=answer, ignore_eos=True)
        engine.submit(Request(str(name), tuple(range(prompt)), ask))
        for _ in range(draw.choice((0, 0, 1, 3, 30))):
            engine.step()
    drain(engine)
    bodies, heads = recordings(16)
    passing, kept = backend._graphs._passing.values(), backend._graphs._kept
    kept_heads = [graph for key, (graph, _) in kept.items() if key[0] == "draw"]
    kept_bodies = [graph for key, (graph, _) in kept.items() if key[0] != "draw"]
    assert len(passing) == MOST
    assert 0 < len(kept_bodies) <= bodies - MOST and 0 < len(kept_heads) <= heads
    launches = [len(graph.launches) for graph in (*kept_bodies, *(graph for graph, _ in passing))]
    assert max(launches) <= LAYER_LAUNCHES * layers
    assert max(len(graph.launches) for graph in kept_heads) <= 2 * LAYER_LAUNCHES
    engine.close()


@pytest.mark.parametrize("rows", [1, 5, 100, 256])
def test_steps_that_only_decode_have_as_many_keys_as_are_planned(rows: int) -> None:
    keys = set()
    for count in range(1, rows + 1):
        for longest in (60, 3000, 30000):
            chunks = [(row, 59, 1, True) for row in range(count - 1)]
            made = stage(batch(*chunks, (count - 1, longest, 1, True)), rows, 132, few=(8, 4, 2, 1))
            keys.add((made.sizes.tokens, made.few))
            assert not made.tiles
    assert len(keys) <= recordings(rows)[0] - MOST


def test_recordings_of_addresses_that_have_moved_are_given_up(backend: Any, tmp_path: Any) -> None:
    engine = open_random(backend, tmp_path, context=256, rows=4, memory=1 << 30)
    for i in range(3):
        drain(engine, Request(f"r{i}", (1, 2, 3), SamplingParams(max_tokens=9, ignore_eos=True)))
    before = list(backend._graphs._kept.values())
    assert before
    backend._arena.take("ids", (1 << 17,), np.int32)
    drain(engine, Request("s", (1, 2, 3), SamplingParams(max_tokens=2, ignore_eos=True)))
    after = list(backend._graphs._kept.values())
    assert not any(held is kept for held in before for kept in after)
    engine.close()


def test_log_probabilities_and_masks_are_drawn_without_a_recording(backend: Any, tmp_path: Any) -> None:
    engine = open_random(backend, tmp_path, context=256, rows=2, memory=1 << 30)
    params = SamplingParams(max_tokens=20, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    engine.submit(Request("r", (1, 2, 3), params))
    reported = 0
    while engine.has_work:
        reported += sum(len(event.logprobs) for event in engine.step())
    assert reported == 20
    assert backend.device.launched["sample"] == 20
    engine.close()


# -- memory -------------------------------------------------------------------------------------------


def test_the_plan_holds_every_buffer_of_the_largest_step(backend: Any, tmp_path: Any) -> None:
    """Where gate and up are a product of their own; with SiLU·mul in it a step takes less."""
    backend.device.loader.arch = "sm_80"
    engine = open_random(backend, tmp_path, context=512, rows=8, memory=1 << 30)
    limits, model = engine.limits, model_sizes(random_checkpoint(tmp_path).spec)
    for i in range(8):
        params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=1)
        engine.submit(Request(f"r{i}", tuple(range(10 + i, 320)), params))
    for _ in range(30):
        engine.step()
    planned = activation_bytes(model, padded(limits.idle_budget))
    scratch = 4 * padded(limits.idle_budget) * model.hidden  # of cuBLASLt's choice alone
    taken = backend._arena.nbytes
    assert 0.9 * (planned - scratch) < taken < planned - scratch + (2 << 20)
    assert backend._head_arena.nbytes <= head_bytes(model, RowLimits(8, 512, 320), 132)
    rows = RowLimits(8, 512, 320, limits.idle_budget)
    assert backend.workspace_bytes(model, rows) > planned + row_bytes(rows)


def test_what_steps_need_is_taken_before_the_first(backend: Any, tmp_path: Any) -> None:
    Stream.taken.clear()
    engine = open_random(backend, tmp_path, context=512, rows=8, memory=1 << 30)
    (taken,) = Stream.taken
    for i in range(8):
        params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=1, prompt_logprobs=1)
        engine.submit(Request(f"r{i}", tuple(range(10 + i, 320)), params))
    for _ in range(30):
        engine.step()
    assert backend._arena.nbytes + backend._head_arena.nbytes <= taken
    engine.close()
    assert len(Stream.taken) == 1


def test_no_buffer_moves_once_a_step_has_run(backend: Any, tmp_path: Any) -> None:
    engine = open_random(backend, tmp_path, context=512, rows=4, memory=1 << 30)
    drain(engine, Request("a", (1, 2), SamplingParams(max_tokens=4, ignore_eos=True)))
    residual = backend._arena.take("residual", (1, 128), np.float32).data.ptr
    drain(engine, Request("b", tuple(range(320)), SamplingParams(max_tokens=4, ignore_eos=True)))
    assert backend._arena.take("residual", (1, 128), np.float32).data.ptr == residual
    engine.close()


@pytest.mark.parametrize(
    ("shape", "form", "nbytes", "taken"),
    [
        ((7,), "bfloat16", 14, 28),
        ((4, 8), "float32", 128, 64),
        ((4, 8), "float16", 64, 64),
        ((4, 8), "8-bit", 40, 64),
        ((64, 64), "4-bit AWQ, group 64", 2048, 2304),
    ],
)
def test_a_parameter_takes_what_it_takes_on_a_gpu(
    backend: Any, shape: tuple[int, ...], form: str, nbytes: int, taken: int
) -> None:
    assert backend.weight_bytes(shape, form, nbytes) == taken


def test_4_bit_weights_that_are_widened_take_16_bits_a_value_and_have_no_copies() -> None:
    with cuda_backend(packed=False) as backend:
        assert backend.weight_bytes((64, 64), "4-bit AWQ, group 64", 2048) == 8192
        assert backend.copy_bytes((64, 64), "4-bit AWQ, group 64") == 0
    with cuda_backend(packed=True) as backend:
        assert backend.copy_bytes((64, 64), "4-bit AWQ, group 64") == 8192
        assert backend.copy_bytes((64, 64), "bfloat16") == backend.copy_bytes((64,), "4-bit") == 0


def test_a_model_that_does_not_fit_is_refused_with_numbers(backend: Any, tmp_path: Any) -> None:
    with pytest.raises(DoesNotFitError, match="weights 1 MiB .* workspace .* available 300 MiB"):
        open_random(backend, tmp_path, context=512, rows=256, memory=300 << 20)


# -- deterministic --------------------------------------------------------------------------------------


@given(steps())
def test_a_fixed_step_has_whole_tiles_and_prefill_attention_alone(chunks: Step) -> None:
    made = stage(batch(*chunks), 8, 66, fixed=True)
    assert made.sizes.tokens % FIXED_TOKENS == 0
    assert not made.decodes
    at, _ = cuts(made.sizes)
    tiles = [-(-chunk[2] // PREFILL_QUERIES) for chunk in chunks]
    assert made.words[at["first_tile"]].tolist()[: len(chunks) + 1] == np.cumsum([0, *tiles]).tolist()
    assert made.tiles >= sum(tiles)
    assert not made.words[at["first_page"]][:-1].any()


def test_every_product_is_of_one_size_whatever_the_step(tmp_path: Any) -> None:
    with cuda_backend(deterministic=True) as backend:
        assert not backend._gemm.measures
        engine = open_random(backend, tmp_path, context=512, rows=4, memory=1 << 30)
        for i, prompt in enumerate((1, 5, 300)):
            params = SamplingParams(max_tokens=5, ignore_eos=True, logprobs=1, prompt_logprobs=0)
            drain(engine, *(Request(f"{i}-{j}", tuple(range(prompt)), params) for j in range(i + 1)))
        engine.close()
        assert {shape[0] for shape in backend._gemm.shapes} == {FIXED_TOKENS}
        launched = set(backend.device.launched)
        assert "attend_prefill" in launched and "attend_decode" not in launched
        assert not any(name.startswith(("linear", "norm_linear")) for name in launched)


def test_packed_weights_are_widened_where_bits_must_be_fixed() -> None:
    with cuda_backend(deterministic=True, packed=True) as backend:
        assert backend.weight_bytes((64, 64), "4-bit AWQ, group 64", 2048) == 2 * 64 * 64


# -- faults -----------------------------------------------------------------------------------------------


def test_a_fault_of_the_gpu_is_told_with_its_step_and_requests(
    backend: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_random(backend, tmp_path, context=256, rows=2, memory=1 << 30)
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    for name in ("a", "b"):
        engine.submit(Request(name, (1, 2, 3), params))
    for _ in range(5):
        engine.step()

    def lost(self: object) -> None:
        raise RuntimeFailure("cudaErrorIllegalAddress: an illegal memory access was encountered")

    monkeypatch.setattr(Event, "synchronize", lost)
    monkeypatch.setattr(Device, "synchronise", lost)
    events = engine.step()
    assert {(event.request_id, event.finish) for event in events} == {("a", "error"), ("b", "error")}
    assert engine.fault is not None
    assert engine.fault.exit_code == 8
    assert engine.fault.message.startswith(
        "The engine failed in step 6 with 2 requests (a, b): The GPU reports"
    )
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    engine.close()  # the lost device answers it with the same error, and no destructor is told of
    for error in (RuntimeFailure("lost"), ValueError("other")):
        sys.unraisablehook(SimpleNamespace(exc_value=error))
    assert [str(complaint.exc_value) for complaint in complaints] == ["other"]  # type: ignore[attr-defined]


def test_memory_of_the_gpu_that_runs_out_is_told_with_needed_and_free(backend: Any) -> None:
    error = MemoryError("Out of memory allocating 3,145,728 bytes (allocated so far: 7 bytes).")
    free = "65,536.0 MiB are free."
    assert backend.explain(error) == f"The memory of the GPU ran out: 3.0 MiB were needed, {free}"
    assert backend.explain(MemoryError()) == f"The memory of the GPU ran out: {free}"
    assert backend.explain(ValueError("x")) is None


def test_memory_that_runs_out_while_loading_says_what_was_needed(
    backend: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise MemoryError("Out of memory allocating 1,048,576 bytes (allocated so far: 7 bytes).")

    monkeypatch.setattr(backend, "alloc_kv", full)
    with pytest.raises(
        DoesNotFitError, match=r"while loading: weights .* 1.0 MiB were needed, .* are free"
    ) as caught:
        open_random(backend, tmp_path, context=256, rows=2, memory=1 << 30)
    assert caught.value.exit_code == 6
