"""Vocabulary entries to bytes: both families, and decoders that are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from llmrs_cli.errors import ModelError
from llmrs_cli.text.pieces import SYMBOL_BYTES, piece_rule

BYTE_LEVEL = {"type": "ByteLevel"}
FALLBACK = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}


def test_every_byte_has_one_symbol_which_the_library_has_too() -> None:
    assert sorted(SYMBOL_BYTES.values()) == list(range(256))
    assert set(SYMBOL_BYTES) == set(ByteLevel.alphabet())


@given(st.binary(max_size=40))
def test_any_bytes_come_back_from_their_symbols(data: bytes) -> None:
    symbols = {byte: symbol for symbol, byte in SYMBOL_BYTES.items()}
    entry = "".join(symbols[byte] for byte in data)
    assert piece_rule(BYTE_LEVEL).to_bytes(entry) == data


@given(st.text(max_size=20))
def test_an_added_entry_stands_for_itself_unless_it_is_all_symbols(entry: str) -> None:
    found = piece_rule(BYTE_LEVEL).to_bytes(entry)
    if any(character not in SYMBOL_BYTES for character in entry):
        assert found == entry.encode()
    else:
        assert len(found) == len(entry)


@pytest.mark.parametrize("byte", range(0, 256, 15))
def test_a_byte_entry_is_that_byte(byte: int) -> None:
    assert piece_rule(FALLBACK).to_bytes(f"<0x{byte:02X}>") == bytes([byte])
    assert piece_rule(FALLBACK).to_bytes(f"<0x{byte:02x}>") == bytes([byte])


@pytest.mark.parametrize(
    ("entry", "data"),
    [
        ("▁the", b" the"),
        ("▁▁", b"  "),
        ("<0x0>", b"<0x0>"),
        ("a<0x41>", b"a<0x41>"),
        ("<0x4G>", b"<0x4G>"),
        ("é", "é".encode()),
    ],
)
def test_other_entries_are_their_text_with_blanks(entry: str, data: bytes) -> None:
    assert piece_rule(FALLBACK).to_bytes(entry) == data


@pytest.mark.parametrize(
    ("step", "strips"),
    [
        ({"type": "Metaspace"}, True),
        ({"type": "Metaspace", "prepend_scheme": "first"}, True),
        ({"type": "Metaspace", "prepend_scheme": "never"}, False),
        ({"type": "Strip", "content": " ", "start": 1, "stop": 0}, True),
        ({"type": "Strip", "content": " ", "start": 0, "stop": 1}, False),
        ({"type": "Strip", "content": "x", "start": 1, "stop": 0}, False),
    ],
)
def test_whether_the_first_blank_was_added_is_read_from_the_decoder(
    step: dict[str, Any], strips: bool
) -> None:
    assert piece_rule(step).strips_blank is strips
    nested = {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": [step]}, {"type": "Fuse"}]}
    assert piece_rule(nested).strips_blank is strips


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (None, "none"),
        ({"type": "WordPiece"}, "WordPiece"),
        ({"type": "Sequence", "decoders": []}, "none"),
        ({"type": "Sequence", "decoders": [BYTE_LEVEL, {"type": "CTC"}]}, "ByteLevel, CTC"),
        ({}, "None"),
    ],
)
def test_another_decoder_is_refused_by_name(decoder: dict[str, Any] | None, named: str) -> None:
    with pytest.raises(ModelError, match=rf"decoder \({named}\) is not supported"):
        piece_rule(decoder)
