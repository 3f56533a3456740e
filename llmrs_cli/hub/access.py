"""Where the Hub is and where its cache lies, as the environment says. Who we are there, `hub.library` finds out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from llmrs_cli.config import directories
from llmrs_cli.errors import UsageError, quoted

DEFAULT_ENDPOINT = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Where the Hub and its cache are, and whether to go there."""

    hub: Path
    """The cache that Hub programs share."""
    cache: Path
    """Our own cache, for the built-in model."""
    endpoint: str = DEFAULT_ENDPOINT
    offline: bool = False

    @classmethod
    def from_environment(cls, *, offline: bool, env: Mapping[str, str] | None = None) -> HubAccess:
        """As the environment says; `offline` is the setting, which has HF_HUB_OFFLINE in it already."""
        env = os.environ if env is None else env
        places = directories(env)
        return cls(
            places.hub, places.cache, (env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"), offline
        )

    def page(self, repo: str) -> str:
        """Address of a repository for a person."""
        return f"{self.endpoint}/{repo}"

    def check(self) -> None:
        """Raise UsageError unless the endpoint is an address that requests can go to."""
        try:
            parts = urlsplit(self.endpoint)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            good = False
        if (
            not good
            or "@" in self.endpoint  # a password may hold a slash, which ends the host for whoever reads it
            or parts.query
            or parts.fragment
            or not self.endpoint.isprintable()
        ):
            raise UsageError(
                f"HF_ENDPOINT is not the address of a Hub: {quoted(self.endpoint.rpartition('@')[2])}.",
                hint="It looks like https://host or http://host:port.",
            )
