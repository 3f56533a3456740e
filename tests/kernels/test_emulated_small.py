"""The small kernels of a step, run on the CPU from their CUDA source: embedding, norm, gate, rotation, counts, copies, scores.

What they compute is compared with float64; what they move, to the bit, with NumPy; and nothing else is written.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.arrays import StepArrays
from llmrs_cli.engine.backends.base import RowLimits
from llmrs_cli.engine.backends.reference_sampling import score
from llmrs_cli.engine.backends.rows import HostRows
from llmrs_cli.engine.weights.packed import bf16_to_f32, f32_to_bf16
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.count_tokens import count_tokens
from llmrs_cli.kernels.embed import embed
from llmrs_cli.kernels.gather import gather
from llmrs_cli.kernels.logprobs import logprobs
from llmrs_cli.kernels.rms_norm import rms_norm
from llmrs_cli.kernels.rope_store import rope_store
from llmrs_cli.kernels.scatter import scatter
from llmrs_cli.kernels.silu_mul import headroom, silu_mul
from llmrs_cli.kernels.take_rows import take_rows
from tests.helpers.emulate import EmulatedDevice, host
from tests.helpers.launches import Recorder
from tests.helpers.steps import batch, greedy

TYPES = pytest.mark.parametrize("bf16", [True, False], ids=["bf16", "f16"])
PAGE = 64
UNTOUCHED = 0x7E7E
Wide = NDArray[np.float64]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    return EmulatedDevice(tmp_path_factory.mktemp("emulated"))


def halves(values: NDArray[Any], bf16: bool) -> tuple[Any, Wide]:
    """16-bit patterns, and what they mean."""
    narrow = values.astype(np.float32)
    bits = f32_to_bf16(narrow) if bf16 else narrow.astype(np.float16).view(np.uint16)
    return host(bits), widened(bits, bf16)


def widened(bits: Any, bf16: bool) -> Wide:
    plain = np.asarray(bits)
    return (bf16_to_f32(plain) if bf16 else plain.view(np.float16)).astype(np.float64)


def empty(*shape: int) -> Any:
    return host(np.full(shape, UNTOUCHED, np.uint16))


def close(found: Wide, wanted: Wide, bf16: bool) -> bool:
    """Each value within a rounding to 16 bits, and a little of the largest."""
    step = 2.0**-8 if bf16 else 2.0**-11
    return bool((np.abs(found - wanted) <= 1.02 * step * np.abs(wanted) + 1e-6 * np.abs(wanted).max()).all())


@TYPES
@pytest.mark.parametrize("c", [8, 96, 2056])
def test_an_embedding_is_its_rows(gpu: EmulatedDevice, bf16: bool, c: int) -> None:
    rng = np.random.default_rng(c)
    table, wide = halves(rng.standard_normal((21, c)), bf16)
    ids = np.array([20, 0, 7, 7], np.int32)
    out = host(np.full((5, c), np.nan, np.float32))
    embed(gpu, bf16, table, host(np.array([*ids, -1], np.int32)), out)
    assert np.array_equal(out[:4], wide[ids]) and not out[4].any()


@TYPES
@pytest.mark.parametrize("c", [4, 100, 1032, 4096, 4100, 8192])
def test_a_norm(gpu: EmulatedDevice, bf16: bool, c: int) -> None:
    rng = np.random.default_rng(c)
    x = rng.standard_normal((5, c)).astype(np.float32) * 3
    gamma = rng.standard_normal(c).astype(np.float32)
    wide, out = x.astype(np.float64), empty(5, c)
    rms_norm(gpu, bf16, host(x), host(gamma), 1e-5, out)
    wanted = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * gamma
    assert close(widened(out, bf16), wanted, bf16)


@pytest.mark.parametrize(("c", "w"), [(4, 8), (96, 64), (2056, 3000), (4, 2104)])
def test_chosen_tokens_go_on(gpu: EmulatedDevice, c: int, w: int) -> None:
    rng = np.random.default_rng(c)
    residual = rng.standard_normal((7, c)).astype(np.float32)
    mixed = rng.integers(0, 1 << 16, (7, w), np.uint16)
    tokens = np.array([0, 3, 4, 6], np.int32)
    rows, attended = host(np.full((5, c), np.nan, np.float32)), empty(5, w)
    behind = attended[4].copy()
    take_rows(gpu, host(tokens), host(residual), host(mixed), rows[:4], attended[:4])
    assert np.array_equal(rows[:4], residual[tokens]) and np.isnan(rows[4]).all()
    assert np.array_equal(attended[:4], mixed[tokens]) and np.array_equal(attended[4], behind)


def test_rows_of_odd_size_are_refused() -> None:
    whole, odd = np.zeros((3, 8), np.float32), np.zeros((3, 12), np.uint16)
    with pytest.raises(EngineFault, match="take_rows cannot serve rows of 8 and 12 values"):
        take_rows(Recorder(), np.zeros(3, np.int32), whole, odd, whole, odd)


@TYPES
@pytest.mark.parametrize(("tokens", "f"), [(1, 8), (3, 72), (2, 2056)])
def test_a_gate_takes_turns_of_eight(gpu: EmulatedDevice, bf16: bool, tokens: int, f: int) -> None:
    rng = np.random.default_rng(f)
    gate_up, wide = halves(rng.standard_normal((tokens, 2 * f)) * 3, bf16)
    out = empty(tokens, f)
    silu_mul(gpu, bf16, gate_up, out)
    gate, up = np.moveaxis(wide.reshape(tokens, -1, 2, 8), 2, 0)
    wanted = (gate / (1 + np.exp(-gate)) * up).reshape(tokens, f) * headroom(bf16)
    assert close(widened(out, bf16), wanted, bf16)


@TYPES
@pytest.mark.parametrize("d", [16, 64, 96, 256])
@pytest.mark.parametrize("normed", [False, True])
def test_heads_are_turned_and_stored_where_their_slot_says(
    gpu: EmulatedDevice, bf16: bool, d: int, normed: bool
) -> None:
    rng = np.random.default_rng(d)
    tokens, heads, kv_heads, pages = 4, 3, 2, 2
    qkv, wide = halves(rng.standard_normal((tokens, (heads + 2 * kv_heads) * d)), bf16)
    angles = rng.uniform(0, 6, (9, d // 2))
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    positions, slots = np.array([8, 0, 3, 3], np.int32), np.array([PAGE, 5, -1, 63], np.int32)
    norms = [rng.standard_normal(d).astype(np.float32) if normed else None for _ in range(2)]
    q, keys, values = empty(tokens, heads, d), *(empty(pages, kv_heads, PAGE, d) for _ in range(2))
    given = [None if norm is None else host(norm) for norm in norms]
    rope_store(
        gpu, bf16, qkv, host(positions), host(slots), host(table), (given[0], given[1]), 1e-6, q, keys, values
    )

    def turned(x: Wide, norm: Any) -> Wide:
        if norm is not None:
            x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * norm
        cos, sin = (part[positions][:, None] for part in np.split(table.astype(np.float64), 2, axis=1))
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    by_head = wide.reshape(tokens, -1, d)
    kept = slots >= 0
    assert close(widened(q, bf16)[kept], turned(by_head[:, :heads], norms[0])[kept], bf16)
    place = slots[kept] // PAGE, slice(None), slots[kept] % PAGE
    assert close(
        widened(keys, bf16)[place], turned(by_head[:, heads : heads + kv_heads], norms[1])[kept], bf16
    )
    assert np.array_equal(widened(values, bf16)[place], by_head[kept, heads + kv_heads :])
    for stored in (keys, values):
        rest = np.asarray(stored).copy()
        rest[place] = UNTOUCHED
        assert (rest == UNTOUCHED).all(), "nothing else is written"


# -- what moves integers ---------------------------------------------------------------------------------


def test_the_inputs_of_a_step_are_those_of_the_host(gpu: EmulatedDevice) -> None:
    rng = np.random.default_rng(0)
    limits = RowLimits(4, 300, 1000)
    rows = HostRows(limits, PAGE)
    for row in range(4):
        rows.start(row, rng.integers(0, 1000, 300).tolist(), greedy())
        rows.grant(row, 0, rng.permutation(40)[:5].tolist())
    chunks = [(2, 60, 9, True, 4), (0, 299, 1, False, 0), (3, 0, 250, True, 250)]
    wanted: StepArrays = rows.begin(batch(*chunks))
    owners = np.repeat([2, 0, 3], [9, 1, 250]).astype(np.int32)
    padded = np.concatenate([owners, [-1, -1]]).astype(np.int32)
    positions = np.concatenate([wanted.positions, [0, 0]]).astype(np.int32)
    ids, slots = (host(np.full(len(padded), 77, np.int32)) for _ in range(2))
    targets = host(np.full(len(wanted.scored_tokens), 77, np.int32))
    gather(
        gpu,
        host(rows.tokens),
        host(rows.tables),
        host(padded),
        host(positions),
        ids,
        slots,
        host(wanted.scored_tokens),
        targets,
    )
    assert ids.tolist() == [*wanted.ids.tolist(), -1, -1]
    assert slots.tolist() == [*wanted.slots.tolist(), -1, -1]
    assert targets.tolist() == wanted.scored_targets.tolist()


def test_words_are_scattered_to_their_addresses(gpu: EmulatedDevice) -> None:
    rng = np.random.default_rng(1)
    words = host(rng.integers(0, 2**32, 3000, np.uint32))
    targets = [host(np.zeros(size, np.uint32)) for size in (1, 2000, 40)]
    runs, offset = b"", 7
    for target, count in zip(targets, (1, 1990, 40), strict=True):
        runs += struct.pack("<QII", target.data.ptr, offset, count)
        offset += count
    held = host(np.frombuffer(runs, np.uint32).copy())
    scatter(gpu, held.data.ptr, words.data.ptr, len(targets), 7, offset)
    assert np.array_equal(targets[0], words[7:8])
    assert np.array_equal(targets[1][:1990], words[8:1998]) and not targets[1][1990:].any()
    assert np.array_equal(targets[2], words[1998:2038])
    with pytest.raises(EngineFault, match="2048 runs at a time, not 2049"):
        scatter(gpu, held.data.ptr, words.data.ptr, 2049, 0, 1)


def test_what_penalties_count_is_counted_anew(gpu: EmulatedDevice) -> None:
    rng = np.random.default_rng(2)
    vocab, width = 51, 60
    pool = rng.integers(0, vocab, (3, 2500)).astype(np.int32)
    counts = host(np.full((3, width), 99, np.uint16))
    starts = [(2, 2500, 100), (0, 7, 7)]
    count_tokens(gpu, host(np.array(starts, np.int32)), host(pool), counts)
    for row, known, prompt in starts:
        wanted = np.bincount(pool[row, prompt:known], minlength=width).astype(np.uint16)
        wanted[np.unique(pool[row, :prompt])] |= 0x8000
        assert np.array_equal(counts[row], wanted)
    assert (counts[1] == 99).all(), "a row that does not start is left alone"


def test_a_count_that_is_full_stays_full(gpu: EmulatedDevice) -> None:
    known = 0x7FFF + 40
    pool, counts = host(np.full((1, known), 3, np.int32)), host(np.zeros((1, 8), np.uint16))
    count_tokens(gpu, host(np.array([(0, known, 0)], np.int32)), pool, counts)
    assert counts[0].tolist() == [0, 0, 0, 0x7FFF, 0, 0, 0, 0]


# -- scores ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vocab", "alternatives"), [(5, 5), (97, 3), (3001, 0)])
def test_scores_are_those_of_the_definition(gpu: EmulatedDevice, vocab: int, alternatives: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal((3, vocab)) * 4).astype(np.float32)
    logits[1] = np.round(logits[1])  # ties
    logits[2, 1] = np.nan
    targets = rng.integers(0, vocab, 6).astype(np.int32)
    held = host(targets)
    at, invalid = host(np.zeros(3, np.float32)), host(np.full(3, 9, np.int32))
    ids = host(np.zeros((3, max(alternatives, 1)), np.int32))
    tops = host(np.zeros((3, max(alternatives, 1)), np.float32))
    out = at.data.ptr, ids.data.ptr, tops.data.ptr, invalid.data.ptr
    logprobs(gpu, host(logits), held.data.ptr, 2, out, alternatives)
    wanted = score(logits[:2], targets[:4:2], alternatives)
    assert invalid.tolist() == [0, 0, 1]
    assert at[:2] == pytest.approx(wanted.logprobs, abs=1e-5)
    if alternatives:
        assert ids[:2].tolist() == wanted.top_ids.tolist()
        assert tops[:2] == pytest.approx(wanted.top_logprobs, abs=1e-5)
