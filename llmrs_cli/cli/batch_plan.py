"""`llmrs batch --dry-run`: what a run would do, without loading weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from llmrs_cli.batch.plan import Plan, make_plan
from llmrs_cli.batch.speeds import Speed, recall
from llmrs_cli.cli.batch_job import (
    MAX_TOKENS,
    Asked,
    mentioned,
    reader_of,
    rows_in_flight,
    speed_key,
    speeds_file,
)
from llmrs_cli.cli.batch_progress import duration
from llmrs_cli.cli.models import Chosen, check_ids, choose
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.engine.types import FinishReason, Request, TokenEvent
from llmrs_cli.errors import EngineFault, ExitCode, UsageError, counted

if TYPE_CHECKING:
    from llmrs_cli.engine import EngineLimits, EngineStats
    from llmrs_cli.engine.weights.checkpoint import Checkpoint


def dry_run(asked: Asked, terminal: Terminal) -> int:
    """Print the plan on stdout; status 3 if some rows cannot be answered. Raises what opening an engine raises."""
    from llmrs_cli.engine.weights.small_head import open_model
    from llmrs_cli.text.generate import TextEngine

    again = reader_of(asked.source)
    if again is None:
        raise UsageError("Only a file can be looked at before a run.", hint="Save the rows in a file first.")
    chosen = choose(asked.model, terminal)
    checkpoint = open_model(chosen.path, small_head=chosen.small_head)
    with (
        terminal.working("Reading"),
        TextEngine.over(
            checkpoint, lambda: _idle(checkpoint, chosen, rows_in_flight(asked, chosen))
        ) as engine,
    ):
        check_ids(engine, asked.options)
        rows = mentioned(again(), chosen.name, terminal)
        plan = make_plan(engine, asked.job_for(chosen.name, seed=0), rows)
    speed = recall(speeds_file(), speed_key(chosen))
    limit = asked.options.get("max_tokens") or MAX_TOKENS
    context = f"{engine.context} of the model's {checkpoint.spec.max_context} (--ctx)"
    for line in report(plan, context, limit, speed, chosen.device):
        terminal.data(line)
    return ExitCode.ROWS_FAILED if plan.failing else ExitCode.OK


def report(plan: Plan, context: str, limit: int, speed: Speed | None, device: str) -> Iterator[str]:
    """The plan in lines. `context`: tokens that it holds, in words; `limit`: tokens of an answer, where the row
    says nothing."""
    yield f"{counted(plan.rows, 'row')}, {plan.failing} cannot be answered, {plan.too_long} of them too long"
    yield f"{counted(plan.merged, 'row')} equal to others, computed once"
    longest = f"the longest {plan.longest}; the context holds {context}"
    yield f"{counted(plan.prompt_tokens, 'prompt token')}, {longest}"
    yield f"{counted(plan.answers, 'answer')} of at most {counted(limit, 'token')}, where a row does not say otherwise"
    if speed is None:
        yield f"time unknown: no run of this model was measured on {device}; one with --limit 50 will do"
    else:
        guess = plan.answers * min(speed.mean_answer, limit) / speed.tokens_per_second
        yield (
            f"about {duration(guess)} on {device}, if answers have {speed.mean_answer:.0f} tokens at"
            f" {speed.tokens_per_second:.0f} tok/s as in the last run"
        )
    for number, message in plan.problems:
        yield f"line {number}: {message}"
    if plan.failing > len(plan.problems):
        yield f"... and {plan.failing - len(plan.problems)} more"


def _idle(checkpoint: Checkpoint, chosen: Chosen, rows: int) -> _NoEngine:
    """An engine that computes nothing, with the limits that a run's would have in the memory there is now."""
    from llmrs_cli.engine.backends.registry import open_backend
    from llmrs_cli.engine.memory import copy_bytes, plan_memory, weight_bytes

    with closing(open_backend(chosen.device, deterministic=chosen.deterministic)) as backend:
        plan = plan_memory(
            checkpoint.spec,
            backend,
            weight_bytes(checkpoint, backend),
            context=chosen.context,
            rows=rows,
            memory=chosen.memory,
            copies=copy_bytes(checkpoint, backend),
        )
    return _NoEngine(plan.limits, checkpoint.spec.vocab)


class _NoEngine:
    """Accepts or refuses as an engine does, and ends each request at once."""

    def __init__(self, limits: EngineLimits, vocab: int) -> None:
        self.limits, self.vocab = limits, vocab
        self.fault: EngineFault | None = None

    def submit(self, request: Request, sink: Callable[[TokenEvent], None]) -> None:
        from llmrs_cli.engine.limits import check_request

        check_request(request, self.limits, self.vocab)
        sink(TokenEvent(request.id, finish=FinishReason.ABORT))

    def abort(self, request_id: str) -> None:
        pass

    def stats(self) -> EngineStats:
        raise EngineFault("Nothing is computed here.")

    def close(self) -> None:
        pass
