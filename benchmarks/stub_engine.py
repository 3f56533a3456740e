"""An engine's process without a model: a token for every request at each step, as fast as it can or at a pace.

    python -m benchmarks.stub_engine STEP_MS IDS READ_FD WRITE_FD

Stands in for `llmrs_cli.server.child` where the server before an engine is to be measured alone. Ids go from 0
to IDS - 1 and begin anew. The pipe slows it down to what the server takes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import BinaryIO

import msgspec

from llmrs_cli.engine.limits import EngineLimits
from llmrs_cli.engine.stats import EngineStats, Recorder
from llmrs_cli.engine.types import FinishReason, TokenEvent
from llmrs_cli.server import wire

LIMITS = EngineLimits(256, 32_768, 131_072, 64, 512, 8192)
VOCAB = 151_936
BEAT = 0.25
"""Seconds between two beats."""


class Stub:
    """Requests under way, and how many tokens each still gets."""

    def __init__(self, pipe: BinaryIO, step: float, ids: int) -> None:
        self._pipe = pipe
        self._step = step
        self._ids = ids
        self._left: dict[str, int] = {}
        self._steps = self._tokens = 0
        self._beat = 0.0

    def run(self, inbox: SimpleQueue[wire.ToEngine | None]) -> None:
        """Until None comes in."""
        self._tell(wire.Ready(LIMITS, VOCAB))
        due = 0.0
        while self._obey_all(inbox):
            now = time.monotonic()
            if now >= self._beat + BEAT:
                self._beat = now
                self._tell(wire.Beat(self._stats))
            if self._left:
                due = max(due + self._step, now)
                time.sleep(max(0.0, due - now))
                self._steps += 1
                self._tell(wire.Events([self._next(name) for name in list(self._left)]))

    @property
    def _stats(self) -> EngineStats:
        running = len(self._left)
        stats = Recorder().snapshot(
            running=running, waiting=0, blocks=LIMITS.rows, blocks_used=running, preemptions=0
        )
        return replace(stats, steps=self._steps, generated_tokens=self._tokens)

    def _next(self, name: str) -> TokenEvent:
        self._tokens += 1
        self._left[name] -= 1
        token = (self._tokens % self._ids,)
        if self._left[name]:
            return TokenEvent(name, token)
        del self._left[name]
        return TokenEvent(name, token, finish=FinishReason.LENGTH)

    def _obey_all(self, inbox: SimpleQueue[wire.ToEngine | None]) -> bool:
        """What has come in; waits, at most until the next beat, only if there is nothing else to do."""
        with suppress(Empty):
            message = inbox.get(timeout=BEAT) if not self._left else inbox.get_nowait()
            while message is not None:
                self._obey(message)
                message = inbox.get_nowait()
            return False
        return True

    def _obey(self, message: wire.ToEngine) -> None:
        match message:
            case wire.Submit(request):
                self._left[request.id] = request.params.max_tokens
            case wire.Abort(name) if self._left.pop(name, None):
                self._tell(wire.Events([TokenEvent(name, finish=FinishReason.ABORT)]))

    def _tell(self, message: wire.FromEngine) -> None:
        self._pipe.write(wire.frame(message))
        self._pipe.flush()


def listen(pipe: BinaryIO, inbox: SimpleQueue[wire.ToEngine | None]) -> None:
    """Messages of the server; None when it has gone."""
    decoder: msgspec.msgpack.Decoder[wire.ToEngine] = msgspec.msgpack.Decoder(wire.ToEngine)
    while len(header := pipe.read(wire.HEADER)) == wire.HEADER:
        inbox.put(decoder.decode(pipe.read(wire.body_length(header))))
    inbox.put(None)


def main() -> None:
    step, ids, read, write = float(sys.argv[1]) / 1e3, *map(int, sys.argv[2:])
    inbox: SimpleQueue[wire.ToEngine | None] = SimpleQueue()
    reader = threading.Thread(target=listen, args=(os.fdopen(read, "rb"), inbox), daemon=True)
    reader.start()
    with suppress(BrokenPipeError):
        Stub(os.fdopen(write, "wb"), step, ids).run(inbox)
    os._exit(0)


if __name__ == "__main__":
    main()
