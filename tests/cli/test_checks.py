"""`llmrs verify`, `bench` and `help`: what they report, as text and as JSON, and their statuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.cli import verify
from llmrs_cli.cli.bandwidth import known_bandwidth
from llmrs_cli.cli.bench import random_model
from llmrs_cli.engine.verify import Difference, Verdict
from llmrs_cli.errors import ExitCode, ModelError
from tests.cli.conftest import MakeLadder, Run
from tests.helpers.tiny_model import TinyModel, write_tiny

# -- verify -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"tokenizer": False}, {"chat_template": None}])
def test_verify_agrees_with_itself(llmrs: Run, tmp_path: Path, changes: dict[str, Any]) -> None:
    model = str(write_tiny(tmp_path / "tiny", TinyModel(**changes)))
    result = llmrs("verify", model, "--max-tokens", "4")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert all("agrees" in line for line in lines[:-1])
    assert lines[-1].startswith(f"{len(lines) - 1} of {len(lines) - 1} prompts agree")


def test_verify_shows_the_first_difference(
    llmrs: Run, ladder: MakeLadder, monkeypatch: pytest.MonkeyPatch
) -> None:
    difference = Difference(3, 259, 260, (2.5, 2.25), (1.0, 3.0), "layer 0 attend")
    verdicts = [Verdict(5, 1, 1e-6, None), Verdict(5, 0, 0.5, difference)]
    monkeypatch.setattr(verify, "_compare", lambda *_: verdicts)
    result = llmrs("verify", ladder())
    assert result.exit_code == ExitCode.ENGINE_FAULT
    assert result.stdout.splitlines() == [
        "prompt 1: agrees, 5 tokens, 1 too close to call, relative error 1.0e-06",
        "prompt 2: DIFFERS, 5 tokens, relative error 5.0e-01",
        "  token 3: expected 259 'Hello', found 260 ' world'",
        "    logits by the reference 2.5000 and 1.0000, margin 1.5000",
        "    logits by the backend   2.2500 and 3.0000",
        "    first operation that strays: layer 0 attend",
        "1 of 2 prompts agree, 10 tokens",
    ]
    assert "1 of 2 prompts" in result.stderr


def test_verify_says_how_many_activations_saturated_and_where() -> None:
    places = {
        "layer 0 attend": 1,
        "layer 2 norm_gate_up": 9,
        "layer 1 norm_gate_up": 4,
        "layer 0 keys and values": 2,
    }
    verdict = Verdict(5, 0, 1e-3, None, places)
    assert list(verify.describe([verdict], str))[1] == (
        "  saturated at the end of float16: 9 in layer 2 norm_gate_up, 4 in layer 1 norm_gate_up, "
        "2 in layer 0 keys and values, 1 elsewhere"
    )
    assert len(list(verify.describe([Verdict(5, 0, 1e-3, None)], str))) == 2


def test_verify_as_json(llmrs: Run, ladder: MakeLadder) -> None:
    report = json.loads(llmrs("verify", ladder(), "--max-tokens", "3", "--json").stdout)
    assert report["device"] == "reference"
    assert [prompt["saturated"] for prompt in report["prompts"]] == [{}] * len(verify.PROMPTS)
    assert [prompt["difference"] for prompt in report["prompts"]] == [None] * len(verify.PROMPTS)


# -- bench --------------------------------------------------------------------------------------------


QUICK = ("--prompt-tokens", "8", "--tokens", "3", "--repeats", "1", "--batch", "2,1")


@pytest.fixture(autouse=True)
def small_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure memory with little of it: the figure means nothing here."""
    monkeypatch.setattr("llmrs_cli.cli.measure.READ_BYTES", 1 << 20)


def test_bench_measures_every_batch(llmrs: Run, tmp_path: Path) -> None:
    model = str(write_tiny(tmp_path / "tiny", TinyModel()))
    result = llmrs("bench", model, *QUICK, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert [row["batch"] for row in report["rows"]] == [1, 2]
    assert all(row["prefill"] > 0 and row["decode"] > 0 and row["share"] > 0 for row in report["rows"])
    assert known_bandwidth("reference") == report["bandwidth"] > 0
    assert (report["prompt_tokens"], report["answer_tokens"], report["random_weights"]) == (8, 3, False)


def test_bench_needs_only_a_configuration_with_random_weights(llmrs: Run, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", TinyModel())
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer.json").unlink()
    result = llmrs("bench", str(folder), "--random-weights", *QUICK)
    assert result.exit_code == 0, result.stderr
    assert "(random weights)" in result.stdout
    assert len(result.stdout.splitlines()) == 5


def test_random_weights_for_an_alias_need_nothing_at_all() -> None:
    spec = random_model("qwen2.5-0.5b").spec
    assert (spec.hidden, spec.layers, spec.tied_head) == (896, 24, True)
    with pytest.raises(ModelError):
        random_model("no-such-alias")


@pytest.mark.parametrize("batch", ["0", "1,x", "", "2000"])
def test_bench_refuses_odd_batches(llmrs: Run, batch: str) -> None:
    result = llmrs("bench", "any", "--batch", batch)
    assert result.exit_code == 2
    assert "--batch" in result.stderr


# -- help ---------------------------------------------------------------------------------------------


def test_help_topics(llmrs: Run) -> None:
    assert "141" in llmrs("help", "exit-codes").stdout
    assert "HF_TOKEN" in llmrs("help", "environment").stdout
    assert "prompt_token_ids" in llmrs("help", "formats").stdout
    assert llmrs("help").stdout.startswith("Usage: llmrs")
    assert llmrs("help", "poetry").exit_code == 2
