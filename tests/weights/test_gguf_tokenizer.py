"""Tokenizers in GGUF metadata encode as the tokenizers that they were made from.

Longer than most files: it is a list of small cases, one kind of tokenizer after the other.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.gguf_tokenizer import chat_templates, tokenizer_config, tokenizer_json
from llmrs_cli.engine.weights.gguf_vocabulary import Vocabulary, read_vocabulary
from llmrs_cli.errors import ModelError
from tests.helpers.byte_tokenizer import byte_tokenizer_json
from tests.helpers.tiny_gguf import write_tiny_gguf
from tests.helpers.tiny_model import TinyModel

DATA = Path(__file__).parent.parent / "data"
TEXTS = [
    "",
    " ",
    "Hello, world! It's 2024 and I'LL pay $1,234,567.89.",
    "def f(x):\n\treturn  x**2   # ünïcödé 你好 😊🏽 \r\n\n\n",
    "   leading, trailing   ",
    "e\u0301 composes; \u1100\u1161 too",
    "<|im_start|>user\n<|eot_id|>x<|endoftext|>",
    "¼ Ⅷ ٣٤٥ 12345",
    "don't DON'T we'Re",
]

Metadata = dict[str, Any]


def metadata_of(source: bytes, pre: str, *, adds: dict[str, Any] | None = None) -> Metadata:
    """GGUF metadata of a byte-level tokenizer.json, as converters write them."""
    whole = json.loads(source)
    by_id = {i: (text, 1) for text, i in whole["model"]["vocab"].items()}
    by_id |= {t["id"]: (t["content"], 3 if t["special"] else 4) for t in whole["added_tokens"]}
    entries = [by_id.get(i, (f"[PAD{i}]", 5)) for i in range(max(by_id) + 9)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in whole["model"]["merges"]]
    found: Metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [text for text, _ in entries],
        "tokenizer.ggml.token_type": [kind for _, kind in entries],
        "tokenizer.ggml.merges": merges,
    }
    return found | {f"tokenizer.ggml.{key}": value for key, value in (adds or {}).items()}


def vocabulary(metadata: Metadata) -> Vocabulary:
    found = read_vocabulary(metadata)
    assert found is not None
    return found


def built(metadata: Metadata) -> Tokenizer:
    return Tokenizer.from_buffer(tokenizer_json(vocabulary(metadata)))


def refusal(metadata: Metadata) -> str:
    with pytest.raises(ModelError) as caught:
        tokenizer_json(vocabulary(metadata))
    return str(caught.value)


# -- byte-level BPE -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("folder", "pre"), [("qwen2.5", "qwen2"), ("llama3.2", "llama-bpe")])
def test_real_tokenizers_survive_the_way_through_gguf(folder: str, pre: str) -> None:
    source = gzip.decompress((DATA / "tokenizers" / folder / "tokenizer.json.gz").read_bytes())
    theirs, ours = Tokenizer.from_buffer(source), built(metadata_of(source, pre))
    for text in TEXTS:
        expected = theirs.encode(text, add_special_tokens=False)
        found = ours.encode(text, add_special_tokens=False)
        assert found.ids == expected.ids, text
        assert ours.decode(found.ids, skip_special_tokens=False) == theirs.decode(
            expected.ids, skip_special_tokens=False
        )


def test_the_built_in_model_encodes_the_golden_prompts(smollm2: Path) -> None:
    data = open_checkpoint(smollm2).tokenizer_json
    assert data is not None
    tokenizer = Tokenizer.from_buffer(data)
    for row in json.loads((DATA / "golden" / "smollm2-135m-q4_1-greedy.json").read_text()):
        assert tokenizer.encode(row["prompt"], add_special_tokens=False).ids == row["prompt_ids"]
        assert tokenizer.decode(row["greedy_ids"]) == row["text"]


def test_the_built_in_model_has_a_template_and_named_tokens(smollm2: Path) -> None:
    checkpoint = open_checkpoint(smollm2)
    assert checkpoint.chat_template is not None and "<|im_start|>" in checkpoint.chat_template
    assert checkpoint.tokenizer_config["eos_token"] == "<|im_end|>"
    assert checkpoint.tokenizer_config["add_bos_token"] is False


@pytest.fixture(scope="module")
def bytes_metadata() -> Metadata:
    """The byte tokenizer of the tests: no merges, all bytes."""
    return metadata_of(byte_tokenizer_json(), "gpt-2")


@pytest.mark.parametrize("pre", ["default", "gpt-2", "smollm", "llama-bpe", "llama3", "llama-v3", "qwen2"])
@pytest.mark.parametrize("text", TEXTS)
def test_every_splitting_rule_keeps_every_byte(bytes_metadata: Metadata, pre: str, text: str) -> None:
    tokenizer = built(bytes_metadata | {"tokenizer.ggml.pre": pre})
    decoded = tokenizer.decode(
        tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False
    )
    assert decoded == (text.replace("e\u0301", "é").replace("\u1100\u1161", "가") if pre == "qwen2" else text)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["ab", " 12345", "!?", " x"]),
        ("smollm", ["ab", " ", "1", "2", "3", "4", "5", "!?", " x"]),
        ("default", ["ab", " ", "123", "45", "!?", " x"]),
        ("llama-bpe", ["ab", " ", "123", "45", "!?", " x"]),
        ("qwen2", ["ab", " ", "1", "2", "3", "4", "5", "!?", " x"]),
    ],
)
def test_splitting_rules_differ_in_their_numbers(
    bytes_metadata: Metadata, pre: str, pieces: list[str]
) -> None:
    tokenizer = built(bytes_metadata | {"tokenizer.ggml.pre": pre})
    text = "ab 12345!? x"
    cuts = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cuts] == pieces


def test_a_missing_rule_is_the_default_one(bytes_metadata: Metadata) -> None:
    without = {k: v for k, v in bytes_metadata.items() if k != "tokenizer.ggml.pre"}
    default = bytes_metadata | {"tokenizer.ggml.pre": "default"}
    assert tokenizer_json(vocabulary(without)) == tokenizer_json(vocabulary(default))


def test_merges_join_in_order_of_rank() -> None:
    tokens = ["a", "b", "c", "ab", "bc", "abc"]
    base = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.pre": "gpt-2"}
    first = built(base | {"tokenizer.ggml.merges": ["b c", "a bc", "a b"]})
    assert first.encode("abcab").tokens == ["abc", "ab"]
    other = built(base | {"tokenizer.ggml.merges": ["a b"]})
    assert other.encode("abcab").tokens == ["ab", "c", "ab"]


def test_a_word_that_is_a_token_is_taken_whole_by_llama3_alone() -> None:
    tokens = ["a", "b", "c", "ab", "abc"]
    base = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["a b"]}
    assert built(base | {"tokenizer.ggml.pre": "llama-bpe"}).encode("abc").tokens == ["abc"]
    assert built(base | {"tokenizer.ggml.pre": "gpt-2"}).encode("abc").tokens == ["ab", "c"]


# -- first and last tokens ------------------------------------------------------------------------------


def test_the_first_token_is_added_where_the_file_or_the_rule_says_so(bytes_metadata: Metadata) -> None:
    bos = bytes_metadata["tokenizer.ggml.tokens"].index("<|im_start|>")
    keys = bytes_metadata | {"tokenizer.ggml.bos_token_id": bos}
    assert built(keys).encode("a").ids[0] != bos
    asked = keys | {"tokenizer.ggml.add_bos_token": True}
    assert (
        built(asked).encode("a").ids[0] == bos
        and built(asked).encode("a", add_special_tokens=False).ids[0] != bos
    )
    llama = keys | {"tokenizer.ggml.pre": "llama-bpe"}
    assert (
        built(llama).encode("a").ids[0] == bos
        and tokenizer_config(vocabulary(llama))["add_bos_token"] is True
    )
    refused = llama | {"tokenizer.ggml.add_bos_token": False}
    assert (
        built(refused).encode("a").ids[0] != bos
        and tokenizer_config(vocabulary(refused))["add_bos_token"] is False
    )
    both = asked | {"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.eos_token_id": bos}
    assert [i == bos for i in built(both).encode("a").ids] == [True, False, True]


def test_roles_are_given_as_text(bytes_metadata: Metadata) -> None:
    tokens = bytes_metadata["tokenizer.ggml.tokens"]
    config = tokenizer_config(
        vocabulary(bytes_metadata | {"tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>")})
    )
    assert config["eos_token"] == "<|im_end|>" and config["bos_token"] is None


# -- SentencePiece --------------------------------------------------------------------------------------

PIECES = ["▁", "a", "b", "c", "▁a", "ab", "bc", "abc", "▁ab", "ca"]


def sentencepiece(scores: list[float] | None = None, **changes: Any) -> Metadata:
    """<unk>, <s>, </s>, 256 byte tokens, then PIECES."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *PIECES]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(PIECES)]
    of_pieces = scores or [-10.0 - i for i in range(len(PIECES))]
    found: Metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [0.0] * 259 + of_pieces,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return found | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def best_first(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule, written plainly: join the neighbours whose result scores best, leftmost first."""
    pieces = list(text)
    while True:
        joins = [
            (-scores[a + b], i)
            for i, (a, b) in enumerate(zip(pieces, pieces[1:], strict=False))
            if a + b in scores
        ]
        if not joins:
            return pieces
        _, at = min(joins)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@settings(max_examples=60)
@given(text=st.text("abc ", max_size=12), order=st.permutations(range(len(PIECES))))
def test_sentencepiece_joins_the_best_scored_pair_first(text: str, order: list[int]) -> None:
    scores = [-float(rank) for rank in order]
    tokenizer = built(sentencepiece(scores))
    spelled = "▁" + text.replace(" ", "▁") if text else ""
    expected = best_first(spelled, dict(zip(PIECES, scores, strict=True)))
    found = tokenizer.encode(text, add_special_tokens=False)
    assert found.tokens == expected
    assert tokenizer.decode(found.ids) == text


def test_unknown_characters_become_bytes_and_come_back() -> None:
    tokenizer = built(sentencepiece())
    found = tokenizer.encode("aé😊")
    assert found.tokens[0] == "<s>" and "<0xC3>" in found.tokens
    assert tokenizer.decode(found.ids) == "aé😊"


def test_the_leading_blank_can_be_switched_off() -> None:
    tokenizer = built(sentencepiece(add_space_prefix=False))
    assert tokenizer.encode("ab", add_special_tokens=False).tokens == ["ab"]
    assert tokenizer.decode(tokenizer.encode(" ab", add_special_tokens=False).ids) == " ab"


# -- what is missing or wrong ---------------------------------------------------------------------------


def test_a_file_without_a_tokenizer_runs_on_ids(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "x.gguf", TinyModel("llama")))
    assert checkpoint.tokenizer_json is None and checkpoint.tokenizer_config == {}
    assert checkpoint.chat_templates == {}
    assert read_vocabulary({"tokenizer.ggml.model": "no_vocab"}) is None


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"model": "bert"}, "'bert' is not supported"),
        ({"model": 7}, "7 is not supported"),
        ({"model": ["gpt2"]}, "['gpt2'] is not supported"),
        ({"pre": [1, 2]}, "[1, 2] of the tokenizer"),
        ({"merges": [1, 2]}, "merges is missing or no list of text"),
        ({"tokens": [1, 2]}, "tokens is missing or no list of text"),
        ({"pre": "tekken"}, "'tekken' of the tokenizer is not supported; we run default"),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": "abc"}, "tokens is missing or no list"),
        ({"tokens": []}, "tokens is missing"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["a"]}, "merges has 'a'"),
        ({"merges": ["a b"]}, "merges has 'a b'"),
        ({"token_type": [1, 1, 1]}, "token_type does not have a number for each"),
        ({"token_type": 1}, "token_type does not have"),
        ({"bos_token_id": 10**6, "add_bos_token": True}, "bos_token_id is 1000000"),
        ({"bos_token_id": -1, "add_bos_token": True}, "bos_token_id is -1"),
        ({"bos_token_id": "1", "add_bos_token": True}, "bos_token_id is '1'"),
    ],
)
def test_what_is_wrong_with_a_tokenizer_is_named(
    bytes_metadata: Metadata, changes: Metadata, cause: str
) -> None:
    assert cause in refusal(
        bytes_metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    )


def test_a_token_that_occurs_twice_is_refused_but_fillers_may_repeat(bytes_metadata: Metadata) -> None:
    tokens, kinds = bytes_metadata["tokenizer.ggml.tokens"], bytes_metadata["tokenizer.ggml.token_type"]
    twice = {"tokenizer.ggml.tokens": [*tokens, "a"], "tokenizer.ggml.token_type": [*kinds, 1]}
    assert "1 tokens twice" in refusal(bytes_metadata | twice)
    filler = {"tokenizer.ggml.tokens": [*tokens, "a"], "tokenizer.ggml.token_type": [*kinds, 5]}
    assert built(bytes_metadata | filler).encode("a").ids == built(bytes_metadata).encode("a").ids


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"scores": None}, "scores is missing"),
        ({"scores": [0.0] * 3}, "scores does not have a number for each"),
        ({"tokens": [*sentencepiece()["tokenizer.ggml.tokens"][:-1], "x" * 600]}, "more than 512 characters"),
    ],
)
def test_what_is_wrong_with_sentencepiece_is_named(changes: Metadata, cause: str) -> None:
    assert cause in refusal(
        sentencepiece() | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    )


def test_templates_are_found_by_name() -> None:
    found = chat_templates(
        {
            "tokenizer.chat_template": "a",
            "tokenizer.chat_templates": ["tool_use", "absent"],
            "tokenizer.chat_template.tool_use": "b",
        }
    )
    assert found == {"default": "a", "tool_use": "b"}
    assert chat_templates({"tokenizer.chat_template": 7}) == {}
