"""What `fake_hub` is made of: repositories, faults, and the record of a request."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class FakeRepo:
    """One repository: files by name, and who may read them."""

    files: dict[str, bytes]
    gate: str | None = None
    """None; or why a token that is known may not read: "licence", "pending", "rejected", "" (it may)."""
    private: bool = False
    """Nothing is said about it to who has no token."""
    commit: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    extra: list[dict[str, Any]] = field(default_factory=list)
    """Entries put into the listing as they are."""
    card: object = field(default_factory=dict)
    """What the listing says of licence, language and the like."""

    def __post_init__(self) -> None:
        if not self.commit:
            content = b"".join(name.encode() + data for name, data in sorted(self.files.items()))
            self.commit = hashlib.sha1(content).hexdigest()

    @classmethod
    def of(cls, folder: Path) -> FakeRepo:
        """The files of a folder."""
        return cls({path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()})


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one request. Fields that are None go as they should."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Sent in place of the content, with its own length."""
    cut_after: int | None = None
    """Close the connection after so many bytes of the body."""
    no_length: bool = False
    """Do not say how long the body is; it ends with the connection."""
    no_range: bool = False
    """Answer a range request with all of the file."""
    flip: bool = False
    """One bit of the content is wrong; the length is right."""
    wait: float = 0.0
    """Seconds before the answer, or until the hub ends."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that arrived."""

    method: str
    path: str
    authorization: str | None
    range: str | None
