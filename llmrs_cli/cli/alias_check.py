"""Compares the table of short names with the Hub: repositories, configurations, gates and licences.

For `llmrs doctor --aliases`. Weights are not touched: of each repository the listing and config.json are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from llmrs_cli.errors import AccessError, LlmrsError, NetworkError

if TYPE_CHECKING:
    from llmrs_cli.hub.access import HubAccess
    from llmrs_cli.hub.aliases import Alias


@dataclass(frozen=True, slots=True)
class AliasReport:
    """One short name, compared."""

    name: str
    repo: str
    ok: bool | None
    """Whether the table is right; None: the Hub did not let us see."""
    detail: str


def check_aliases(access: HubAccess) -> list[AliasReport]:
    """Every name of the table. Raises NetworkError if the Hub cannot be asked."""
    from llmrs_cli.hub.aliases import ALIASES

    return [check_alias(alias, access) for alias in ALIASES.values()]


def check_alias(alias: Alias, access: HubAccess) -> AliasReport:
    """One of them. Raises NetworkError if the Hub cannot be asked."""
    from llmrs_cli.cli.look import look_online
    from llmrs_cli.hub.names import parse_model

    try:
        found = look_online(parse_model(alias.repo), access)
        wrong = [*_differences(alias.config, found.config), *_licence(alias.repo, found.licence)]
    except NetworkError:
        raise
    except AccessError as error:
        return AliasReport(alias.name, alias.repo, None if alias.gated else False, error.message)
    except LlmrsError as error:
        return AliasReport(alias.name, alias.repo, False, error.message)
    commit = f"commit {str(found.commit)[:12]}"
    return AliasReport(alias.name, alias.repo, not wrong, "; ".join(wrong) or commit)


def _differences(expected: Mapping[str, object], found: Mapping[str, object]) -> list[str]:
    """What the Hub's configuration says otherwise than the table, as far as it makes another model."""
    from llmrs_cli.engine.model.spec import from_config
    from llmrs_cli.engine.weights.quantisation import read_quantisation

    ours, theirs = from_config(expected, None), from_config(found, None)
    wrong = [
        f"{field.name} is {getattr(theirs, field.name)}, not {getattr(ours, field.name)}"
        for field in fields(ours)
        if getattr(ours, field.name) != getattr(theirs, field.name)
    ]
    if (read_quantisation(expected) is None) != (read_quantisation(found) is None):
        wrong.append("it is quantised" if read_quantisation(found) else "it is not quantised")
    return wrong


def _licence(repo: str, found: str | None) -> list[str]:
    from llmrs_cli.cli.licences import licence_of

    expected = licence_of(repo)
    return [f"its licence is {found}, not {expected}"] if found and found != expected else []
