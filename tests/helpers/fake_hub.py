"""A Hub on this machine: serves small repositories behind HF_ENDPOINT and fails in the ways that real ones do.

    with fake_hub({"Qwen/Qwen2.5-0.5B-Instruct": folder}) as hub:
        subprocess.run(["llmrs", ...], env={**os.environ, **hub.env(tmp_path)})

Speaks what a Hub client asks: model information (`/api/models/…`), the tree, and `/resolve/`. Large files are
answered with a redirect to a second server on another port, which stands for the storage host; what that
host is sent is recorded apart. Loopback only; the servers end with the `with` block.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.helpers.fake_hub_parts import FakeRepo, Fault, Seen
from tests.helpers.fake_hub_servers import LARGE, Answering, Endpoint, Storage

__all__ = ["FakeHub", "FakeRepo", "Fault", "Seen", "fake_hub"]


class FakeHub:
    """The state of one fake Hub; `fake_hub` runs it."""

    def __init__(self, repos: Mapping[str, FakeRepo], tokens: frozenset[str]) -> None:
        self.repos = dict(repos)
        self.tokens = tokens
        self.seen: list[Seen] = []
        """What the endpoint was asked."""
        self.stored: list[Seen] = []
        """What the storage host was asked."""
        self.sent = 0
        """Bytes of file content that left either of them."""
        self.endpoint = ""
        self.storage = ""
        self.ended = threading.Event()
        self._faults: list[tuple[re.Pattern[str], list[Fault]]] = []

    def fail(self, path: str, *faults: Fault) -> None:
        """Let the next requests whose path matches the pattern `path` meet `faults`, one each."""
        self._faults.append((re.compile(path), list(faults)))

    def take_fault(self, path: str) -> Fault:
        """The fault that the request for `path` meets."""
        for pattern, faults in self._faults:
            if faults and pattern.search(path):
                return faults.pop(0)
        return Fault()

    def env(self, home: Path) -> dict[str, str]:
        """Variables that make a process use this Hub, with its cache and ours under `home`."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home / "hf"),
            "HF_HUB_CACHE": str(home / "hf" / "hub"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_TOKEN": "",
            "LLMRS_CACHE_DIR": str(home / "llmrs"),
            "NO_PROXY": "127.0.0.1",
        }

    def large_files(self) -> dict[str, bytes]:
        """Content of every large file by its hash: what the storage host holds."""
        contents = (data for repo in self.repos.values() for data in repo.files.values())
        return {hashlib.sha256(data).hexdigest(): data for data in contents if len(data) >= LARGE}


@contextmanager
def fake_hub(repos: Mapping[str, FakeRepo | Path], tokens: frozenset[str] = frozenset()) -> Iterator[FakeHub]:
    """Run a Hub with `repos` (a folder serves its files) that knows the access tokens `tokens`."""
    made = {name: FakeRepo.of(repo) if isinstance(repo, Path) else repo for name, repo in repos.items()}
    hub = FakeHub(made, tokens)
    with _serving(hub, Endpoint) as hub.endpoint, _serving(hub, Storage) as hub.storage:
        try:
            yield hub
        finally:
            hub.ended.set()


@contextmanager
def _serving(hub: FakeHub, kind: type[Answering]) -> Iterator[str]:
    handler = type(kind.__name__, (kind,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="fake-hub", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
