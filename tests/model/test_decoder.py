"""The forward pass as a list of calls: five fused ops a layer, each layer with its own weights and cache.

What the ops compute is their own tests' business; here they only write down who calls them with what.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmrs_cli.engine.model.decoder import Body, run_body, run_head


class Recorder:
    """A backend whose ops return a name for what they were asked to make."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, op: str) -> Any:
        def call(*args: Any) -> str:
            self.calls.append((op, args))
            return f"{op} {len(self.calls)}"

        return call

    def choose(self, hidden: str, mixed: str, tokens: str) -> tuple[str, str]:
        self.calls.append(("choose", (hidden, mixed, tokens)))
        return f"chosen {hidden}", f"chosen {mixed}"


def model(layers: int) -> Any:
    """Weights that are names."""
    parts = ("geometry", "attention_norm", "o", "mlp_norm", "down")
    made = [SimpleNamespace(**{part: f"{part} {i}" for part in parts}) for i in range(layers)]
    return SimpleNamespace(
        embedding="embedding", layers=made, rope="rope", norm="norm", eps=1e-6, head="head"
    )


def body(layers: int, caches: list[str]) -> tuple[Recorder, Any, Body]:
    recorder, weights = Recorder(), model(layers)
    left = run_body(recorder, weights, caches, "step")  # type: ignore[arg-type]
    return recorder, weights, left


def test_a_layer_is_five_calls_over_its_own_weights_and_cache() -> None:
    recorder, weights, left = body(3, ["cache 0", "cache 1", "cache 2"])
    hidden: Any = left.hidden
    assert hidden == "embed 1"
    expected: list[tuple[str, tuple[Any, ...]]] = [("embed", ("embedding", "step"))]
    for i, layer in enumerate(weights.layers[:2]):
        q, mixed, activated = (f"{op} {5 * i + at}" for op, at in MADE)
        expected += [
            ("norm_qkv_rope_store", (hidden, layer, f"cache {i}", "rope", "step")),
            ("attend", (q, f"cache {i}", "step", f"geometry {i}")),
            ("project_add", (mixed, f"o {i}", hidden, f"mlp_norm {i}")),
            ("norm_gate_up", (hidden, layer)),
            ("project_add", (activated, f"down {i}", hidden, f"attention_norm {i + 1}")),
        ]
    expected += [
        ("norm_qkv_rope_store", (hidden, weights.layers[2], "cache 2", "rope", "step")),
        ("attend", ("norm_qkv_rope_store 12", "cache 2", "step", "geometry 2")),
    ]
    assert recorder.calls == expected
    assert left.mixed == "attend 13"


MADE = (("norm_qkv_rope_store", 2), ("attend", 3), ("norm_gate_up", 5))
"""Results that the next call of the layer takes, with their place among the calls."""


@pytest.mark.parametrize("caches", [[], ["only one"], ["a", "b", "one too many"]])
def test_a_cache_for_each_layer_no_more_and_no_less(caches: list[str]) -> None:
    with pytest.raises(ValueError, match="zip"):
        body(2, caches)


def test_the_head_ends_the_last_layer_for_the_tokens_that_ask_for_logits() -> None:
    recorder, weights = Recorder(), model(2)
    logits: Any = run_head(recorder, weights, Body("hidden", "mixed"), "token")  # type: ignore[arg-type]
    assert logits == "head 5"[: len("token")]
    hidden = "chosen hidden"
    assert recorder.calls == [
        ("choose", ("hidden", "mixed", "token")),
        ("project_add", ("chosen mixed", "o 1", hidden, "mlp_norm 1")),
        ("norm_gate_up", (hidden, weights.layers[1])),
        ("project_add", ("norm_gate_up 3", "down 1", hidden, "norm")),
        ("head", (hidden, "norm", 1e-6, "head")),
    ]
