"""Thoughts and answers are told apart wherever the pieces are cut, whoever wrote the tags."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.text.reasoning import Opening, ReasoningSplitter, ThoughtTokens, opening


def split(text: str, start: Opening = Opening.UNDECIDED, size: int = 1) -> tuple[str, str]:
    splitter = ReasoningSplitter(start)
    pieces = [splitter.push(text[i : i + size]) for i in range(0, len(text), size)]
    pieces.append(splitter.finish())
    return "".join(p.reasoning for p in pieces), "".join(p.content for p in pieces)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "start", "reasoning", "content"),
    [
        ("<think>ok</think>1", Opening.UNDECIDED, "ok", "1"),
        ("\n<think>\nhm, a < b\n\n</think>\n\nyes ", Opening.UNDECIDED, "hm, a < b", "yes "),
        ("hm</think>yes", Opening.THOUGHT, "hm", "yes"),
        ("hm and no end </thi", Opening.THOUGHT, "hm and no end </thi", ""),
        ("Hello", Opening.ANSWER, "", "Hello"),
        ("Hello", Opening.UNDECIDED, "", "Hello"),
        (" <b>Hello</think>", Opening.UNDECIDED, "", " <b>Hello</think>"),
        ("a <think>b</think>", Opening.UNDECIDED, "", "a <think>b</think>"),
        ("<think>", Opening.ANSWER, "", "<think>"),
        ("<thin", Opening.UNDECIDED, "", "<thin"),
        ("  ", Opening.UNDECIDED, "", "  "),
        ("<think></think>\n", Opening.UNDECIDED, "", ""),
        ("<think>a</think>b</think>", Opening.UNDECIDED, "a", "b</think>"),
    ],
)
def test_thought_and_answer(text: str, start: Opening, reasoning: str, content: str, size: int) -> None:
    assert split(text, start, size) == (reasoning, content)


@given(
    text=st.lists(st.sampled_from(["<think>", "</think>", "<", "/", " ", "\n", "a"]), max_size=12).map(
        "".join
    )
)
def test_the_cut_makes_no_difference(text: str) -> None:
    for start in Opening:
        assert split(text, start, 1) == split(text, start, max(1, len(text)))


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("<|im_start|>assistant\n", Opening.UNDECIDED),
        ("<|im_start|>assistant\n<think>\n", Opening.THOUGHT),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Opening.ANSWER),
    ],
)
def test_the_end_of_the_prompt_says_how_the_answer_begins(end: str, expected: Opening) -> None:
    assert opening(end) is expected


def test_an_answer_is_not_held_back() -> None:
    splitter = ReasoningSplitter()
    assert splitter.push("<").content == ""
    assert splitter.push("b> x").content == "<b> x"
    assert splitter.push(" ").content == " "


def counted(text: str, start: Opening, cuts: list[int]) -> int:
    """Tokens of the thought in `text`, whose tokens are its pieces between `cuts`."""
    ends = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b].encode() for a, b in zip(ends, ends[1:], strict=False)]
    tokens = ThoughtTokens(start, pieces.__getitem__)
    tokens.push(range(len(pieces)))
    tokens.finish()
    return tokens.count


@given(st.text("<think/> a", max_size=30), st.sampled_from(Opening), st.lists(st.integers(0, 99), max_size=9))
def test_a_thought_has_tokens_if_and_only_if_there_is_one(text: str, start: Opening, cuts: list[int]) -> None:
    begun = text.lstrip().startswith("<think>") or start is Opening.THOUGHT
    count = counted(text, start, cuts)
    assert (count > 0) == (begun and start is not Opening.ANSWER and text != "")


@given(st.text("ab <>", max_size=12), st.lists(st.integers(0, 99), max_size=9))
def test_a_thought_ends_with_the_token_that_completes_its_tag(thought: str, cuts: list[int]) -> None:
    text = f"<think>{thought}</think>"
    ends = [*cuts, len(text)]
    alone = counted(text, Opening.UNDECIDED, ends)
    followed = counted(f"{text} and so on", Opening.UNDECIDED, [cut % (len(text) + 1) for cut in ends])
    assert followed == alone == len({cut % (len(text) + 1) for cut in ends} - {0})
