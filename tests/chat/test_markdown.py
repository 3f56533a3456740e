"""Markdown that is painted while it grows: the same however it is cut, in any width, in linear time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from llmrs_cli.chat.blocks import code_blocks
from llmrs_cli.chat.code import CodePainter
from llmrs_cli.chat.markdown import MarkdownPainter

SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")
BOLD, ITALIC, CODE, FAINT, RESET = "\x1b[1m", "\x1b[3m", "\x1b[36m", "\x1b[2m", "\x1b[0m"
EVERYTHING = """# Title

Some **bold text** and *italic* and `code x*y` and 2*3*4, a_b_c and \\*stars\\*.

- first item, rather long
  1. nested **item**
> A quote that is long enough to be wrapped.

```python
def f(x):
    \"\"\"doc
    string\"\"\"
    return f"{x}"  # comment
```
| Name | Value |
|------|------:|
| `a` | 1 |
| **b** long text | 22 |
---
中文**重点**测试中文测试中文测试中文测试。
The end"""


def painted(text: str, columns: int = 80, step: int | None = None) -> str:
    painter = MarkdownPainter(lambda: columns)
    step = step or max(len(text), 1)
    pieces = [painter.feed(text[start : start + step]) for start in range(0, len(text), step)]
    return "".join(pieces) + painter.finish()


def plain(text: str, columns: int = 80) -> str:
    return SEQUENCE.sub("", painted(text, columns))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a **b** c", f"a {BOLD}b{RESET} c"),
        ("a *b* c", f"a {ITALIC}b{RESET} c"),
        ("a _b_ c", f"a {ITALIC}b{RESET} c"),
        ("`b*c*`", f"{CODE}b*c*{RESET}"),
        ("``b`c``", f"{CODE}b`c{RESET}"),
        ("***b***", f"\x1b[1;3mb{RESET}"),
        ("2*3*4 and 2 * 3 * 4", "2*3*4 and 2 * 3 * 4"),
        ("snake_case_name and __init__", f"snake_case_name and {BOLD}init{RESET}"),
        (r"\*not\*", "*not*"),
        ("a ****", "a ****"),
        ("这是**重点**。", f"这是{BOLD}重点{RESET}。"),
        ("# Big", f"\x1b[1;4mBig{RESET}"),
        ("### Small", f"{BOLD}Small{RESET}"),
        ("#hashtag", "#hashtag"),
        ("- a", "• a"),
        ("  * a", "  • a"),
        ("12. a", "12. a"),
        ("-5 degrees", "-5 degrees"),
        ("> a", f"{FAINT}│{RESET} a"),
        (">a", f"{FAINT}│{RESET} a"),
        ("---", f"{FAINT}{'─' * 40}{RESET}"),
        ("```\nx\n```", f"{FAINT}```{RESET}\nx\n{FAINT}```{RESET}"),
        ("~~~\n```\n~~~", f"{FAINT}~~~{RESET}\n```\n{FAINT}~~~{RESET}"),
        ("```\nx", f"{FAINT}```{RESET}\nx"),
        ("```not a fence``` x", f"{CODE}not a fence{RESET} x"),
        ("| a |", "| a |"),
        ("a\n\n\nb", "a\n\n\nb"),
        ("", ""),
        ("a\n", "a\n"),
        ("a  b", "a  b"),
    ],
)
def test_how_it_looks(text: str, shown: str) -> None:
    assert painted(text) == shown


def test_emphasis_that_is_never_closed_ends_with_its_paragraph() -> None:
    assert painted("a **b\n\nc") == f"a {BOLD}b{RESET}\n\nc"
    assert painted("- **a\n- b") == f"• {BOLD}a{RESET}\n• b"


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("columns", [20, 40, 200])
def test_everything_looks_alike_however_it_is_cut(step: int, columns: int) -> None:
    assert painted(EVERYTHING, columns, step) == painted(EVERYTHING, columns)


markup = st.text(st.sampled_from("ab  \n\n*_`#->|~:1.\\中😊"), max_size=60)


@given(markup, st.integers(1, 9), st.integers(8, 60))
@settings(max_examples=400)
def test_any_text_looks_alike_however_it_is_cut(text: str, step: int, columns: int) -> None:
    assert painted(text, columns, step) == painted(text, columns)


@given(st.text(st.sampled_from("ab c\n中"), max_size=80), st.integers(11, 40))
def test_prose_loses_no_word_and_fits(text: str, columns: int) -> None:
    shown = plain(text, columns)
    assert "".join(shown.split()) == "".join(text.split())
    assert all(cell_len(line) < columns for line in shown.split("\n"))


@given(markup)
def test_no_control_character_but_colour_is_added(text: str) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", plain(text))


def test_a_long_word_is_cut_and_a_list_hangs() -> None:
    assert plain("x" * 25, 11).split("\n") == ["x" * 10, "x" * 10, "x" * 5]
    assert plain("- one two three", 12) == "• one two\n  three"


def test_a_width_that_changes_holds_from_there_on() -> None:
    width = 80
    painter = MarkdownPainter(lambda: width)
    shown = painter.feed("one two three four\n")
    width = 12
    shown += painter.feed("one two three four\n") + painter.finish()
    assert shown == "one two three four\none two\nthree four\n"


def test_words_appear_as_soon_as_they_end() -> None:
    painter = MarkdownPainter(lambda: 80)
    assert [painter.feed(piece) for piece in ("Hel", "lo", " ", "wor", "ld.", "\n")] == [
        *("", "", "Hello", "", "", " world.\n")
    ]


def test_lines_of_code_appear_when_they_end() -> None:
    painter = MarkdownPainter(lambda: 80)
    assert painter.feed("```text\nabc") == f"{FAINT}```text{RESET}\n"
    assert painter.feed("\n") == "abc\n"


def test_recalling_shows_only_the_last_line_again() -> None:
    painter = MarkdownPainter(lambda: 80)
    assert painter.recall("One.\n\nTwo **three fo") == f"Two {BOLD}three{RESET}"[: -len(RESET)]
    assert SEQUENCE.sub("", painter.feed("ur** five")) == " four"
    assert SEQUENCE.sub("", painter.finish()) == " five"


def test_a_table_fits_and_keeps_its_cells() -> None:
    text = "| Name | Value |\n|:--|--:|\n| `a` | 1 |\n| **b** and much more text than fits | 22 |\n\nafter"
    shown = plain(text, 30)
    assert all(cell_len(line) < 30 for line in shown.splitlines())
    assert "Name" in shown and "─" in shown and "**" not in shown and "`" not in shown
    assert "".join(shown.split("\n")[-1]) == "after"
    assert [line.split()[-1] for line in shown.splitlines() if "22" in line] == ["22"]


@pytest.mark.parametrize(
    "rows", ["| a | b |\n| 1 | 2 |", "| a |\n|---|\n| 1 | 2 | 3 |", "|\n|-|\n|", "||\n|--|"]
)
def test_odd_tables_do_no_harm(rows: str) -> None:
    assert plain(rows + "\n\nafter").endswith("after")


# -- code ---------------------------------------------------------------------------------------------


def test_colours_of_code_change_no_character() -> None:
    for language in ("python", "c", "sh", "json", "html", "no-such-language", ""):
        painter = CodePainter(language)
        lines = [
            'def f(x):  # "',
            '    """doc',
            '    end"""',
            "  /* a",
            "  b */ int x = 0x1F;",
            "",
            "\t<b>&amp;</b>",
        ]
        assert [SEQUENCE.sub("", painter.line(line)) for line in lines] == lines


