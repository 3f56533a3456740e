"""What the assembler says that a kernel takes: registers, and local memory that it should not take."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<frame>\d+) bytes stack frame, (?P<stores>\d+) bytes spill"
    r" stores, (?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one kernel on one architecture."""

    name: str
    registers: int
    local_bytes: int
    """Stack frame and spills; anything but 0 costs dearly."""


def parse(log: str) -> list[Resources]:
    """One entry per kernel in a compiler's log, in its order."""
    return [
        Resources(m["name"], int(m["registers"]), int(m["frame"]) + int(m["stores"]) + int(m["loads"]))
        for m in _ENTRY.finditer(log)
    ]
