"""One file from the Hub into the cache: resumed where it was cut, checked before it has a name.

Content gathers in a partial file that only ever grows; when something is wrong with it, it is removed and a
new one begun, never rewritten in place, because another process may just have published it. A transfer that
is cut is taken up again with a range request, by the next process too. Only a file whose hash is right
becomes a blob of the cache.
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrs_cli.errors import ModelError, NetworkError, quoted
from llmrs_cli.hub.cache import CachedRepo
from llmrs_cli.hub.client import Answer, HubClient
from llmrs_cli.hub.files import CHUNK, locked, size_text
from llmrs_cli.hub.listing import Listing, RepoFile
from llmrs_cli.hub.refusals import OFFLINE_HINT, BusyError, Wanted

PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds between tries in a row that bring nothing; after the last of them the failure stands."""


ROUNDS = 3
"""Times that a file is fetched whole before its content counts as wrong."""


class Cancelled(Exception):  # no failure: another file's download failed, or Ctrl-C
    """The transfer was told to stop."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What every file of one download shares."""

    client: HubClient
    listing: Listing
    cached: CachedRepo
    stop: threading.Event
    """Set by whoever wants all transfers to end soon."""
    pauses: Sequence[float]
    """Seconds between tries; see PAUSES."""

    def fetch(self, file: RepoFile, report: Callable[[int], None]) -> None:
        """Bring `file` into the cache; `report` is told the bytes that are here, again and again.

        Raises NetworkError where the network or Hub fails for good, ModelError if the content stays wrong,
        AccessError if the Hub refuses, OSError if the disk does, Cancelled when `stop` is set.
        """
        with locked(self.cached.lock_folder / f"{file.hash}.lock"):
            self._bring_blob(file, report)
            self.cached.enter(self.listing.commit, file)
        report(file.size)

    def _bring_blob(self, file: RepoFile, report: Callable[[int], None]) -> None:
        """Make the blob of `file` be there, whoever brings it; what has a wrong hash is fetched anew."""
        partial = self.cached.partial(file)
        for _ in range(ROUNDS):
            if self.cached.has_blob(file):
                return
            self._gather(file, partial, report)
            if file.is_content_of(partial):
                self.cached.admit(file)
            else:
                partial.unlink(missing_ok=True)
        if not self.cached.has_blob(file):
            raise ModelError(
                f"{quoted(file.name)} of {quoted(self.listing.repo)} arrives damaged: its hash is not the one listed.",
                hint="Try again later; if it stays so, a proxy or mirror alters the file.",
            )

    def _gather(self, file: RepoFile, partial: Path, report: Callable[[int], None]) -> None:
        """Fill `partial` to the file's length, across cuts, unless another process brings the blob first."""
        tries = 0
        while (have := _length(partial)) < file.size and not self.cached.has_blob(file):
            try:
                self._receive(file, partial, max(have, 0), report)
            except (BusyError, FileNotFoundError) as error:  # the latter: another process took the partial
                tries = 0 if _length(partial) > have else tries + 1
                if tries > len(self.pauses):
                    raise
                asked = error.wait if isinstance(error, BusyError) else 0.0
                if self.stop.wait(max(asked, self.pauses[tries - 1] if tries else 0.0)):
                    raise Cancelled from error

    def _receive(self, file: RepoFile, partial: Path, have: int, report: Callable[[int], None]) -> None:
        """One request: write what comes from byte `have` on. Raises BusyError if that is not all."""
        headers = {"Range": f"bytes={have}-"} if have else {}
        wanted = Wanted(self.listing.repo, self.client.page(self.listing.repo), file=file.name)
        answer = self.client.get(self.listing.path_of(file), wanted, headers)
        try:
            if have and _start_of(answer) != have:  # the server does not do ranges: all of it comes again
                partial.unlink(missing_ok=True)
                have = 0
            _check_length(answer, file, have)
            if not have:
                partial.touch()
            with partial.open("r+b") as out:
                out.seek(have)  # at a place, not at the end: two writers then write the same
                for chunk in _chunks(answer, file.size - have, self.stop):
                    out.write(chunk)
                    have += len(chunk)
                    report(have)
        finally:
            answer.close()
        if have < file.size:
            raise BusyError(f"The transfer of {quoted(file.name)} was cut.", hint=OFFLINE_HINT)


def _length(path: Path) -> int:
    """Bytes in a file; -1 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _start_of(answer: Answer) -> int:
    """The byte of the file at which an answer begins."""
    match = re.match(r"bytes (\d{1,18})-", answer.headers.get("Content-Range", ""))
    return int(match[1]) if answer.status == 206 and match else 0


def _check_length(answer: Answer, file: RepoFile, have: int) -> None:
    """Refuse an answer that cannot be the file: a log-in page, another file, a compressed body."""
    length = answer.headers.get("Content-Length")
    if length is not None and length != str(file.size - have):
        raise NetworkError(
            f"{quoted(file.name)} should bring {size_text(file.size - have)} and brings {quoted(length)} bytes.",
            hint="Does a proxy or log-in page stand in between? " + OFFLINE_HINT,
        )
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise NetworkError(f"{quoted(file.name)} arrives in an encoding that was not asked for.")


def _chunks(answer: Answer, limit: int, stop: threading.Event) -> Iterator[bytes]:
    """The body up to `limit` bytes; it ends early where the connection does."""
    while limit > 0:
        if stop.is_set():
            raise Cancelled
        try:
            chunk = answer.read(min(CHUNK, limit))
        except (OSError, http.client.HTTPException):
            return
        if not chunk:
            return
        limit -= len(chunk)
        yield chunk
