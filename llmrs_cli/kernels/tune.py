"""Choices that were made by measuring, kept on disk: one file for each GPU model with its libraries.

A choice is a name or a few bytes (of an algorithm, say) under a key that holds the operation and its shape. A file
names the GPU and the versions of everything that a choice depends on, so a new driver or library starts
afresh. Like cubins, choices are trusted only from a folder that is ours alone; anywhere else they are
measured again in every process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmrs_cli.kernels.loader import default_cache, why_unusable

MOST_BYTES = 16 << 20
"""A larger file is none of ours."""
_NAME = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and what it took."""

    value: str
    us: float
    """Microseconds when it was measured."""


class Tuning:
    """The choices of one GPU; read once, written after each new choice. For one thread."""

    def __init__(self, folder: Path | None, gpu: str, versions: str) -> None:
        """`folder` None keeps nothing, and so does one that is open to others: `notice` says why."""
        self.gpu = gpu
        self.versions = versions
        self.notice = None if folder is None else why_unusable(folder, "Choices")
        usable = folder is not None and self.notice is None
        self._path = file_of(folder, gpu, versions) if usable and folder is not None else None
        self._choices = {} if self._path is None else read(self._path)[1]

    def choose(self, key: str, candidates: Mapping[str, Callable[[], float]], rounds: int = 1) -> str:
        """The candidate that was fastest: known, or measured now (each gives its microseconds).

        With several rounds candidates are measured in turns and medians compared, and the first round does not
        count: what is measured while a GPU is still cool would else win over what is measured later.
        """
        known = self._choices.get(key)
        if known is not None and known.value in candidates:
            return known.value
        taken = [{name: measure() for name, measure in candidates.items()} for _ in range(rounds)]
        counted = taken[1:] or taken
        times = {name: statistics.median(one[name] for one in counted) for name in candidates}
        best = min(times, key=times.__getitem__)
        self._choices[key] = Choice(best, times[best])
        self._save()
        return best

    def lines(self) -> Iterator[str]:
        """The choices for people, one a line."""
        return lines(self._choices)

    def _save(self) -> None:
        """Write the file whole or not at all; a full disk only costs the next process its time."""
        if self._path is None:
            return
        text = json.dumps(
            {
                "gpu": self.gpu,
                "versions": self.versions,
                "choices": {key: [choice.value, choice.us] for key, choice in self._choices.items()},
            }
        )
        try:
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=".part-")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(self._path)
        except OSError as error:
            self.notice = f"Choices cannot be kept ({error.strerror})."
            self._path = None


def default_folder() -> Path:
    """Beside the kernels."""
    return default_cache().parent / "tuning"


def file_of(folder: Path, gpu: str, versions: str) -> Path:
    """Where the choices of one GPU model under these versions are kept."""
    name = _NAME.sub("-", gpu.lower()).strip("-")[:60]
    return folder / f"{name}-{hashlib.sha256(f'{gpu}|{versions}'.encode()).hexdigest()[:12]}.json"


def read(path: Path) -> tuple[str, dict[str, Choice]]:
    """(GPU and versions, choices) of a file; nothing if it is missing, damaged or not of this form."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        if path.stat().st_size <= MOST_BYTES:
            found = json.loads(path.read_text(encoding="utf-8"))
            choices = {
                str(key): Choice(str(value), float(us)) for key, (value, us) in found["choices"].items()
            }
            return f"{found['gpu']} ({found['versions']})", choices
    return "", {}


def stored(folder: Path) -> Iterator[str]:
    """All that is kept in `folder`, for people."""
    for path in sorted(folder.glob("*.json")):
        whose, choices = read(path)
        if whose:
            yield whose
            yield from (f"  {line}" for line in lines(choices))


def lines(choices: Mapping[str, Choice]) -> Iterator[str]:
    """One a line, in the order of their keys."""
    for key in sorted(choices):
        yield f"{key:<44} {choices[key].value[:32]:<34}{choices[key].us:>10.2f} us"
