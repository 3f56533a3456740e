"""The engine's public names, each imported when it is first asked for: a help page needs none of them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrs_cli.engine.api import Engine, open_engine
    from llmrs_cli.engine.limits import EngineLimits
    from llmrs_cli.engine.loop import EngineThread
    from llmrs_cli.engine.stats import EngineStats
    from llmrs_cli.engine.types import (
        FinishReason,
        Request,
        SamplingParams,
        TokenEvent,
        TokenLogprob,
        check_params,
    )

__all__ = [
    "Engine",
    "EngineLimits",
    "EngineStats",
    "EngineThread",
    "FinishReason",
    "Request",
    "SamplingParams",
    "TokenEvent",
    "TokenLogprob",
    "check_params",
    "open_engine",
]

_HOME = {
    "Engine": "api",
    "EngineLimits": "limits",
    "EngineStats": "stats",
    "EngineThread": "loop",
    "open_engine": "api",
}
"""Module of each name; `types` where none is given."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'types')}"), name)
