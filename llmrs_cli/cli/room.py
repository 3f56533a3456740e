"""How much memory a model could take on the device that would run it; nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmrs_cli.cli.models import choose_device, free_bytes
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import load_settings

if TYPE_CHECKING:
    from llmrs_cli.hub.bring import Check
    from llmrs_cli.hub.fit import Fit


@dataclass(frozen=True, slots=True)
class Room:
    """A device, its free memory, and what is to run on it."""

    device: str
    free: int
    """Bytes."""
    context: int | None
    """Tokens of each request; None: the least that is of use (`fit.LEAST_CONTEXT`)."""
    rows: int
    """Requests at once."""

    def check(self, name: str) -> Check:
        """Raises DoesNotFitError for a model that does not fit, before its weights are fetched."""
        from llmrs_cli.hub.fit import fit_check

        return fit_check(name, free=self.free, context=self.context, parallel=self.rows)

    def plan(self, config: Mapping[str, object], weights: int | None) -> Fit:
        """What the model of `config` (config.json) needs here; `weights` in bytes, None: counted from `config`."""
        from llmrs_cli.hub.fit import plan

        return plan(config, free=self.free, context=self.context, parallel=self.rows, weights=weights)


def measure_room(device: str | None, ctx: int | None, rows: int | None, terminal: Terminal) -> Room:
    """The room there is now; the arguments are the values of flags, None: as the settings say."""
    settings = load_settings({"device": device, "context": ctx})
    chosen = choose_device(settings.device.value, terminal)
    return Room(chosen, free_bytes(chosen), settings.context.value, rows or 1)
