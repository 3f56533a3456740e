"""An engine of scripted token events, for text on top of it: no model, no thread, no time.

`script` maps a request to its events; they go out one round at a time when a test calls `play`, or all
at once from `submit` if `at_once`. Aborted requests get their last event at the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from llmrs_cli.engine import EngineLimits, EngineStats, FinishReason, Request, TokenEvent
from llmrs_cli.engine.stats import Recorder
from llmrs_cli.errors import EngineFault

Sink = Callable[[TokenEvent], None]
Script = Callable[[Request], Iterable[TokenEvent]]


class FakeEngine:
    """Implements `text.generation.TokenEngine`."""

    def __init__(self, script: Script, *, context: int = 64, vocab: int = 1024, at_once: bool = True) -> None:
        self.limits = EngineLimits(4, context, context, 16, 64, 256)
        self.vocab = vocab
        self.fault: EngineFault | None = None
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.closed = False
        self._script = script
        self._at_once = at_once
        self._live: dict[str, tuple[Iterator[TokenEvent], Sink]] = {}

    def submit(self, request: Request, sink: Sink) -> None:
        if self.fault is not None:
            raise self.fault
        self.limits.check(request)
        self.requests.append(request)
        self._live[request.id] = iter(self._script(request)), sink
        while self._at_once and request.id in self._live:
            self.play()

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if request_id in self._live:
            self._live[request_id] = (
                iter([TokenEvent(request_id, finish=FinishReason.ABORT)]),
                self._live[request_id][1],
            )

    @property
    def busy(self) -> bool:
        """A request has not ended."""
        return bool(self._live)

    def play(self) -> None:
        """One event of every request that has not ended."""
        for name, (events, sink) in list(self._live.items()):
            event = next(events)
            if event.finish is not None:
                del self._live[name]
            sink(event)

    def stats(self) -> EngineStats:
        return Recorder().snapshot(running=len(self._live), waiting=0, blocks=4, blocks_used=0, preemptions=0)

    def close(self) -> None:
        self.closed = True
        for name, (_, sink) in self._live.items():
            sink(TokenEvent(name, finish=FinishReason.ABORT))
        self._live.clear()


def reply(*rounds: tuple[int, ...], finish: FinishReason = FinishReason.LENGTH) -> Script:
    """A script: each round's tokens, the same for every request; the last one ends it."""

    def events(request: Request) -> Iterator[TokenEvent]:
        for i, tokens in enumerate(rounds):
            yield TokenEvent(request.id, tokens, finish=finish if i == len(rounds) - 1 else None)

    return events
