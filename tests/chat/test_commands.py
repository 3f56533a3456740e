"""What a typed line means: messages, commands, blocks of lines, mistypings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.chat.actions import ACTIONS
from llmrs_cli.chat.commands import COMMANDS, KEYS, NAMES, Command, Message, help_text, is_open, parse
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
        ("/load x", Command("/model", "x")),
        ("/read a b", Command("/file", "a b")),
        ("/regenerate temp=1", Command("/regen", "temp=1")),
        ("/system one\ntwo", Command("/system", "one\ntwo")),
        ("/system\none\ntwo", Command("/system", "one\ntwo")),
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


@pytest.mark.parametrize("line", ["/tokens", "/file", "/export ", "/load-session"])
def test_a_command_that_needs_an_argument_says_so(line: str) -> None:
    with pytest.raises(UsageError, match="needs an argument"):
        parse(line)


def test_every_command_has_one_action_and_no_spelling_twice() -> None:
    assert {entry.name for entry in COMMANDS} == {*ACTIONS, "/bye"}
    spellings = [name for entry in COMMANDS for name in (entry.name, *entry.aliases)]
    assert len(spellings) == len(set(spellings)) == len(NAMES)


def test_the_help_names_every_command_and_key() -> None:
    shown = help_text()
    assert all(entry.usage in shown for entry in COMMANDS)
    assert all(key in shown for key in KEYS)
    assert max(map(len, shown.splitlines())) < 100


def test_help_of_one_command_names_its_aliases() -> None:
    assert "/quit" in help_text("bye")
    assert help_text("/load") == help_text("model")
    with pytest.raises(UsageError):
        help_text("nothing")
