"""What a typed line means: messages, commands, blocks of lines, mistypings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.chat.commands import HELP, KEYS, NAMES, Command, Message, help_text, is_open, parse
from llmrs_cli.errors import UsageError


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("Hi", "Hi"),
        ("//etc is a folder", "/etc is a folder"),
        (" /bye", " /bye"),
        ('"""one\ntwo"""', "one\ntwo"),
        ('"""\none\ntwo\n"""', "one\ntwo"),
        ("one\\\ntwo", "one\ntwo"),
        ("one\ntwo", "one\ntwo"),
        ('quotes """ inside', 'quotes """ inside'),
    ],
)
def test_messages(line: str, text: str) -> None:
    assert parse(line) == Message(text)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/help", Command("/help", "")),
        ("/?", Command("/help", "")),
        ("/bye ", Command("/bye", "")),
        ("/exit", Command("/bye", "")),
        ("/quit", Command("/bye", "")),
        ("/new", Command("/clear", "")),
        ("/system Be brief.", Command("/system", "Be brief.")),
        ("/system", Command("/system", "")),
        ("/stats", Command("/stats", "")),
    ],
)
def test_commands(line: str, command: Command) -> None:
    assert parse(line) == command


@pytest.mark.parametrize("line", ["", "  ", "\n"])
def test_a_blank_line_means_nothing(line: str) -> None:
    assert parse(line) is None


@pytest.mark.parametrize(("typed", "meant"), [("/hlep", "/help"), ("/bey", "/bye"), ("/sytem x", "/system")])
def test_an_unknown_command_names_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(typed)
    assert meant in str(caught.value)
    assert "//" in str(caught.value)


@pytest.mark.parametrize("line", ["/showfoo", "/byebye now", "/", "/etc/passwd", "/clear all"])
def test_no_slash_line_ever_goes_to_the_model(line: str) -> None:
    with pytest.raises(UsageError):
        parse(line)


@given(st.text().filter(lambda text: text.strip() and not text.startswith("/")))
def test_other_text_is_always_a_message(text: str) -> None:
    assert isinstance(parse(text), Message)


@pytest.mark.parametrize(
    ("text", "still_open"),
    [
        ("Hi", False),
        ("Hi\\", True),
        ("Hi\\\nthere", False),
        ('"""', True),
        ('"""one\ntwo', True),
        ('"""one\ntwo"""', False),
        ('say """', False),
    ],
)
def test_when_enter_sends(text: str, still_open: bool) -> None:
    assert is_open(text) is still_open


def test_the_help_names_every_command_and_key() -> None:
    shown = help_text()
    assert all(name in shown for name in [*HELP, *KEYS])
    assert set(HELP) <= {name for name in HELP if name.split()[0] in NAMES}
