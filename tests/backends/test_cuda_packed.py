"""4-bit weights of the CUDA backend: loading, what is widened and why, and which kernel serves how many tokens.

CuPy's names stand over NumPy, and a CPU runs the kernels; cuBLASLt is played by NumPy's product. Longer than most files: all
of it needs that room, for which the backend's modules are imported anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.convert import convert
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.engine.weights.packed import Dense, Packed4, Stored, Tiles4, Words4
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import packed_plans
from llmrs_cli.kernels.dequantise import dequantise
from llmrs_cli.kernels.marlin_layout import Layout, pack, unpack
from tests.helpers.canonical import dense, packed4, packed8, permuted4, words4
from tests.helpers.emulate import EmulatedDevice, host
from tests.helpers.fake_cuda import cuda_backend
from tests.helpers.launches import Recorder, bits, plain_maps
from tests.helpers.tiny_model import TinyModel, write_tiny


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedDevice]:
    with plain_maps():
        yield EmulatedDevice(tmp_path_factory.mktemp("emulated"), hopper=True, together=True)


@pytest.fixture(scope="module")
def room() -> Iterator[Any]:
    """The module under test, imported under CuPy's names."""
    with cuda_backend(packed=True) as backend:
        module: Any = sys.modules["llmrs_cli.engine.backends.cuda_packed"]
        module.arena, module.upload = backend._arena, backend._upload
        module.copies, module.dense = (
            sys.modules[f"llmrs_cli.engine.backends.{name}"] for name in ("cuda_copies", "cuda_dense")
        )
        yield module


def weight(rows: int, columns: int = 200, group: int = 64, seed: int = 0) -> Packed4:
    return packed4(np.random.default_rng(rows + seed), rows, columns, group)


def multiply(bf16: bool, x: Any, w: Any, out: Any, bias: Any, accumulate: bool, alpha: float) -> None:
    """cuBLASLt, for float16."""
    assert not bf16
    wide = x.view(np.float16).astype(np.float32) @ w.view(np.float16).astype(np.float32).T * alpha
    narrow = out.dtype == np.uint16
    if bias is not None:
        wide += bias.view(np.float16).astype(np.float32) if narrow else bias
    if narrow:
        out[...] = wide.astype(np.float16).view(np.uint16)
    else:
        out[...] = wide + (out if accumulate else 0)


# -- loading ------------------------------------------------------------------------------------------------


def tiles_of(parts: list[Packed4], order: NDArray[np.intp]) -> NDArray[np.uint8]:
    codes, scales, zeros = (
        np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("codes", "scales", "zeros")
    )
    return pack(codes, scales, zeros, parts[0].group, parts[0].columns)


def test_parts_are_stacked_and_reordered(room: Any, device: EmulatedDevice) -> None:
    parts = [weight(70), weight(24), weight(10)]
    bias = [Dense(np.arange(70, dtype=np.float32)), None, Dense(np.ones(10, np.float16))]
    made = room.load_packed(device, room.upload, parts, bias, False)
    assert made.shape == (104, 200)
    assert np.array_equal(made.matrix.units.view(np.uint8), tiles_of(parts, np.arange(104)))
    assert made.bias.tolist() == [*range(70), *[0] * 24, *[1] * 10]
    assert made.narrow_bias.view(np.float16).tolist() == made.bias.tolist()
    assert made.note == "4 bit, groups of 64, for f16"


def test_gate_and_up_take_turns_of_eight_rows(room: Any, device: EmulatedDevice) -> None:
    parts = [weight(40), weight(40, seed=1)]
    made = room.load_packed(device, room.upload, parts, [None, Dense(np.arange(40, dtype=np.float32))], False)
    order = np.arange(80).reshape(2, 5, 8).transpose(1, 0, 2).reshape(-1)
    assert np.array_equal(made.matrix.units.view(np.uint8), tiles_of(parts, order))
    assert made.bias.reshape(5, 2, 8)[:, 0].tolist() == [[0] * 8] * 5
    assert made.bias.reshape(5, 2, 8)[:, 1].reshape(-1).tolist() == list(range(40))


def sorted_rows(parts: list[Packed4]) -> NDArray[np.intp]:
    """Rows of the stack: gate and up in turns of eight."""
    rows = sum(part.shape[0] for part in parts)
    return (
        np.arange(rows).reshape(2, -1, 8).transpose(1, 0, 2).reshape(-1)
        if len(parts) == 2
        else np.arange(rows)
    )


def tiled(part: Packed4) -> Tiles4:
    return Tiles4(tiles_of([part], np.arange(part.shape[0])), part.group, part.shape)


