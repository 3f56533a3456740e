"""How many characters a piece of code looks at, counted instead of timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

BOUNDED = ("startswith", "endswith")
"""Methods that look at no more than they are asked for."""


def looked(work: Callable[[], Any]) -> int:
    """Characters and bytes of all texts whose methods `work` calls, and one for each line of Python that it runs."""
    count = 0

    def see_call(frame: Any, event: str, what: Any) -> None:
        nonlocal count
        if event == "c_call" and what.__name__ not in BOUNDED:
            text = getattr(what, "__self__", None)
            count += len(text) if isinstance(text, str | bytes) else 0

    def see_line(frame: Any, event: str, what: Any) -> Any:
        nonlocal count
        count += event == "line"
        return see_line

    before = sys.getprofile(), sys.gettrace()
    sys.setprofile(see_call)
    sys.settrace(see_line)
    try:
        work()
    finally:
        sys.settrace(before[1])
        sys.setprofile(before[0])
    return count
