"""Which kernels a model needs: noted while it is loaded, and built all at once before its first step."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmrs_cli.engine.backends.cuda_staging import large_sizes
from llmrs_cli.kernels.catalog import (
    many_units,
    model_units,
    packed_many_units,
    packed_units,
    packed_wide_units,
    wide_units,
)
from llmrs_cli.kernels.linear_small import Epilogue
from llmrs_cli.kernels.loader import Unit
from llmrs_cli.kernels.marlin_layout import Layout

EPILOGUES: dict[str, Epilogue] = {
    "qkv": "store",
    "o": "add",
    "gate_up": "silu",
    "down": "add",
    "head": "logits",
    "embedding": "logits",
}
"""What follows a linear's product, by its place in a model; an embedding may be the head."""


@dataclass(slots=True)
class ModelUnits:
    """The linears of one model, with what follows each."""

    groups: set[int] = field(default_factory=set)
    """Of 4-bit weights"""
    dense: set[tuple[int, int, Epilogue]] = field(default_factory=set)
    packed: set[tuple[Layout, Epilogue]] = field(default_factory=set)
    copied: bool = False
    """Whether packed ones have a copy in 16 bits"""

    def add_dense(self, shape: tuple[int, int], place: str) -> None:
        """`place` as in EPILOGUES; others are not multiplied by kernels that depend on their shape."""
        if place in EPILOGUES:
            self.dense.add((*shape, EPILOGUES[place]))

    def add_packed(self, layout: Layout, place: str) -> None:
        """Likewise."""
        self.groups.add(layout.group)
        if place in EPILOGUES:
            self.packed.add((layout, EPILOGUES[place]))

    def units(
        self, bf16: bool, head_dim: int, arch: str, multiprocessors: int, most_tokens: int
    ) -> tuple[Unit, ...]:
        """All for steps of up to `most_tokens` tokens; 0: where bits are fixed, and other kernels multiply 16-bit weights."""
        sizes = large_sizes(most_tokens)
        found = list(model_units(bf16, head_dim, arch))
        for group in sorted(self.groups):
            found += packed_units(bf16, group, arch)
        found += packed_wide_units(bf16, self.packed, arch, multiprocessors)
        many = set(self.dense)
        if self.copied:
            many |= {(layout.rows, layout.columns, epilogue) for layout, epilogue in self.packed}
        else:
            found += packed_many_units(bf16, self.packed, sizes, arch, multiprocessors)
        found += many_units(bf16, many, sizes, arch, multiprocessors)
        if most_tokens:
            found += wide_units(bf16, self.dense, arch, multiprocessors)
        return tuple(found)
