"""Answers that must match a grammar: which tokens may come next, computed off the engine's thread.

A `Matcher` is one sequence's way through its grammar. The engine tells of each token that was drawn; from
then on a thread of ours works out which may follow, while the body of the next step runs. Whoever compiles
grammars stands above the engine (`text.grammar`); here they are only followed.

Nobody waits for somebody else's grammar. A row whose mask is not there when the head of a step is launched, but for
a moment's grace, draws nothing in it (`of`), and sits out the steps after until its mask has come (`waiting`). For a
number of tokens from then on, twice as many each time it was late, no head waits for it at all: it takes part in a
step only with its mask in hand. So the moments that one answer costs the others are few, however long it is. What it
computes is kept apart as well: it has threads of its own, and the dearest a thread for themselves.

A matcher that fails, or whose masks together take far longer than those of any sensible form, allows nothing, so its
row ends with an error: an answer that breaks its grammar is never given.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.plan import Chunk, StepPlan
from llmrs_cli.engine.types import FORM, FinishReason, TokenEvent

Mask = NDArray[np.uint32]
"""(ceil(V/32),): bit t of word t // 32 is set if token t is allowed."""
FORM_FAULT = "The form of the answer became too complex to be followed."
GRACE = 0.002
"""Seconds that the head of a step waits for all masks that it lacks; most take a tenth of that, beside the body."""
PENANCE = 4
"""Tokens for which nobody waits for a row that was late once; twice as many for every further time."""
DEAR = 1.0
"""Processor seconds of one answer's masks, from which on they are computed behind those of others."""
BUDGET = 10.0
"""Processor seconds of all masks of one answer, and seconds of one of them, after which it ends. Ten thousand tokens
of JSON take two."""
PAUSE = 0.005
"""Seconds that an engine sleeps that has nothing to do but wait for masks, before it looks for new requests."""


class Matcher(Protocol):
    """One sequence in the middle of its grammar."""

    def advance(self, token: int) -> None:
        """Take in the token that was drawn. Raises if it was not allowed."""

    def mask(self) -> Mask:
        """What may come next; an end token where the answer may end."""


Compile = Callable[[str], Matcher]
"""A grammar's text → a matcher at its beginning. Raises RequestError if it is not to be used."""


class TooDear(Exception):
    """The masks of an answer took too long in all."""


class _Way:
    """One sequence on its way, and what that has cost."""

    __slots__ = ("_matcher", "apart", "began", "failed", "late", "mask", "spent")

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.mask: Future[Mask] | None = None
        """Of the next token; None from when one is drawn under it until that is known."""
        self.began = 0.0
        """When the mask was begun; 0: it has not been."""
        self.spent = 0.0
        """Processor seconds."""
        self.late = 0
        """Times that a step did without it."""
        self.apart = 0
        """Tokens for which nobody waits for it."""
        self.failed = False

    def follow(self, tokens: tuple[int, ...]) -> Mask:
        """The mask after further tokens; in a thread of ours."""
        self.began = time.monotonic()
        before = time.thread_time()
        for token in tokens:
            self._matcher.advance(token)
        mask = self._matcher.mask()
        self.spent += time.thread_time() - before
        if self.spent > BUDGET:
            raise TooDear
        return mask

    @property
    def ready(self) -> bool:
        """There is a mask, or will never be one."""
        return self.mask is not None and (self.mask.done() or self._hangs)

    @property
    def _hangs(self) -> bool:
        return self.began > 0 and time.monotonic() - self.began > BUDGET

    def taken(self, nothing: Mask) -> Mask:
        """The mask that is `ready`, for a token that is drawn now; `nothing` if it failed."""
        future, self.mask = self.mask, None
        assert future is not None
        mask = nothing if not future.done() or future.exception() else future.result()
        self.failed = not mask.any()
        return mask


class Masks:
    """The masks of all sequences that have a grammar; used by the engine's thread alone."""

    def __init__(self, vocab: int) -> None:
        self._words = -(-vocab // 32)
        self._nothing = np.zeros(self._words, np.uint32)
        self._ways: dict[str, _Way] = {}
        self._pools: list[Executor] = [
            ThreadPoolExecutor(
                threads, thread_name_prefix="llmrs-mask", initializer=_step_back if rank else None
            )
            for rank, threads in enumerate((4, 2, 1))
        ]
        """For those that are in time, for those that were late, and for those that are dear besides."""

    def begin(self, request_id: str, matcher: Matcher) -> None:
        """Follow a sequence from its first token on."""
        way = self._ways[request_id] = _Way(matcher)
        self._follow(way, ())

    @property
    def idle(self) -> bool:
        """No sequence follows a grammar."""
        return not self._ways

    def take(self, event: TokenEvent) -> TokenEvent:
        """A sequence has gone on, or ended; the event, which says so if it was the grammar that ended it."""
        way = self._ways.get(event.request_id)
        if way is None:
            return event
        if event.finish is None:
            way.apart = max(0, way.apart - len(event.tokens))
            self._follow(way, event.tokens)
            return event
        del self._ways[event.request_id]
        if way.mask is not None:
            way.mask.cancel()
        if not way.failed or event.finish is not FinishReason.ERROR:
            return event
        return event._replace(error=FORM_FAULT, code=FORM)

    def concern(self, plan: StepPlan) -> bool:
        """Whether a sequence with a grammar draws a token in this step."""
        return bool(self._ways) and any(self._constrains(chunk) for chunk in plan.chunks)

    def waiting(self) -> Collection[str]:
        """Requests that are to sit out the next step: their masks are not there, and nobody waits for them."""
        return {name for name, way in self._ways.items() if way.apart and not way.ready}

    def of(self, plan: StepPlan) -> tuple[NDArray[np.uint32], Collection[str]]:
        """(R, ceil(V/32)): a row for each chunk that samples, in the plan's order; and the requests that are late, which
        can draw nothing: their rows are zeros. Waits for a moment at most."""
        chunks = [chunk for chunk in plan.chunks if chunk.samples]
        table = np.full((len(chunks), self._words), 0xFFFFFFFF, np.uint32)
        rows = {chunk.request_id: row for row, chunk in enumerate(chunks) if self._constrains(chunk)}
        ways = [self._ways[name] for name in rows]
        wait([way.mask for way in ways if way.mask is not None and not way.ready], GRACE)
        late = {name for name, way in zip(rows, ways, strict=True) if not way.ready}
        for name, row in rows.items():
            table[row] = self._nothing if name in late else self._ways[name].taken(self._nothing)
        for name in late:
            way = self._ways[name]
            way.apart = PENANCE * 2**way.late
            way.late += 1
        return table, late

    def pause(self) -> None:
        """Sleep until a mask has come, or for a moment."""
        wait([way.mask for way in self._ways.values() if way.mask is not None], PAUSE, FIRST_COMPLETED)

    def close(self) -> None:
        """Give up the threads."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)

    def _constrains(self, chunk: Chunk) -> bool:
        return chunk.samples and chunk.request_id in self._ways

    def _follow(self, way: _Way, tokens: tuple[int, ...]) -> None:
        rank = 0 if not way.apart else 1 if way.spent < DEAR else 2
        way.began = 0.0
        way.mask = self._pools[rank].submit(way.follow, tokens)


def _step_back() -> None:
    """Let the other threads of the process go first; Linux knows a priority of each."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
