"""The control-sequence filter: nothing that moves a terminal gets through, wherever the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.cli.control import ControlFilter, clean

NASTY = {
    "colour": "a\x1b[31mb\x1b[0mc",
    "cursor": "a\x1b[2J\x1b[1;1Hb",
    "private mode": "a\x1b[?1049hb",
    "title": "a\x1b]0;title\x07b",
    "hyperlink": "a\x1b]8;;http://x\x1b\\b\x1b]8;;\x1b\\c",
    "clipboard": "a\x1b]52;c;AAAA\x1b\\b",
    "device control": "a\x1bPq#0\x1b\\b",
    "application": "a\x1b_G1;2\x1b\\b",
    "c1 csi": "a\x9b31mb",
    "c1 string": "a\x9d0;t\x9cb",
    "charset": "a\x1b(0b",
    "reset": "a\x1bcb",
    "bell and backspace": "a\x07\x08b",
    "carriage return": "safe\rrm",
    "delete": "a\x7fb",
    "nested": "a\x1b]0;\x1b[31mb\x07c",
}


def is_harmless(text: str) -> bool:
    return all(char in "\n\t" or (char >= " " and not "\x7f" <= char <= "\x9f") for char in text)


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY.keys())
def test_control_sequences_are_dropped_and_letters_stay(text: str) -> None:
    shown = clean(text)
    assert is_harmless(shown)
    assert shown.startswith(("a", "safe"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb\x1b[0mc", "abc"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]8;;http://x\x1b\\b", "ab"),
        ("one\ntwo\tthree", "one\ntwo\tthree"),
        ("a\x1b]never closed\nb", "a\nb"),
        ("a\x1b[31\u00e9", "a\u00e9"),
        ("ab\u202ecd", "ab<U+202E>cd"),
        ("a\ud83db", "a\ufffdb"),
        ("line\r\nnext", "line\nnext"),
        ("a\x1b]x\x1b[31mb", "ab"),
        ("😊", "😊"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.lists(st.sampled_from([*NASTY.values(), "plain", "\x1b", "[", "]", "\\", "\x9b", "é", "\n"])))
def test_cutting_the_text_anywhere_changes_nothing(pieces: list[str]) -> None:
    text = "".join(pieces)
    by_char, by_piece = ControlFilter(), ControlFilter()
    assert "".join(map(by_char.feed, text)) == "".join(map(by_piece.feed, pieces)) == clean(text)


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_no_text_at_all_gets_a_control_character_through(text: str) -> None:
    shown = clean(text)
    assert is_harmless(shown)
    shown.encode("utf-8")


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_is_untouched(text: str) -> None:
    assert clean(text) == text
