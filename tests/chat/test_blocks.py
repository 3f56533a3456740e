"""What a line of Markdown is: never another thing once it was said, and code blocks give back their code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.chat.blocks import Kind, Start, code_blocks, fence_of, start_of

LINES = st.text(st.sampled_from(list("#>-*+_|`~123.) \tab")), max_size=14)


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("", Start(Kind.BLANK)),
        ("   ", Start(Kind.BLANK)),
        ("plain", Start(Kind.TEXT)),
        ("# a", Start(Kind.HEADING, "# ")),
        ("   ###### a", Start(Kind.HEADING, "   ###### ")),
        ("####### a", Start(Kind.TEXT)),
        ("    # a", Start(Kind.TEXT)),
        ("#a", Start(Kind.TEXT)),
        ("- a", Start(Kind.ITEM, "- ")),
        ("12) a", Start(Kind.ITEM, "12) ")),
        ("1234567890. a", Start(Kind.TEXT)),
        ("\t* a", Start(Kind.ITEM, "\t* ")),
        ("-a", Start(Kind.TEXT)),
        ("> a", Start(Kind.QUOTE, "> ")),
        (">a", Start(Kind.QUOTE, ">")),
        ("| a | b |", Start(Kind.TABLE, "|")),
        ("a | b", Start(Kind.TEXT)),
        ("---", Start(Kind.RULE, "---")),
        ("* * *", Start(Kind.RULE, "* * *")),
        ("-*-", Start(Kind.TEXT)),
        ("--", Start(Kind.TEXT)),
        ("```python", Start(Kind.FENCE, "```python")),
        ("  ~~~", Start(Kind.FENCE, "  ~~~")),
        ("``", Start(Kind.TEXT)),
        ("```a`b", Start(Kind.TEXT)),
    ],
)
def test_what_a_whole_line_is(line: str, start: Start) -> None:
    assert start_of(line, complete=True) == start


@pytest.mark.parametrize(
    "line", ["", " ", "#", "##", "-", "1", "12.", "*", "**", "`", "```", "``` py", "- - ", ">", "~~~"]
)
def test_what_may_still_become_several_things_is_not_said(line: str) -> None:
    assert start_of(line, complete=False) is None


@given(LINES, LINES)
def test_what_was_said_of_a_beginning_holds_for_the_whole_line(line: str, more: str) -> None:
    """It has been written to the terminal and is never taken back."""
    early = start_of(line, complete=False)
    if early is None:
        return
    assert start_of(line + more, complete=False) == early
    late = start_of(line + more, complete=True)
    assert late is not None
    if late.kind not in (Kind.RULE, Kind.FENCE):
        assert late == early


@given(LINES, LINES)
def test_a_rule_and_a_fence_are_not_begun_as_something_else(line: str, more: str) -> None:
    late = start_of(line + more, complete=True)
    assert late is not None
    if late.kind in (Kind.RULE, Kind.FENCE):
        assert start_of(line, complete=False) is None


@given(LINES)
def test_a_whole_line_is_always_something(line: str) -> None:
    start = start_of(line, complete=True)
    assert start is not None
    assert line.startswith(start.mark)
    assert (start.kind is Kind.BLANK) is (not line.strip())
    assert (start.kind is Kind.FENCE) is (fence_of(line) is not None)


# -- fences --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "marks", "language"),
    [
        ("```", "```", ""),
        ("````py", "````", "py"),
        ("``` c++ {1}", "```", "c++"),
        ("~~~\tsh", "~~~", "sh"),
        ("      ```x", "```", "x"),
    ],
)
def test_a_fence_has_marks_and_a_language(line: str, marks: str, language: str) -> None:
    fence = fence_of(line)
    assert fence is not None
    assert (fence.marks, fence.language) == (marks, language)


@pytest.mark.parametrize("line", ["", "``", "a```", "```a```", "`", "~~"])
def test_other_lines_are_no_fence(line: str) -> None:
    assert fence_of(line) is None


@pytest.mark.parametrize(
    ("opening", "line", "closes"),
    [
        ("```", "```", True),
        ("```", "  ````  ", True),
        ("````", "```", False),
        ("```", "~~~", False),
        ("```", "``` x", False),
        ("~~~", "~~~~", True),
        ("```", "", False),
    ],
)
def test_a_block_is_closed_by_marks_of_its_kind_that_are_as_long(
    opening: str, line: str, closes: bool
) -> None:
    fence = fence_of(opening)
    assert fence is not None
    assert fence.closed_by(line) is closes


CODE = st.lists(
    st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=12).filter(
        lambda line: not line.strip().startswith("```")
    ),
    max_size=6,
)


@given(CODE, st.integers(0, 4), st.booleans())
def test_a_block_is_its_code(code: list[str], margin: int, closed: bool) -> None:
    blank = " " * margin
    lines = [
        "Before",
        f"{blank}```py",
        *(blank + line for line in code),
        *([f"{blank}```"] if closed else []),
    ]
    assert code_blocks("\n".join(lines) + "\n") == ["".join(f"{line}\n" for line in code)]


@given(st.lists(CODE, max_size=4))
def test_blocks_come_in_their_order(blocks: list[list[str]]) -> None:
    text = "\n\n".join("\n".join(["```", *code, "```"]) for code in blocks)
    assert code_blocks(text) == ["".join(f"{line}\n" for line in code) for code in blocks]


def test_a_text_without_a_fence_has_no_block() -> None:
    assert code_blocks("") == code_blocks("some `code` and\n    an indented line\n") == []
