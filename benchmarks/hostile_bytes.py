"""What a client may send that is no proper request, and how much: bodies and headers beyond every limit, over sockets.

Each of `ATTACKS` is what goes over one connection. All but `pipelined`, whose thousand requests are proper ones, are to be
answered with an error, or cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

MIB = 2**20
PIECE = 65_536
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
JSON = HEAD + b"Content-Type: application/json\r\n"


def announced(length: int, kind: bytes = b"application/json") -> bytes:
    """The header of a body of so many bytes."""
    return HEAD + b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, length)


def whole(body: bytes, *, kind: bytes = b"application/json", more: int = 0) -> bytes:
    """A request, of whose body so many bytes never come (negative: that many are not announced)."""
    return announced(len(body) + more, kind) + body


def chunked(size: int) -> bytes:
    piece = b"%x\r\n%b\r\n" % (PIECE, b" " * PIECE)
    return JSON + b"Transfer-Encoding: chunked\r\n\r\n" + piece * (size // PIECE) + b"0\r\n\r\n"


ATTACKS: dict[str, Callable[[], bytes]] = {
    "announced": lambda: whole(b" " * (4 * MIB + 1)),
    "chunked": lambda: chunked(5 * MIB),
    "longer_than_announced": lambda: whole(b"{}" + b" " * 4 * MIB, more=-4 * MIB),
    "cut": lambda: whole(b" " * 2 * MIB, more=MIB),
    "deep": lambda: whole(b"[" * 100_000),
    "deep_and_large": lambda: whole(b'{"prompt":' + b"[" * (4 * MIB - 20)),
    "same_key": lambda: whole(b"{" + b'"a":1,' * 690_000 + b'"a":1}'),
    "many_keys": lambda: whole(b"{" + b",".join(b'"%d":1' % i for i in range(380_000)) + b"}"),
    "compressed": lambda: whole(b"\x1f\x8b" * MIB, kind=b"application/gzip"),
    "form": lambda: whole(b"a=b&" * MIB, kind=b"multipart/form-data; boundary=a"),
    "long_header": lambda: HEAD + b"X: " + b"a" * 8 * MIB + b"\r\n\r\n",
    "header_lines": lambda: HEAD + b"X: a\r\n" * 10_000 + b"\r\n",
    "pipelined": lambda: b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000,
    "bad_chunk": lambda: JSON + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n" + b"a" * MIB,
    "two_lengths": lambda: JSON + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


SLOW = (JSON + b"X: " + b"a" * 10_000, announced(10_000) + b" " * 10_000)
"""A header, and a body, for `drip`."""


async def send(host: str, port: int, data: bytes) -> bytes:
    """What comes back, to the end of the connection; as much as came before it was cut."""
    reader, writer = await asyncio.open_connection(host, port)
    got: list[bytes] = []

    async def write() -> None:
        for start in range(0, len(data), PIECE):
            writer.write(data[start : start + PIECE])
            await writer.drain()
        writer.write_eof()

    async def read() -> None:
        while piece := await reader.read(PIECE):
            got.append(piece)

    await asyncio.gather(write(), read(), return_exceptions=True)  # both end with the connection
    writer.close()
    return b"".join(got)


async def drip(host: str, port: int, data: bytes, pause: float) -> None:
    """Send byte by byte, with seconds between them, until the server has had enough or it is cancelled."""
    _, writer = await asyncio.open_connection(host, port)
    try:
        with suppress(ConnectionError):
            for byte in data:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(pause)
    finally:
        writer.close()
