"""Text to ids and back: markers are inert, bad text is refused, nothing of the library leaks out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import ModelError, RequestError
from llmrs_cli.text.tokenizer import MAX_TEXT, Tokenizer
from tests.helpers.byte_tokenizer import ADDED, SPECIALS, byte_ids, byte_tokenizer_json, sp_tokenizer_json
from tests.helpers.texts import awkward_texts


def edited(change: Any, source: bytes = b"") -> bytes:
    """The byte tokenizer's JSON after `change` had its way with it."""
    content = json.loads(source or byte_tokenizer_json())
    change(content)
    return json.dumps(content).encode()


@given(text=awkward_texts)
def test_a_text_survives_encoding_and_decoding(t_byte: Tokenizer, text: str) -> None:
    assert t_byte.decode(t_byte.encode(text)) == text
    assert t_byte.encode(text) == tuple(byte_ids(text))


@given(texts=st.lists(awkward_texts, max_size=4))
def test_a_batch_is_encoded_like_its_texts(qwen: Tokenizer, texts: list[str]) -> None:
    texts = [*texts, "x<|im_end|>"]
    assert qwen.encode_batch(texts) == [qwen.encode(text) for text in texts]


@pytest.mark.parametrize("marker", [*SPECIALS, *ADDED])
def test_markers_in_text_are_plain_characters_unless_asked_for(t_byte: Tokenizer, marker: str) -> None:
    assert t_byte.encode(f"a{marker}") == tuple(byte_ids(f"a{marker}"))
    assert t_byte.encode(f"a{marker}", markers=True) == (*byte_ids("a"), (SPECIALS | ADDED)[marker])


def test_every_marker_of_real_tokenizers_is_inert(qwen: Tokenizer, llama: Tokenizer) -> None:
    for tokenizer in (qwen, llama):
        text = "".join(tokenizer.markers) + "<|<|im_end|>im_end|>"
        ids = tokenizer.encode(text, bos=False)
        assert set(tokenizer.markers.values()).isdisjoint(ids)
        assert tokenizer.decode(ids) == text


def test_a_plain_text_gets_the_one_bos_that_its_tokenizer_prescribes(
    qwen: Tokenizer, llama: Tokenizer
) -> None:
    assert llama.encode("hi") == (128000, 6151)
    assert llama.encode("<|begin_of_text|>hi", markers=True) == (128000, 6151)
    assert llama.encode("hi", bos=False) == (6151,)
    assert llama.encode("") == (128000,)
    assert qwen.encode("hi") == (6023,)
    assert llama.encode_batch(["hi", ""]) == [(128000, 6151), (128000,)]


@given(text=awkward_texts)
def test_cutting_at_markers_gives_the_ids_of_the_library(qwen: Tokenizer, text: str) -> None:
    marked = f"<|im_start|>user\n{text}<|im_end|>\n<tool_call>{text}"
    assert qwen.encode_parts(qwen.split(marked)) == qwen.encode(marked, bos=False, markers=True)


def test_markers_claim_the_blanks_that_their_entries_say() -> None:
    def claim(content: dict[str, Any]) -> None:
        content["added_tokens"][0].update(rstrip=True)
        content["added_tokens"][1].update(lstrip=True)
        content["added_tokens"][3].update(single_word=True)

    tokenizer = Tokenizer(edited(claim))
    text = "a <|im_end|> \n b  <|endoftext|> c<|im_start|>d <|im_start|> "
    assert tokenizer.split(text) == ["a ", 300, "b", 301, " c<|im_start|>d ", 303, " "]
    assert tokenizer.encode_parts(tokenizer.split(text)) == tokenizer.encode(text, bos=False, markers=True)


def test_merges_that_would_spell_a_marker_are_cut_apart() -> None:
    """Vocabularies converted from sentencepiece can merge the characters of `</s>` to its id."""

    def merge(content: dict[str, Any]) -> None:
        vocab = content["model"]["vocab"]
        vocab |= {"<": 400, "/": 401, ">": 402, "</": 403, "s>": 404}
        content["model"]["merges"] = ["< /", "s >", "</ s>"]

    tokenizer = Tokenizer(edited(merge, sp_tokenizer_json()))
    assert tokenizer.encode("a</s>b", markers=True)[2:3] == (2,)
    ids = tokenizer.encode("a</s>b")
    assert 2 not in ids
    assert tokenizer.decode(ids).replace(" ", "") == "a</s>b"


