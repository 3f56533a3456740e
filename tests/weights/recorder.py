"""A backend that only writes down what it is asked to prepare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.engine.weights.packed import Dense, Stored


@dataclass(frozen=True)
class Prepared:
    """One call of prepare_linear."""

    parts: tuple[Stored, ...]
    bias: tuple[Dense | None, ...]
    name: str

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


@dataclass
class Recorder:
    """Every linear layer and vector in the order of the calls."""

    read_ahead: int = 0
    reorders: ClassVar[bool] = False

    linears: list[Prepared] = field(default_factory=list)
    vectors: list[Dense] = field(default_factory=list)
    rope: tuple[int, ...] = ()

    def prepare_linear(self, parts: Sequence[Stored], bias: Sequence[Dense | None], name: str) -> Prepared:
        self.linears.append(Prepared(tuple(parts), tuple(bias), name))
        return self.linears[-1]

    def prepare_vector(self, values: Dense) -> Dense:
        self.vectors.append(values)
        return values

    def prepare_rope(self, cos: Any, sin: Any) -> None:
        assert cos.shape == sin.shape
        self.rope = cos.shape

    @property
    def backend(self) -> Backend:
        return cast(Backend, self)
