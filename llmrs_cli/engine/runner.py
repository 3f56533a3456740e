"""Runs a step: applies its row edits, launches decoder and sampler, later reads what they gave.

    launch(plan)     edits rows, stages the step, body, head + sample, scores; returns without waiting
    collect()        waits for the oldest launch and gives its StepResult

A launch has two halves, `launch_body` and `launch_head`, so that a grammar may read the step before and
write its mask while the body runs. Launches queue: with lookahead 0 each is collected at once, with
lookahead 1 the next one goes out first. The runner decides nothing and knows nothing of requests.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

import numpy as np

from llmrs_cli.engine.arrays import Array, Draws, StepArrays, StepBatch
from llmrs_cli.engine.backends.base import HEAD_ROWS, Backend, Rows
from llmrs_cli.engine.backends.handles import KvLayer, ModelWeights
from llmrs_cli.engine.model.decoder import Body, run_body, run_head
from llmrs_cli.engine.plan import Sampled, StepPlan, StepResult
from llmrs_cli.engine.sampling import row_sampling
from llmrs_cli.engine.types import SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True)
class _Body:
    """A step whose decoder body is launched."""

    plan: StepPlan
    asked: tuple[SamplingParams | None, ...]
    """What each chunk's row wants to be told of log-probabilities, () if none does; a row may have another owner by the
    time the result is read."""
    step: StepArrays
    left: Body


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that is launched completely; handles are for `Backend.fetch`, in order."""

    plan: StepPlan
    asked: tuple[SamplingParams | None, ...]
    drawn: tuple[Any, ...]
    scored: tuple[Any, ...]


