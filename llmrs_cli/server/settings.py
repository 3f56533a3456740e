"""How a server is set up, and the limits that protect it; constants are the same for every server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

MAX_BODY = 4 * 1024 * 1024
"""Bytes of a request body."""
MAX_HEADER_BYTES, MAX_HEADERS, MAX_TARGET = 32 * 1024, 100, 8 * 1024
HEADER_SECONDS, BODY_SECONDS = 10.0, 60.0
"""How long a client may take to send its header, and its body."""
STALL_SECONDS = 60.0
"""How long a client may leave a stream unread."""
MAX_CONNECTIONS = 1024


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the command line decides."""

    names: tuple[str, ...] = ()
    """The model's names; the first is the one in answers. None while it is not known which model it will be."""
    host: str = "127.0.0.1"
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    """Any of these opens the server; none: it is open."""
    allowed_hosts: tuple[str, ...] = ()
    """Names beside the loopback ones under which it may be addressed."""
    origins: tuple[str, ...] = ()
    """Web origins whose pages may use it."""
    queue: int = 256
    """Sequences that may wait beside those that run."""
    deadline: float = 600.0
    """Seconds that a request may wait for its next token."""
    drain: float = 30.0
    """Seconds that requests under way get to end when the server is told to."""
    watchdog: float = 60.0
    """Seconds without a step after which the engine counts as hung."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
