"""Where blocks that share the outputs of a product leave their parts, and count who has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmrs_cli.errors import EngineFault


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where workers leave the parts of what they share, one kernel after the other."""

    partials: Any
    """(any,) float32"""
    arrivals: Any
    """(any,) int32, zero between kernels"""

    def check(self, partials: int, arrivals: int) -> None:
        """Raise EngineFault if one holds fewer elements."""
        if self.partials.size < partials or self.arrivals.size < arrivals:
            raise EngineFault(f"A product needs room for {partials} sums and {arrivals} counts.")
