"""Who computes how many tokens in the next step, and in which blocks; no arrays, no model, no clock.

The rule: every sequence has tokens known and tokens computed, and a step hands out a budget of tokens so
that computed catches up. Running sequences come first, oldest first; then waiting ones, in order of
arrival, while rows and blocks last; and while nothing is under way, only as many as fill the step. When
blocks run out the youngest running sequence is preempted and recomputed later. Chunked prompts, prefix
hits, recomputation and decoding are all this one rule.

Progress. A block is taken only from a younger sequence, so the oldest never loses its own, and the pool
holds any one sequence to its end (`EngineLimits.check`): the oldest always finishes. A preempted one
comes back only when everything it knows fits beside one more block for each that may still grow, so two
sequences cannot preempt each other in turn.

Fairness, as numbers. P is the part of the busy budget that decoding rows leave, at least 1.
- No request that arrived later takes a row before one that waits for room. Only a request that waits
  for a prefix that is being computed just now, or sits a step out, is passed, by at most `rows` others at a
  time, and it holds its place: the bound for a big request is 0 later arrivals.
- Of the prompts that are being computed the others than the oldest get ceil(P / 4), shortest first, and
  the oldest gets the rest or all it wants. So a prompt of s tokens that holds a row is computed within
  ceil((s + S) / ceil(P / 4)) steps, where S counts the tokens of shorter prompts beside it.

Steps may be planned before the one before is committed (`commit` then lags behind `plan`). Launches are
ordered, so rows and blocks that are freed meanwhile may be planned again at once; a sequence is not:
what it has in flight is committed before it runs again. Every method leaves `check` true. (Longer than most files:
one rule, whose parts say little without each other.)
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from operator import attrgetter

from llmrs_cli.engine.blocks import BlockPool, root_key
from llmrs_cli.engine.limits import EngineLimits
from llmrs_cli.engine.plan import BlockGrant, Chunk, RowStart, Sampled, StepPlan, StepResult
from llmrs_cli.engine.sequence import Sequence, State
from llmrs_cli.engine.types import FinishReason, Request, TokenEvent
from llmrs_cli.errors import RequestError

_age = attrgetter("arrival")
ROOTS = 64
"""Salts whose roots are remembered."""
NUMERIC = "numeric"
NUMERIC_FAULT = "The model's output for this request was not a number."


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    out: Collection[str]
    """Requests that sit this step out."""
    starts: list[RowStart] = field(default_factory=list)
    grants: list[BlockGrant] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    """One per chunk."""


@dataclass(slots=True)
class _Flight:
    """A plan that awaits its commit."""

    plan: StepPlan
    sequences: list[Sequence]
    """One per chunk."""
    chunks: Seq[Chunk]
    """The plan's, but for what was retracted."""


