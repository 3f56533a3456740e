"""A 4-bit matrix in the GPU's memory, in the order of `marlin_layout`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