def test_a_string_over_several_lines_has_one_colour_and_ends() -> None:
    painter = CodePainter("python")
    shown = [painter.line(line) for line in ('x = """a', "def b", 'c"""', "def d(): pass")]
    assert shown[1] == "\x1b[32mdef b\x1b[0m"
    assert shown[3].startswith("\x1b[35mdef")


def test_the_work_for_a_line_does_not_grow_with_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    painter = CodePainter("python")
    lexer = painter._lexer
    assert lexer is not None
    original = type(lexer).get_tokens_unprocessed

    def counting(self: object, text: str, *rest: object) -> object:
        read.append(len(text))
        return original(self, text, *rest)

    monkeypatch.setattr(type(lexer), "get_tokens_unprocessed", counting)
    for number in range(2000):
        painter.line(f"x{number} = '''" if number == 100 else f"y = {number}  # note")
    assert max(read) < 61 * 20
    assert sum(read[-500:]) < 500 * 40


def test_a_long_answer_is_linear_in_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word is looked at a bounded number of times, whatever came before it."""
    text = (EVERYTHING + "\n\n") * 20
    counts = []
    for part in (text, text * 4):
        seen = 0
        monkeypatch.undo()
        from llmrs_cli.chat import wrap

        def counted(piece: str) -> int:
            nonlocal seen
            seen += len(piece)
            return cell_len(piece)

        monkeypatch.setattr(wrap, "cell_len", counted)
        painted(part, 40, 4)
        counts.append(seen / len(part))
    assert counts[1] <= counts[0] * 1.1


def test_a_long_answer_is_written_once_and_the_cursor_never_goes_back() -> None:
    text = (EVERYTHING.replace("The end", "END") + "\n\n") * 100
    shown = painted(text, 60, 5)
    assert shown.count("END") == 100
    assert len(shown) < 2 * len(text)
    assert "\x1b" not in SEQUENCE.sub("", shown) and "\r" not in shown


# -- fenced blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```\na\n```", ["a\n"]),
        ("x\n```sh\na\n\nb\n```\ny\n~~~\nc\n~~~", ["a\n\nb\n", "c\n"]),
        ("````\n```\n````", ["```\n"]),
        ("- x\n  ```\n  a\n    b\n  ```", ["a\n  b\n"]),
        ("```\nnever closed", ["never closed\n"]),
        ("```inline``` text", []),
        ("none", []),
        ("```\n```", [""]),
    ],
)
def test_what_stands_in_fences(text: str, blocks: list[str]) -> None:
    assert code_blocks(text) == blocks
