"""A model that stays loaded while one engine after another is opened on it, each of a size of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from llmrs_cli.engine.api import Engine, assemble
from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.engine.loop import EngineThread
from llmrs_cli.engine.memory import SHARE, copy_bytes, plan_memory, weight_bytes
from llmrs_cli.engine.weights.checkpoint import Checkpoint
from llmrs_cli.engine.weights.load import load_model


def _unheard(_: int, __: int) -> None:
    """Progress that nobody watches."""


@dataclass(slots=True)
class Workplace:
    """Where scenarios run: model, backend, how much of the load, how often."""

    checkpoint: Checkpoint
    backend: Backend
    scale: float = 1.0
    """Of the number of requests and of their lengths; 1 is the scenario as it is described."""
    repeats: int = 3
    progress: Callable[[int, int], None] = _unheard
    memory: int = 0
    """Bytes for weights and engines; 0: what is free now."""
    _model: ModelWeights | None = field(init=False, default=None)
    _copies: int = field(init=False, default=0)
    """Bytes beside the model's weights"""

    def __post_init__(self) -> None:
        self.memory = self.memory or int(self.backend.free_bytes() * SHARE)

    @property
    def longest(self) -> int:
        """Tokens of the model's longest context."""
        return self.checkpoint.spec.max_context

    @property
    def weights(self) -> int:
        """Bytes of the model's weights."""
        return weight_bytes(self.checkpoint, self.backend)

    def scaled(self, count: int, least: int = 1) -> int:
        """A count or a length in tokens at this scale."""
        return max(least, round(count * self.scale))

    @contextmanager
    def engine(self, rows: int, context: int, budget: int | None = None) -> Iterator[EngineThread]:
        """An engine of `rows` rows and `context` tokens each, through the thread that chat and batch use.

        `budget`: tokens a step while any row decodes; None: what is usual. Raises DoesNotFitError with the sizes.
        """
        with EngineThread(lambda: self.stepped(rows, context, budget)) as thread:
            yield thread

    def stepped(self, rows: int, context: int, budget: int | None = None) -> Engine:
        """The same without a thread, for who wants to look at single steps."""
        spec = self.checkpoint.spec
        self.backend.use()
        # Once the model is there, the memory that it was given is ours already.
        loaded = self._model is not None
        plan = plan_memory(
            spec,
            self.backend,
            self.weights + self._copies,
            context=context,
            rows=rows,
            memory=self.memory,
            held=self.memory if loaded else 0,
            copies=0 if loaded else copy_bytes(self.checkpoint, self.backend),
        )
        limits = plan.limits
        if budget is not None:
            limits = replace(limits, busy_budget=budget, idle_budget=max(budget, limits.idle_budget))
        return assemble(self.checkpoint, self.backend, self._loaded(plan.copies), limits)

    def _loaded(self, copies: int) -> ModelWeights:
        """The model; loaded in the thread of the first engine, with copies of its weights if they may take that many bytes."""
        if self._model is None:
            model = load_model(self.checkpoint, self.backend, self.progress)
            self._model, self._copies = self.backend.copied(model) if copies else model, copies
        return self._model
