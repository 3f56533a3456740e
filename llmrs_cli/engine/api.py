"""The engine: requests of token ids in, token events out, one step at a time, in one thread.

    submit ─→ Scheduler.plan ─StepPlan→ runner.launch        the only place that knows both
    events ←─ Scheduler.commit ←─ids──  runner.collect

A step with rows that follow a grammar is launched in two halves: while its body runs, the ids of the step
before are read and the masks of those rows worked out, for its head. A row whose mask is late draws in a later
step. All other steps are launched whole.

With a lookahead of 1 step n + 1 is planned and launched before the ids of step n are read, so the host
is never in the device's way. `submit`, `abort`, `step`, `check` and `close` belong to one thread (see
`loop.EngineThread`); `validate`, `stats` and the properties may be called from any.

Faults. A request that cannot be served raises where it is submitted; one whose logits are not numbers
ends alone with finish ERROR. An exception inside a step breaks the engine: every request gets one last
event with finish ERROR, `fault` says why, in which step and with which requests, and `submit` raises it from
then on. (The file is long because an engine's whole life stands here: put together, run, broken, closed.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from llmrs_cli.engine.limits import EngineLimits, check_request
from llmrs_cli.engine.masks import Compile, Masks, Matcher
from llmrs_cli.engine.plan import StepPlan, StepResult
from llmrs_cli.engine.scheduler import Scheduler
from llmrs_cli.engine.stats import EngineStats, Recorder, StepTiming
from llmrs_cli.engine.types import BROKEN, FinishReason, Request, TokenEvent
from llmrs_cli.errors import DoesNotFitError, EngineFault, LlmrsError, RequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmrs_cli.engine.backends.base import Backend
    from llmrs_cli.engine.backends.handles import ModelWeights
    from llmrs_cli.engine.weights.checkpoint import Checkpoint


NAMED = 8
"""Requests that a fault names."""


class StepRunner(Protocol):
    """What computes steps: `engine.runner.Runner`, or a fake. Only one that follows grammars needs halves."""

    def launch(self, plan: StepPlan) -> None:
        """Start the step; need not wait for it."""

    def collect(self) -> StepResult:
        """Wait for the oldest launched step."""


class HalfRunner(Protocol):
    """What launches a step in halves."""

    def launch_body(self, plan: StepPlan) -> None:
        """Start the step up to its logits."""

    def launch_head(self, mask: NDArray[np.uint32]) -> None:
        """Draw under `mask`, (R, ceil(V/32)), a row for each chunk that samples."""


@dataclass(frozen=True, slots=True)
class Grammars:
    """What an engine needs to hold answers to grammars."""

    compile: Compile
    runner: HalfRunner
    masks: Masks


def _nothing() -> None:
    """Closing an engine that owns nothing."""


class Engine:
    """Serves requests with continuous batching. `open_engine` puts one together for a checkpoint."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        *,
        vocab: int,
        lookahead: int = 0,
        release: Callable[[], None] = _nothing,
        clock: Callable[[], float] = time.monotonic,
        grammars: Grammars | None = None,
        explain: Callable[[BaseException], str | None] = lambda error: None,
    ) -> None:
        """`vocab` counts the ids that a prompt may hold; `release` is called once, by `close`; `explain` says
        in a sentence what an exception of the device means, if it knows."""
        self.vocab = vocab
        self.lookahead = lookahead
        self.fault: EngineFault | None = None
        """Why the engine is broken."""
        self._scheduler = scheduler
        self._runner = runner
        self._release = release
        self._explain = explain
        self._clock = clock
        self._grammars = grammars
        self._recorder = Recorder()
        self._open: dict[str, None] = {}
        """Requests that have not had their last event, in order of arrival."""
        self._events: list[TokenEvent] = []
        """For the next `step` to give out."""

    @property
    def limits(self) -> EngineLimits:
        return self._scheduler.limits

    # -- requests -------------------------------------------------------------------------------------

    def validate(self, request: Request) -> None:
        """Raise RequestError or ContextLengthError if `request` can never be served. Changes nothing."""
        check_request(request, self.limits, self.vocab)

    def matcher(self, request: Request) -> Matcher | None:
        """The beginning of a request's grammar, None if it has none. Raises RequestError; may take a while.

        For any thread but the engine's; `submit` takes the result.
        """
        if not request.grammar:
            return None
        if self._grammars is None:
            raise RequestError(
                "This engine follows no grammars.", code="unsupported", param="response_format"
            )
        return self._grammars.compile(request.grammar)

    def submit(self, request: Request, matcher: Matcher | None = None) -> None:
        """Queue a request, with the `matcher` of its grammar.

        Raises as `validate` does, or EngineFault if the engine is broken.
        """
        if self.fault is not None:
            raise self.fault
        self.validate(request)
        self.accept(request, matcher)

    def accept(self, request: Request, matcher: Matcher | None = None) -> None:
        """`submit` a request that `validate` has let pass before."""
        if self.fault is not None:
            raise self.fault
        self._scheduler.add(request)
        if self._grammars is not None and matcher is not None:
            self._grammars.masks.begin(request.id, matcher)
        self._open[request.id] = None
        self._recorder.submitted(request.id, len(request.prompt_ids), self._clock())

    def abort(self, request_id: str) -> None:
        """End a request; its last event comes with the next step. Unknown and ended ids are ignored."""
        event = self._scheduler.cancel(request_id) if self.fault is None else None
        if event is not None:
            self._give([event])

    # -- steps ----------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Another `step` would do or give out something."""
        busy = self.fault is None and (bool(self._open) or self._scheduler.in_flight > 0)
        return busy or bool(self._events)

    def step(self) -> list[TokenEvent]:
        """Launch the next step, read the oldest if it is time; the events that are ready."""
        if self.fault is None:
            try:
                self._advance()
            except BaseException as error:
                self._break(error)
                if not isinstance(error, Exception):
                    raise
        events, self._events = self._events, []
        return events

    def _advance(self) -> None:
        scheduler, clock = self._scheduler, self._clock
        began = clock()
        masks = None if self._grammars is None else self._grammars.masks
        waiting = masks.waiting() if masks else ()
        plan = scheduler.plan(waiting)
        planned = clock()
        if plan.chunks:
            self._launch(plan)
            scheduler.publish()
            self._recorder.launched(plan, planned)
        elif not scheduler.in_flight:
            assert waiting or not self._open, "the scheduler finds nothing to do for its requests"
            if masks and waiting:
                masks.pause()
            return
        launched = read = clock()
        if scheduler.in_flight > self.lookahead or not plan.chunks:
            result = self._runner.collect()
            read = clock()
            self._give(scheduler.commit(result))
        self._recorder.stepped(
            StepTiming(
                tokens=plan.tokens,
                chunks=len(plan.chunks),
                plan=planned - began,
                launch=launched - planned,
                wait=read - launched,
                commit=clock() - read,
            )
        )

    def _launch(self, plan: StepPlan) -> None:
        """Start a step; one under grammars reads the step before it, which decides what they allow."""
        grammars = self._grammars
        if grammars is None or not grammars.masks.concern(plan):
            self._runner.launch(plan)
            return
        grammars.runner.launch_body(plan)
        if self._scheduler.in_flight > 1:
            self._give(self._scheduler.commit(self._runner.collect()))
        mask, late = grammars.masks.of(plan)
        self._scheduler.retract(late)
        grammars.runner.launch_head(mask)

    def _give(self, events: list[TokenEvent]) -> None:
        for event in events:
            if event.finish is not None:
                del self._open[event.request_id]
        if self._grammars is not None and not self._grammars.masks.idle:
            events = [self._grammars.masks.take(event) for event in events]
        self._recorder.gave(events, self._clock())
        self._events += events

    def _break(self, error: BaseException) -> None:
        """From now on the engine is broken; whoever waits is told once, and none about the requests of others."""
        reason = error.message if isinstance(error, LlmrsError) else self._explain(error)
        reason = reason or f"{type(error).__name__}."
        step, concerned = self._scheduler.under_way()
        where = f" in step {step} with {_listed(concerned)}" if concerned else ""
        self.fault = EngineFault(
            f"The engine failed{where}: {reason}", hint="Start it again; `llmrs doctor` checks the device."
        )
        self.fault.__cause__ = error
        told = f"The engine failed: {reason}"
        self._give(
            [TokenEvent(name, finish=FinishReason.ERROR, error=told, code=BROKEN) for name in self._open]
        )

    # -- the rest of its life -------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if the scheduler's books do not balance; for idle moments and tests."""
        if self.fault is None:
            self._scheduler.check()

    def stats(self) -> EngineStats:
        """Counters so far."""
        scheduler = self._scheduler
        return self._recorder.snapshot(
            running=scheduler.running,
            waiting=scheduler.waiting,
            blocks=scheduler.pool.total,
            blocks_used=scheduler.pool.used,
            preemptions=scheduler.preemptions,
        )

    def close(self) -> None:
        """Give back what the engine holds; requests that are left get no further event."""
        release, self._release = self._release, _nothing
        if self.fault is None:
            self.fault = EngineFault("The engine is closed.")
        self._open.clear()
        if self._grammars is not None:
            self._grammars.masks.close()
        release()


