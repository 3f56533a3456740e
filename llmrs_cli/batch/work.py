"""A row on its way through the engine, with the token events that came for it.

`Events` is called in the engine's thread, for every token: it only appends, and calls for attention when
the answer is whole, so that nobody is woken for a token. Rows with stop strings must be looked at as they
grow; for them it calls each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmrs_cli.batch.answers import answer_for
from llmrs_cli.batch.records import Row, Shape
from llmrs_cli.batch.results import Outcome
from llmrs_cli.engine.types import FinishReason, TokenEvent, joined
from llmrs_cli.errors import LlmrsError

if TYPE_CHECKING:
    from llmrs_cli.text.generate import GenerateOptions, Generation, GenerationResult


class Events:
    """The sink of one row."""

    def __init__(self, call: Callable[[], None], *, choices: int, eager: bool) -> None:
        """`call` must return at once; `eager`: after every event, not only when all `choices` have ended."""
        self._call = call
        self._running = choices
        self._eager = eager
        self._events: deque[TokenEvent] = deque()

    def __call__(self, event: TokenEvent) -> None:
        """Keep an event of the engine."""
        self._events.append(event)
        if event.finish is not None:
            self._running -= 1
        if self._eager or self._running == 0 or event.finish is FinishReason.ERROR:
            self._call()

    def take(self) -> Iterator[TokenEvent]:
        """What came since the last time, the events of each request joined into one."""
        by_request: dict[str, list[TokenEvent]] = {}
        while self._events:
            event = self._events.popleft()
            by_request.setdefault(event.request_id, []).append(event)
        return map(joined, by_request.values())


@dataclass(eq=False, slots=True)
class Work:
    """One row from reading to writing."""

    number: int
    """Counts the rows of this run from 0."""
    row: Row
    prompt: tuple[int, ...] = ()
    options: GenerateOptions | None = None
    key: bytes | None = None
    """See `twins`."""
    twins: list[Work] = field(default_factory=list)
    """Rows that wait for this one's answer."""
    events: Events | None = None
    generation: Generation | None = None
    """There while it is in the engine, and after."""
    result: GenerationResult | LlmrsError | None = None
    """What came of it."""
    merged: bool = False
    """The answer is another row's."""
    settled: bool = False
    """Nothing more is to be done about it."""

    def advance(self) -> None:
        """Look at what came; puts `result` if that is all. Raises EngineFault and what decoding raises."""
        assert self.generation is not None and self.events is not None
        for event in self.events.take():
            self.generation.take(event)
        if self.generation.finished:
            self.result = self.generation.result()

    def cancel(self) -> None:
        """End it soon, if it is in the engine."""
        if self.generation is not None:
            self.generation.cancel()

    @property
    def aborted(self) -> bool:
        """It was ended before its time: what there is of it is no answer."""
        if self.result is None or isinstance(self.result, LlmrsError):
            return False
        return any(choice.finish_reason is FinishReason.ABORT for choice in self.result.choices)

    @property
    def answer(self) -> GenerationResult | None:
        """What equal rows may be given."""
        return None if self.aborted or isinstance(self.result, LlmrsError) else self.result

    def outcome_for(self, shape: Shape, *, as_json: bool = False) -> Outcome:
        """The result, for a row that is written in `shape`; see `Answer.is_json`."""
        assert self.result is not None
        if isinstance(self.result, LlmrsError):
            return self.result
        return answer_for(shape, self.result, as_json=as_json)
