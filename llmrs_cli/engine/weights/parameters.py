"""One parameter of a model as a checkpoint offers it: shape known at once, values read on demand.

Every format ends here: a parameter may be one stored tensor or several (4-bit codes, scales, zeros).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llmrs_cli.engine.weights.packed import Dense, Stored, Weight
from llmrs_cli.engine.weights.store import StoredTensor
from llmrs_cli.errors import ModelError, quoted


@dataclass(frozen=True, slots=True)
class Parameter:
    """A matrix (N, K) or a vector (N,) under one of our names."""

    shape: tuple[int, ...]
    form: str
    """How it is stored, in a few words: "bfloat16", "4-bit AWQ, group 128"."""
    nbytes: int
    """Size in the file."""
    stored: tuple[str, ...]
    """Names of the tensors that it is made of, as in the file."""
    read: Callable[[], Weight]
    """Read it, in memory of its own, in its canonical form. Raises ModelError if the file has changed or ends early."""
    read_stored: Callable[[], Stored] | None = None
    """The same, but 4-bit codes as the file holds them (`Words4`, `Tiles4`); None: no other way than `read`."""

    read_rows: Callable[[slice], Weight] | None = None
    """Read the rows first … last - 1 alone; None: its rows do not lie together."""

    def slabs(self, height: int) -> Iterator[tuple[int, Weight]]:
        """At most `height` rows after the other, each with the number of its first.

        Only those are read, but where its rows do not lie together, all.
        """
        read = self.read().rows if self.read_rows is None else self.read_rows
        for first in range(0, self.shape[0], height):
            yield first, read(slice(first, min(first + height, self.shape[0])))

    def reader(self, *, stored: bool) -> Callable[[], Stored]:
        """How to read it; with `stored` as the file holds it, where there is such a way."""
        return self.read_stored if stored and self.read_stored is not None else self.read

    @property
    def is_quantised(self) -> bool:
        """Whether it is stored in less than 16 bits a value."""
        return self.form not in _FORMS.values()


WIDENED = "(16-bit on a GPU)"
"""Ends the form of what takes less memory in its file and on a CPU than on a GPU, whose kernels do not know it."""
_FORMS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def dense_parameter(tensor: StoredTensor) -> Parameter:
    """A plain tensor; raises ModelError if its dtype is none that we run."""
    if tensor.dtype not in _FORMS:
        raise ModelError(
            f"Tensor {quoted(tensor.name, 120)} has dtype {tensor.dtype}; we run {', '.join(_FORMS)}."
        )
    form = _FORMS[tensor.dtype]
    return Parameter(
        tensor.shape,
        form,
        tensor.nbytes,
        (tensor.name,),
        lambda: Dense(tensor.read()),
        read_rows=lambda chosen: Dense(tensor.rows(chosen)),
    )
