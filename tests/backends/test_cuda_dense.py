"""Which kernel multiplies a step's tokens by 16-bit matrices, and when a norm needs no kernel; on a GPU that only pretends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.engine.backends.base import RowLimits
from llmrs_cli.engine.backends.cuda_staging import large_sizes
from llmrs_cli.engine.model.decoder import run_body, run_head
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.engine.weights.random import random_checkpoint
from llmrs_cli.kernels.launch import Kernel, Shape
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.wide_plans import FEW, MOST_TOKENS, WidePlan
from tests.helpers.fake_cuda import cuda_backend
from tests.helpers.launches import arguments
from tests.helpers.steps import batch, greedy
from tests.helpers.tiny_model import TinyModel, write_tiny

NARROW = TinyModel(vocab=320, config={"torch_dtype": "bfloat16"})
ONE_LAYER = ["linear_wide"] * 4
TOKENS = (4, 8, 16, 24, 64, 112, 192, 256)


@pytest.fixture
def backend() -> Iterator[Any]:
    with cuda_backend() as opened:
        yield opened


class Bench:
    """A model on a backend, its products and norms in the order of their launches."""

    def __init__(self, backend: Any, folder: Path, tiny: TinyModel = NARROW) -> None:
        checkpoint = random_checkpoint(write_tiny(folder, tiny))
        self.backend, self.spec = backend, checkpoint.spec
        self.model = load_model(checkpoint, backend)
        self.kv = backend.alloc_kv(self.spec.layers, 32, self.spec.kv_heads, self.spec.head_dim)
        self.rows = backend.open_rows(RowLimits(2, 2048, self.spec.vocab))
        self.launches: list[tuple[str, dict[str, Any]]] = []
        self.units: list[Unit] = []
        launch = backend.device.launch

        def listen(kernel: Kernel, shape: Shape, slots: bytes) -> None:
            if kernel.unit.stem.startswith(("linear", "rms_norm", "take_rows")):
                self.launches.append((kernel.unit.stem, arguments(kernel, slots)))
                self.units.append(kernel.unit)
            launch(kernel, shape, slots)

        backend.device.launch = listen

    def step(self, tokens: int) -> Any:
        self.rows.start(0, range(tokens), greedy())
        self.rows.grant(0, 0, range(32))
        return self.rows.begin(batch((0, 0, tokens, True)))

    def run(self, tokens: int) -> Any:
        """The hidden state after all layers, and logits of all tokens."""
        self.launches.clear()
        body = run_body(self.backend, self.model, self.kv, self.step(tokens))
        run_head(self.backend, self.model, body, self.backend._arena.take("some tokens", (tokens,), "i4"))
        return body.hidden

    def embedded(self, tokens: int) -> Any:
        """... before the first."""
        self.launches.clear()
        return self.backend.embed(self.model.embedding, self.step(tokens))

    def add(self, hidden: Any, norm: Any) -> None:
        """Something to the hidden state, which `norm` is to read next."""
        heads = self.backend._arena.take("attended", hidden.residual.shape, "u2")
        self.backend.project_add(heads, self.model.layers[0].o, hidden, norm)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.launches]


@pytest.fixture
def bench(backend: Any, tmp_path: Path) -> Bench:
    return Bench(backend, tmp_path)


# -- who multiplies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", TOKENS)
def test_steps_of_some_tokens_need_one_norm_and_four_products_a_layer(bench: Bench, tokens: int) -> None:
    bench.run(tokens)
    assert bench.names == ["rms_norm", *ONE_LAYER * bench.spec.layers, "linear_wide"]
    assert {passed["m"] for name, passed in bench.launches if name == "linear_wide"} == {tokens}
    assert not bench.backend._gemm.shapes


@pytest.mark.parametrize("tokens", [1, FEW])
def test_few_tokens_read_the_weights_with_other_kernels(bench: Bench, tokens: int) -> None:
    bench.run(tokens)
    assert bench.names and "linear_wide" not in bench.names
    assert not bench.backend._gemm.shapes


def test_more_tokens_are_multiplied_by_the_library_but_where_a_gate_follows(bench: Bench) -> None:
    bench.run(MOST_TOKENS + 64)
    assert bench.names == ["rms_norm", "rms_norm", "linear_many"] * bench.spec.layers + ["rms_norm"]
    c, f = bench.spec.hidden, bench.spec.ffn
    assert bench.backend._gemm.shapes == {
        (MOST_TOKENS + 64, n, k) for n, k in ((2 * c, c), (c, c), (c, f), (bench.spec.vocab, c))
    }


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_120"])
def test_without_hopper_the_library_multiplies(bench: Bench, arch: str) -> None:
    bench.backend.device.loader.arch = arch
    bench.run(64)
    assert set(bench.names) == {"rms_norm"}
    assert {shape[0] for shape in bench.backend._gemm.shapes} == {64}


def test_what_the_paths_say_is_done(bench: Bench) -> None:
    paths = sys.modules["llmrs_cli.engine.backends.cuda_dense"].Paths
    asked: list[tuple[int, ...]] = []

    def only_down(m: int, n: int, k: int, multiprocessors: int) -> WidePlan | None:
        asked.append((m, n, k, multiprocessors))
        return WidePlan(132, 1, 64) if k == bench.spec.ffn else None

    dense = bench.backend._dense
    bench.backend._dense = replace(dense, paths=paths(wide=only_down))
    bench.run(64)
    c, f = bench.spec.hidden, bench.spec.ffn
    assert set(asked) == {
        (64, n, k, 132) for n, k in ((2 * c, c), (c, c), (2 * f, c), (c, f), (bench.spec.vocab, c))
    }
    # What comes after down is the library's, which knows nothing of what was left for its norm.
    assert bench.names == ["rms_norm", "rms_norm", "linear_wide"] * bench.spec.layers + ["rms_norm"]


# -- norms that need no kernel ----------------------------------------------------------------------------


def test_each_sum_leaves_what_the_next_product_takes(bench: Bench) -> None:
    bench.run(64)
    products = [passed for name, passed in bench.launches if name == "linear_wide"]
    layers = bench.model.layers
    norms = [norm for layer in layers for norm in (layer.attention_norm, layer.mlp_norm)]
    norms = [*norms[1:], bench.model.norm]
    sums, takers = products[1::2], products[0::2]
    assert [left["norm"] for left in sums] == [norm.data.ptr for norm in norms]
    assert not takers[0]["squares"] and not any(left["squares"] for left in sums)
    for left, taken in zip(sums, takers[1:], strict=True):
        assert taken["x"][0] == left["normed"] != 0
        assert taken["squares"] == left["left"] != 0 and taken["stride"] == left["left_stride"]
        assert 0 < taken["parts"] <= taken["stride"] and taken["stride"] % 4 == 0
        assert taken["eps"] == pytest.approx(layers[0].geometry.eps) and not taken["norm"]


def test_float16_has_no_room_for_what_is_not_yet_normed(backend: Any, tmp_path: Path) -> None:
    bench = Bench(backend, tmp_path, TinyModel(vocab=320))
    bench.run(64)
    assert bench.names == ["rms_norm", "linear_wide", "linear_wide"] * 2 * bench.spec.layers + [
        "rms_norm",
        "linear_wide",
    ]
    assert not any(passed["squares"] or passed["norm"] for name, passed in bench.launches if "wide" in name)


@pytest.mark.parametrize("whose", ["its own", "of another layer", "nobody's"])
def test_what_is_left_for_one_norm_serves_no_other(bench: Bench, whose: str) -> None:
    first, second = bench.model.layers
    norm = {"its own": first.mlp_norm, "of another layer": second.mlp_norm, "nobody's": None}[whose]
    hidden = bench.embedded(64)
    bench.add(hidden, norm)
    bench.backend.norm_gate_up(hidden, first)
    ready = whose == "its own"
    assert bench.names == ["linear_wide", *([] if ready else ["rms_norm"]), "linear_wide"]
    assert bool(bench.launches[-1][1]["squares"]) == ready


def test_a_sum_forgets_what_the_one_before_has_left(bench: Bench) -> None:
    layer = bench.model.layers[0]
    hidden = bench.embedded(64)
    bench.add(hidden, layer.mlp_norm)
    assert hidden.ahead is not None
    bench.add(hidden, None)
    assert hidden.ahead is None
    bench.backend.norm_gate_up(hidden, layer)
    assert bench.names == ["linear_wide", "linear_wide", "rms_norm", "linear_wide"]


@pytest.mark.parametrize("tokens", [FEW, MOST_TOKENS + 64])
def test_other_kernels_leave_nothing(bench: Bench, tokens: int) -> None:
    hidden = bench.embedded(tokens)
    bench.add(hidden, bench.model.layers[0].mlp_norm)
    assert hidden.ahead is None


def test_what_is_left_is_no_use_to_a_matrix_that_the_library_multiplies(bench: Bench) -> None:
    dense, layer = bench.backend._dense, bench.model.layers[0]
    hidden = bench.embedded(64)
    bench.add(hidden, layer.mlp_norm)
    bench.backend._dense = replace(dense, paths=replace(dense.paths, wide=lambda *_: None))
    bench.backend.norm_gate_up(hidden, layer)
    assert bench.names == ["linear_wide", "rms_norm"]


def test_a_head_takes_what_was_left_for_its_norm(bench: Bench) -> None:
    hidden = bench.embedded(64)
    bench.add(hidden, bench.model.norm)
    bench.backend.head(hidden, bench.model.norm, 1e-6, bench.model.head)
    assert bench.names == ["linear_wide", "linear_wide"]
    assert bench.launches[1][1]["squares"]


def test_some_tokens_go_on_in_rows_of_their_own(bench: Bench) -> None:
    hidden = bench.embedded(64)
    mixed = bench.backend._arena.take("mixed", (64, 128), "u2")
    tokens = bench.backend._arena.take("some tokens", (24,), "i4")
    chosen, attended = bench.backend.choose(hidden, mixed, tokens)
    assert bench.names == ["take_rows"]
    assert (len(chosen.residual), attended.shape) == (24, (24, 128))
    assert bench.launches[0][1]["tokens"] == tokens.data.ptr
    assert chosen.residual.data.ptr != hidden.residual.data.ptr and attended.data.ptr != mixed.data.ptr


def test_all_tokens_go_on_as_they_are(bench: Bench) -> None:
    hidden = bench.embedded(64)
    mixed = bench.backend._arena.take("mixed", (64, 128), "u2")
    tokens = bench.backend._arena.take("some tokens", (64,), "i4")
    assert bench.backend.choose(hidden, mixed, tokens) == (hidden, mixed)
    assert bench.names == []


@pytest.mark.parametrize("tokens", [4, 8])
def test_a_few_tokens_that_no_plan_suits_are_normed_in_their_product(bench: Bench, tokens: int) -> None:
    dense, layer = bench.backend._dense, bench.model.layers[0]
    hidden = bench.embedded(tokens)
    bench.add(hidden, layer.mlp_norm)
    bench.backend._dense = replace(dense, paths=replace(dense.paths, wide=lambda *_: None))
    bench.backend.norm_gate_up(hidden, layer)
    assert bench.names == ["linear_wide", "linear_small"]
    assert bench.launches[1][1]["norm"] == layer.mlp_norm.data.ptr


@pytest.mark.parametrize("tokens", [4, 8, 64])
def test_4_bit_weights_leave_as_much_for_a_norm(backend: Any, tmp_path: Path, tokens: int) -> None:
    bench = Bench(backend, tmp_path, replace(NARROW, awq=True))
    bench.run(tokens)
    assert bench.names.count("linear_wide") == 1  # the head, which has 16 bits
    assert bench.names.count("rms_norm") == 1  # of the first layer; the others find what is left for them
    hidden = bench.embedded(tokens)
    bench.add(hidden, bench.model.layers[0].mlp_norm)
    assert hidden.ahead is not None and hidden.ahead.parts == hidden.residual.shape[1] // 16


def test_a_few_tokens_of_4_bit_weights_leave_nothing(backend: Any, tmp_path: Path) -> None:
    bench = Bench(backend, tmp_path, replace(NARROW, awq=True))
    hidden = bench.embedded(2)
    bench.add(hidden, bench.model.layers[0].mlp_norm)
    assert hidden.ahead is None


def test_where_bits_are_fixed_nothing_is_left(tmp_path: Path) -> None:
    with cuda_backend(deterministic=True) as backend:
        bench = Bench(backend, tmp_path)
        hidden = bench.run(64)
        assert set(bench.names) == {"rms_norm", "take_rows"} and hidden.ahead is None
        assert "linear_wide" not in {unit.stem for unit in backend.device.built}


# -- what is built ahead ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_unit_that_a_step_runs_was_built_before_it(backend: Any, tmp_path: Path, dtype: str) -> None:
    bench = Bench(backend, tmp_path, replace(NARROW, tied=dtype == "float16", config={"torch_dtype": dtype}))
    stems = "linear_wide", "linear_many"
    built = {unit for unit in backend.device.built if unit.stem in stems}
    for tokens in (*TOKENS, *large_sizes(backend.sizes.idle_budget)):
        bench.run(tokens)
    assert {unit for unit in bench.units if unit.stem in stems} == built
    assert {unit.stem for unit in built} == set(stems)


def test_other_gpus_build_none(backend: Any, tmp_path: Path) -> None:
    backend.device.loader.arch = "sm_80"
    Bench(backend, tmp_path)
    assert "linear_wide" not in {unit.stem for unit in backend.device.built}
