"""What to type to install a part of llmrs that was left out, for an installation like this one.

A checkout that is installed in place must stay so: without -e, pip would put a copy beside it, which no later edit reaches.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution

NAME = "llmrs-cli"
"""Of the package, as pip knows it."""


def install(extra: str) -> str:
    """The command that adds `extra`, an optional part of the package, and where it is to be typed."""
    match _origin():
        case {"dir_info": {"editable": True}}:
            return f"pip install -e '.[{extra}]' in the checkout of llmrs"
        case {"dir_info": _}:
            return f"pip install '.[{extra}]' in the checkout of llmrs"
        case _:
            return f"pip install '{NAME}[{extra}]'"


def _origin() -> object:
    """What the installer has recorded of where the package came from (PEP 610); {} for one from an index."""
    try:
        text = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # it runs from a checkout as it is
        return {"dir_info": {}}
    return json.loads(text or "{}")
