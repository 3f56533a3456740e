"""One file from the Hub into the cache: a small one by the library, weights by ranges of our own.

The library fetches everything but weights. Versions 2.0 to 2.4 write each download under a name of its own
(`_download_to_tmp_and_move` in file_download.py), remove it if the download fails and cannot find it again if
the process dies, so gigabytes start over; they compare lengths only, so wrong content is in the cache before
anybody can look; and they refuse files of more than 50 GB without Xet. Addresses, headers, the connection and
the kinds of refusals are the library's here too.

Weights gather in a partial file that only ever grows; when something is wrong with it, it is removed and a
new one begun, never rewritten in place, because another process may just have published it. A transfer that
is cut is taken up again with a range request, by the next process too. Only a file whose hash is right
becomes a blob of the cache.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from llmrs_cli.errors import ModelError, NetworkError, quoted
from llmrs_cli.hub.cache import CachedRepo
from llmrs_cli.hub.files import locked, size_of, size_text
from llmrs_cli.hub.library import Library
from llmrs_cli.hub.listing import Listing, RepoFile, is_weight
from llmrs_cli.hub.refusals import OFFLINE_HINT, BusyError

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds between tries in a row that bring nothing; after the last of them the failure stands."""
ROUNDS = 3
"""Times that a file is fetched whole before its content counts as wrong."""


class Cancelled(Exception):  # no failure: another file's download failed, or Ctrl-C
    """The transfer was told to stop."""


def patiently(action: Callable[[], T], pauses: Sequence[float]) -> T:
    """What `action` returns; a Hub that is busy is asked again after each pause."""
    for pause in pauses:
        try:
            return action()
        except BusyError as error:
            time.sleep(max(error.wait, pause))
    return action()


@dataclass(frozen=True, slots=True)
class Transfer:
    """What every file of one download shares."""

    library: Library
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
        library, listing, cached = self.library, self.listing, self.cached
        if is_weight(file.name):
            with locked(cached.lock_folder / f"{file.hash}.lock"):
                self._make_right(file, partial(self._gather, file, report))
                cached.enter(listing.commit, file)
        else:
            self._make_right(file, partial(patiently, partial(library.fetch, listing, file), self.pauses))
        report(file.size)

    def _make_right(self, file: RepoFile, bring: Callable[[], Path]) -> None:
        """Let `bring` bring `file`; what has a wrong hash is removed and brought anew."""
        for _ in range(ROUNDS):
            path = bring()
            if file.is_content_of(path):
                return
            for wrong in {path.resolve(), path}:
                wrong.unlink(missing_ok=True)
        raise ModelError(
            f"{quoted(file.name)} of {quoted(self.listing.repo)} arrives damaged: its hash is not the one listed.",
            hint="Try again later; if it stays so, a proxy or mirror alters the file.",
        )

    def _gather(self, file: RepoFile, report: Callable[[int], None]) -> Path:
        """Where all of `file` is: its partial, filled across cuts, or the blob if another process brought it."""
        target, tries = self.cached.partial(file), 0
        while (have := size_of(target)) < file.size:
            if self.cached.has_blob(file):
                return self.cached.blob(file)
            try:
                self._receive(file, target, have, report)
            except (BusyError, FileNotFoundError) as error:  # the latter: another process took the partial
                tries = 0 if size_of(target) > have else tries + 1
                if tries > len(self.pauses):
                    raise
                asked = error.wait if isinstance(error, BusyError) else 0.0
                if self.stop.wait(max(asked, self.pauses[tries - 1] if tries else 0.0)):
                    raise Cancelled from error
        return target

    def _receive(self, file: RepoFile, target: Path, have: int, report: Callable[[int], None]) -> None:
        """One request: write what comes from byte `have` on. Raises BusyError if that is not all."""
        with self.library.stream(self.listing, file, have) as answer:
            if have and _start_of(answer) != have:  # the server does not do ranges: all of it comes again
                target.unlink(missing_ok=True)
                have = 0
            _check_length(answer, file, have)
            if not have:
                target.touch()
            with target.open("r+b") as out:
                out.seek(have)  # at a place, not at the end: two writers then write the same
                for chunk in answer.iter_raw():
                    if self.stop.is_set():
                        raise Cancelled
                    out.write(chunk[: file.size - have])
                    have = min(have + len(chunk), file.size)
                    report(have)
                    if have == file.size:
                        return
        raise BusyError(f"The transfer of {quoted(file.name)} was cut.", hint=OFFLINE_HINT)


def _start_of(answer: httpx2.Response) -> int:
    """The byte of the file at which an answer begins."""
    match = re.match(r"bytes (\d{1,18})-", answer.headers.get("Content-Range", ""))
    return int(match[1]) if answer.status_code == 206 and match else 0


def _check_length(answer: httpx2.Response, file: RepoFile, have: int) -> None:
    """Refuse an answer that cannot be the file: a log-in page, another file, a compressed body."""
    rest, encoding = file.size - have, answer.headers.get("Content-Encoding", "identity")
    length = answer.headers.get("Content-Length", str(rest))
    if length != str(rest) or encoding != "identity":
        raise NetworkError(
            f"{quoted(file.name)} should bring {size_text(rest)} and brings {quoted(length)} bytes ({quoted(encoding)}).",
            hint="Does a proxy or log-in page stand in between? " + OFFLINE_HINT,
        )
