"""The checkpoints and tokenizers that other tests stand on are what their files say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.helpers.byte_tokenizer import (
    ADDED,
    SPECIALS,
    byte_id,
    byte_ids,
    byte_tokenizer_json,
    piece_ids,
    sp_tokenizer_json,
)
from tests.helpers.ladder import NEWLINE, Ladder, chain, step_ids, write_ladder
from tests.helpers.tiny_model import TinyModel, write_tiny


@pytest.fixture(scope="module")
def byte_tokenizer() -> Tokenizer:
    return Tokenizer.from_buffer(byte_tokenizer_json(["+-"]))


def test_bytes_have_the_ids_of_qwen_and_llama(byte_tokenizer: Tokenizer) -> None:
    assert sorted(byte_id(byte) for byte in range(256)) == list(range(256))
    assert byte_tokenizer.encode("!\n 😊").ids == [0, 198, 220, 172, 253, 246, 232] == byte_ids("!\n 😊")


def test_pieces_and_specials_decode_to_their_text(byte_tokenizer: Tokenizer) -> None:
    for text, token in (piece_ids(["+-"]) | SPECIALS | ADDED).items():
        assert byte_tokenizer.decode([token], skip_special_tokens=False) == text
    assert piece_ids(["+-"])["+-"] == 320


def test_no_piece_is_a_single_byte() -> None:
    assert all(len(piece.encode()) > 1 for piece in piece_ids())


def test_pieces_are_never_encoded_but_specials_are(byte_tokenizer: Tokenizer) -> None:
    assert byte_tokenizer.encode("abc").ids == byte_ids("abc")
    assert byte_tokenizer.encode("<|im_end|><think>").ids == [300, 304]


def test_the_sentencepiece_like_tokenizer_strips_one_blank() -> None:
    tokenizer = Tokenizer.from_buffer(sp_tokenizer_json())
    assert tokenizer.decode([259, 260, 262]) == "Hello world!"
    assert tokenizer.decode(tokenizer.encode("a é 😊").ids) == "a é 😊"


def test_a_chain_gives_each_id_the_top_logit_after_the_one_before() -> None:
    assert chain([5, 6]) == {NEWLINE: {5: 20.0}, 5: {6: 20.0}}
    assert step_ids(["abc", "x", "<|im_end|>", 900, "+-"]) == [256, byte_id(ord("x")), 300, 900, 320]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("awq", [False, True])
def test_ladder_and_tiny_checkpoints_hold_every_tensor_of_their_kind(
    tmp_path: Path, family: str, awq: bool
) -> None:
    write_ladder(tmp_path / "ladder", Ladder(family=family, awq=awq))
    write_tiny(tmp_path / "tiny", TinyModel(family=family, awq=awq))  # type: ignore[arg-type]
    for name in ("ladder", "tiny"):
        tensors = load_file(tmp_path / name / "model.safetensors")
        config = json.loads((tmp_path / name / "config.json").read_text())
        suffix = "qweight" if awq else "weight"
        assert f"model.layers.0.mlp.down_proj.{suffix}" in tensors
        assert ("model.layers.0.self_attn.q_proj.bias" in tensors) == (family == "qwen2")
        assert ("model.layers.0.self_attn.q_norm.weight" in tensors) == (family == "qwen3")
        assert tensors["lm_head.weight"].shape == (config["vocab_size"], config["hidden_size"])


def test_a_tiny_checkpoint_is_a_function_of_its_seed(tmp_path: Path) -> None:
    one, same, other = (
        write_tiny(tmp_path / str(i), TinyModel(seed=seed)) / "model.safetensors"
        for i, seed in enumerate((1, 1, 2))
    )
    assert one.read_bytes() == same.read_bytes() != other.read_bytes()


def test_the_ladder_head_answers_by_the_last_token_alone(tmp_path: Path) -> None:
    folder = write_ladder(tmp_path, Ladder(reply=["abc", "de"], dtype=np.float32))
    tensors = load_file(folder / "model.safetensors")
    hidden = tensors["model.embed_tokens.weight"][NEWLINE]
    normed = hidden / np.sqrt(np.mean(hidden**2)) * tensors["model.norm.weight"]
    logits = tensors["lm_head.weight"] @ normed
    assert logits.argmax() == 256
    assert logits[256] == pytest.approx(20.0)
