"""The tokenizer in GGUF metadata as the tokenizer.json and tokenizer_config.json of Hugging Face.

Two kinds: "gpt2" (byte-level BPE with stored merges and one of a few named splitting rules) and "llama"
(SentencePiece BPE, whose merges follow from the scores). Running them is the text room's.
Source of the names and their rules: src/llama-vocab.cpp of ggml-org/llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmrs_cli.engine.weights.gguf import Value
from llmrs_cli.engine.weights.gguf_splitting import RULES, Rule
from llmrs_cli.engine.weights.gguf_vocabulary import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary
from llmrs_cli.errors import ModelError, quoted

Json = dict[str, Any]


def tokenizer_json(vocabulary: Vocabulary) -> bytes:
    """A tokenizer.json. Raises ModelError for a kind or a splitting rule that we do not know."""
    kind = vocabulary.get("model")
    if kind not in ("gpt2", "llama"):
        raise ModelError(f"Tokenizer {quoted(kind)} is not supported; we run gpt2 and llama.")
    parts = _byte_level(vocabulary) if kind == "gpt2" else _sentencepiece(vocabulary)
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(vocabulary),
    } | parts
    return json.dumps(whole, ensure_ascii=False).encode()


def tokenizer_config(vocabulary: Vocabulary) -> Json:
    """The keys of a tokenizer_config.json that templates and the text room read."""
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {key: vocabulary.token(role) for key, role in roles.items()} | {
        "add_bos_token": vocabulary.flag("add_bos_token", _bos_by_default(vocabulary)),
        "clean_up_tokenization_spaces": False,
    }


def chat_templates(metadata: Mapping[str, Value]) -> dict[str, str]:
    """Chat templates by name."""
    names = metadata.get("tokenizer.chat_templates")
    found = (
        {name: metadata.get(f"tokenizer.chat_template.{name}") for name in names}
        if isinstance(names, list)
        else {}
    )
    found["default"] = metadata.get("tokenizer.chat_template")
    return {name: template for name, template in found.items() if isinstance(template, str)}


def _added(vocabulary: Vocabulary) -> list[Json]:
    """Tokens that are found in text as they stand."""
    return [
        {
            "id": i,
            "content": vocabulary.tokens[i],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != USER_DEFINED,
        }
        for i, kind in enumerate(vocabulary.kinds)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]


def _rule(vocabulary: Vocabulary) -> Rule:
    name = vocabulary.get("pre") or "default"
    if not isinstance(name, str) or name not in RULES:
        raise ModelError(
            f"Splitting rule {quoted(name)} of the tokenizer is not supported; we run {', '.join(RULES)}."
        )
    return RULES[name]


def _bos_by_default(vocabulary: Vocabulary) -> bool:
    return vocabulary.get("model") == "llama" or _rule(vocabulary).adds_bos


def _byte_level(vocabulary: Vocabulary) -> Json:
    """Byte-level BPE: bytes are spelled as printable characters, merges are stored."""
    rule = _rule(vocabulary)
    cuts: list[Json] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in rule.patterns
    ]
    spell = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": {"type": "NFC"} if rule.composes else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, spell]},
        "post_processor": _post_processor(vocabulary),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(vocabulary, _stored_merges(vocabulary), ignore_merges=rule.whole_words_first),
    }


def _sentencepiece(vocabulary: Vocabulary) -> Json:
    """SentencePiece BPE: blanks are spelled ▁, unknown characters fall back to byte tokens."""
    blanks: list[Json] = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    if vocabulary.flag("add_space_prefix", True):
        blanks.insert(0, {"type": "Prepend", "prepend": "▁"})
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if vocabulary.flag("add_space_prefix", True):
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = {"unk_token": vocabulary.token("unknown"), "fuse_unk": True, "byte_fallback": True}
    return {
        "normalizer": {"type": "Sequence", "normalizers": blanks},
        "pre_tokenizer": None,
        "post_processor": _post_processor(vocabulary),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(vocabulary, _merges_of_scores(vocabulary)) | unknown,
    }


def _bpe(vocabulary: Vocabulary, merges: list[tuple[str, str]], *, ignore_merges: bool = False) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary.ids,
        "merges": merges,
    }


def _stored_merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Pairs in order of rank; both halves and what they make are tokens."""
    stored, ids = vocabulary.get("merges"), vocabulary.ids
    if not isinstance(stored, list) or (stored and not isinstance(stored[0], str)):
        raise ModelError("tokenizer.ggml.merges is missing or no list of text.")
    pairs = []
    for merge in stored:
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ModelError(
                f"tokenizer.ggml.merges has {quoted(merge)}, which does not join tokens to a token."
            )
        pairs.append((left, right))
    return pairs


def _merges_of_scores(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, the best score of the result first."""
    scores = vocabulary.numbers("scores")
    if scores is None:
        raise ModelError("tokenizer.ggml.scores is missing.")
    ids = {text: i for text, i in vocabulary.ids.items() if vocabulary.kinds[i] == NORMAL}
    if max(map(len, ids), default=0) > 512:
        raise ModelError("tokenizer.ggml.tokens has a token of more than 512 characters.")
    pairs = [
        (-scores[i], ids[text[:cut]], ids[text[cut:]], text[:cut], text[cut:])
        for text, i in ids.items()
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]
    return [(left, right) for *_, left, right in sorted(pairs)]


def _post_processor(vocabulary: Vocabulary) -> Json | None:
    """Puts the first (and last) token of a text in place where the file asks for it."""
    roles = [
        ("bos", vocabulary.flag("add_bos_token", _bos_by_default(vocabulary))),
        ("eos", vocabulary.flag("add_eos_token", False)),
    ]
    used = {role: text for role, wanted in roles if wanted and (text := vocabulary.token(role)) is not None}
    if not used:
        return None

    def special(role: str) -> list[Json]:
        return [{"SpecialToken": {"id": used[role], "type_id": 0}}] if role in used else []

    def sequence(name: str) -> Json:
        return {"Sequence": {"id": name, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [*special("bos"), sequence("A"), *special("eos")],
        "pair": [*special("bos"), sequence("A"), sequence("B"), *special("eos")],
        "special_tokens": {
            text: {"id": text, "ids": [vocabulary.get(f"{role}_token_id")], "tokens": [text]}
            for role, text in used.items()
        },
    }
