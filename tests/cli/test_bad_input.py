"""What users hand in that cannot work: one sentence, the right exit status, nothing on stdout, no traceback.

Damage is done to a scripted model that answers when it is whole, and comes in through the command line, as
a user meets it; that each reader finds every kind of damage is tested in its own room.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from llmrs_cli.engine.model.spec import FAMILIES
from tests.cli.conftest import MakeLadder, Run
from tests.helpers.ladder import Ladder, write_ladder
from tests.helpers.tiny_gguf import write_tiny_gguf
from tests.helpers.tiny_model import TinyModel

WEIGHTS = "model.safetensors"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
Damage = Callable[[Path], object]


def one_sentence(stderr: str) -> None:
    """A message and at most a hint, each on its line, short enough to read."""
    lines = stderr.splitlines()
    assert 1 <= len(lines) <= 2, stderr
    assert lines[0].startswith("llmrs: ")
    assert "Traceback" not in stderr
    assert all(len(line) < 700 for line in lines)


@pytest.fixture
def model(ladder: MakeLadder, tmp_path: Path) -> Path:
    """A copy of a whole model, to be damaged."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in Path(ladder()).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


# -- ways to damage a model -----------------------------------------------------------------------------


def content(name: str, data: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(data)


def config(name: str = "config.json", **changes: Any) -> Damage:
    """Other values in a JSON file."""

    def change(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(found | changes))

    return change


def tensors(change: Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]) -> Damage:
    def rewrite(folder: Path) -> None:
        save_file(change(dict(load_file(folder / WEIGHTS))), folder / WEIGHTS)

    return rewrite


def sharded(folder: Path) -> None:
    """The same weights in two shards with an index."""
    found = load_file(folder / WEIGHTS)
    names = sorted(found)
    placed = {name: (FIRST if i % 2 else SECOND) for i, name in enumerate(names)}
    for shard in (FIRST, SECOND):
        save_file({name: found[name] for name in names if placed[name] == shard}, folder / shard)
    (folder / INDEX).write_text(json.dumps({"weight_map": placed}))
    (folder / WEIGHTS).unlink()


def shards(damage: Damage) -> Damage:
    def both(folder: Path) -> None:
        sharded(folder)
        damage(folder)

    return both


def cut(name: str, count: int) -> Damage:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - count)


def misplaced(folder: Path) -> None:
    placed = json.loads((folder / INDEX).read_text())["weight_map"]
    placed["model.norm.weight"] = "../outside.safetensors"
    (folder / INDEX).write_text(json.dumps({"weight_map": placed}))


def renumbered(token: str, id: int) -> Damage:
    """Another id for an entry of the tokenizer's vocabulary."""

    def change(folder: Path) -> None:
        found = json.loads((folder / "tokenizer.json").read_text())
        found["model"]["vocab"][token] = id
        (folder / "tokenizer.json").write_text(json.dumps(found))

    return change


def template(source: str) -> Damage:
    return config("tokenizer_config.json", chat_template=source)


