"""Answers that must match a grammar: which tokens may come next, computed off the engine's thread.

A `Matcher` is one sequence's way through its grammar. The engine tells of each token that was drawn; from
then on a thread of ours works out which may follow, while the body of the next step runs. Its head waits
for that, and for nothing else: rows without a grammar are all ones. Whoever compiles grammars stands above
the engine (`text.grammar`); here they are only followed.

A matcher that fails, or takes far longer than a step, allows nothing, so its row ends with an error: an
answer that breaks its grammar is never given, and one that costs too much holds the others up once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.plan import Chunk, StepPlan
from llmrs_cli.engine.types import FORM, FinishReason, TokenEvent

Mask = NDArray[np.uint32]
"""(ceil(V/32),): bit t of word t // 32 is set if token t is allowed."""
FORM_FAULT = "The form of the answer became too complex to be followed."
THREADS = 4
PATIENCE = 3.0
"""Seconds that a step waits for a mask; they take a few milliseconds."""


class Matcher(Protocol):
    """One sequence in the middle of its grammar."""

    def advance(self, token: int) -> None:
        """Take in the token that was drawn. Raises if it was not allowed."""

    def mask(self) -> Mask:
        """What may come next; an end token where the answer may end."""


Compile = Callable[[str], Matcher]
"""A grammar's text → a matcher at its beginning. Raises RequestError if it is not to be used."""


class Masks:
    """The masks of all sequences that have a grammar; used by the engine's thread alone."""

    def __init__(self, vocab: int) -> None:
        self._words = -(-vocab // 32)
        self._nothing = np.zeros(self._words, np.uint32)
        self._next: dict[str, tuple[Matcher, Future[Mask]]] = {}
        self._failed: set[str] = set()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="llmrs-mask")

    def begin(self, request_id: str, matcher: Matcher) -> None:
        """Follow a sequence from its first token on."""
        self._next[request_id] = matcher, self._pool.submit(matcher.mask)

    def take(self, event: TokenEvent) -> TokenEvent:
        """A sequence has gone on, or ended; the event, which says so if it was the grammar that ended it."""
        if event.request_id not in self._next:
            return event
        matcher, before = self._next.pop(event.request_id)
        if event.finish is None:
            tokens = event.tokens
            self._next[event.request_id] = matcher, self._pool.submit(_advance, matcher, before, tokens)
            return event
        failed = event.request_id in self._failed
        self._failed.discard(event.request_id)
        if not failed or event.finish is not FinishReason.ERROR:
            return event
        return event._replace(error=FORM_FAULT, code=FORM)

    def concern(self, plan: StepPlan) -> bool:
        """Whether a sequence with a grammar draws a token in this step."""
        return bool(self._next) and any(self._constrains(chunk) for chunk in plan.chunks)

    def of(self, plan: StepPlan) -> NDArray[np.uint32]:
        """(R, ceil(V/32)): a row for each chunk that samples, in the plan's order; waits for those it needs."""
        chunks = [chunk for chunk in plan.chunks if chunk.samples]
        table = np.full((len(chunks), self._words), 0xFFFFFFFF, np.uint32)
        for row, chunk in enumerate(chunks):
            if self._constrains(chunk):
                table[row] = self._result(chunk.request_id)
        return table

    def close(self) -> None:
        """Give up the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _constrains(self, chunk: Chunk) -> bool:
        return chunk.samples and chunk.request_id in self._next

    def _result(self, request_id: str) -> Mask:
        try:
            mask = self._next[request_id][1].result(PATIENCE)
        except Exception:
            mask = self._nothing
        if not mask.any():
            self._failed.add(request_id)
        return mask


def _advance(matcher: Matcher, before: Future[Mask], tokens: tuple[int, ...]) -> Mask:
    """The mask after `tokens`; one that failed before fails again."""
    before.result()
    for token in tokens:
        matcher.advance(token)
    return matcher.mask()
