"""How a comparison reads what a backend's fused ops give: as numbers on the host, and where their type was too small.

Nothing here runs while tokens are generated. A value at the end of its type stands for all that lie beyond, so a
kernel need not count what it cuts off: whoever looks later finds it in what was stored, at no cost to the kernel.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from llmrs_cli.engine.arrays import Floats
from llmrs_cli.engine.backends.handles import KvLayer, Vector


class Looks(Protocol):
    """One backend's results from outside."""

    def numbers(self, result: Any, tokens: int) -> Floats | None:
        """What an op gave for the first `tokens` tokens, (tokens, …), a copy; None where the reference's op of the same
        name gives something else."""

    def saturated(self, result: Any, tokens: int) -> int:
        """Values of it that lie at the end of their type or beyond."""

    def saturated_kv(self, kv: KvLayer) -> int:
        """The same of all keys and values of a layer."""

    def saturated_norm(self, residual: Any, norm: Vector, tokens: int) -> int:
        """The same of residual times norm, which some kernels store before they know by what to divide it."""


class HostLooks:
    """NumPy arrays of float32, which has room for all that a model computes."""

    def numbers(self, result: Any, tokens: int) -> Floats | None:
        return np.array(result[:tokens], np.float32)

    def saturated(self, result: Any, tokens: int) -> int:
        return 0

    def saturated_kv(self, kv: KvLayer) -> int:
        return 0

    def saturated_norm(self, residual: Any, norm: Vector, tokens: int) -> int:
        return 0
