"""A 4-bit matrix in the GPU's memory, in the order of `marlin_layout`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Buffer
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.marlin_layout import Layout

EPILOGUES: tuple[Epilogue, ...] = ("store", "add", "silu", "logits")
"""In the order of linear.cuh."""


@dataclass(frozen=True, slots=True)
class Packed4Matrix:
    """Units of 64 rows and 128 columns."""

    units: Any
    """(units down, units across, words of a unit) uint32"""
    layout: Layout

    @property
    def shape(self) -> tuple[int, int]:
        return self.layout.rows, self.layout.columns


def units_buffer(layout_words: int) -> Buffer:
    """The parameter that holds the units of a matrix, of so many words each."""
    return Buffer("packed", "u32", ("down", "across", layout_words))


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
            raise EngineFault(f"A 4-bit kernel needs room for {partials} sums and {arrivals} counts.")
