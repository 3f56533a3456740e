"""Licences of the models that have short names, as their publishers state them; for `llmrs show`."""

from __future__ import annotations

from collections.abc import Mapping

LICENCES: Mapping[str, str] = {
    "HuggingFaceTB/SmolLM2-": "apache-2.0",
    "Qwen/Qwen2.5-3B-": "qwen-research",
    "Qwen/Qwen2.5-": "apache-2.0",
    "Qwen/Qwen3-": "apache-2.0",
    "meta-llama/Llama-3.1-": "llama3.1",
    "meta-llama/Llama-3.2-": "llama3.2",
}
"""By the beginning of the repository's name; the first that fits holds."""


def licence_of(repo: str) -> str | None:
    """The licence of a repository that has a short name; None for others."""
    from llmrs_cli.hub.aliases import ALIASES

    if not any(alias.repo == repo for alias in ALIASES.values()):
        return None
    return next(licence for beginning, licence in LICENCES.items() if repo.startswith(beginning))