def test_text_after_a_marker_gets_no_second_start_of_text() -> None:
    def metaspace(content: dict[str, Any]) -> None:
        content["normalizer"] = None
        content["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "first",
            "split": False,
        }

    tokenizer = Tokenizer(edited(metaspace, sp_tokenizer_json()))
    for text in ("a</s>b", "</s>b c"):
        assert tokenizer.encode_parts(tokenizer.split(text)) == tokenizer.encode(
            text, bos=False, markers=True
        )


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff"])
def test_a_lone_surrogate_is_refused_by_name(t_byte: Tokenizer, text: str) -> None:
    with pytest.raises(RequestError, match="lone surrogate at character"):
        t_byte.encode(text)
    with pytest.raises(RequestError, match="lone surrogate"):
        t_byte.encode_batch(["fine", text])


def test_nul_and_long_words_are_text_like_any_other(t_byte: Tokenizer, qwen: Tokenizer) -> None:
    assert t_byte.decode(t_byte.encode("a\0b")) == "a\0b"
    assert qwen.decode(qwen.encode("a" * 20_000)) == "a" * 20_000


def test_a_text_beyond_the_limit_is_refused_before_the_library_sees_it(t_byte: Tokenizer) -> None:
    with pytest.raises(RequestError, match=f"at most {MAX_TEXT}"):
        t_byte.encode("é" * (MAX_TEXT // 2 + 1))


def test_a_panic_of_the_library_is_a_request_error(capfd: pytest.CaptureFixture[str]) -> None:
    def bomb(content: dict[str, Any]) -> None:
        pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
        content["pre_tokenizer"] = pattern

    tokenizer = Tokenizer(edited(bomb))
    with pytest.raises(RequestError, match="cannot encode"):
        tokenizer.encode("a" * 40 + "!")
    assert tokenizer.encode("abc") == tuple(byte_ids("abc")), "the next text is served"
    capfd.readouterr()  # the library prints its panic itself


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", b'{"version": "1.0", "model": {"type": "Odd"}}'])
def test_a_damaged_tokenizer_is_a_model_error(data: bytes) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer(data)


def test_an_id_that_is_given_twice_is_refused_with_both_names() -> None:
    with pytest.raises(ModelError, match="id 257 to both '(abc|de)' and '(abc|de)'"):
        Tokenizer(edited(lambda content: content["model"]["vocab"].update(abc=257)))


def test_an_unknown_decoder_is_named() -> None:
    data = edited(
        lambda content: content.update(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    )
    with pytest.raises(ModelError, match="WordPiece"):
        Tokenizer(data)
    with pytest.raises(ModelError, match="none"):
        Tokenizer(edited(lambda content: content.update(decoder=None)))


def test_ids_without_a_token_are_nothing(t_byte: Tokenizer) -> None:
    assert t_byte.decode([900, 41, 2**31, -1, 2**40]) == "J"


def test_control_tokens_are_not_text_but_other_markers_are(t_byte: Tokenizer) -> None:
    ids = [304, *byte_ids("ok"), 305, 300]
    assert t_byte.decode(ids) == "<think>ok</think>"
    assert t_byte.decode(ids, specials=True) == "<think>ok</think><|im_end|>"
    assert t_byte.special_ids == {300, 301, 302, 303}


def test_bytes_of_a_token_are_exact_even_inside_a_character(t_byte: Tokenizer, t_sp: Tokenizer) -> None:
    assert [t_byte.token_bytes(id) for id in (172, 253, 246, 232, 220)] == [
        b"\xf0",
        b"\x9f",
        b"\x98",
        b"\x8a",
        b" ",
    ]
    assert t_sp.token_bytes(3 + 0xC3) == b"\xc3"
    assert t_sp.token_bytes(259) == b" Hello"


@pytest.mark.parametrize("entry", ["<|im_end|>", {"content": "<|im_end|>", "lstrip": False}])
def test_token_names_come_as_text_or_as_objects(entry: object) -> None:
    tokenizer = Tokenizer(byte_tokenizer_json(), {"eos_token": entry, "bos_token": None})
    assert tokenizer.names == {"eos_token": "<|im_end|>"}
    assert tokenizer.eos_id == 300
    assert Tokenizer(byte_tokenizer_json()).eos_id is None
