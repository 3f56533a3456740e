"""Where the Hub is, where its cache lies, and who we are there, as the environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmrs_cli.config import Setting, directories
from llmrs_cli.errors import AccessError
from llmrs_cli.hub.client import Secret

DEFAULT_ENDPOINT = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Where the Hub and its cache are, and whether to go there."""

    hub: Path
    """The cache that Hub programs share."""
    cache: Path
    """Our own cache, for the built-in model."""
    endpoint: str = DEFAULT_ENDPOINT
    token: Secret | None = None
    offline: bool = False

    @classmethod
    def from_environment(cls, *, offline: bool, env: Mapping[str, str] | None = None) -> HubAccess:
        """As the environment says; `offline` is the setting, which has HF_HUB_OFFLINE in it already."""
        env = os.environ if env is None else env
        places = directories(env)
        return cls(
            hub=places.hub,
            cache=places.cache,
            endpoint=env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT,
            token=read_token(env, places.token_file).value,
            offline=offline,
        )


def read_token(env: Mapping[str, str], file: Path) -> Setting[Secret | None]:
    """The access token of HF_TOKEN or of the file that Hub programs log in to, and which of them it was."""
    if text := "".join(env.get("HF_TOKEN", "").split()):
        return Setting(_token(text, "HF_TOKEN"), "HF_TOKEN")
    try:
        text = "".join(file.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        return Setting(None)
    return Setting(_token(text, str(file)) if text else None, str(file))


def _token(text: str, origin: str) -> Secret:
    if not text.isascii() or not text.isprintable():
        raise AccessError(f"What {origin} holds is not a token.", hint="A token is a word such as hf_…")
    return Secret(text)
