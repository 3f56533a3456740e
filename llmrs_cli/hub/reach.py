"""Whether the Hub can be reached: one request with a deadline, before its library is asked or even loaded.

Any answer counts, a refusal too: what it means is for the library to find out. No token is sent. Of every
failure to get an answer, the sentence names the proxy or certificate variables where they matter.
"""

from __future__ import annotations

import http.client
import queue
import socket
import ssl
import threading
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from llmrs_cli.errors import NetworkError, quoted
from llmrs_cli.hub.access import HubAccess
from llmrs_cli.hub.refusals import OFFLINE_HINT

DEADLINE = 3.0
"""Seconds within which an answer must begin; after that the Hub counts as unreachable."""


def reach(access: HubAccess, repo: str) -> None:
    """Raise NetworkError, saying why, unless the Hub answers something to a question about `repo`.

    UsageError if the endpoint is no address. In a thread, because looking up a host name obeys no time-out;
    a late one is left to end by itself.
    """
    access.check()
    url = f"{access.endpoint}/api/models/{repo}"
    outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: outcome.put(_ask(url)), name="hub-probe", daemon=True).start()
    try:
        failure = outcome.get(timeout=DEADLINE)
    except queue.Empty:
        failure = TimeoutError()
    if failure is not None:
        raise _unreachable(url, failure)


def _ask(url: str) -> Exception | None:
    """Why there is no answer from `url`; None if there is one."""
    try:
        with _opener().open(urllib.request.Request(url, method="HEAD"), timeout=DEADLINE):
            return None
    except (OSError, http.client.HTTPException, ValueError) as error:
        return error


def _opener() -> urllib.request.OpenerDirector:
    """http and https and nothing else: no files, no redirects, no answers to log-in challenges."""
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.ProxyHandler())
    opener.add_handler(urllib.request.HTTPHandler())
    opener.add_handler(urllib.request.HTTPSHandler())
    return opener


def _proxy_for(url: str) -> str | None:
    """host:port of the proxy that this address goes through; its password stays unsaid."""
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy is None or urllib.request.proxy_bypass(parts.netloc):
        return None
    return urlsplit(proxy if "//" in proxy else f"//{proxy}").netloc.rpartition("@")[2]


def _unreachable(url: str, error: Exception) -> NetworkError:
    """The sentence for a request that got no answer."""
    parts, proxy = urlsplit(url), _proxy_for(url)
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return NetworkError(
            f"The certificate of {quoted(parts.hostname)} is not trusted: {reason.verify_message}.",
            hint="If a proxy or mirror has its own authority, set SSL_CERT_FILE to its certificates.",
        )
    if proxy is not None:
        return NetworkError(
            f"The proxy {quoted(proxy)} does not let us reach {quoted(parts.hostname)}: {_words(reason)}.",
            hint="Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY.",
        )
    return NetworkError(f"Cannot reach {quoted(parts.netloc)}: {_words(reason)}.", hint=OFFLINE_HINT)


def _words(reason: object) -> str:
    if isinstance(reason, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(reason, TimeoutError):
        return f"no answer within {DEADLINE:g} s"
    if isinstance(reason, ConnectionRefusedError):
        return "it refuses connections"
    if isinstance(reason, ssl.SSLError):
        return "it does not speak TLS"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return quoted(str(reason), 120) if isinstance(reason, OSError) else "it does not speak HTTP"
