"""From vocabulary entries to bytes: what each token stands for, by the tokenizer's decoder.

Two families cover the models we run: byte-level BPE (every character of an entry stands for one byte)
and sentencepiece-like vocabularies (`▁` for a blank, `<0x0A>` for a byte). A reply is the bytes of its
tokens put together, so partial UTF-8 is a matter of bytes (`stream`) and nothing is decoded twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmrs_cli.errors import ModelError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
BLANK = "▁"


@dataclass(frozen=True, slots=True)
class PieceRule:
    """How vocabulary entries become bytes."""

    to_bytes: Callable[[str], bytes]
    strips_blank: bool
    """One blank at the very start of a text is dropped (it was added when encoding)."""


def piece_rule(decoder: Mapping[str, Any] | None) -> PieceRule:
    """The rule for a `decoder` entry of tokenizer.json; ModelError for one that we do not know."""
    steps = _flatten(decoder)
    kinds = {str(step.get("type")) for step in steps}
    if kinds and kinds <= {"ByteLevel", "Fuse"}:
        return PieceRule(_byte_level_bytes, strips_blank=False)
    if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return PieceRule(_sentencepiece_bytes, strips_blank=any(map(_strips_blank, steps)))
    named = ", ".join(sorted(kinds)) or "none"
    raise ModelError(
        f"This tokenizer's decoder ({named[:80]}) is not supported; byte-level BPE and sentencepiece are."
    )


def _flatten(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder.get("decoders", ()) for step in _flatten(inner)]
    return [decoder]


def _strips_blank(step: Mapping[str, Any]) -> bool:
    if step.get("type") == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step.get("type") == "Strip" and step.get("content") == " " and step.get("start") != 0)


def _symbol_bytes() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + i): byte for i, byte in enumerate(moved)}


SYMBOL_BYTES = _symbol_bytes()


def _byte_level_bytes(entry: str) -> bytes:
    try:
        return bytes([SYMBOL_BYTES[character] for character in entry])
    except KeyError:
        return entry.encode()


def _sentencepiece_bytes(entry: str) -> bytes:
    if match := BYTE_TOKEN.fullmatch(entry):
        return bytes([int(match[1], 16)])
    return entry.replace(BLANK, " ").encode()
