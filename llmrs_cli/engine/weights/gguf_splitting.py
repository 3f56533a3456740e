"""The named splitting rules of byte-level BPE in GGUF files: how text is cut before tokens are merged.

A rule is data; `gguf_tokenizer` writes it into a tokenizer.json.
Source of names and patterns: src/llama-vocab.cpp of ggml-org/llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """How text is cut before merging."""

    patterns: tuple[str, ...]
    """Each cuts the pieces that the one before it left."""
    composes: bool = False
    """Text is brought into Unicode form NFC first."""
    whole_words_first: bool = False
    """A piece that is a token is taken whole, whatever the merges say."""
    adds_bos: bool = False


_LLAMA3 = Rule((_MODERN.format(digits="{1,3}"),), whole_words_first=True, adds_bos=True)
_QWEN2 = Rule((_MODERN.format(digits=""),), composes=True)
RULES = {
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": Rule((_WORDS,)),
    "smollm": Rule((r"\p{N}", _WORDS)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
}
"""By tokenizer.ggml.pre."""
