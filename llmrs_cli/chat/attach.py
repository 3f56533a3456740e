"""Files that go with a message: named by /file, or as @path in a line that was typed.

@path is looked for only in what a person typed at the prompt: never in pasted text, nor in anything that
came from a file or a flag.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from llmrs_cli.chat.screen import Screen
from llmrs_cli.chat.source import compose, read_file
from llmrs_cli.errors import quoted

_MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')


@dataclass(frozen=True, slots=True)
class Typed:
    """A line as it was read."""

    text: str
    pasted: tuple[str, ...] = ()
    """The parts that came from the clipboard."""


@dataclass(slots=True)
class Attachments:
    """Files that wait for the next message: name → text."""

    waiting: dict[str, str] = field(default_factory=dict)

    def add(self, path: str) -> str:
        """Read a file; a sentence about it. Raises as `source.read_file` does."""
        self.waiting[path] = text = read_file(path)
        return f"{quoted(path)} ({len(text.encode('utf-8', 'replace'))} bytes) goes with the next message."

    def put_to(self, message: str, typed: Typed, screen: Screen) -> str:
        """`message` with what waits, and with the files that it mentions, behind it.

        Raises as `source.read_file` does; nothing is then forgotten.
        """
        files = dict(self.waiting)
        for name in mentions(message, typed.pasted):
            if Path(name).expanduser().is_file():
                files[name] = read_file(name)
                screen.notice(f"{quoted(name)} is added to the message.")
            elif "/" in name or "." in name.strip("."):
                screen.warn(f"There is no file {quoted(name)}: @{name} is sent as it stands.")
        self.waiting.clear()
        if len(files) < 2:
            return compose(message, list(files.values()))
        return compose(message, [f"{name}:\n\n{text}" for name, text in files.items()])


def mentions(text: str, pasted: tuple[str, ...] = ()) -> list[str]:
    """The paths behind an @ at the beginning of a word, each once, without those in a pasted part."""
    found = []
    for match in _MENTION.finditer(text):
        if not any(match[0] in part for part in pasted):
            found.append(match[1] or match[2].rstrip(",;:!?)"))
    return [name for name in dict.fromkeys(found) if name]
