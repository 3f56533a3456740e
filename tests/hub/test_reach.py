"""Whether the Hub is there: what is said about proxies, certificates and hosts where it is not."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from llmrs_cli.errors import NetworkError, UsageError
from llmrs_cli.hub.access import HubAccess
from llmrs_cli.hub.reach import reach
from tests.helpers.fake_hub import Fault, fake_hub

PEM = Path(__file__).parents[1] / "data" / "tls" / "self-signed.pem"


def ask(endpoint: str) -> None:
    """Ask whether the Hub at `endpoint` is there."""
    access = HubAccess.from_environment(offline=False, env={"HOME": "/nowhere", "HF_ENDPOINT": endpoint})
    reach(access, "a/b")


@contextmanager
def answering(raw: bytes) -> Iterator[str]:
    """A server that sends `raw` to whoever connects, whatever they say."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(raw)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


@contextmanager
def secure_server() -> Iterator[str]:
    """A server with a certificate that nobody has signed."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(HTTPServer):
        def handle_error(self, *args: object) -> None:
            """The client hangs up on us; that is the point."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [200, 302, 401, 404, 429, 503])
def test_any_answer_means_that_the_hub_is_there(status: int) -> None:
    with fake_hub({}, tokens=frozenset({"t"})) as hub:
        hub.fail("/api/models/a/b", Fault(status=status, headers={"Location": "/elsewhere"}))
        ask(hub.endpoint)
        assert [(seen.method, seen.path) for seen in hub.seen] == [("HEAD", "/api/models/a/b")]


@pytest.mark.parametrize(
    "endpoint",
    [
        "hub.example",
        "ftp://h",
        "http://",
        "https://h:port",
        "http://h:0",
        "https://me:pw@h",
        "http://h?x",
        "http://h\n",
    ],
)
def test_an_endpoint_that_is_no_address_is_a_usage_error(endpoint: str) -> None:
    with pytest.raises(UsageError, match="HF_ENDPOINT") as caught:
        ask(endpoint)
    assert "pw" not in str(caught.value)


def test_an_endpoint_may_have_a_path_and_a_slash() -> None:
    env = {"HOME": "/nowhere", "HF_ENDPOINT": "http://127.0.0.1:1/hub/"}
    assert HubAccess.from_environment(offline=False, env=env).page("a/b") == "http://127.0.0.1:1/hub/a/b"


def test_a_proxy_that_cannot_be_reached_is_named_with_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://user:secret@127.0.0.1:9")
        with pytest.raises(
            NetworkError, match=r"The proxy '127.0.0.1:9' does not let us reach 'h'"
        ) as caught:
            ask(f"{scheme}://h")
        assert "HTTPS_PROXY" in (caught.value.hint or "") and "NO_PROXY" in (caught.value.hint or "")
        assert "secret" not in str(caught.value)


def test_a_proxy_that_wants_a_password_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n") as address:
        monkeypatch.setenv("https_proxy", f"http://{address}")
        with pytest.raises(NetworkError, match="407 Proxy Authentication Required"):
            ask("https://h")


def test_no_proxy_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with fake_hub({}) as hub:
        ask(hub.endpoint)
    assert len(hub.seen) == 1


def test_a_certificate_that_is_not_trusted_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with secure_server() as endpoint:
        with pytest.raises(NetworkError, match=r"The certificate of '127.0.0.1' is not trusted") as caught:
            ask(endpoint)
        assert "SSL_CERT_FILE" in (caught.value.hint or "")
        monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
        ask(endpoint)


def test_a_server_without_tls_says_so() -> None:
    with (
        answering(b"HTTP/1.1 200 OK\r\n\r\n") as address,
        pytest.raises(NetworkError, match="does not speak TLS"),
    ):
        ask(f"https://{address}")


def test_a_server_that_speaks_something_else_says_so() -> None:
    with answering(b"220 ftp ready\r\n") as address, pytest.raises(NetworkError, match="does not speak HTTP"):
        ask(f"http://{address}")


def test_a_host_without_an_address_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **rest: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(NetworkError, match="'hub.example': its name cannot be resolved"):
        ask("https://hub.example")


def test_a_look_up_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(*args: object, **rest: object) -> None:
        released.wait(30)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr("llmrs_cli.hub.reach.DEADLINE", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        with pytest.raises(NetworkError, match=r"'hub.example': no answer within 0.05 s"):
            ask("http://hub.example")
    finally:
        released.set()


def test_a_host_that_is_silent_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmrs_cli.hub.reach.DEADLINE", 0.05)
    with fake_hub({}) as hub:
        hub.fail("", Fault(wait=30))
        with pytest.raises(NetworkError, match=r"no answer within 0.05 s"):
            ask(hub.endpoint)
