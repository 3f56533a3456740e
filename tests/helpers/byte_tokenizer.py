"""Tokenizers small enough to read: byte-level (T-BYTE) and sentencepiece-like (T-SP).

T-BYTE: ids 0–255 are the 256 bytes in the order of GPT-2, Qwen and Llama-3 (`byte_id`), 256–299 whole
pieces that only decoding uses (there are no merges, so text is always encoded byte by byte), 300–307
special and added tokens, further pieces from 320 on. Nothing here knows of models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

IM_END, END_OF_TEXT, END_OF_MESSAGE, IM_START = 300, 301, 302, 303
THINK, END_THINK, TOOL_CALL, END_TOOL_CALL = 304, 305, 306, 307
SPECIALS = {"<|im_end|>": 300, "<|endoftext|>": 301, "<|eom|>": 302, "<|im_start|>": 303}
ADDED = {"<think>": 304, "</think>": 305, "<tool_call>": 306, "</tool_call>": 307}
"""Added tokens that are not marked special, as Qwen3 ships them."""
FIRST_PIECE, FIRST_EXTRA = 256, 320
PIECES = (
    *("abc", "de", "OK", "Hello", " world", "Hel", "lo", " alpha", " be", "ta gam", "ma", " delta"),
    *("\n\n", ".\n\n", " 😊", "龘", "The", " capital", " of", " France", " is", " Paris"),
)

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def byte_id(byte: int) -> int:
    """The id of one byte."""
    if 33 <= byte <= 126:
        return byte - 33
    if 161 <= byte <= 172:
        return byte - 67
    if byte >= 174:
        return byte - 68
    if byte <= 32:
        return byte + 188
    return 255 if byte == 173 else byte + 94


def byte_ids(text: str) -> list[int]:
    """The ids that T-BYTE encodes `text` to, if it holds no special token."""
    return [byte_id(byte) for byte in text.encode()]


def symbol(byte: int) -> str:
    """The printable character that stands for a byte in a byte-level vocabulary."""
    kept = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
    return chr(byte) if kept else chr(256 + byte_id(byte) - 188)


def symbols(text: str) -> str:
    """A vocabulary entry for a whole piece of text."""
    return "".join(symbol(byte) for byte in text.encode())


def piece_ids(extra: Sequence[str] = ()) -> dict[str, int]:
    """Whole pieces → ids: the fixed ones, then `extra` from 320 on."""
    fixed = {piece: FIRST_PIECE + i for i, piece in enumerate(PIECES)}
    fresh = [piece for piece in dict.fromkeys(extra) if piece not in fixed]
    return fixed | {piece: FIRST_EXTRA + i for i, piece in enumerate(fresh)}


def byte_tokenizer_json(extra: Sequence[str] = ()) -> bytes:
    """Content of a `tokenizer.json`: T-BYTE with `extra` pieces."""
    vocab = {symbol(byte): byte_id(byte) for byte in range(256)}
    vocab |= {symbols(piece): token for piece, token in piece_ids(extra).items()}
    vocab |= SPECIALS | ADDED
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                _added(text, token, special=text in SPECIALS) for text, token in (SPECIALS | ADDED).items()
            ],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        },
        ensure_ascii=False,
    ).encode()


def tokenizer_config(chat_template: str | None = CHAT_TEMPLATE) -> dict[str, Any]:
    """Content of the `tokenizer_config.json` that goes with T-BYTE."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    return config if chat_template is None else config | {"chat_template": chat_template}


SP_WORDS = ("▁Hello", "▁world", "▁", "!", *"abcdefghijklmnopqrstuvwxyzHW", ",", ".")


def sp_tokenizer_json() -> bytes:
    """T-SP: 0–2 `<unk>`, `<s>`, `</s>`, 3–258 the bytes `<0x00>` …, then `SP_WORDS`.

    The decoder is Llama-2's: ▁ → blank, byte fallback, fuse, and one blank stripped at the very start.
    """
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocab |= {word: 259 + i for i, word in enumerate(SP_WORDS)}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_added(text, token, special=True) for text, token in list(vocab.items())[:3]],
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Prepend", "prepend": "▁"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                ],
            },
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            "model": {
                "type": "BPE",
                "unk_token": "<unk>",
                "fuse_unk": True,
                "byte_fallback": True,
                "vocab": vocab,
                "merges": [],
            },
        },
        ensure_ascii=False,
    ).encode()


def _added(text: str, token: int, *, special: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": text, **plain, "special": special}
