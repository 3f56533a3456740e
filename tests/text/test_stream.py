"""Streamed text equals text decoded at once, however tokens and stop strings are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrs_cli.errors import RequestError
from llmrs_cli.text.stream import StopFinder, StreamDecoder
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.byte_tokenizer import byte_id, byte_ids, piece_ids
from tests.helpers.texts import awkward_texts


def pieces_of(decoder: StreamDecoder, ids: list[int] | tuple[int, ...]) -> list[str]:
    """One id at a time, then the end."""
    return [*(decoder.push([id]) for id in ids), decoder.finish()]


def streamed(tokenizer: Tokenizer, ids: list[int], *stops: str) -> tuple[str, str | None]:
    decoder = StreamDecoder(tokenizer, stops)
    return "".join(pieces_of(decoder, ids)), decoder.matched


@settings(max_examples=200)
@given(text=awkward_texts)
def test_pieces_join_to_the_text_decoded_at_once(any_tokenizer: Tokenizer, text: str) -> None:
    ids = any_tokenizer.encode(text, bos=False)
    pieces = pieces_of(StreamDecoder(any_tokenizer), ids)
    assert "".join(pieces) == any_tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)


@given(text=awkward_texts)
def test_decoding_is_that_of_the_library(any_tokenizer: Tokenizer, text: str) -> None:
    ids = any_tokenizer.encode(text, bos=False)
    assert any_tokenizer.decode(ids) == any_tokenizer._full.decode(list(ids))


@given(ids=st.lists(st.integers(0, 400), max_size=40))
def test_any_ids_stream_without_an_error(t_byte: Tokenizer, t_sp: Tokenizer, ids: list[int]) -> None:
    for tokenizer in (t_byte, t_sp):
        assert streamed(tokenizer, ids) == (tokenizer.decode(ids), None)


@pytest.mark.parametrize(
    ("ids", "text"),
    [([26525, 232], " 😊"), ([144236], "😊"), ([18137, 122, 246], " 龘"), ([82912, 246], "龘")],
)
def test_a_character_cut_over_tokens_appears_whole(qwen: Tokenizer, ids: list[int], text: str) -> None:
    pieces = pieces_of(StreamDecoder(qwen), ids)
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


def test_what_is_complete_does_not_wait_for_what_is_not(qwen: Tokenizer) -> None:
    assert pieces_of(StreamDecoder(qwen), [18137, 122, 246]) == [" ", "", "龘", ""]


def test_sentencepiece_words_keep_their_blanks(t_sp: Tokenizer) -> None:
    assert pieces_of(StreamDecoder(t_sp), [259, 260, 262]) == ["Hello", " world", "!", ""]


def test_only_the_first_blank_of_a_text_is_dropped(t_sp: Tokenizer) -> None:
    blank = 261
    assert streamed(t_sp, [1, blank, blank, 259])[0] == "  Hello"


def test_an_unfinished_character_is_shown_as_broken_at_the_end(t_byte: Tokenizer) -> None:
    assert pieces_of(StreamDecoder(t_byte), [172, 253]) == ["", "", "\ufffd"]


def test_ids_of_the_padded_vocabulary_are_nothing(t_byte: Tokenizer) -> None:
    assert pieces_of(StreamDecoder(t_byte), [byte_id(ord("I")), 900, byte_id(ord("J"))]) == ["I", "", "J", ""]


def test_tags_that_are_not_control_tokens_are_text_without_blanks(t_byte: Tokenizer) -> None:
    ids = [304, *byte_ids("ok"), 305, *byte_ids("1"), 300]
    assert streamed(t_byte, ids)[0] == "<think>ok</think>1"
    assert "".join(pieces_of(StreamDecoder(t_byte, specials=True), ids)) == "<think>ok</think>1<|im_end|>"


# -- stop strings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[382], [13, 271], [13, 198, 198]])
def test_a_stop_string_is_found_however_tokens_split_it(qwen: Tokenizer, ids: list[int]) -> None:
    start = list(qwen.encode("End"))
    assert streamed(qwen, [*start, *ids, *start], "\n\n") == ("End.", "\n\n")


@given(
    before=awkward_texts,
    stop=awkward_texts.filter(bool),
    after=awkward_texts,
    cuts=st.sets(st.integers(0, 60)),
)
def test_a_text_ends_before_the_first_stop_string_wherever_it_is_cut(
    before: str, stop: str, after: str, cuts: set[int]
) -> None:
    text = before + stop + after
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    finder = StopFinder([stop])
    shown = "".join(finder.push(text[a:b]) for a, b in zip(edges, edges[1:], strict=False)) + finder.finish()
    assert finder.matched == stop
    assert shown == text[: text.index(stop)]


@given(text=st.text("ab", max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_one_character_at_a_time_equals_all_at_once(text: str, stops: list[str]) -> None:
    slow, fast = StopFinder(stops), StopFinder(stops)
    one_by_one = "".join(slow.push(character) for character in text) + slow.finish()
    assert (one_by_one, slow.matched) == (fast.push(text) + fast.finish(), fast.matched)


@given(text=st.text("ab", max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_no_more_is_held_back_than_a_stop_string_may_claim(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    shown = ""
    for end, character in enumerate(text, 1):
        shown += finder.push(character)
        if finder.matched:
            return
        held = text[len(shown) : end]
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(("reply", "stop"), [(["abc", "de"], "def"), (["?"], "?\n")])
def test_text_held_for_a_stop_string_that_never_came_is_released(
    t_byte: Tokenizer, reply: list[str], stop: str
) -> None:
    ids = [piece_ids().get(piece, byte_id(ord(piece[0]))) for piece in reply]
    assert streamed(t_byte, ids, stop) == ("".join(reply), None)


def test_the_stop_string_can_be_kept() -> None:
    finder = StopFinder(["gam"], include=True)
    assert [finder.push(text) for text in ("al", "g", "am", "ma")] == ["al", "", "gam", ""]


def test_of_two_stop_strings_the_one_that_completes_first_wins() -> None:
    finder = StopFinder(["bcd", "c", "bc"])
    assert finder.push("abcde") == "a"
    assert finder.matched == "bc"


def test_a_stop_string_before_the_minimum_is_text_and_one_that_ends_after_it_stops() -> None:
    finder = StopFinder(["xy"])
    assert finder.push("axyb", may_stop=False) == "axyb"
    assert finder.push("x", may_stop=False) == ""
    assert finder.push("yz") == ""
    assert finder.matched == "xy"


@pytest.mark.parametrize("stops", [[""], ["", "x"], ["x" * 257], ["x"] * 17])
def test_useless_stop_strings_are_refused(stops: list[str]) -> None:
    with pytest.raises(RequestError) as error:
        StopFinder(stops)
    assert error.value.param == "stop"
