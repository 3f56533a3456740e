"""The files of a model from the Hub into the cache: in order, several at once, the first failure ending all.

Small files come first, so that the caller can look at the configuration before the first weight is fetched.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llmrs_cli.errors import quoted
from llmrs_cli.hub.cache import CachedRepo
from llmrs_cli.hub.download import Transfer
from llmrs_cli.hub.files import disk_errors, require_space, size_text
from llmrs_cli.hub.listing import RepoFile, is_weight
from llmrs_cli.hub.progress import Bar, Progress

WORKERS = 4
"""Files that are fetched at the same time."""

Check = Callable[[Mapping[str, object], int], None]
"""Looks at config.json (empty for a GGUF file) and the bytes of the weights; raises if they are not wanted."""


def bring(transfer: Transfer, files: Sequence[RepoFile], progress: Progress, check: Check | None) -> None:
    """Fetch those of `files` that the snapshot lacks, the weights last."""
    cached, listing = transfer.cached, transfer.listing
    missing = [file for file in files if not cached.has(listing.commit, file)]
    if not missing:
        return
    to_come = [file for file in missing if not cached.has_blob(file)]
    total = sum(file.size for file in to_come)
    with disk_errors(cached.folder, total):
        cached.prepare(listing.commit)
        require_space(cached.folder, total - sum(_arrived(cached, file) for file in to_come))
        small = [file for file in missing if not is_weight(file.name)]
        weights = [file for file in missing if is_weight(file.name)]
        if total:
            progress.notice(
                f"Fetching {quoted(listing.repo)} at commit {listing.commit[:12]}, {size_text(total)}."
            )
        _fetch_all(transfer, small, progress)
        if weights and check is not None:
            check(_config(cached.snapshot(listing.commit)), sum(f.size for f in files if is_weight(f.name)))
        _fetch_all(transfer, weights, progress)


def _arrived(cached: CachedRepo, file: RepoFile) -> int:
    partial = cached.partial(file)
    return partial.stat().st_size if partial.is_file() else 0


def _config(snapshot: Path) -> Mapping[str, object]:
    """config.json as far as it is one; what is wrong with it, the loader says better."""
    try:
        config = json.loads((snapshot / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _fetch_all(transfer: Transfer, files: Sequence[RepoFile], progress: Progress) -> None:
    """Fetch `files` by a few threads. The first failure ends the others and is raised.

    Threads of our own rather than an executor, which would make Ctrl-C wait for a stalled connection.
    """
    if not files:
        return
    with progress.working(f"Fetching {transfer.listing.repo}") as bar:
        crew = _Crew(transfer, files, bar)
        for _ in range(min(WORKERS, len(files))):
            threading.Thread(target=crew.work, name="hub-fetch", daemon=True).start()
        try:
            crew.wait()
        except BaseException:
            transfer.stop.set()
            raise


class _Crew:
    """Files to fetch, and how each of them went."""

    def __init__(self, transfer: Transfer, files: Sequence[RepoFile], bar: Bar) -> None:
        self._transfer, self._bar = transfer, bar
        self._arrived = dict.fromkeys((file.name for file in files), 0)
        self._total = sum(file.size for file in files)
        self._todo: queue.SimpleQueue[RepoFile] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        for file in files:
            self._todo.put(file)

    def work(self) -> None:
        """What each thread does: fetch files until none is left."""
        while True:
            try:
                file = self._todo.get_nowait()
            except queue.Empty:
                return
            try:
                self._transfer.fetch(file, self._report(file))
            except BaseException as error:
                self._done.put(error)
            else:
                self._done.put(None)

    def wait(self) -> None:
        """Return when every file is there; raise the first failure."""
        for _ in self._arrived:
            if (error := self._done.get()) is not None:
                raise error

    def _report(self, file: RepoFile) -> Callable[[int], None]:
        def report(count: int) -> None:
            self._arrived[file.name] = count
            self._bar.update(sum(self._arrived.values()), self._total)

        return report