def _listed(names: Sequence[str]) -> str:
    """'2 requests (a, b)', and of many only the first."""
    shown = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
    return f"{len(names)} request{'s' if len(names) > 1 else ''} ({shown})"


def open_engine(
    checkpoint: Checkpoint,
    backend: Backend,
    *,
    context: int | None = None,
    rows: int | None = None,
    memory: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    grammars: Compile | None = None,
) -> Engine:
    """Load `checkpoint` into `backend` and put an engine together; it takes the backend over.

    `context` tokens of prompt and answer, at most `rows` requests at once, at most `memory` bytes for
    weights, workspace and KV cache; None stands for what suits the backend and fits. `progress` gets
    bytes loaded and bytes in all. `grammars` compiles those of requests. Raises ModelError, or DoesNotFitError with the sizes.
    """
    from llmrs_cli.engine.memory import copy_bytes, plan_memory, size, weight_bytes
    from llmrs_cli.engine.weights.load import load_model

    weights = weight_bytes(checkpoint, backend)
    copies = copy_bytes(checkpoint, backend)
    plan = plan_memory(
        checkpoint.spec, backend, weights, context=context, rows=rows, memory=memory, copies=copies
    )
    try:
        model = load_model(checkpoint, backend, progress, context=plan.limits.context)
        if plan.copies:
            model = backend.copied(model)
        return assemble(checkpoint, backend, model, plan.limits, grammars=grammars, release=backend.close)
    except MemoryError as error:
        raise DoesNotFitError(
            f"Memory ran out while loading: {plan}; {size(backend.free_bytes())} are left now."
            f" {backend.explain(error) or ''}".rstrip()
        ) from error


def assemble(
    checkpoint: Checkpoint,
    backend: Backend,
    model: ModelWeights,
    limits: EngineLimits,
    *,
    grammars: Compile | None = None,
    release: Callable[[], None] = _nothing,
) -> Engine:
    """An engine on weights that are loaded; `release` is called when it closes. One at a time for a backend."""
    from llmrs_cli.engine.backends.base import RowLimits
    from llmrs_cli.engine.memory import model_sizes
    from llmrs_cli.engine.runner import Runner

    spec = checkpoint.spec
    backend.use()
    kv = backend.alloc_kv(spec.layers, limits.blocks, spec.kv_heads, spec.head_dim)
    row_limits = RowLimits(limits.rows, limits.context, spec.vocab, limits.idle_budget)
    state = backend.open_rows(row_limits)
    backend.reserve(model_sizes(spec), row_limits)
    scheduler = Scheduler(limits, model=checkpoint.identity, kv_dtype=backend.name)
    runner = Runner(backend, model, kv, state)
    return Engine(
        scheduler,
        runner,
        vocab=spec.vocab,
        lookahead=backend.lookahead,
        release=release,
        explain=backend.explain,
        grammars=None if grammars is None else Grammars(grammars, runner, Masks(spec.vocab)),
    )
