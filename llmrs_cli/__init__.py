"""llmrs: a local LLM engine for the shell, and for Python programs (`llmrs_cli.library` says how).

Importing the package imports nothing else: its names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrs_cli.library import (
        GenerateOptions,
        GenerationResult,
        LlmrsError,
        TextEngine,
        TextEvent,
        open_model,
    )

__version__ = "0.1.0.dev0"
__all__ = ["GenerateOptions", "GenerationResult", "LlmrsError", "TextEngine", "TextEvent", "open_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from llmrs_cli import library

    return getattr(library, name)
