"""When what stands between two attentions is one launch, and what it is given; on a GPU that only pretends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.kernels.launch import Kernel, Shape
from llmrs_cli.kernels.layer_plans import LayerShape, plan_for
from llmrs_cli.kernels.layer_wide import unit
from tests.backends.test_cuda_dense import NARROW, Bench
from tests.helpers.fake_cuda import cuda_backend
from tests.helpers.launches import arguments


@pytest.fixture
def backend() -> Iterator[Any]:
    with cuda_backend() as opened:
        yield opened


class Joined(Bench):
    """... whose layers are finished in one launch wherever there is a plan."""

    def __init__(self, backend: Any, folder: Path, tiny: Any = NARROW) -> None:
        backend._paths = replace(backend._paths, layer=plan_for)
        backend._between = replace(backend._between, paths=backend._paths)
        super().__init__(backend, folder, tiny)
        self.layers: list[tuple[str, dict[str, Any]]] = []
        launch = backend.device.launch

        def listen(kernel: Kernel, shape: Shape, slots: bytes) -> None:
            if kernel.unit.stem == "layer_wide":
                self.launches.append(("layer_wide", arguments(kernel, slots)))
            launch(kernel, shape, slots)

        backend.device.launch = listen

    @property
    def shape(self) -> LayerShape:
        spec = self.spec
        heads = spec.heads * spec.head_dim
        return LayerShape(heads, spec.hidden, spec.ffn, heads + 2 * spec.kv_heads * spec.head_dim)


@pytest.mark.parametrize("tokens", [16, 64, 128, 192])
def test_a_layer_is_one_launch_behind_its_attention(backend: Any, tmp_path: Path, tokens: int) -> None:
    bench = Joined(backend, tmp_path)
    bench.run(tokens)
    layers = bench.spec.layers
    assert bench.names == ["rms_norm", "linear_wide", *["layer_wide"] * layers, "linear_wide"]
    passed = [found for name, found in bench.launches if name == "layer_wide"]
    model: Any = bench.model
    for found, layer, following in zip(passed, model.layers, model.layers[1:], strict=False):
        assert found["o"][0] == layer.o.weight.data.ptr and found["down"][0] == layer.down.weight.data.ptr
        assert found["qkv_weight"][0] == following.qkv.weight.data.ptr
        assert found["norm_mlp"] == layer.mlp_norm.data.ptr
        assert found["norm_next"] == following.attention_norm.data.ptr
        assert found["m"] == tokens and found["eps"] == pytest.approx(layer.geometry.eps)
    assert passed[-1]["q"] == 0 and passed[-1]["norm_next"] == bench.model.norm.data.ptr
    head = bench.launches[-1][1]
    assert head["squares"] and head["parts"] == plan_for(tokens, bench.shape, 132).parts(bench.spec.hidden)  # type: ignore[union-attr]


def test_the_projection_is_used_once(backend: Any, tmp_path: Path) -> None:
    bench = Joined(backend, tmp_path)
    hidden = bench.embedded(64)
    layer, following = bench.model.layers[:2]
    mixed = backend._arena.take("attended", (64, bench.shape.heads), "u2")
    assert backend.finish(layer, hidden, mixed, following.attention_norm, following)
    assert hidden.projected.shape == (64, bench.shape.qkv)
    bench.launches.clear()
    step = bench.step(64)
    backend.norm_qkv_rope_store(hidden, following, bench.kv[1], bench.model.rope, step)
    assert bench.names == [] and hidden.projected is None
    backend.norm_qkv_rope_store(hidden, following, bench.kv[1], bench.model.rope, step)
    assert bench.names == ["linear_wide"]


@pytest.mark.parametrize("tokens", [1, 8, 193, 320])
def test_other_numbers_of_tokens_go_one_by_one(backend: Any, tmp_path: Path, tokens: int) -> None:
    bench = Joined(backend, tmp_path)
    bench.run(tokens)
    assert bench.names and "layer_wide" not in bench.names


def test_it_is_not_taken_before_it_is_measured(backend: Any, tmp_path: Path) -> None:
    bench = Bench(backend, tmp_path)
    hidden = bench.embedded(64)
    mixed = backend._arena.take("attended", hidden.residual.shape, "u2")
    assert not backend.finish(bench.model.layers[0], hidden, mixed, bench.model.norm, None)


def test_without_hopper_nothing_is_joined(backend: Any, tmp_path: Path) -> None:
    bench = Joined(backend, tmp_path)
    backend.device.loader.arch = "sm_120"
    bench.run(64)
    assert "layer_wide" not in bench.names


@pytest.mark.parametrize(
    "tiny",
    [replace(NARROW, awq=True), replace(NARROW, config={"torch_dtype": "float16"})],
    ids=["awq", "f16"],
)
def test_4_bits_and_float16_go_one_by_one(backend: Any, tmp_path: Path, tiny: Any) -> None:
    bench = Joined(backend, tmp_path, tiny)
    bench.run(64)
    assert "layer_wide" not in bench.names


def test_where_bits_are_fixed_nothing_is_joined(tmp_path: Path) -> None:
    with cuda_backend(deterministic=True) as fixed:
        bench = Joined(fixed, tmp_path)
        bench.run(64)
        assert "layer_wide" not in bench.names


def test_its_kernels_are_built_with_the_others(backend: Any, tmp_path: Path) -> None:
    bench = Joined(backend, tmp_path)
    wanted = {plan_for(m, bench.shape, 132) for m in (64, 128, 192)}
    assert {unit(True, plan) for plan in wanted if plan is not None} <= set(backend.device.built)


def test_what_has_a_bias_on_a_sum_is_not_joined(backend: Any, tmp_path: Path) -> None:
    bench = Joined(backend, tmp_path)
    between: Any = sys.modules["llmrs_cli.engine.backends.cuda_between"]
    layer: Any = bench.model.layers[0]
    assert between.matrices_of(layer, None).shape.qkv == 8
    biased = replace(layer, down=replace(layer.down, bias=layer.mlp_norm))
    assert between.matrices_of(biased, None) is None
