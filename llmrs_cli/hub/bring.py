"""The files of a model from the Hub into the cache: in order, the first failure ending all.

Small files come first, so that the caller can look at the configuration before the first weight is fetched;
one at a time, because the library closes the client of all its threads when one of them cannot connect.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from llmrs_cli.errors import quoted
from llmrs_cli.hub.download import Transfer
from llmrs_cli.hub.files import disk_errors, require_space, size_of, size_text
from llmrs_cli.hub.listing import RepoFile, is_weight
from llmrs_cli.hub.progress import Progress

WORKERS = 4
"""Files of weights that are fetched at the same time."""

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
        require_space(cached.folder, total - sum(size_of(cached.partial(file)) for file in to_come))
        if total:
            progress.notice(
                f"Fetching {quoted(listing.repo)} at commit {listing.commit[:12]}, {size_text(total)}."
            )
        for file in missing:
            if file not in to_come:
                cached.enter(listing.commit, file)
        _fetch_all(transfer, [file for file in to_come if not is_weight(file.name)], progress, workers=1)
        weights = [file for file in to_come if is_weight(file.name)]
        if weights and check is not None:
            check(_config(cached.snapshot(listing.commit)), sum(f.size for f in files if is_weight(f.name)))
        _fetch_all(transfer, weights, progress, workers=WORKERS)


def _config(snapshot: Path) -> Mapping[str, object]:
    """config.json as far as it is one; what is wrong with it, the loader says better."""
    try:
        config = json.loads((snapshot / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _fetch_all(transfer: Transfer, files: Sequence[RepoFile], progress: Progress, *, workers: int) -> None:
    """Fetch `files` by a few threads. The first failure ends the others and is raised.

    Threads of our own rather than an executor, which would make Ctrl-C wait for a stalled connection.
    """
    if not files:
        return
    todo: queue.SimpleQueue[RepoFile] = queue.SimpleQueue()
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    arrived = dict.fromkeys(files, 0)
    with progress.working(f"Fetching {transfer.listing.repo}") as bar:

        def report(file: RepoFile, count: int) -> None:
            arrived[file] = count
            bar.update(sum(arrived.values()), sum(file.size for file in files))

        def work() -> None:
            try:
                while True:
                    file = todo.get_nowait()
                    transfer.fetch(file, partial(report, file))
            except queue.Empty:
                ended.put(None)
            except BaseException as error:
                ended.put(error)

        for file in files:
            todo.put(file)
        for _ in range(workers):
            threading.Thread(target=work, name="hub-fetch", daemon=True).start()
        try:
            for _ in range(workers):
                if (error := ended.get()) is not None:
                    raise error
        except BaseException:
            transfer.stop.set()
            raise