class Runner:
    """One model on one backend with its KV cache and row state."""

    def __init__(self, backend: Backend, model: ModelWeights, kv: Sequence[KvLayer], rows: Rows) -> None:
        self._backend = backend
        self._model = model
        self._kv = kv
        self._rows = rows
        self._asked: dict[int, SamplingParams] = {}
        """Parameters of the rows that want log-probabilities."""
        self._body: _Body | None = None
        self._flights: deque[_Flight] = deque()

    @property
    def in_flight(self) -> int:
        """Steps launched and not yet collected."""
        return len(self._flights)

    def launch(self, plan: StepPlan, mask: Array | None = None) -> None:
        """Both halves; `mask` as in `launch_head`."""
        self.launch_body(plan)
        self.launch_head(mask)

    def launch_body(self, plan: StepPlan) -> None:
        """Apply the plan's edits, stage its tokens and launch the decoder over them."""
        assert plan.chunks, "an empty plan is not launched"
        assert self._body is None, "launch_head comes before the next launch_body"
        self._edit_rows(plan)
        step = self._rows.begin(_batch(plan))
        asked = tuple(self._asked.get(chunk.row) for chunk in plan.chunks) if self._asked else ()

        def body() -> Body:
            return run_body(self._backend, self._model, self._kv, step)

        self._body = _Body(plan, asked, step, self._backend.run(step.key, body))

    def launch_head(self, mask: Array | None = None) -> None:
        """Draw a token for each chunk that samples, and score the prompt tokens that ask for it.

        `mask`, if given, is (R, ceil(V/32)) uint32 on the host, bit set = allowed, one row per chunk
        that samples, in the plan's order.
        """
        assert self._body is not None, "launch_body comes first"
        body, self._body = self._body, None
        drawn = tuple(self._draw(body, mask))
        self._flights.append(_Flight(body.plan, body.asked, drawn, tuple(self._score(body))))

    def collect(self) -> StepResult:
        """Wait for the oldest launch."""
        flight = self._flights.popleft()
        drawn = self._drawn(flight)
        sampled = tuple(next(drawn) if chunk.samples else None for chunk in flight.plan.chunks)
        return StepResult(sampled, self._scores(flight) if flight.scored else ())

    def _drawn(self, flight: _Flight) -> Iterator[Sampled]:
        """The tokens drawn, a row after the other; behind them there may be some that nobody asked for."""
        draws = [self._backend.fetch(handle) for handle in flight.drawn]
        tokens = chain.from_iterable(each.ids.tolist() for each in draws)
        failed = chain.from_iterable(each.failed.tolist() for each in draws)
        return map(Sampled, tokens, self._logprobs(flight, draws) if flight.asked else repeat(None), failed)

    def _logprobs(self, flight: _Flight, draws: Sequence[Draws]) -> Iterator[TokenLogprob | None]:
        """Of the tokens drawn, where they are wanted."""
        pairs = zip(flight.plan.chunks, flight.asked, strict=True)
        asked = (None if params is None else params.logprobs for chunk, params in pairs if chunk.samples)
        for (each, index), wanted in zip(_reports(draws), asked, strict=False):
            yield None if wanted is None or each.failed[index] else _logprob(each, index, wanted)

    def _scores(self, flight: _Flight) -> tuple[tuple[TokenLogprob, ...], ...]:
        """Log-probabilities of prompt tokens, for each chunk."""
        reports = _reports(map(self._backend.fetch, flight.scored))
        return tuple(
            tuple(_logprob(*report, _alternatives(params)) for report in islice(reports, chunk.scored))
            for chunk, params in zip(flight.plan.chunks, flight.asked, strict=True)
        )

    def _edit_rows(self, plan: StepPlan) -> None:
        for start in plan.starts:
            row, params = start.row, start.params
            self._asked.pop(row, None)
            if params.logprobs is not None or params.prompt_logprobs is not None:
                self._asked[row] = params
            self._rows.start(row, start.tokens, row_sampling(params, start.prompt_length, start.choice))
        for grant in plan.grants:
            self._rows.grant(grant.row, grant.first, grant.blocks)

    def _draw(self, body: _Body, mask: Array | None) -> Iterator[Any]:
        """Handles of the tokens drawn, a slice of rows at a time."""
        step, backend = body.step, self._backend
        rows = len(step.sample_rows)
        for part in _slices(rows):
            piece = step
            if rows > HEAD_ROWS:
                piece = replace(
                    step, sample_tokens=step.sample_tokens[part], sample_rows=step.sample_rows[part]
                )
            head = partial(run_head, backend, self._model, body.left)
            yield backend.draw(head, self._rows, piece, None if mask is None else mask[part])

    def _score(self, body: _Body) -> Iterator[Any]:
        """Handles of the scored prompt tokens, a slice at a time."""
        step = body.step
        most = max(map(_alternatives, body.asked), default=0)
        for part in _slices(len(step.scored_tokens)):
            logits = run_head(self._backend, self._model, body.left, step.scored_tokens[part])
            yield self._backend.score(logits, step.scored_targets[part], most)


def _logprob(draws: Draws, index: int, alternatives: int) -> TokenLogprob:
    """A row's log-probability with as many alternatives as asked for."""
    top = zip(draws.top_ids[index, :alternatives], draws.top_logprobs[index, :alternatives], strict=True)
    return TokenLogprob(
        int(draws.ids[index]), float(draws.logprobs[index]), tuple((int(t), float(p)) for t, p in top)
    )


def _alternatives(params: SamplingParams | None) -> int:
    """To report beside each token of a prompt."""
    return 0 if params is None else params.prompt_logprobs or 0


def _reports(draws: Iterable[Draws]) -> Iterator[tuple[Draws, int]]:
    """Every row of them, one after the other."""
    return ((each, index) for each in draws for index in range(len(each.ids)))


def _batch(plan: StepPlan) -> StepBatch:
    """The plan's chunks as arrays, by way of an `array`, which takes numbers three times as fast as NumPy does."""
    _, *columns = zip(*plan.chunks, strict=True)
    words = array("I", chain.from_iterable(columns))
    rows, starts, counts, samples, scored = np.frombuffer(words, np.int32).reshape(len(columns), -1)
    return StepBatch(rows, starts, counts, samples.astype(np.bool_), scored)


def _slices(count: int) -> Iterator[slice]:
    return (slice(first, min(first + HEAD_ROWS, count)) for first in range(0, count, HEAD_ROWS))
