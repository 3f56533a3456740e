"""Man pages say what `--help` says, of groups and their commands too."""

from __future__ import annotations

import click
import pytest

from llmrs_cli.cli.manpage import pages
from llmrs_cli.cli.root import COMMANDS, root


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages(root)


def test_every_command_has_a_page(made: dict[str, str]) -> None:
    assert set(made) == {"llmrs.1", *(f"llmrs-{name}.1" for name in COMMANDS)}


def groups() -> list[str]:
    context = click.Context(root)
    return [name for name in COMMANDS if isinstance(root.get_command(context, name), click.Group)]


@pytest.mark.parametrize("name", groups())
def test_a_group_lists_its_commands_with_their_arguments(made: dict[str, str], name: str) -> None:
    group = root.get_command(click.Context(root), name)
    assert isinstance(group, click.Group)
    page = made[f"llmrs-{name}.1"]
    assert ".SH COMMANDS" in page
    for child in group.commands.values():
        arguments = [str(part.metavar) for part in child.params if isinstance(part, click.Argument)]
        usage = " ".join([str(child.name), "[OPTIONS]", *arguments]).replace("-", "\\-")
        assert f"\\fB{usage}\\fR" in page


def test_a_plain_command_lists_none(made: dict[str, str]) -> None:
    assert ".SH COMMANDS" not in made["llmrs-list.1"]
    assert "config" in groups() and "list" not in groups()
