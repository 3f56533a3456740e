"""Who answers while there is no model yet, because it is still on its way to this machine.

The port is bound before anything else is done, so clients may come at once; here each of them hears 503
`loading`, and health checks that the process lives. It runs in a thread of its own, since fetching a model
belongs to the main one, with its progress bar and its Ctrl-C.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from llmrs_cli.server.app import build_app
from llmrs_cli.server.connections import http_server
from llmrs_cli.server.service import Service
from llmrs_cli.server.settings import ServerSettings


@contextmanager
def lobby(listener: socket.socket, settings: ServerSettings, *, quiet: bool = False) -> Iterator[None]:
    """Answer on `listener` until the block ends; then it is open still, and whoever comes waits in line."""
    service = Service(settings)
    server = http_server(build_app(service, quiet=quiet))

    def serve() -> None:
        with listener.dup() as own:  # closed by the server, as sockets are that it is given
            asyncio.run(server.serve(sockets=[own]))

    thread = threading.Thread(target=serve, name="llmrs-lobby", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
        service.close()