class Scheduler:
    """Life of a request: `add`, then `plan` and `commit` again and again; `cancel` at any time."""

    def __init__(self, limits: EngineLimits, *, model: str = "", kv_dtype: str = "") -> None:
        self.limits = limits
        self.pool = BlockPool(limits.blocks)
        self.preemptions = 0
        self._root = lru_cache(ROOTS)(partial(root_key, model, kv_dtype))
        self._sequences: dict[str, Sequence] = {}
        """Every unfinished one; each is in exactly one of the next two."""
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        """Both oldest first."""
        self._rows = list(range(limits.rows))
        """Rows nobody holds."""
        self._flights: deque[_Flight] = deque()
        self._filled: list[tuple[Sequence, int]] = []
        """Up to which token the newest plan fills blocks of prompts that nobody can find yet."""
        self._steps = 0
        self._arrivals = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def in_flight(self) -> int:
        """Plans that await their `commit`."""
        return len(self._flights)

    def under_way(self) -> tuple[int, list[str]]:
        """The newest step that awaits its `commit`, and the requests of all that do."""
        plans = [flight.plan for flight in self._flights]
        ids = dict.fromkeys(chunk.request_id for plan in plans for chunk in plan.chunks)
        return (plans[-1].number if plans else 0), list(ids)

    # -- add ------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. Raises ContextLengthError if it can never run, RequestError if its id is in use."""
        self.limits.check(request)
        if request.id in self._sequences:
            raise RequestError(f"A request with id {request.id!r} is running.", param="id")
        self._arrivals += 1
        root = self._root(request.salt)
        end = self.limits.end_of(request)
        sequence = Sequence(request, self._arrivals, end, self.limits.block_size, root)
        self._sequences[request.id] = sequence
        self._waiting.append(sequence)

    # -- plan -----------------------------------------------------------------------------------------

    def plan(self, out: Collection[str] = ()) -> StepPlan:
        """The next step. No chunks: nothing can be computed before a commit (or at all). The requests `out` sit it
        out: they keep what they hold and their place."""
        self.publish()
        draft = _Draft(out)
        busy = any(sequence.decoding for sequence in self._running)
        budget = self.limits.busy_budget if busy else self.limits.idle_budget
        self._continue_decoding(draft)
        # While the device has nothing to do, whoever finds no place in this step can wait for the next one.
        self._admit_waiting(draft, self.limits.idle_budget if not self._flights else None)
        self._advance_prompts(draft, budget - len(draft.chunks))
        return self._seal(draft)

    def _continue_decoding(self, draft: _Draft) -> None:
        """One token for each decoding row; one that finds no block stands still for this step."""
        out = draft.out
        chunks, sequences = draft.chunks, draft.sequences
        for sequence in tuple(self._running):
            if sequence.state is not State.RUNNING or not sequence.decoding:
                continue
            if out and sequence.request.id in out:
                continue
            if not sequence.needs_block or self._make_room(sequence, draft):
                chunks.append(sequence.decode())
                sequences.append(sequence)

    def _make_room(self, sequence: Sequence, draft: _Draft) -> bool:
        """A block for the next token, taken from the youngest if need be; False if that is itself."""
        while (blocks := self.pool.claim((), 1)) is None:
            youngest = self._running[-1]
            if youngest is sequence:
                return False
            self._preempt(youngest)
        draft.grants.append(sequence.grant(blocks))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._leave_row(sequence, State.WAITING)
        insort(self._waiting, sequence, key=_age)
        self.preemptions += 1

    def _admit_waiting(self, draft: _Draft, tokens: int | None) -> None:
        """Rows and blocks for those who wait, oldest first, until one of them finds no room or they bring `tokens`.

        Who waits for a block that another is about to publish, or sits the step out, is passed by, but a row and
        blocks are kept for it.
        """
        passed, kept, most = 0, 0, largest_share(tokens or 0)
        for sequence in list(islice(self._waiting, self.limits.rows)):
            if len(self._rows) <= passed or sequence.in_flight:
                return
            shareable = sequence.shareable
            shared = self.pool.find(map(sequence.key, range(shareable)))
            found = len(shared)
            comes = found < shareable and self._under_way(found, sequence.key(found))
            if comes or sequence.request.id in draft.out:
                passed, kept = passed + 1, kept + sequence.blocks_at_start - found
            elif not self._start(sequence, shared, draft, kept):
                return
            elif tokens is not None:
                tokens -= min(sequence.wanted, most)
                if tokens <= 0:
                    return

    def _under_way(self, index: int, key: bytes) -> bool:
        """A running sequence is about to publish this block: waiting a step is better than computing it."""
        return any(sequence.will_publish(index, key) for sequence in self._running)

    def _start(self, sequence: Sequence, shared: Seq[int], draft: _Draft, kept: int) -> bool:
        """Whether it finds a row and blocks, beside what others may need and `kept` blocks."""
        spare = kept + sum(other.may_grow for other in self._running)
        blocks = self.pool.claim(shared, sequence.blocks_at_start - len(shared), spare)
        if blocks is None:
            return False
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=_age)
        draft.starts.append(sequence.start(self._rows.pop(), shared=len(shared)))
        draft.grants.append(sequence.grant(blocks))
        return True

    def _advance_prompts(self, draft: _Draft, budget: int) -> None:
        """Prompts, and what preempted sequences compute again, share the rest of the budget."""
        if len(draft.chunks) == len(self._running):
            return  # all of them decode
        # One that comes back with all but its last token cached looks like a decoding one.
        new = {start.row for start in draft.starts}
        prompts = [
            s
            for s in self._running
            if s.wanted and (s.row in new or not s.decoding) and s.request.id not in draft.out
        ]
        shares = share_out([sequence.wanted for sequence in prompts], budget)
        for sequence, count in zip(prompts, shares, strict=True):
            if count:
                draft.chunks.append(sequence.advance(count))
                draft.sequences.append(sequence)
                self._filled.append((sequence, min(sequence.prompt_length, sequence.computed)))

    def _seal(self, draft: _Draft) -> StepPlan:
        """Number the plan."""
        if not draft.chunks:
            assert not draft.starts and not draft.grants
            return StepPlan(self._steps, (), (), ())
        self._steps += 1
        plan = StepPlan(self._steps, tuple(draft.starts), tuple(draft.grants), tuple(draft.chunks))
        self._flights.append(_Flight(plan, draft.sequences, plan.chunks))
        return plan

    def publish(self) -> None:
        """Let others find the prompt blocks that the newest plan fills. Whoever has launched it calls this, when the
        device is at work; else the next call of `plan`, `commit` or `cancel` does so first."""
        for sequence, tokens in self._filled:
            self._publish(sequence, tokens)
        self._filled.clear()

    def retract(self, requests: Collection[str]) -> None:
        """The newest step draws nothing for these requests, of whose last token it computes the logits: that token is
        computed again by a later one. What the runner says of their draws is not looked at."""
        if requests:
            flight = self._flights[-1]
            pairs = zip(flight.sequences, flight.chunks, strict=True)
            flight.chunks = [s.retract(chunk) if s.request.id in requests else chunk for s, chunk in pairs]

    # -- commit ---------------------------------------------------------------------------------------

    def commit(self, result: StepResult) -> list[TokenEvent]:
        """Take in the result of the oldest step in flight."""
        self.publish()
        flight = self._flights.popleft()
        scored = result.scored or ((),) * len(flight.chunks)
        events = []
        for sequence, chunk, sampled, scores in zip(
            flight.sequences, flight.chunks, result.sampled, scored, strict=True
        ):
            sequence.land(chunk, scores)
            if not chunk.samples:
                continue
            assert sampled is not None
            if event := self._accept(sequence, sampled):
                events.append(event)
        return events

    def _accept(self, sequence: Sequence, sampled: Sampled) -> TokenEvent | None:
        """A token has come back: publish the blocks that it completes, end the sequence if it says so.

        None if the sequence had ended while the step was under way: the extra token is dropped.
        """
        if sampled.failed:
            self.pool.unpublish(sequence.known_keys())
        if sequence.state is State.FINISHED:
            return None
        if sampled.failed:
            return self._end(sequence, FinishReason.ERROR)._replace(error=NUMERIC_FAULT, code=NUMERIC)
        first = len(sequence.tokens) == sequence.prompt_length
        finish = sequence.append(sampled.token)
        if sequence.state is State.RUNNING and sequence.completed_block:
            self._publish(sequence, sequence.confirmed)
        if finish is not None:
            self._leave(sequence)
        return TokenEvent(
            sequence.request.id,
            (sampled.token,),
            () if sampled.logprob is None else (sampled.logprob,),
            sequence.prompt_scores() if first else None,
            sequence.cached or 0,
            finish,
        )

    def _publish(self, sequence: Sequence, tokens: int) -> None:
        for block, key, parent in sequence.publishable(tokens):
            self.pool.publish(block, key, parent)

    # -- cancel ---------------------------------------------------------------------------------------

    def cancel(self, request_id: str) -> TokenEvent | None:
        """End a request in whatever state it is; None if there is none of that id (any more)."""
        self.publish()
        sequence = self._sequences.get(request_id)
        return self._end(sequence, FinishReason.ABORT) if sequence else None

    def _end(self, sequence: Sequence, finish: FinishReason) -> TokenEvent:
        """The last event of a sequence that ends without a token."""
        self._leave(sequence)
        cached = sequence.cached or 0
        return TokenEvent(sequence.request.id, cached_tokens=cached, finish=finish)

    def _leave(self, sequence: Sequence) -> None:
        """Out of the queue or the row, for good."""
        del self._sequences[sequence.request.id]
        if sequence.state is State.RUNNING:
            self._leave_row(sequence, State.FINISHED)
        else:
            self._waiting.remove(sequence)
            sequence.stop(State.FINISHED)

    def _leave_row(self, sequence: Sequence, state: State) -> None:
        self._running.remove(sequence)
        self._rows.append(sequence.row)
        self.pool.release(sequence.stop(state))

    # -- invariants -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if blocks, rows or sequences do not add up."""
        self.pool.check(sequence.blocks for sequence in self._running)
        rows = sorted(self._rows + [sequence.row for sequence in self._running])
        if rows != list(range(self.limits.rows)):
            raise AssertionError(f"Scheduler: free rows + rows in use {rows} != all {self.limits.rows}.")
        if len(self._sequences) != len(self._waiting) + len(self._running):
            raise AssertionError(
                f"Scheduler: sequences {len(self._sequences)}"
                f" != waiting {len(self._waiting)} + running {len(self._running)}."
            )


def largest_share(budget: int) -> int:
    """What the oldest of several prompts takes of a step at most."""
    return budget * 3 // 4


def share_out(wanted: Seq[int], budget: int) -> list[int]:
    """Split `budget` tokens among prompts that want so many each, oldest first; at least 2 if several.

    The oldest takes no more than leaves a quarter to the others; they are served shortest first, older
    first among equals; what they leave goes back to the oldest. Nothing is wasted while anybody wants.
    """
    given, left = [0] * len(wanted), budget

    def serve(index: int, most: int) -> None:
        nonlocal left
        tokens = min(wanted[index] - given[index], most)
        given[index] += tokens
        left -= tokens

    if wanted:
        serve(0, largest_share(budget) if len(wanted) > 1 else budget)
        for index in sorted(range(1, len(wanted)), key=wanted.__getitem__):
            serve(index, left)
        serve(0, left)
    return given
