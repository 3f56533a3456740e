"""The host side of the CUDA backend, on a GPU that only pretends: row edits, recordings, draws, memory, faults.

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
    FIXED_TOKENS,
    padded,
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


@pytest.fixture
def backend() -> Iterator[Any]:
    with cuda_backend() as opened:
        yield opened


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
