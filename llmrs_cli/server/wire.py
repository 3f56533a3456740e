"""What the server and its engine process say to each other: length-framed msgpack over two pipes.

A frame is four bytes of length, big-endian, and that many bytes of one message. Messages are structs of
plain values, checked on arrival; nothing is ever unpickled. Who reads what is in the two unions.
"""

from __future__ import annotations

import msgspec

from llmrs_cli.engine.limits import EngineLimits
from llmrs_cli.engine.stats import EngineStats
from llmrs_cli.engine.types import Request, TokenEvent

MAX_FRAME = 256 * 1024 * 1024
"""Bytes of one message; a longer one means that the stream is out of step."""
HEADER = 4


class Open(msgspec.Struct, tag=True):
    """To the engine, first of all: what to load, as the arguments of `open_engine`."""

    path: str
    device: str
    context: int | None = None
    rows: int | None = None
    memory: int | None = None
    deterministic: bool = False
    small_head: bool = False


class Submit(msgspec.Struct, tag=True):
    """To the engine: a request that the server has validated."""

    request: Request


class Abort(msgspec.Struct, tag=True):
    """To the engine: end a request."""

    request_id: str


class Progress(msgspec.Struct, tag=True):
    """From the engine: bytes loaded, bytes in all."""

    done: int
    total: int


class Ready(msgspec.Struct, tag=True):
    """From the engine: it has loaded and computed a first token."""

    limits: EngineLimits
    vocab: int


class Failed(msgspec.Struct, tag=True):
    """From the engine: it could not be opened. `exit_code` says of which kind the error is."""

    exit_code: int
    message: str
    hint: str | None = None


class Events(msgspec.Struct, tag=True):
    """From the engine: what its latest steps gave."""

    events: list[TokenEvent]


class Beat(msgspec.Struct, tag=True):
    """From the engine, at an even pace: its counters. The number of steps tells whether it moves."""

    stats: EngineStats
    computed: float = 0.0
    """Processor seconds so far, where it is the processor that computes: a step of a large model may take minutes."""


class Broken(msgspec.Struct, tag=True):
    """From the engine, last of all: it can serve nobody any more."""

    message: str


ToEngine = Open | Submit | Abort
FromEngine = Progress | Ready | Failed | Events | Beat | Broken

_ENCODER = msgspec.msgpack.Encoder()


def frame(message: ToEngine | FromEngine) -> bytes:
    """A message as it goes over the pipe."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(HEADER, "big") + body


def body_length(header: bytes) -> int:
    """Bytes that follow a header. Raises ValueError if no message is that long."""
    length = int.from_bytes(header, "big")
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes")
    return length
