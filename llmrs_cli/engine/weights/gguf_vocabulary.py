"""The vocabulary in GGUF metadata: tokens with their kinds and roles, checked.

What becomes of them is `gguf_tokenizer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmrs_cli.engine.weights.gguf import Value
from llmrs_cli.errors import ModelError, quoted

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = range(1, 6)
"""Kinds of tokens, as in tokenizer.ggml.token_type; 6 is a byte."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of one file, and every other key under tokenizer.ggml."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    """Kind of each token."""
    ids: Mapping[str, int]
    """Id of each token that can occur; unused ones only fill up the vocabulary."""
    metadata: Mapping[str, Value]

    def get(self, key: str) -> Any:
        """The value of tokenizer.ggml.`key`, None if there is none."""
        return self.metadata.get(f"tokenizer.ggml.{key}")

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        value = self.get(key)
        return value if isinstance(value, bool) else default

    def token(self, role: str) -> str | None:
        """Text of the token with a role (bos, eos, unknown, padding), None if no token has it."""
        index = self.get(f"{role}_token_id")
        if index is None:
            return None
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(self.tokens):
            raise ModelError(
                f"tokenizer.ggml.{role}_token_id is {quoted(index)}; there are {len(self.tokens)} tokens."
            )
        return self.tokens[index]

    def numbers(self, key: str) -> list[Any] | None:
        """A numeric array with an entry per token, None if there is none."""
        return _numbers(self.metadata, key, len(self.tokens))


def read_vocabulary(metadata: Mapping[str, Value]) -> Vocabulary | None:
    """The vocabulary, or None if the file has none. Raises ModelError naming the key that is wrong."""
    if metadata.get("tokenizer.ggml.model") in (None, "none", "no_vocab"):
        return None
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ModelError("tokenizer.ggml.tokens is missing or no list of text.")
    kinds = _numbers(metadata, "token_type", len(tokens)) or [NORMAL] * len(tokens)
    used = [(text, i) for i, (text, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != UNUSED]
    ids = dict(used)
    if len(ids) < len(used):
        raise ModelError(f"tokenizer.ggml.tokens names {len(used) - len(ids)} tokens twice.")
    return Vocabulary(tokens, kinds, ids, metadata)


def _numbers(metadata: Mapping[str, Value], key: str, length: int) -> list[Any] | None:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != length or isinstance(values[0], str):
        raise ModelError(f"tokenizer.ggml.{key} does not have a number for each of {length} tokens.")
    return values
