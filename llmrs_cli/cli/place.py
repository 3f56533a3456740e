"""A folder that a command makes: it must be new, there must be room, and one process makes it at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import LlmrsError, UsageError, quoted


def new_place(text: str) -> Path:
    """The folder that is named, whose parent exists from now on. Raises UsageError if something is there."""
    path = Path(text).expanduser().absolute()
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(
            f"{quoted(text, 200)} exists already.", hint="Name a new folder, or remove it first."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def filling(
    target: Path, needed: int, terminal: Terminal, is_good: Callable[[Path], bool] | None = None
) -> Iterator[Path | None]:
    """A folder to fill with about `needed` bytes, which becomes `target` if the block ends well.

    Waits for another process that writes it. What is there then is kept if it `is_good` (None is yielded)
    and removed if not; without `is_good` it is a UsageError. Raises LlmrsError if the disk is full.
    """
    from llmrs_cli.engine.weights.folder import lock_folder, new_folder
    from llmrs_cli.hub.files import size_text

    def waiting() -> None:
        terminal.notice(f"Waiting for another process that writes {quoted(str(target), 200)}.")

    with lock_folder(target, waiting):
        if is_good is not None and target.exists():
            if is_good(target):
                yield None
                return
            terminal.warn(f"{quoted(str(target), 200)} is damaged and made anew.")
            shutil.rmtree(target)
        new_place(str(target))
        free = shutil.disk_usage(target.parent).free
        if needed > free:
            raise LlmrsError(
                f"The disk of {quoted(str(target), 200)} is full: {size_text(needed)} needed, {size_text(free)} free.",
                hint="Free some space, or name a folder on another disk.",
            )
        with new_folder(target) as part:
            yield part