@pytest.mark.parametrize("kind", ["awq", "gptq", "tiles"])
@pytest.mark.parametrize("heights", [(72, 24, 16), (64, 128, 40), (40, 40)])
def test_what_a_file_holds_becomes_the_tiles_of_its_canonical_form(
    room: Any, device: EmulatedDevice, kind: Any, heights: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    if kind == "tiles":
        usual = [weight(rows, seed=i) for i, rows in enumerate(heights)]
        parts: list[Stored] = [tiled(part) for part in usual]
    else:
        words = [words4(rng, kind, rows, 200, 64) for rows in heights]
        usual, parts = [part.canonical() for part in words], list(words)
    assert room.why_widened(parts) is None
    made = room.load_packed(device, room.upload, parts, [None] * len(parts), False)
    assert np.array_equal(made.matrix.units.view(np.uint8), tiles_of(usual, sorted_rows(usual)))


def test_whole_units_of_tiles_go_up_as_they_are(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(room, "_reorder")
    usual = [weight(64), weight(128), weight(40)]
    made = room.load_packed(None, room.upload, [tiled(part) for part in usual], [None] * 3, False)
    assert np.array_equal(made.matrix.units.view(np.uint8), tiles_of(usual, np.arange(232)))


@pytest.mark.parametrize("bf16", [True, False])
def test_parts_are_widened_on_the_device_as_the_host_would(
    room: Any, device: EmulatedDevice, bf16: bool
) -> None:
    from llmrs_cli.engine.backends.cuda_linear import load_linear, narrowed

    rng = np.random.default_rng(0)
    usual = weight(24, columns=64, group=32)
    parts: list[Stored] = [words4(rng, "awq", 16, 64, 32), words4(rng, "gptq", 8, 64, 24), usual]
    parts += [tiled(weight(72, columns=64, group=32)), dense(rng, 16, 64), packed8(rng, 8, 64)]
    parts += [packed4(rng, 8, 64, 32, offsets=True), permuted4(rng, 16, 64, 32)]
    made = load_linear(device, room.upload, parts, [None] * len(parts), bf16)
    wanted = np.concatenate([narrowed(part.dequantise(), bf16) for part in parts])
    assert np.array_equal(made.weight, wanted)
    assert made.note == f"{'bf16' if bf16 else 'f16'} from 4 bit + 8 bit + float32"
    pair: list[Stored] = [permuted4(rng, 16, 64, 32), dense(rng, 16, 64)]
    bias = [Dense(np.arange(16, dtype=np.float32)), None]
    turns = load_linear(device, room.upload, pair, bias, bf16)
    values = np.stack([narrowed(part.dequantise(), bf16).reshape(2, 8, 64) for part in pair], axis=1)
    assert np.array_equal(turns.weight, values.reshape(32, 64))
    assert turns.bias.reshape(2, 2, 8)[:, 0].reshape(-1).tolist() == list(range(16))


def test_a_code_that_changed_is_found(
    room: Any, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = room.repack

    def broken(device: Any, bf16: bool, codes: Any, scales: Any, zeros: Any, group: int, out: Any) -> None:
        honest(device, bf16, codes, scales, zeros, group, out)
        out.units.reshape(-1)[5] ^= 1 << 9

    monkeypatch.setattr(room, "repack", broken)
    with pytest.raises(EngineFault, match=r"1 of the 4-bit weights of a \(70, 200\) matrix"):
        room.load_packed(device, room.upload, [weight(70)], [None], False)


def scaled(part: Packed4, scales: NDArray[np.float32]) -> Packed4:
    return Packed4(part.codes, scales, part.zeros, part.offsets, part.group, part.columns)


RNG = np.random.default_rng(0)
WIDENED: dict[str, list[Stored]] = {
    "not all of it 4-bit": [weight(16), dense(RNG, 16, 200)],
    "not all": [packed8(RNG, 16, 64)],
    "offsets": [packed4(RNG, 16, 64, 32, offsets=True)],
    "different sizes": [weight(16), weight(24, group=32)],
    "groups of 16": [weight(16, group=16)],
    "in 100 columns": [weight(16, columns=100)],
    "pairs of 12 rows": [weight(12), weight(12)],
    "beyond float16": [scaled(weight(16), np.full((16, 4), 1 / 3, np.float32))],
    "float16": [scaled(weight(16), np.full((16, 4), 1e6, np.float32))],
}


@pytest.mark.parametrize("reason", WIDENED)
def test_what_cannot_stay_packed_is_named(room: Any, reason: str) -> None:
    assert reason in room.why_widened(WIDENED[reason])


def test_float32_scales_that_are_halves_stay_packed(room: Any, device: EmulatedDevice) -> None:
    part = weight(16)
    wide = scaled(part, part.scales.astype(np.float32))
    assert room.why_widened([wide]) is None
    made = room.load_packed(device, room.upload, [wide], [None], False)
    assert unpack(made.matrix.units.view(np.uint8), 64, 16, 200)[1].tolist() == part.scales.tolist()


def values_of(device: EmulatedDevice, handle: Any, packed: bool) -> NDArray[np.float16]:
    """What lies on the GPU, as float16."""
    found = host(np.zeros(handle.shape, np.uint16))
    if packed:
        dequantise(device, False, handle.matrix, found)
    else:
        found[...] = handle.weight
    return np.asarray(found).view(np.float16)


@pytest.mark.parametrize("packed", [True, False])
def test_a_model_is_loaded_without_unpacking_anything_on_the_host(
    device: EmulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """A converted copy too; the values on the GPU are those of the file, whichever way they came."""
    source = open_checkpoint(write_tiny(tmp_path / "m", TinyModel("qwen2", layers=1, awq=True, vocab=320)))
    (tmp_path / "c").mkdir()
    list(convert(source, "m", tmp_path / "c"))
    prefix = "model.layers.0."
    usual = {
        name: source.parameters[f"{prefix}{name}.weight"].read()
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj")
    }
    for form in (Words4, Tiles4):
        monkeypatch.delattr(form, "canonical")
    for checkpoint in (source, open_checkpoint(tmp_path / "c")):
        with cuda_backend(packed=packed) as backend:
            backend.device = device
            layer = load_model(checkpoint, backend, context=16).layers[0]
        q, k, v, down = usual.values()
        for handle, parts in ((layer.qkv, [q, k, v]), (layer.down, [down])):
            wanted = np.concatenate([part.dequantise() for part in parts]).astype(np.float16)
            assert np.array_equal(values_of(device, handle, packed), wanted)


# -- products -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "bound"), [(3, 1e-5), (20, 1e-5), (1030, 5e-4)])
def test_every_number_of_tokens_has_its_kernel(
    room: Any, device: EmulatedDevice, m: int, bound: float
) -> None:
    part = weight(144)
    bias = RNG.standard_normal(144).astype(np.float32)
    made = room.load_packed(device, room.upload, [part], [Dense(bias)], False)
    x = host(RNG.standard_normal((m, 200)).astype(np.float16))
    products = room.PackedProducts(device, room.arena, multiply, slab_bytes=30_000)  # of 64 rows
    out = host(np.ones((m, 144), np.float32))
    products.plain("add", x.view(np.uint16), made, out, alpha=2.0)
    wanted = 2 * x.astype(np.float64) @ part.dequantise().T + bias + 1
    assert np.linalg.norm(out - wanted) < bound * np.linalg.norm(wanted)


class Listener(Recorder):
    """A Hopper GPU that keeps what it is asked to run."""

    loader, multiprocessors, shared_limit = SimpleNamespace(arch="sm_90a"), 132, 227 << 10

    def named(self) -> list[str]:
        return [name for name, _ in self.shapes]


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("rows", [144, 136])
def test_tokens_between_few_and_many_go_where_the_switch_says(
    room: Any, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, taken: bool, rows: int
) -> None:
    """On Hopper, and only what the kernel can serve."""
    if not taken:
        monkeypatch.setattr(packed_plans, "WIDE_TOKENS", 0)
    made = room.load_packed(device, room.upload, [weight(rows)], [None], False)
    served = {}
    for m in (3, 4, 8, 9, 256, 257):
        listener = Listener()
        products = room.PackedProducts(listener, room.arena, multiply)
        products.plain("store", bits(m, 200), made, bits(m, rows))
        served[m] = listener.named()
    wide = taken and rows % 16 == 0
    few, more = (["packed_wide"], ["packed_wide"]) if wide else (["packed_small"], ["packed_large"])
    assert served == {3: ["packed_small"], 4: few, 8: few, 9: more, 256: more, 257: ["packed_large"]}


@pytest.mark.parametrize("rows", [144, 136])
def test_many_tokens_multiply_codes_where_that_is_faster(
    room: Any, device: EmulatedDevice, rows: int
) -> None:
    """With SiLU·mul inside; a small matrix leaves most of the GPU idle, and rows of eight have no plan."""
    made = room.load_packed(device, room.upload, [weight(rows)], [None], False)
    served: dict[str, list[str]] = {}
    for epilogue, width in (("silu", rows // 2), ("store", rows)):
        for m in (256, 257, 1200):
            listener = Listener()
            products = room.PackedProducts(listener, room.arena, multiply)
            products.plain(epilogue, bits(m, 200), made, bits(m, width))
            served[f"{epilogue} {m}"] = listener.named()
    many = {name for name, stems in served.items() if "packed_many" in stems}
    assert many == ({"silu 257", "silu 1200"} if rows == 144 else set())


def test_many_tokens_are_multiplied_with_a_copy_where_there_is_one(
    room: Any, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values are those of the slabs that would be widened without it, bit for bit."""
    bias = RNG.standard_normal(144).astype(np.float32)
    made = room.load_packed(device, room.upload, [weight(144)], [Dense(bias)], False)
    both = room.copies.beside(device, room.upload, made)
    assert both.matrix is made.matrix and both.note == f"{made.note}, and in 16 bits"
    assert np.array_equal(values_of(device, made, True), both.copy.weight.view(np.float16))
    dense = room.dense.DenseProducts(device, room.arena, multiply, room.dense.MEASURED)
    products = room.PackedProducts(device, room.arena, multiply, dense)
    monkeypatch.setattr(packed_plans, "TILE_TOKENS", {True: 0, False: 0})  # slabs
    x = host(RNG.standard_normal((300, 200)).astype(np.float16)).view(np.uint16)
    for epilogue, kind in (("store", np.uint16), ("add", np.float32), ("silu", np.uint16)):
        found = []
        for linear in (both, made):
            out = host(np.zeros((300, 72 if epilogue == "silu" else 144), kind))
            products.plain(epilogue, x, linear, out, alpha=0.5)
            found.append(out.tobytes())
        assert found[0] == found[1] and any(found[0])


def test_few_tokens_do_not_touch_the_copy(room: Any, device: EmulatedDevice) -> None:
    made = room.load_packed(device, room.upload, [weight(144)], [None], False)
    both = room.copies.beside(device, room.upload, made)
    for m in (1, 3, 4, packed_plans.COPY_TOKENS):
        listener = Listener()
        room.PackedProducts(listener, room.arena, multiply).plain("store", bits(m, 200), both, bits(m, 144))
        assert listener.named() == ["packed_small" if m < 4 else "packed_wide"]


@pytest.mark.parametrize("m", [2, 12])
def test_the_norm_comes_first(room: Any, device: EmulatedDevice, m: int) -> None:
    part = weight(144)
    made = room.load_packed(device, room.upload, [part], [None], False)
    x, norm = RNG.standard_normal((m, 200)).astype(np.float32), RNG.standard_normal(200)
    out = host(np.zeros((m, 144), np.float32))
    products = room.PackedProducts(device, room.arena, multiply)
    products.normed("logits", host(x), host(norm.astype(np.float32)), 1e-6, made, out)
    picked = x.astype(np.float64)
    normed = picked / np.sqrt((picked**2).mean(axis=1, keepdims=True) + 1e-6) * norm
    wanted = normed @ part.dequantise().T
    assert np.linalg.norm(out - wanted) < 1e-3 * np.linalg.norm(wanted)


def test_the_backend_keeps_packed_what_it_may_and_builds_its_kernels() -> None:
    with cuda_backend(packed=True) as backend:
        kinds = {}
        for name, part in (
            ("layer 0 o", weight(64)),
            ("embedding", weight(64)),
            ("head", dense(RNG, 64, 200)),
        ):
            kinds[name] = type(backend.prepare_linear([part], [None], name)).__name__
        assert kinds == {"layer 0 o": "PackedLinear", "embedding": "CudaLinear", "head": "CudaLinear"}
        backend.alloc_kv(1, 1, 2, 64)
        assert {"packed_small", "packed_large", "dequantise", "repack"} <= {
            u.stem for u in backend.device.built
        }


def test_what_the_switch_says_is_built_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    for tokens in (0, 256):
        monkeypatch.setattr(packed_plans, "WIDE_TOKENS", tokens)
        with cuda_backend(packed=True) as backend:
            backend.prepare_linear([weight(64)], [None], "layer 0 o")
            backend.alloc_kv(1, 1, 2, 64)
            assert ("packed_wide" in {u.stem for u in backend.device.built}) == (tokens > 0)


@pytest.mark.parametrize("wish", [{"packed": False}, {"deterministic": True}], ids=str)
def test_nothing_stays_packed_where_it_shall_not(wish: dict[str, bool]) -> None:
    with cuda_backend(**wish) as backend:
        assert type(backend.prepare_linear([weight(64)], [None], "layer 0 o")).__name__ == "CudaLinear"
        backend.alloc_kv(1, 1, 2, 64)
        assert "packed_small" not in {u.stem for u in backend.device.built}


def test_its_buffers_are_part_of_the_plan(room: Any) -> None:
    """The largest parts of sums are those of 128 × 128 tiles of two a block."""
    assert room.workspace_bytes(132) == (32 << 20) + 2 * 132 * 128 * 128 * 4 + (1 << 20)


def test_slabs_are_whole_units(room: Any) -> None:
    found = list(room.slabs(1000, 18944, 32 << 20))
    assert [(part.start, part.stop) for part in found] == [(0, 832), (832, 1000)]
    assert list(room.slabs(10, 10**9, 1)) == [slice(0, 10)]
    assert Layout(1000, 18944, 128).padded == (1024, 18944)
