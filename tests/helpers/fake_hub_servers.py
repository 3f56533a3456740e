"""The two servers of `fake_hub`: the endpoint, and the host that holds large files."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tests.helpers.fake_hub_parts import FakeRepo, Fault, Seen

if TYPE_CHECKING:
    from tests.helpers.fake_hub import FakeHub

LARGE = 4096
"""Bytes from which on a file counts as large: stored elsewhere, under its SHA-256."""


class Answering(BaseHTTPRequestHandler, ABC):
    """What both servers have in common: recording, faults, ranges."""

    hub: FakeHub
    fault: Fault

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""

    def do_HEAD(self) -> None:
        """As GET, without the body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Record, then answer as the fault or the server says."""
        path = unquote(urlsplit(self.path).path)
        self.log().append(
            Seen(self.command, path, self.headers.get("Authorization"), self.headers.get("Range"))
        )
        self.fault = self.hub.take_fault(path)
        if self.fault.wait and self.hub.ended.wait(self.fault.wait):
            return
        if self.fault.status is not None or self.fault.body is not None:
            self.reply(self.fault.status or 200, self.fault.body or b"", self.fault.headers)
        else:
            self.answer(path)

    @abstractmethod
    def log(self) -> list[Seen]:
        """Where requests are recorded."""

    @abstractmethod
    def answer(self, path: str) -> None:
        """The answer where nothing goes wrong."""

    def reply(self, status: int, body: bytes, headers: Mapping[str, str], length: int | None = None) -> None:
        """Send a whole answer; the connection ends with it."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if not self.fault.no_length:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_content(self, data: bytes, headers: Mapping[str, str]) -> None:
        """A file, or the rest of it from where the range begins."""
        start, status, extra = 0, 200, {"Accept-Ranges": "bytes"}
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if match and not self.fault.no_range:
            start, status = int(match[1]), 206
            if start >= len(data):
                self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            extra["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if self.fault.flip:
            data = bytes([data[0] ^ 1]) + data[1:]
        whole = data[start:]
        sent = whole[: self.fault.cut_after]
        if self.command != "HEAD":
            self.hub.sent += len(sent)
        self.reply(status, sent, {**headers, **extra}, len(whole))

    def json(self, value: object) -> None:
        """Send a JSON answer."""
        self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str, message: str = "") -> None:
        """Send a refusal in the Hub's way."""
        self.reply(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message})


class Storage(Answering):
    """The host that holds large files; it knows nobody's token."""

    def log(self) -> list[Seen]:
        return self.hub.stored

    def answer(self, path: str) -> None:
        data = self.hub.large_files().get(path.removeprefix("/lfs/"))
        if data is None:
            self.reply(404, b"", {})
        else:
            self.send_content(data, {"ETag": f'"{path[5:]}"'})


class Endpoint(Answering):
    """The Hub itself."""

    def log(self) -> list[Seen]:
        return self.hub.seen

    def answer(self, path: str) -> None:
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+?))?/?", path):
            self.information(*match.groups())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*match.groups())
        else:
            self.reply(404, b"", {})

    def information(self, name: str, kind: str | None, revision: str | None) -> None:
        """The listing of a repository; that of a gated one is public."""
        repo = self.readable(name, reading=False)
        commit = self.commit_of(repo, revision) if repo else None
        if repo is None or commit is None:
            return
        if kind == "tree":
            self.json([{"type": "file", "path": n, **entry_of(d, n)} for n, d in repo.files.items()])
            return
        siblings = [{"rfilename": n, **entry_of(d, n)} for n, d in repo.files.items()] + repo.extra
        gated = "manual" if repo.gate is not None else False
        card = {"cardData": repo.card} if repo.card else {}
        self.json({"id": name, "sha": commit, "gated": gated, "siblings": siblings, "tags": [], **card})

    def resolve(self, name: str, revision: str, file: str) -> None:
        """A file: small ones at once, large ones by a redirect to the storage host."""
        repo = self.readable(name, reading=True)
        commit = self.commit_of(repo, revision) if repo else None
        if repo is None or commit is None:
            return
        data = repo.files.get(file)
        if data is None:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        entry = entry_of(data, file)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{entry["blobId"]}"'}
        if "lfs" not in entry:
            self.send_content(data, headers)
            return
        sha256 = entry["lfs"]["sha256"]
        headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{sha256}"'}
        self.reply(302, b"", {**headers, "Location": f"{self.hub.storage}/lfs/{sha256}"})

    def commit_of(self, repo: FakeRepo, revision: str | None) -> str | None:
        """The commit of a revision; None after the refusal has been sent."""
        known = {"main": repo.commit, repo.commit: repo.commit, **repo.tags}
        commit = known.get(revision or "main")
        if commit is None:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def readable(self, name: str, *, reading: bool) -> FakeRepo | None:
        """The repository, if the request's token may read it; None after the refusal has been sent."""
        sent = self.headers.get("Authorization", "").removeprefix("Bearer ")
        repo = self.hub.repos.get(name)
        if sent and sent not in self.hub.tokens:
            self.refuse(401, "", "Invalid credentials in Authorization header")
        elif repo is None or (repo.private and not sent):
            self.refuse(404 if sent else 401, "RepoNotFound", "Repository not found")
        elif reading and repo.gate is not None and not sent:
            self.refuse(401, "GatedRepo", "Access to this model is restricted. Please log in.")
        elif reading and repo.gate:
            self.refuse(403, "GatedRepo", GATES[repo.gate])
        else:
            return repo
        return None


GATES = {
    "licence": "Access is restricted and you are not in the authorized list. Visit the page to ask for access.",
    "pending": "Your request to access this model is awaiting a review from the repo authors.",
    "rejected": "Your request to access this model has been rejected by the repo's authors.",
}
"""What the Hub says to a token that may not read a gated repository."""


def entry_of(data: bytes, name: str) -> dict[str, Any]:
    """One file in a listing."""
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    entry: dict[str, Any] = {"size": len(data), "blobId": blob, "oid": blob}
    if len(data) >= LARGE and not name.endswith(".json"):
        sha256 = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"sha256": sha256, "oid": sha256, "size": len(data), "pointerSize": 130}
    return entry
