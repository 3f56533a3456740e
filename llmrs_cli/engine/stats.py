"""What the engine has done and how long its steps took: counters for people and metrics, no decisions.

`Recorder` is written by the engine's thread alone; `snapshot` may be called from any thread. Times are
seconds of a monotonic clock that the engine reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmrs_cli.engine.plan import StepPlan
from llmrs_cli.engine.types import FinishReason, TokenEvent

RECENT_STEPS = 256
"""Step timings that are kept."""
QUEUE_BOUNDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0),
)
"""Upper bounds of the classes of waits, in seconds; one more holds what is above."""


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Where one step of the engine spent its time; with lookahead it plans one step, reads another."""

    tokens: int
    """Tokens launched; 0 if the step only read results."""
    chunks: int
    plan: float
    launch: float
    wait: float
    """Until the results were there: where the device is the slower one, its time."""
    commit: float

    @property
    def total(self) -> float:
        return self.plan + self.launch + self.wait + self.commit


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Everything since the engine was opened, and what is going on now."""

    running: int
    waiting: int
    blocks: int
    blocks_used: int
    """Held by running requests; the others are free, cached prefixes included."""
    requests: int
    """Accepted so far."""
    finished: Mapping[FinishReason, int]
    prompt_tokens: int
    """Of requests that have given their first token."""
    cached_tokens: int
    """Of those, found in the prefix cache."""
    generated_tokens: int
    computed_tokens: int
    """Through the model: prompts without cached tokens, decoding, recomputation after preemptions."""
    steps: int
    preemptions: int
    started: int
    """Requests that have been part of a step."""
    queue_seconds: float
    """Summed over them: from submit to the launch of their first step."""
    queued: tuple[int, ...]
    """How many of them waited so long: one count for each of `QUEUE_BOUNDS`, and one for more."""
    answered: int
    """Requests that have given a token."""
    first_token_seconds: float
    """Summed over them: from submit to the first token."""
    recent: tuple[StepTiming, ...]
    """The latest steps, oldest first."""


@dataclass(slots=True)
class _Arrival:
    """A request that has not given a token yet."""

    at: float
    prompt_tokens: int
    started: bool = False


class Recorder:
    """Counts what the engine reports."""

    def __init__(self) -> None:
        self._arrivals: dict[str, _Arrival] = {}
        self._finished = dict.fromkeys(FinishReason, 0)
        self._recent: deque[StepTiming] = deque(maxlen=RECENT_STEPS)
        self._requests = self._started = self._answered = 0
        self._prompt_tokens = self._cached_tokens = 0
        self._generated_tokens = self._computed_tokens = self._steps = 0
        self._queue_seconds = self._first_token_seconds = 0.0
        self._queued = [0] * (len(QUEUE_BOUNDS) + 1)

    def submitted(self, request_id: str, prompt_tokens: int, now: float) -> None:
        self._requests += 1
        self._arrivals[request_id] = _Arrival(now, prompt_tokens)

    def launched(self, plan: StepPlan, now: float) -> None:
        if not self._arrivals:
            return
        for chunk in plan.chunks:
            arrival = self._arrivals.get(chunk.request_id)
            if arrival is not None and not arrival.started:
                arrival.started = True
                self._started += 1
                self._queue_seconds += now - arrival.at
                self._queued[bisect_left(QUEUE_BOUNDS, now - arrival.at)] += 1

    def gave(self, events: Iterable[TokenEvent], now: float) -> None:
        arrivals = self._arrivals
        for event in events:
            self._generated_tokens += len(event.tokens)
            if event.finish is None and not arrivals:
                continue
            arrival = arrivals.pop(event.request_id, None) if event.tokens or event.finish else None
            if arrival is not None and event.tokens:
                self._answered += 1
                self._first_token_seconds += now - arrival.at
                self._prompt_tokens += arrival.prompt_tokens
                self._cached_tokens += event.cached_tokens
            if event.finish is not None:
                self._finished[event.finish] += 1

    def stepped(self, timing: StepTiming) -> None:
        self._recent.append(timing)
        self._steps += timing.tokens > 0
        self._computed_tokens += timing.tokens

    def snapshot(
        self, *, running: int, waiting: int, blocks: int, blocks_used: int, preemptions: int
    ) -> EngineStats:
        """The counters now, beside what the scheduler says of itself."""
        return EngineStats(
            running=running,
            waiting=waiting,
            blocks=blocks,
            blocks_used=blocks_used,
            requests=self._requests,
            finished=dict(self._finished),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            computed_tokens=self._computed_tokens,
            steps=self._steps,
            preemptions=preemptions,
            started=self._started,
            queue_seconds=self._queue_seconds,
            queued=tuple(self._queued),
            answered=self._answered,
            first_token_seconds=self._first_token_seconds,
            recent=tuple(self._recent),
        )