UNUSABLE: dict[str, tuple[Damage, str]] = {
    "weights missing": (lambda folder: (folder / WEIGHTS).unlink(), "safetensors"),
    "weights empty": (content(WEIGHTS, b""), "empty"),
    "weights a pointer": (content(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\n"), "Git LFS"),
    "weights a web page": (content(WEIGHTS, b"<!DOCTYPE html><html></html>"), "HTML"),
    "weights a pickle": (content(WEIGHTS, b"PK\x03\x04" + bytes(60)), "pickle"),
    "header beyond bounds": (content(WEIGHTS, (2**60).to_bytes(8, "little") + b"{}"), str(2**60)),
    "one byte cut": (cut(WEIGHTS, 1), "truncated"),
    "a page cut": (cut(WEIGHTS, 4096), "truncated"),
    "shard missing": (shards(lambda folder: (folder / SECOND).unlink()), SECOND),
    "shard truncated": (shards(cut(SECOND, 1)), SECOND),
    "shard outside": (shards(misplaced), "'../outside.safetensors'"),
    "tensor misshapen": (
        tensors(lambda t: t | {"model.norm.weight": np.ones(7, np.float16)}),
        "'model.norm.weight' is (7,), not (384,)",
    ),
    "tensor missing": (
        tensors(lambda t: {k: v for k, v in t.items() if k != "lm_head.weight"}),
        "'lm_head.weight'",
    ),
    "tensor unexpected": (tensors(lambda t: t | {"extra": np.ones(7, np.float16)}), "'extra'"),
    "tensor of no float": (
        tensors(lambda t: t | {"model.norm.weight": np.ones(384, np.int32)}),
        "'model.norm.weight'",
    ),
    "architecture unknown": (config(architectures=["GPT9ForCausalLM"]), "'GPT9ForCausalLM'"),
    "quantisation unknown": (config(quantization_config={"quant_method": "magic", "bits": 3}), "'magic'"),
    "heads do not divide": (config(num_attention_heads=5, head_dim=None), "num_attention_heads"),
    "no vocabulary": (config(vocab_size=0), "vocab_size"),
    "too many layers": (config(num_hidden_layers=10**9), "num_hidden_layers"),
    "rope not a number": (config(rope_theta=float("nan")), "rope_theta"),
    "rope unknown": (config(rope_scaling={"rope_type": "spiral", "factor": 2.0}), "'spiral'"),
    "config no JSON": (content("config.json", b"{"), "config.json"),
    "generation of no use": (config("generation_config.json", temperature="hot"), "'hot'"),
    "tokenizer damaged": (content("tokenizer.json", b"{}"), "tokenizer.json"),
    "token id huge": (renumbered("<|im_start|>", 4_000_000_000), "4000000000"),
    "token id beyond 32 bits": (renumbered("abc", 5_000_000_000), "tokenizer.json"),
    "token id beyond the embedding": (renumbered("<|im_start|>", 384), "384"),
    "token id given twice": (renumbered("abc", 257), "257"),
    "template missing": (config("tokenizer_config.json", chat_template=None), "chat template"),
    "template no template": (template("{% if %}"), "template"),
    "template for ever": (
        template("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
        "template",
    ),
    "template reaching out": (template("{{ ''.__class__.__mro__ }}"), "template"),
}


@pytest.mark.parametrize("damage", UNUSABLE)
def test_a_model_that_cannot_be_used(llmrs: Run, model: Path, damage: str) -> None:
    change, part = UNUSABLE[damage]
    change(model)
    result = llmrs("chat", str(model), "-p", "Hi", "-t", "0")
    one_sentence(result.stderr)
    assert (result.exit_code, result.stdout) == (5, "")
    assert part in result.stderr


def test_the_same_model_undamaged_or_in_shards_answers(llmrs: Run, model: Path) -> None:
    assert llmrs("chat", str(model), "-p", "Hi", "-t", "0").stdout == "Hello world\n"
    sharded(model)
    assert llmrs("chat", str(model), "-p", "Hi", "-t", "0").stdout == "Hello world\n"


def test_an_unknown_architecture_is_shown_the_known_ones(llmrs: Run, model: Path) -> None:
    config(architectures=["GPT9ForCausalLM"])(model)
    said = llmrs("chat", str(model), "-p", "Hi").stderr
    assert all(name in said for name in FAMILIES)


def test_code_beside_a_model_is_never_run(llmrs: Run, model: Path) -> None:
    (model / "modeling_own.py").write_text(f"open({str(model / 'mark')!r}, 'w')\n")
    config(
        auto_map={"AutoModelForCausalLM": "modeling_own.Own", "AutoTokenizer": ["modeling_own.Own", None]}
    )(model)
    assert llmrs("chat", str(model), "-p", "Hi", "-t", "0").stdout == "Hello world\n"
    assert not (model / "mark").exists()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda data: b"FUGG" + data[4:], "GGUF"),
        (lambda data: data[:4] + (1).to_bytes(4, "little") + data[8:], "version 1"),
        (lambda data: data[:-40_000], "truncated"),
        (lambda data: data[:200], "truncated"),
    ],
    ids=["magic", "version", "data cut", "header cut"],
)
def test_a_gguf_file_that_cannot_be_used(
    llmrs: Run, tmp_path: Path, change: Callable[[bytes], bytes], part: str
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", TinyModel("llama"))
    path.write_bytes(change(path.read_bytes()))
    result = llmrs("chat", str(path), "-p", "Hi")
    one_sentence(result.stderr)
    assert (result.exit_code, result.stdout) == (5, "")
    assert part in result.stderr


def test_what_a_template_says_against_a_question_is_passed_on(llmrs: Run, model: Path) -> None:
    """The question is at fault here, not the model."""
    template("{{ raise_exception('Roles must\x1b[2J alternate') }}")(model)
    result = llmrs("chat", str(model), "-p", "Hi")
    one_sentence(result.stderr)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Roles must" in result.stderr and "alternate" in result.stderr and "\x1b" not in result.stderr


# -- questions and rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "stdin", "status", "part"),
    [
        (("chat", "MODEL", "-p", "x" * 3000), None, 2, "2048"),
        (("chat", "MODEL", "-p", "x", "-t", "-0.5"), None, 2, "--temperature"),
        (("batch", "-", "-m", "MODEL", "-t", "-0.5"), b"{}", 2, "--temperature"),
        (("chat", "MODEL"), b"a\xff\xfe", 2, "UTF-8"),
        (("chat", "MODEL", "-p", "x", "--logit-bias", "999999:1"), None, 2, "--logit-bias: the model has"),
        (("chat", "MODEL", "-p", "x", "--stop-token-id", "384"), None, 2, "ids from 0 to 383, not 384"),
        (("batch", "-", "-m", "MODEL", "--stop-token-id", "384"), b'{"prompt":"x"}', 2, "--stop-token-id"),
        (("chat", "MODEL", "-p", "x", "-f", "./absent.txt"), None, 5, "'./absent.txt'"),
        (("chat", "./absent", "-p", "x"), None, 5, "'./absent'"),
        (("chat", "./absent.gguf", "-p", "x"), None, 5, "'./absent.gguf'"),
        (("batch", "absent.jsonl", "-m", "MODEL"), None, 5, "'absent.jsonl'"),
        (("chat", "MODEL", "-p", "x", "--ctx", "100000"), None, 2, "2048"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else None,
)
def test_a_request_that_cannot_be_served(
    llmrs: Run, ladder: MakeLadder, args: tuple[str, ...], stdin: bytes | None, status: int, part: str
) -> None:
    result = llmrs(*(ladder() if arg == "MODEL" else arg for arg in args), stdin=stdin)
    one_sentence(result.stderr)
    assert (result.exit_code, result.stdout) == (status, "")
    assert part in result.stderr


@pytest.mark.parametrize(
    ("line", "code", "part"),
    [
        (b'{"prompt":', "invalid_json", "JSON"),
        (b'{"prompt":"a\xff"}', "invalid_utf8", "UTF-8"),
        (b'{"prompt":"a\\ud800"}', "invalid_text", "surrogate"),
        (b'{"prompt":"a","temperature":-0.5}', "invalid_request", "temperature"),
        (b'{"prompt":"a","temperature":NaN}', "invalid_json", "NaN"),
        (b'{"prompt":"a","logit_bias":{"999999999":-100}}', "invalid_request", "999999999"),
        (b'{"prompt_token_ids":[384]}', "invalid_request", "384"),
        (b'{"prompt":"' + b"x" * 3000 + b'"}', "context_length_exceeded", "2048"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_row_that_cannot_be_served_is_an_error_row_between_good_ones(
    llmrs: Run, ladder: MakeLadder, line: bytes, code: str, part: str
) -> None:
    good = b'{"prompt":"Hi"}'
    result = llmrs("batch", "-", "-m", ladder(), "-t", "0", "-q", stdin=b"\n".join([good, line, good]))
    assert result.exit_code == 3
    one_sentence(result.stderr)
    first, bad, last = (json.loads(row) for row in result.stdout.splitlines())
    assert (first["text"], last["text"]) == ("Hello world", "Hello world")
    assert (bad["text"], bad["error"]["code"], bad["error"]["line"]) == (None, code, 2)
    assert part in bad["error"]["message"]
    assert len(bad["error"]["message"]) < 300


def test_a_tokenizer_beyond_the_embedding_is_a_model_that_cannot_chat(llmrs: Run, tmp_path: Path) -> None:
    """Its markers have ids that the embedding does not: the model is at fault, not the question."""
    folder = write_ladder(tmp_path / "model", Ladder(vocab=256, reply=("O", "K"), eos=None))
    result = llmrs("chat", str(folder), "-p", "x")
    one_sentence(result.stderr)
    assert (result.exit_code, result.stdout) == (5, "")
    assert "303" in result.stderr and "255" in result.stderr
