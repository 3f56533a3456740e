"""What a shell offers after TAB: commands and options by Click, names of models by us.

The shell calls `llmrs` with a variable set. Whatever goes wrong then is silent: an error at the
prompt would stand in the middle of what the user types. Reads folders only, and imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from llmrs_cli.cli.root import COMPLETE_VARIABLE as VARIABLE

PROGRAM = "llmrs"
SHELLS = ("bash", "zsh", "fish")

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def answer_shell(root: click.Group, instruction: str) -> int:
    """Print what the shell may offer, as `instruction` says; returns the exit status."""
    try:
        return shell_complete(root, {}, PROGRAM, VARIABLE, instruction)
    except Exception:  # see above
        return 1


def script(root: click.Group, shell: str) -> str:
    """The text that makes one of `SHELLS` call us."""
    kind = get_completion_class(shell)
    assert kind is not None, "one of SHELLS"
    made = kind(root, {}, PROGRAM, VARIABLE)
    return made.source_template % made.source_vars()  # `source` would also start bash to ask its version


def models(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem[str]]:
    """Models on this machine, the user's own names and all aliases; files for what looks like a path."""
    from llmrs_cli.config import directories
    from llmrs_cli.hub.names import looks_like_path
    from llmrs_cli.hub.own_names import read_names
    from llmrs_cli.hub.shelf import completions

    if looks_like_path(prefix):
        return [CompletionItem(prefix, type="file")]
    places = directories()
    own = [name for name in read_names(places.config) if name.startswith(prefix)]
    return _items([*own, *completions(places.hub, places.cache, prefix)])


def kept(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem[str]]:
    """Models on this machine, whole or in part."""
    from llmrs_cli.config import directories
    from llmrs_cli.hub.shelf import kept_models

    places = directories()
    names = dict.fromkeys(entry.name for entry in kept_models(places.hub, places.cache))
    return _items(name for name in names if name.startswith(prefix))


def own_names(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem[str]]:
    """Names that the user has given."""
    from llmrs_cli.config import directories
    from llmrs_cli.hub.own_names import read_names

    return _items(name for name in read_names(directories().config) if name.startswith(prefix))


def one_of(*words: str) -> Completer:
    """A completer for a few fixed words."""
    return lambda ctx, parameter, prefix: _items(word for word in words if word.startswith(prefix))


def _items(values: Iterable[str]) -> list[CompletionItem[str]]:
    return [CompletionItem(value) for value in values]
