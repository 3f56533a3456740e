"""What went wrong in other servers with the tokenizers of Qwen2.5 and Llama 3, tried on ours over the wire.

The models are random; a form, and biases, make them say what is wanted.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.asking import complete, pieces, rendered
from tests.helpers.served import Served, served
from tests.helpers.tiny_model import TinyModel, write_tiny


def real(folder: Path, data: Path, name: str, vocab: int, eos: int) -> Path:
    """A random model with a tokenizer of which this is the vocabulary."""
    shape = TinyModel(vocab=vocab, hidden=64, ffn=128, layers=1, tied=True, tokenizer=False)
    write_tiny(folder, shape)
    source = data / "tokenizers" / name
    (folder / "tokenizer.json").write_bytes(gzip.decompress((source / "tokenizer.json.gz").read_bytes()))
    (folder / "tokenizer_config.json").write_bytes((source / "tokenizer_config.json").read_bytes())
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return folder


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[Served]:
    folder = real(tmp_path_factory.mktemp("qwen"), data, "qwen2.5", 151_936, 151_645)
    with served(folder, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[Served]:
    folder = real(tmp_path_factory.mktemp("llama"), data, "llama3.2", 128_256, 128_009)
    with served(folder, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.mark.parametrize(("text", "ids"), [(" 龘", [18137, 122, 246]), ("龘", [82912, 246])])
def test_a_blank_in_a_token_that_begins_a_character_is_kept(qwen: Served, text: str, ids: list[int]) -> None:
    form = {"structured_outputs": {"choice": [text]}, "logit_bias": {str(id): 100 for id in ids}}
    choice = complete(qwen, "x", return_token_ids=True, **form)
    assert choice["token_ids"][: len(ids)] == ids
    assert choice["text"] == "".join(pieces(qwen, "x", **form)) == text


def test_any_text_is_the_same_in_pieces_and_whole(qwen: Served) -> None:
    chance = random.Random(0)
    for _ in range(4):
        text = "".join(
            chance.choice(["[", ')"', "\t", "\n \n", "😊", "<b>", "'s", " é", "漢", "x "]) for _ in range(9)
        )
        form = {"structured_outputs": {"choice": [text]}, "max_tokens": 60, "temperature": 1, "seed": 1}
        assert "".join(pieces(qwen, "x\n (", **form)) == complete(qwen, "x\n (", **form)["text"] == text


@pytest.mark.parametrize("ids", [[382], [13, 271], [13, 198, 198]])
def test_a_stop_string_is_found_whatever_tokens_it_is_made_of(qwen: Served, ids: list[int]) -> None:
    others = {13, 198, 271, 382} - {*ids}
    bias = {str(id): 90 + id / 100 for id in ids} | {str(id): -100.0 for id in others}
    form = {"structured_outputs": {"regex": r"[.,][\n ][\n ]x{20}"}, "logit_bias": bias}
    choice = complete(qwen, "x", stop=["\n\n"], return_token_ids=True, **form)
    assert choice["token_ids"] == ids
    assert (choice["text"], choice["finish_reason"]) == (".", "stop")


def test_an_empty_system_message_is_not_replaced_by_the_template_s_own(qwen: Served) -> None:
    alone = rendered(qwen, ("user", "hi"))["prompt"]
    assert alone.startswith("<|im_start|>system\nYou are Qwen")
    assert rendered(qwen, ("system", ""), ("user", "hi"))["prompt"].startswith(
        "<|im_start|>system\n<|im_end|>\n"
    )


def test_a_prompt_has_one_bos_if_the_model_has_one(llama: Served, qwen: Served) -> None:
    for server, count in ((llama, 1), (qwen, 0)):
        chat = rendered(server, ("user", "hi"))["token_ids"]
        plain = server.post("/tokenize", {"prompt": "hi"}).json["tokens"]
        assert (chat.count(128_000), plain.count(128_000)) == (count, count)
