"""Requests and their failures: what is said about proxies, certificates and hosts, and where a token goes."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from llmrs_cli.errors import LlmrsError, NetworkError, UsageError
from llmrs_cli.hub.client import HubClient, Secret
from llmrs_cli.hub.refusals import BusyError, Wanted
from tests.helpers.fake_hub import FakeRepo, Fault, fake_hub

PEM = Path(__file__).parents[1] / "data" / "tls" / "self-signed.pem"
WANTED = Wanted("a/b", "http://hub/a/b")
LISTING = "/api/models/a/b/revision/main"


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
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

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


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
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
        HubClient(endpoint)
    assert "pw" not in str(caught.value)


def test_an_endpoint_may_have_a_path_and_a_slash() -> None:
    assert HubClient("http://127.0.0.1:1/hub/").page("a/b") == "http://127.0.0.1:1/hub/a/b"


def test_a_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("hf_x")
    assert (repr(secret), str(secret), f"{secret}", secret.reveal()) == ("***", "***", "***", "hf_x")


def test_a_proxy_that_cannot_be_reached_is_named_with_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://user:secret@127.0.0.1:9")
        with pytest.raises(
            NetworkError, match=r"The proxy '127.0.0.1:9' does not let us reach 'h'"
        ) as caught:
            HubClient(f"{scheme}://h").get(LISTING, WANTED)
        assert "HTTPS_PROXY" in (caught.value.hint or "") and "NO_PROXY" in (caught.value.hint or "")
        assert "secret" not in str(caught.value)
        assert not isinstance(caught.value, BusyError), "not tried again"


def test_a_proxy_that_wants_a_password_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n") as address:
        monkeypatch.setenv("https_proxy", f"http://{address}")
        with pytest.raises(NetworkError, match="407 Proxy Authentication Required"):
            HubClient("https://h").get(LISTING, WANTED)


def test_no_proxy_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with fake_hub({"a/b": FakeRepo({})}) as hub:
        HubClient(hub.endpoint).get(LISTING, WANTED).close()
    assert len(hub.seen) == 1


def test_a_certificate_that_is_not_trusted_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with secure_server() as endpoint:
        with pytest.raises(NetworkError, match=r"The certificate of '127.0.0.1' is not trusted") as caught:
            HubClient(endpoint).get(LISTING, WANTED)
        assert "SSL_CERT_FILE" in (caught.value.hint or "")
        monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
        HubClient(endpoint).get(LISTING, WANTED).close()


def test_a_server_without_tls_says_so() -> None:
    with (
        answering(b"HTTP/1.1 200 OK\r\n\r\n") as address,
        pytest.raises(NetworkError, match="does not speak TLS"),
    ):
        HubClient(f"https://{address}").get(LISTING, WANTED)


def test_a_server_that_speaks_something_else_says_so() -> None:
    with answering(b"220 ftp ready\r\n") as address, pytest.raises(BusyError, match="does not speak HTTP"):
        HubClient(f"http://{address}").get(LISTING, WANTED)


def test_a_host_without_an_address_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **rest: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(NetworkError, match="'hub.example': its name cannot be resolved"):
        HubClient("https://hub.example").reach(LISTING, WANTED)


def test_a_host_that_is_silent_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmrs_cli.hub.client.STALL", 0.05)
    with fake_hub({}) as hub:
        hub.fail("", Fault(wait=30))
        with pytest.raises(BusyError, match=r"no answer within 0.05 s"):
            HubClient(hub.endpoint).get(LISTING, WANTED)


@pytest.mark.parametrize("host", ["same", "other"])
def test_a_redirect_takes_the_token_to_the_endpoint_only(host: str) -> None:
    with fake_hub({"a/b": FakeRepo({})}, tokens=frozenset({"t"})) as hub:
        target = hub.endpoint if host == "same" else hub.storage
        hub.fail(LISTING, Fault(status=307, headers={"Location": f"{target}/lfs/none"}))
        with pytest.raises(LlmrsError):
            HubClient(hub.endpoint, Secret("t")).get(LISTING, WANTED)
        seen = hub.seen[1:] if host == "same" else hub.stored
        assert [request.authorization for request in seen] == ["Bearer t" if host == "same" else None]


def test_a_relative_redirect_stays_at_the_endpoint() -> None:
    with fake_hub({"a/b": FakeRepo({})}) as hub:
        hub.fail("/api/models/old/name", Fault(status=301, headers={"Location": LISTING}))
        HubClient(hub.endpoint).get("/api/models/old/name", WANTED).close()
        assert [seen.path for seen in hub.seen] == ["/api/models/old/name", LISTING]
