"""Brings models to this machine, after a look at whether they fit.

llmrs pull MODEL... [--dry-run]
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from llmrs_cli.cli import complete
from llmrs_cli.cli.models import model_named
from llmrs_cli.cli.options import json_option, quiet_option, revision_option, room_options
from llmrs_cli.cli.table import table
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import load_settings
from llmrs_cli.errors import UsageError, quoted

if TYPE_CHECKING:
    from llmrs_cli.cli.look import Look
    from llmrs_cli.hub.access import HubAccess
    from llmrs_cli.hub.bring import Check
    from llmrs_cli.hub.names import ModelName


@click.command("pull")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete.models)
@revision_option
@room_options
@click.option("--force", is_flag=True, help="Fetch a model that does not fit on this machine.")
@click.option("-n", "--dry-run", is_flag=True, help="List the files, and fetch nothing.")
@json_option
@quiet_option
def command(
    models: tuple[str, ...],
    revision: str | None,
    device: str | None,
    ctx: int | None,
    rows: int | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fetch models from the Hub, and print where they are.

    What had arrived before an interruption is not fetched again. Before the first weight is fetched, the
    configuration says whether the model fits into the memory that is free, with --rows requests of --ctx
    tokens at once; if not, the status is 6. The token for gated models comes from HF_TOKEN or the login of
    Hub programs.

    \b
      llmrs pull qwen2.5-3b
      llmrs pull --dry-run Qwen/Qwen3-4B@main --ctx 32k --rows 8
      llmrs pull owner/repo/model.Q4_0.gguf
    """
    from llmrs_cli.cli.room import measure_room
    from llmrs_cli.hub.access import HubAccess

    terminal = Terminal.standard(quiet=quiet)
    names = [_fetchable(model_named(text, revision)) for text in models]
    access = HubAccess.from_environment(offline=load_settings().offline.value)
    room = None if force else measure_room(device, ctx, rows, terminal)
    act = _preview if dry_run else _pull
    done = [
        act(name, access, None if room is None else room.check(name.text), terminal, as_json)
        for name in names
    ]
    if as_json:
        terminal.data(json.dumps(done))


def _fetchable(name: ModelName) -> ModelName:
    if name.path is not None:
        raise UsageError(f"{quoted(name.text)} is a {name.kind} on this machine: there is nothing to fetch.")
    return name


def _pull(
    name: ModelName, access: HubAccess, check: Check | None, terminal: Terminal, as_json: bool
) -> dict[str, Any]:
    """Bring one model here; its path goes to stdout."""
    from llmrs_cli.cli.fetching import Fetching
    from llmrs_cli.hub.store import locate

    found = locate(name, access, Fetching(terminal), check)
    terminal.notice(f"{quoted(name.text)} is here{_at(found.commit)}.")
    if not as_json:
        terminal.data(str(found.path))
    return {"model": name.text, "repo": name.repo, "commit": found.commit, "path": str(found.path)}


def _preview(
    name: ModelName, access: HubAccess, check: Check | None, terminal: Terminal, as_json: bool
) -> dict[str, Any]:
    """Say what bringing one model here would fetch; raises what `check` does where that is the answer."""
    from llmrs_cli.hub.files import size_text

    look = _look(name, access)
    if not as_json:
        rows = [(file.name, size_text(file.size), "here" if file.here else "to fetch") for file in look.files]
        for line in table(
            [("FILE", "SIZE", "STATE"), *rows, ("total to fetch", size_text(look.missing), "")],
            right=frozenset({1}),
        ):
            terminal.data(line)
    what = f"would be fetched, {size_text(look.missing)}" if look.missing else "is here"
    terminal.notice(f"{quoted(name.text)} {what}{_at(look.commit)}.")
    if check is not None and look.missing:
        check(look.config, look.weights or 0)
    files = [{"name": file.name, "size": file.size, "here": file.here} for file in look.files]
    return {
        "model": name.text,
        "repo": name.repo,
        "commit": look.commit,
        "files": files,
        "missing": look.missing,
    }


def _look(name: ModelName, access: HubAccess) -> Look:
    from llmrs_cli.cli.look import look_here, look_online, look_up

    if name.kind != "built-in":
        return look_online(name, access)
    found = look_here(name, access) or look_up(name)
    assert found is not None, "the built-in model has a name"
    return found


def _at(commit: str | None) -> str:
    return "" if commit is None else f", commit {commit[:12]}"
