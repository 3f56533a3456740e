"""The 4-bit kernels against float64 over odd shapes, and the checkpoints that stay packed against their right answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.convert import convert
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.kernels import packed_large, packed_plans, packed_small, packed_wide_plans
from llmrs_cli.kernels.dequantise import dequantise
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.linear_small import DEEP_SHARED, Epilogue
from llmrs_cli.kernels.marlin_layout import Layout, pack, tile_group
from llmrs_cli.kernels.packed4 import Packed4Matrix
from llmrs_cli.kernels.packed_large import packed_large as large
from llmrs_cli.kernels.packed_small import StreamPlan
from llmrs_cli.kernels.packed_small import packed_small as small
from llmrs_cli.kernels.repack import Part, compare, repack, stack, widen
from llmrs_cli.kernels.scratch import Scratch
from llmrs_cli.kernels.silu_mul import headroom
from tests.conftest import DATA
from tests.gpu.halves import TYPES, cp, error, halves, rounding, widened
from tests.gpu.test_cuda_backend import LOGITS, MARGIN, assert_near, gpu_logits
from tests.helpers.canonical import packed4, words4
from tests.helpers.generate import generate
from tests.helpers.naive import forced_logits

SHAPES = [
    (4608, 3584, 128), (896, 4864, 128), (64, 18944, 128), (576, 576, 64), (200, 1032, 32), (8, 128, 128),
    (1000, 200, 200), (33, 64, 32),
]  # fmt: skip
"""(N, K, G): K that is no multiple of 128, N that is no multiple of 64, fewer units than workers, one group."""
EXACT = 2e-5
"""Bound of ‖Δy‖ / ‖y‖ on float32 sums of exact codes, with activations that have a mean too."""


class Case:
    """A packed matrix on the GPU and its float64 values."""

    def __init__(self, n: int, k: int, group: int) -> None:
        self.weight = packed4(np.random.default_rng(n + k), n, k, group)
        own = tile_group(group, k)
        assert own is not None and self.weight.zeros is not None
        w = self.weight
        units = pack(w.codes, w.scales.astype(np.float16), w.zeros, group, k).view(np.uint32)  # type: ignore[arg-type]
        self.matrix = Packed4Matrix(cp.asarray(units), Layout(n, k, own))
        self.values = w.dequantise().astype(np.float64)

    def x(self, m: int, bf16: bool) -> tuple[Any, NDArray[np.float64]]:
        return halves(np.random.default_rng(m).standard_normal((m, self.values.shape[1])) + 1, bf16)


def room(partials: int, arrivals: int) -> Scratch:
    return Scratch(cp.full(partials, np.nan, cp.float32), cp.zeros(arrivals, cp.int32))


def run(
    device: CudaDevice,
    bf16: bool,
    case: Case,
    epilogue: Epilogue,
    out: Any,
    x: Any,
    bias: Any = None,
    stream: StreamPlan | None = None,
) -> None:
    """The kernel that the plans choose for so many tokens; `stream` in place of theirs for few."""
    m, layout = len(x), case.matrix.layout
    deep, hopper = device.shared_limit >= DEEP_SHARED, device.loader.arch == packed_plans.HOPPER
    if m <= packed_small.MAX_TOKENS:
        own = packed_plans.stream_plan(device.multiprocessors, layout, deep, hopper)
        small(device, bf16, stream or own, epilogue, case.matrix, out, x=x, bias=bias)
    else:
        tiles = packed_plans.tile_plan(device.multiprocessors, m, layout.group, deep, hopper)
        scratch = room(*packed_large.scratch_sizes(tiles, layout, m))
        large(device, bf16, tiles, epilogue, case.matrix, out, scratch, x=x, bias=bias)
        assert not scratch.arrivals.any()


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("n", "k", "group"), SHAPES)
def test_products_are_exact_to_float32(device: CudaDevice, bf16: bool, n: int, k: int, group: int) -> None:
    case = Case(n, k, group)
    bias = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    for m in (1, 3, 8, 9, 16, 17, 33, 64, 65, 130, 300):
        x, x64 = case.x(m, bf16)
        wanted = x64 @ case.values.T + bias
        logits = cp.full((m, n), np.nan, cp.float32)
        run(device, bf16, case, "logits", logits, x, cp.asarray(bias))
        assert error(cp.asnumpy(logits), wanted) < EXACT, f"{m} tokens"
        added = cp.ones((m, n), cp.float32)
        run(device, bf16, case, "add", added, x, cp.asarray(bias))
        assert error(cp.asnumpy(added), wanted + 1) < EXACT, f"{m} tokens"
        stored = cp.full((m, n), 0x7FFF, cp.uint16)
        run(device, bf16, case, "store", stored, x, cp.asarray(bias))
        assert error(widened(stored, bf16), wanted) < rounding(bf16), f"{m} tokens"


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("n", "k", "group"), [*SHAPES, (896, 18944, 128), (18944, 896, 128)])
def test_no_bit_depends_on_how_many_steps_are_on_their_way(
    device: CudaDevice, bf16: bool, n: int, k: int, group: int
) -> None:
    case = Case(n, k, group)
    plans = [StreamPlan(device.multiprocessors, 8, stages=stages, room=96 << 10) for stages in (2, 3, 4)]
    for m in (1, 2, 5, 8):
        x, _ = case.x(m, bf16)
        wanted, *found = (cp.full((m, n), np.nan, cp.float32) for _ in range(7))
        run(device, bf16, case, "logits", wanted, x, stream=plans[0])
        for out, plan in zip(found, 2 * plans, strict=True):  # more than once: copies race as they like
            run(device, bf16, case, "logits", out, x, stream=plan)
            assert (out == wanted).all(), (m, plan)


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("m", [1, 8, 16, 60, 128, 1000])
def test_gate_and_up_are_paired(device: CudaDevice, bf16: bool, m: int) -> None:
    case = Case(9728, 896, 128)
    x, x64 = case.x(m, bf16)
    pairs = (x64 @ case.values.T).reshape(m, -1, 2, 8)
    gate, up = (pairs[:, :, i].reshape(m, -1) for i in (0, 1))
    out = cp.full((m, 4864), 0x7FFF, cp.uint16)
    run(device, bf16, case, "silu", out, x)
    assert error(widened(out, bf16) / headroom(bf16), gate / (1 + np.exp(-gate)) * up) < rounding(bf16)


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("m", [1, 2, 8])
@pytest.mark.parametrize(("k", "group"), [(200, 200), (896, 128), (3584, 64)])
def test_norm_comes_first(device: CudaDevice, bf16: bool, m: int, k: int, group: int) -> None:
    case, rng = Case(384, k, group), np.random.default_rng(m + k)
    residual = rng.standard_normal((m, k)).astype(np.float32) * 3
    gamma = rng.standard_normal(k).astype(np.float32)
    picked = residual.astype(np.float64)
    normed = picked / np.sqrt((picked**2).mean(axis=1, keepdims=True) + 1e-6) * gamma
    hopper = device.loader.arch == packed_plans.HOPPER
    plan = packed_plans.stream_plan(device.multiprocessors, case.matrix.layout, True, hopper)
    out = cp.full((m, 384), np.nan, cp.float32)
    small(
        device, bf16, plan, "logits", case.matrix, out,
        residual=cp.asarray(residual), norm=cp.asarray(gamma), eps=1e-6,
    )  # fmt: skip
    assert error(cp.asnumpy(out), normed @ case.values.T) < 2 * rounding(bf16)


@pytest.mark.parametrize("m", [4, 40])
def test_a_token_does_not_depend_on_its_neighbours_nor_a_result_on_time(device: CudaDevice, m: int) -> None:
    case = Case(4608, 3584, 128)
    x, _ = case.x(m, False)
    first, *others = (cp.zeros((m, 4608), cp.float32) for _ in range(20))
    run(device, False, case, "logits", first, x)
    for again in others:  # whoever is last to arrive adds up in the same order
        run(device, False, case, "logits", again, x)
        assert (again == first).all()
    alone = cp.zeros((m // 2, 4608), cp.float32)
    run(device, False, case, "logits", alone, cp.ascontiguousarray(x[: m // 2]))
    if m <= 8:
        assert (alone == first[: m // 2]).all()


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize(("n", "k", "group"), SHAPES)
def test_tiles_made_on_the_gpu_are_those_of_the_host(
    device: CudaDevice, bf16: bool, n: int, k: int, group: int
) -> None:
    case = Case(n, k, group)
    w = case.weight
    assert w.zeros is not None
    source = (
        cp.asarray(np.ascontiguousarray(w.codes).view(np.uint32)),
        cp.asarray(w.scales.view(np.uint16)),
        cp.asarray(w.zeros.astype(np.uint16)),
    )
    made = Packed4Matrix(cp.full_like(case.matrix.units, 0xDEADBEEF), case.matrix.layout)
    repack(device, bf16, *source, group, made)
    assert (made.units == case.matrix.units).all()
    values, wrong = cp.full((n, k), 0x7FFF, cp.uint16), cp.zeros(1, cp.int32)
    dequantise(device, bf16, made, values)
    part = Part("canonical", *source, (n, k), group)
    compare(device, bf16, part, values, wrong)
    assert int(wrong[0]) == 0
    assert error(widened(values, bf16), case.values) < rounding(bf16)
    values[n - 1, k - 1] ^= 1
    compare(device, bf16, part, values, wrong)
    assert int(wrong[0]) == 1


@pytest.mark.parametrize("bf16", TYPES)
@pytest.mark.parametrize("kind", ["awq", "gptq"])
@pytest.mark.parametrize(("n", "k", "group"), [(320, 512, 64), (1032, 3584, 128), (104, 200, 32)])
def test_words_of_a_file_are_put_in_order_on_the_gpu(
    device: CudaDevice, bf16: bool, kind: Literal["awq", "gptq"], n: int, k: int, group: int
) -> None:
    """Stacked and widened below eight rows of another part."""
    words = words4(np.random.default_rng(n), kind, n, k, group)
    arrays = words.codes, np.ascontiguousarray(words.scales).view(np.uint16), words.zeros
    codes, scales, zeros = (cp.asarray(values) for values in arrays)
    part = Part(kind, codes, scales, zeros, (n, k), group, words.less_one, first=8)
    usual = words.canonical()
    assert usual.zeros is not None
    groups = -(-k // group)
    found = cp.zeros((n + 8, k // 8), cp.uint32), *(cp.zeros((n + 8, groups), cp.uint16) for _ in range(2))
    stack(device, bf16, part, *found)
    wanted = usual.codes.view(np.uint32), usual.scales.view(np.uint16), usual.zeros.astype(np.uint16)
    for made, right in zip(found, wanted, strict=True):
        assert (cp.asnumpy(made[8:]) == right).all() and not made[:8].any()
    values, wrong = cp.zeros((n + 8, k), cp.uint16), cp.zeros(1, cp.int32)
    widen(device, bf16, part, values)
    compare(device, bf16, part, values, wrong)
    assert int(wrong[0]) == 0
    assert error(widened(values[8:], bf16), usual.dequantise()) < rounding(bf16)


# -- whole models -------------------------------------------------------------------------------------------

PACKED = ["tiny-llama-awq-g64-skip", "tiny-qwen2-awq-g128", "tiny-qwen2-outliers-awq-g128"]


@pytest.fixture(params=[0, packed_wide_plans.MOST_TOKENS], ids=["packed_large", "packed_wide"])
def backend(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Backend]:
    """With one kernel or the other for 4 to 256 tokens."""
    from llmrs_cli.engine.backends.cuda import CudaBackend

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "xdg"))
    monkeypatch.setattr(packed_plans, "WIDE_TOKENS", request.param)
    opened = CudaBackend(0, packed=True)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", PACKED)
def test_packed_logits_are_the_references(backend: Backend, name: str) -> None:
    checkpoint = open_checkpoint(DATA / "golden" / "checkpoints" / name)
    vocab = checkpoint.spec.vocab
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, vocab, n).tolist() for n in (1, 5, 64, 65, 130)]
    oracle = ReferenceBackend()
    counts = [len(ids) for ids in sequences]
    wanted = forced_logits(oracle, load_model(checkpoint, oracle), sequences, counts, vocab)
    model = load_model(checkpoint, backend)
    assert type(model.layers[0].qkv).__name__ == "PackedLinear"
    for chunk in (1, 7, 1000):
        assert_near(gpu_logits(backend, model, sequences, chunk, vocab), wanted, False, name, chunk)


@pytest.mark.parametrize("name", PACKED)
def test_packed_answers_are_the_stored_ones(backend: Backend, name: str) -> None:
    folder = DATA / "golden" / "checkpoints" / name
    checkpoint = open_checkpoint(folder)
    model, vocab = load_model(checkpoint, backend), checkpoint.spec.vocab
    expected = json.loads((folder / "expected.json").read_text())
    prompts = [row["prompt_ids"] for row in expected]
    answers = generate(backend, model, vocab, prompts, len(expected[0]["greedy_ids"]))
    for row, answer in zip(expected, answers, strict=True):
        margins = row["top2_margin"]
        sure = next((i for i, margin in enumerate(margins) if margin < MARGIN[False]), len(answer))
        assert answer[:sure] == row["greedy_ids"][:sure]


@pytest.mark.parametrize("name", PACKED)
def test_a_converted_copy_becomes_the_tiles_of_its_source(
    backend: Backend, tmp_path: Path, name: str
) -> None:
    source = open_checkpoint(DATA / "golden" / "checkpoints" / name)
    (tmp_path / "c").mkdir()
    list(convert(source, name, tmp_path / "c"))
    ours, theirs = (
        load_model(checkpoint, backend) for checkpoint in (open_checkpoint(tmp_path / "c"), source)
    )
    for layer, right in zip(ours.layers, theirs.layers, strict=True):
        for label in ("qkv", "o", "gate_up", "down"):
            found, wanted = getattr(layer, label), getattr(right, label)
            assert type(found) is type(wanted)
            if hasattr(found, "matrix"):
                assert (found.matrix.units == wanted.matrix.units).all(), label
            else:
                assert (found.weight == wanted.weight).all(), label


@pytest.mark.parametrize("copies", [False, True], ids=["slabs", "copies"])
def test_a_prompt_of_many_tokens_is_multiplied_in_16_bits(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    monkeypatch.setattr(packed_plans, "WIDE_TOKENS", 0)
    monkeypatch.setattr(packed_plans, "COPY_TOKENS", 8)
    monkeypatch.setattr(packed_plans, "TILE_TOKENS", {True: 64, False: 64})
    monkeypatch.setattr(packed_plans, "SLAB_BYTES", 64 * 2 * 256 * 2)  # slabs of 128 rows
    checkpoint = open_checkpoint(DATA / "golden" / "checkpoints" / "tiny-qwen2-awq-g128")
    vocab = checkpoint.spec.vocab
    ids = [np.random.default_rng(1).integers(0, vocab, 130).tolist()]
    oracle = ReferenceBackend()
    (wanted,) = forced_logits(oracle, load_model(checkpoint, oracle), ids, [130], vocab)
    model = load_model(checkpoint, backend)
    (found,) = gpu_logits(backend, backend.copied(model) if copies else model, ids, 1000, vocab)
    assert np.linalg.norm(found - wanted) < LOGITS[False] * np.linalg.norm(wanted)
