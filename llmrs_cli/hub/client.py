"""Requests to the Hub: one endpoint, one token, standard library only. Nothing else in llmrs goes online.

The token goes to the endpoint's own scheme, host and port and nowhere else, whatever redirects say. An
answer below 400 is returned; the rest is an exception of ours (`hub.refusals`), and so is every failure to
get an answer at all, with the proxy or certificate variables named where they matter.
"""

from __future__ import annotations

import http.client
import queue
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol
from urllib.parse import SplitResult, urljoin, urlsplit

from llmrs_cli import __version__
from llmrs_cli.errors import NetworkError, UsageError, quoted
from llmrs_cli.hub.refusals import OFFLINE_HINT, BusyError, Wanted, refusal

REACH_DEADLINE = 3.0
"""Seconds within which the first request must be answered; after that the Hub counts as unreachable."""
STALL = 10.0
"""Seconds without a byte after which a transfer counts as cut."""
MAX_REDIRECTS = 5


class Secret:
    """A text that shows itself to nobody by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text, for the one header that needs it."""
        return self._text

    def __repr__(self) -> str:
        return "***"


class Answer(Protocol):
    """The part of `http.client.HTTPResponse` that is used."""

    status: int
    headers: Mapping[str, str]

    def read(self, amount: int = ..., /) -> bytes:
        """At most `amount` bytes; b"" at the end."""

    def close(self) -> None:
        """Drop the connection."""


class HubClient:
    """Asks one endpoint. Safe to use from several threads."""

    def __init__(self, endpoint: str, token: Secret | None = None) -> None:
        """`endpoint` such as "https://huggingface.co", or UsageError."""
        self._endpoint = _checked_endpoint(endpoint)
        self._token = token
        self._proxies = urllib.request.getproxies()
        self._opener = _opener(self._proxies, secure=self._endpoint.startswith("https:"))

    @property
    def with_token(self) -> bool:
        """Whether requests carry a token."""
        return self._token is not None

    def page(self, repo: str) -> str:
        """Address of a repository for a person."""
        return f"{self._endpoint}/{repo}"

    def get(self, path: str, wanted: Wanted, headers: Mapping[str, str] | None = None) -> Answer:
        """GET `path` of the endpoint, redirects followed. The caller closes the answer.

        Raises what `refusal` gives, BusyError where another try may help, else NetworkError.
        """
        url = self._endpoint + path
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._open(url, dict(headers or {}))
            if answer.status in (301, 302, 303, 307, 308):
                answer.close()
                url = _next_url(url, answer.headers.get("Location", ""))
            elif answer.status >= 400:
                answer.close()
                raise refusal(answer.status, answer.headers, wanted, with_token=self.with_token)
            else:
                return answer
        raise NetworkError(
            "The Hub redirects in a circle.", hint="Check HF_ENDPOINT and the proxy variables."
        )

    def reach(self, path: str, wanted: Wanted) -> Answer:
        """`get`, but NetworkError if there is no answer within REACH_DEADLINE.

        In a thread, because looking up a host name obeys no time-out; a late one is left to end by itself.
        """
        box: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
        late = threading.Event()

        def ask() -> None:
            try:
                answer = self.get(path, wanted)
            except BaseException as error:
                box.put(error)
                return
            box.put(answer)
            if late.is_set():
                answer.close()

        threading.Thread(target=ask, name="hub-probe", daemon=True).start()
        try:
            result = box.get(timeout=REACH_DEADLINE)
        except queue.Empty:
            late.set()
            host = urlsplit(self._endpoint).netloc
            message = f"{quoted(host)} does not answer within {REACH_DEADLINE:g} s."
            raise NetworkError(message, hint=OFFLINE_HINT) from None
        if isinstance(result, BaseException):
            raise result
        return result

    def _open(self, url: str, headers: dict[str, str]) -> Answer:
        headers["User-Agent"] = f"llmrs/{__version__}"
        headers["Accept-Encoding"] = "identity"
        if self._token is not None and _origin(url) == _origin(self._endpoint):
            headers["Authorization"] = f"Bearer {self._token.reveal()}"
        try:
            answer = self._opener.open(urllib.request.Request(url, headers=headers), timeout=STALL)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _unreachable(urlsplit(url), self._proxy_for(url), error) from error
        assert answer is not None, "the opener knows http and https"
        return answer  # type: ignore[no-any-return]  # typeshed leaves the type of an opened URL open

    def _proxy_for(self, url: str) -> str | None:
        """host:port of the proxy that this address goes through; its password stays unsaid."""
        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme)
        if proxy is None or urllib.request.proxy_bypass(parts.netloc):
            return None
        return urlsplit(proxy if "//" in proxy else f"//{proxy}").netloc.rpartition("@")[2]


def _checked_endpoint(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        good = False
    if not good or "@" in parts.netloc or parts.query or parts.fragment or not endpoint.isprintable():
        raise UsageError(
            f"HF_ENDPOINT is not the address of a Hub: {quoted(endpoint.rpartition('@')[2])}.",
            hint="It looks like https://host or http://host:port.",
        )
    return endpoint.rstrip("/")


def _opener(proxies: dict[str, str], *, secure: bool) -> urllib.request.OpenerDirector:
    """http and https and nothing else: no files, no redirects of its own, no answers to log-in challenges."""
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.ProxyHandler(proxies))
    opener.add_handler(urllib.request.HTTPHandler())
    opener.add_handler(urllib.request.HTTPSHandler(context=ssl.create_default_context() if secure else None))
    return opener


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _next_url(url: str, location: str) -> str:
    following, scheme, host = "", "", None
    with suppress(ValueError):  # brackets or a port that make no address
        following = urljoin(url, location)
        scheme, host, _ = _origin(following)
    if not host or scheme not in ("http", "https") or (url.startswith("https:") and scheme == "http"):
        raise NetworkError("The Hub redirects to an address that is not safe to follow.")
    return following


def _unreachable(url: SplitResult, proxy: str | None, error: Exception) -> NetworkError:
    """The sentence for a request that got no answer."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return NetworkError(
            f"The certificate of {quoted(url.hostname)} is not trusted: {reason.verify_message}.",
            hint="If a proxy or mirror has its own authority, set SSL_CERT_FILE to its certificates.",
        )
    if proxy is not None:
        return NetworkError(
            f"The proxy {quoted(proxy)} does not let us reach {quoted(url.hostname)}: {_words(reason)}.",
            hint="Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY.",
        )
    return BusyError(f"Cannot reach {quoted(url.netloc)}: {_words(reason)}.", hint=OFFLINE_HINT)


def _words(reason: object) -> str:
    if isinstance(reason, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(reason, TimeoutError):
        return f"no answer within {STALL:g} s"
    if isinstance(reason, ConnectionRefusedError):
        return "it refuses connections"
    if isinstance(reason, ssl.SSLError):
        return "it does not speak TLS"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return quoted(str(reason), 120) if isinstance(reason, OSError) else "it does not speak HTTP"
