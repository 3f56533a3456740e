"""The Hub through its own library, huggingface_hub: listings, small files, the stream of a large one.

Only this module and `hub.refusals` load the library, inside functions, so that whatever asks nobody stays
light. It is made quiet: no bars, logs, telemetry or Xet, and no tries of its own after a refusal. Its HTTP
client is replaced by one that drops the token from every request that leaves the endpoint's scheme, host and
port (the library sends it to other addresses of the Hub that a mirror redirects to) and that never follows a
redirect out of TLS. Clients, answers and errors are those of httpx2, which comes with the library.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from llmrs_cli import __version__
from llmrs_cli.errors import AccessError, NetworkError
from llmrs_cli.hub.access import HubAccess
from llmrs_cli.hub.listing import MALFORMED, Listing, RepoFile, parse_listing
from llmrs_cli.hub.refusals import Wanted, refusal

if TYPE_CHECKING:
    import httpx2

STALL = 10.0
"""Seconds without a byte after which a request counts as cut."""
_HOST = re.compile(rb"[A-Za-z0-9._:-]+")
"""What can be the name or address of a host; anything else would only be looked up in vain."""


class Library:
    """huggingface_hub for one endpoint and cache."""

    def __init__(self, access: HubAccess) -> None:
        """Takes over the library for this process; AccessError if what should be a token is none."""
        _silence()
        _guard(access.endpoint)
        self._access = access
        self._headers = _headers()

    def listing(self, repo: str, revision: str) -> Listing:
        """The files of `repo` at `revision`, checked. Raises what `refusal` and `parse_listing` give."""
        from huggingface_hub import HfApi

        api = HfApi(self._access.endpoint, headers=self._headers, token=False)
        with self._our_errors(repo, revision):
            return parse_listing(repo, api.model_info(repo, revision=revision, files_metadata=True))

    def fetch(self, listing: Listing, file: RepoFile) -> Path:
        """Where `file` is in the cache after the library has put it there; its content is not checked."""
        from huggingface_hub import hf_hub_download

        with self._our_errors(listing.repo, listing.commit, file.name):
            path = hf_hub_download(
                listing.repo,
                file.name,
                revision=listing.commit,
                cache_dir=self._access.hub,
                endpoint=self._access.endpoint,
                headers=self._headers,
                token=False,
            )
        return Path(path)

    @contextmanager
    def stream(self, listing: Listing, file: RepoFile, start: int) -> Iterator[httpx2.Response]:
        """The answer to a request for `file` from byte `start` on. What breaks while it is read is ours too."""
        from huggingface_hub import get_session, hf_hub_url

        url = hf_hub_url(listing.repo, file.name, revision=listing.commit, endpoint=self._access.endpoint)
        headers = {**self._headers, "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with (
            self._our_errors(listing.repo, listing.commit, file.name),
            get_session().stream("GET", url, headers=headers) as answer,
        ):
            yield answer

    @contextmanager
    def _our_errors(self, repo: str, revision: str, file: str | None = None) -> Iterator[None]:
        """Turn the library's errors into ours; those of the disk pass."""
        import httpx2

        try:
            yield
        except (httpx2.RequestError, httpx2.InvalidURL, OSError, *MALFORMED) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the library's own have no number
                raise
            page, with_token = self._access.page(repo), "authorization" in self._headers
            raise refusal(error, Wanted(repo, page, with_token, revision, file)) from error


def has_token() -> bool:
    """Whether requests to the Hub carry a token. Raises AccessError if what should be one is none."""
    return "authorization" in _headers()


def _silence() -> None:
    """Switch off what the library shows, sends or does beside the work, whatever its variables say."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # exported lazily
    from huggingface_hub.utils.logging import set_verbosity

    constants.HF_HUB_DISABLE_XET = True
    constants.HF_HUB_DISABLE_TELEMETRY = True
    constants.HF_HUB_DISABLE_SYMLINKS_WARNING = True
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        disable_progress_bars()
    set_verbosity(logging.CRITICAL)


def _guard(endpoint: str) -> None:
    """Give the library a client that keeps the token at `endpoint` and raises at a refusal, before a retry."""
    import httpx2
    from huggingface_hub import hf_raise_for_status, set_client_factory

    home = httpx2.URL(endpoint)

    def leave(request: httpx2.Request) -> None:
        if request.url.scheme not in ("https", home.scheme) or not _HOST.fullmatch(request.url.raw_host):
            raise NetworkError("The Hub redirects to an address that is not safe to follow.")
        if request.url.origin != home.origin:
            request.headers.pop("Authorization", None)
        request.extensions["timeout"] = httpx2.Timeout(STALL).as_dict()

    set_client_factory(
        lambda: httpx2.Client(
            event_hooks={"request": [leave], "response": [hf_raise_for_status]}, follow_redirects=True
        )
    )


def _headers() -> dict[str, str]:
    """Who we are, with the token that the library finds in the environment or where Hub programs log in."""
    from huggingface_hub.errors import OIDCError
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # exported lazily

    hint = "A token is a word such as hf_…; set HF_TOKEN, or log in again."
    try:
        headers: dict[str, str] = build_hf_headers(library_name="llmrs", library_version=__version__)
    except (OSError, ValueError, OIDCError) as error:
        raise AccessError("The token cannot be read.", hint=hint) from error
    token = headers.get("authorization", "Bearer x").removeprefix("Bearer ")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise AccessError("What HF_TOKEN or the token's file holds is not a token.", hint=hint)
    return headers
