"""What does not fit its 16 bits is counted where it arose, and counting changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrs_cli.engine.backends.looks import HostLooks, Looks
from llmrs_cli.engine.backends.reference import PagedKv, ReferenceBackend
from llmrs_cli.engine.forced import Loaded
from llmrs_cli.engine.saturation import Saturations
from llmrs_cli.engine.verify import BOUNDS, compare, find_culprit, forced_logits
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from tests.helpers.tiny_model import TinyModel, write_tiny

LARGEST = 65504
IDS = (5, 9, 200, 31, 77)


class NarrowLooks(HostLooks):
    """The reference's results as if they were float16."""

    def saturated(self, result: Any, tokens: int) -> int:
        return int((np.abs(result[:tokens]) >= LARGEST).sum())

    def saturated_kv(self, kv: Any) -> int:
        assert isinstance(kv, PagedKv)
        return sum(int((np.abs(part) >= LARGEST).sum()) for part in (kv.keys, kv.values))

    def saturated_norm(self, residual: Any, norm: Any, tokens: int) -> int:
        return int((np.abs(residual[:tokens] * norm) >= LARGEST).sum())


class NarrowBackend(ReferenceBackend):
    def looks(self) -> Looks:
        return NarrowLooks()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder: Path = write_tiny(tmp_path_factory.mktemp("tiny"), TinyModel())
    checkpoint = open_checkpoint(folder)
    backend = NarrowBackend()
    return Loaded(backend, load_model(checkpoint, backend), checkpoint.spec)


def massive(loaded: Loaded, layer: int, **factors: float) -> Loaded:
    """The same model with vectors of a layer scaled."""
    layers = list(loaded.model.layers)
    scaled = {name: getattr(layers[layer], name) * np.float32(factor) for name, factor in factors.items()}
    layers[layer] = replace(layers[layer], **scaled)
    return replace(loaded, model=replace(loaded.model, layers=tuple(layers)))


def counts(loaded: Loaded) -> dict[str, int]:
    watched = Saturations(loaded.backend, len(IDS) - 1)
    forced_logits(loaded, IDS, 1, watched)
    return watched.counts


def test_nothing_is_counted_where_nothing_saturates(tiny: Loaded) -> None:
    assert counts(tiny) == {}


def test_counting_changes_no_logit(tiny: Loaded) -> None:
    watched = forced_logits(tiny, IDS, 1, Saturations(tiny.backend, len(IDS) - 1))
    assert (watched == forced_logits(tiny, IDS, 1)).all()


def test_a_gate_that_bursts_is_named_with_its_layer(tiny: Loaded) -> None:
    found = counts(massive(tiny, 1, mlp_norm=1e3))
    assert list(found) == ["layer 1 norm_gate_up"]
    assert 0 < found["layer 1 norm_gate_up"] < (len(IDS) - 1) * 256


def test_queries_keys_values_and_what_attention_makes_of_them_are_counted(tiny: Loaded) -> None:
    found = counts(massive(tiny, 0, attention_norm=1e6))
    places = ["attention norm", "norm_qkv_rope_store", "keys and values", "attend"]
    assert list(found)[:4] == [f"layer 0 {place}" for place in places]


def test_the_verdict_holds_the_counts(tiny: Loaded) -> None:
    bound = BOUNDS["reference", "float32"]
    bursting = massive(tiny, 1, mlp_norm=1e3)
    assert compare(tiny, tiny, IDS[:2], IDS[2:], bound).saturated == {}
    assert compare(bursting, bursting, IDS[:1], IDS[1:], bound).saturated == counts(bursting)


def test_an_op_whose_result_cannot_be_compared_is_passed_over(tiny: Loaded) -> None:
    class Blind(HostLooks):
        def numbers(self, result: Any, tokens: int) -> Any:
            return None

    class BlindBackend(ReferenceBackend):
        def looks(self) -> Looks:
            return Blind()

    blind = replace(massive(tiny, 0, mlp_norm=2.0), backend=BlindBackend())
    assert find_culprit(blind, tiny, IDS, 1e-5) is None
