"""One prompt being answered: token events of the engine in, text events out.

The engine's thread only puts events into a queue here; decoding happens in the thread that iterates, so
a slow or failing consumer costs nobody else anything. The queue needs no bound: it never holds more than
the answer. It cannot deadlock either, since the engine gives every request a last event, whatever
happens to it, and a consumer that leaves early only asks for an abort.

A caller with an event loop of its own gives a `sink` for the token events instead, and hands each of them
to `take` when its time has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from llmrs_cli.engine import EngineLimits, EngineStats, FinishReason, Request, TokenEvent
from llmrs_cli.engine.types import BROKEN
from llmrs_cli.errors import EngineFault, GenerationError, LlmrsError
from llmrs_cli.text.events import ChoiceResult, GenerationResult, LogProb, TextEvent, Usage, named
from llmrs_cli.text.stream import StreamDecoder
from llmrs_cli.text.tokenizer import Tokenizer

TURN = 0.5
"""Seconds of one wait: a signal that comes just before a wait does not end it, but is heard after the turn."""


class TokenEngine(Protocol):
    """What text stands on: `engine.EngineThread`, or a fake."""

    @property
    def limits(self) -> EngineLimits: ...

    @property
    def vocab(self) -> int: ...

    @property
    def fault(self) -> EngineFault | None: ...

    def submit(self, request: Request, sink: Callable[[TokenEvent], None]) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


class Generation:
    """Iterate for `TextEvent`s as they come, or ask for the `result`; made by `TextEngine.start`.

    Iterating and `result` belong to one thread; `cancel` may be called from any, and from a signal
    handler. Leaving the loop before its end cancels the generation.
    """

    def __init__(
        self,
        engine: TokenEngine,
        requests: Sequence[Request],
        decoders: Sequence[StreamDecoder | None],
        tokenizer: Tokenizer | None,
        sink: Callable[[TokenEvent], None] | None = None,
        *,
        keeps: bool = True,
    ) -> None:
        """Submit `requests`, one per choice; raises as `EngineThread.submit` does, then none is left.

        With a `sink` nobody iterates: whoever gets its events gives them to `take`, in order. Unless it
        `keeps` text and scores, there is no `result`.
        """
        first = requests[0]
        self.seed = first.params.seed
        """Gives the same answers again, with the same options and prompt."""
        self.prompt_tokens = len(first.prompt_ids)
        self._engine = engine
        self._tokenizer = tokenizer
        self._events: SimpleQueue[TokenEvent] = SimpleQueue()
        self._choices = {
            request.id: _Choice(request, decoder, keeps=keeps)
            for request, decoder in zip(requests, decoders, strict=True)
        }
        self.prompt_logprobs: tuple[LogProb | None, ...] | None = None
        """One per prompt token, None for the first; there with the first event, if asked for and if it `keeps`
        scores. All choices have the same."""
        self._keeps, self._first = keeps, first.choice
        self._error: LlmrsError | None = None
        self._left = len(requests)
        """Choices that have not ended."""
        try:
            for request in requests:
                engine.submit(request, sink or self._events.put)
        except BaseException:
            self.cancel()
            raise

    def __iter__(self) -> Iterator[TextEvent]:
        """Events until every choice has ended. Raises LlmrsError if one ends by a fault, and again after."""
        try:
            if self._error is not None:
                raise self._error
            while self._left:
                news = self.take(self._await())
                if news is not None:
                    yield news
        except LlmrsError as error:
            self._error = error
            raise
        finally:
            self.cancel()

    def _await(self) -> TokenEvent:
        """The next event, however long it takes."""
        while True:
            with suppress(Empty):
                return self._events.get(timeout=TURN)

    def take(self, event: TokenEvent) -> TextEvent | None:
        """What a token event says; None if its choice had ended. Raises LlmrsError if it ends by a fault."""
        choice = self._choices[event.request_id]
        return self._advance(choice, event) if choice.finish is None else None

    @property
    def finished(self) -> bool:
        """Every choice has ended."""
        return not self._left

    @property
    def reasons(self) -> list[FinishReason | None]:
        """Why each choice has ended, None if it has not."""
        return [choice.finish for choice in self._choices.values()]

    def cancel(self) -> None:
        """End the choices that still run, soon; they keep what they have."""
        for id, choice in self._choices.items():
            if choice.finish is None:
                self._engine.abort(id)

    def result(self) -> GenerationResult:
        """The whole; waits for what is still to come. Raises as iterating does."""
        for _ in self:
            pass
        choices = tuple(choice.result() for choice in self._choices.values())
        return GenerationResult(choices, self.usage(), self.prompt_logprobs)

    def usage(self) -> Usage:
        """Tokens so far."""
        choices = list(self._choices.values())
        return Usage(self.prompt_tokens, sum(len(c.token_ids) for c in choices), choices[0].cached_tokens)

    def _advance(self, choice: _Choice, event: TokenEvent) -> TextEvent:
        if event.finish is FinishReason.ERROR:
            choice.finish = FinishReason.ERROR
            self._left -= 1
            raise self._engine.fault or _error(event)
        scores = tuple(
            None if score is None else named(score, self._tokenizer) for score in event.prompt_logprobs or ()
        )
        if self._keeps and scores and choice.number == self._first:
            self.prompt_logprobs = (*(self.prompt_logprobs or ()), *scores)
        text, taken = choice.take(event)
        logprobs = tuple(named(score, self._tokenizer) for score in event.logprobs[:taken])
        choice.keep(logprobs)
        if choice.finish is not None:
            self._left -= 1
            if event.finish is None:
                self._engine.abort(event.request_id)  # a stop string, of which the engine knows nothing
        return TextEvent(
            choice=choice.number,
            text=text,
            token_ids=event.tokens[:taken],
            logprobs=logprobs,
            finish_reason=choice.finish,
            usage=None if self._left else self.usage(),
            prompt_logprobs=scores,
        )


def _error(event: TokenEvent) -> LlmrsError:
    """Why a request has failed; that of all of them, though the engine may not have said so itself yet."""
    reason = event.error or "The request failed."
    return EngineFault(reason) if event.code == BROKEN else GenerationError(reason, code=event.code)


class _Choice:
    """What one answer has come to."""

    def __init__(self, request: Request, decoder: StreamDecoder | None, *, keeps: bool) -> None:
        """`keeps`: text and scores, for `result`."""
        self.number = request.choice
        self.finish: FinishReason | None = None
        self.token_ids: list[int] = []
        self.cached_tokens = 0
        self._keeps = keeps
        self._logprobs: list[LogProb] = []
        self._pieces: list[str] = []
        self._decoder = decoder
        self._min_tokens = request.params.min_tokens

    def take(self, event: TokenEvent) -> tuple[str, int]:
        """Text that became certain, and how many of the event's tokens belong to the answer."""
        self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
        if self._decoder is None or not self._decoder.looks_for_stops:
            return self._take_all(event), len(event.tokens)
        pieces = []
        for taken, token in enumerate(event.tokens, 1):
            self.token_ids.append(token)
            ended = event.finish is FinishReason.STOP and taken == len(event.tokens)
            pieces.append(self._push(() if ended else (token,)))
            if self._decoder.matched is not None:
                self.finish = FinishReason.STOP
                return self._keep(pieces), taken
        self.finish = event.finish
        if self.finish is not None:
            pieces.append(self._decoder.finish())
        return self._keep(pieces), len(event.tokens)

    def _take_all(self, event: TokenEvent) -> str:
        """The same where no stop string is looked for: one step for all tokens."""
        self.token_ids += event.tokens
        self.finish = event.finish
        pieces = [self._push(event.tokens[:-1] if event.finish is FinishReason.STOP else event.tokens)]
        if self.finish is not None and self._decoder is not None:
            pieces.append(self._decoder.finish())
        return self._keep(pieces)

    def result(self) -> ChoiceResult:
        """The whole answer."""
        assert self.finish is not None
        return ChoiceResult("".join(self._pieces), tuple(self.token_ids), self.finish, tuple(self._logprobs))

    def _push(self, ids: tuple[int, ...]) -> str:
        if self._decoder is None:
            return ""
        try:
            return self._decoder.push(ids, may_stop=len(self.token_ids) >= self._min_tokens)
        except Exception as error:
            raise LlmrsError("The answer could not be turned into text.") from error

    def keep(self, logprobs: Sequence[LogProb]) -> None:
        """Scores of the answer's tokens."""
        if self._keeps:
            self._logprobs += logprobs

    def _keep(self, pieces: list[str]) -> str:
        text = "".join(pieces)
        if self._keeps:
            self._pieces.append(text)
        return text
