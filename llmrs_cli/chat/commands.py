"""What a typed line means: a message, or one of the few slash commands. No command is carried out here.

An unknown /word is an error with the nearest command and never goes to the model; `//` and a blank in
front send a slash.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from llmrs_cli.errors import UsageError, quoted

HELP = {
    "/help": "this list",
    "/system TEXT": "set the system prompt; without TEXT show it, 'off' removes it",
    "/clear": "start a new conversation and keep the system prompt",
    "/stats": "figures of the last answer",
    "/bye": "leave (as Ctrl-D does)",
}
KEYS = {
    "Enter": "send",
    "Alt+Enter, Ctrl-J": "new line",
    "\\ at the end": "new line",
    '"""': "begin and end a block of lines",
    "Ctrl-C": "stop the answer; on a line, clear it; twice, leave",
    "//text": "send /text",
}
_ALIASES = {"/?": "/help", "/exit": "/bye", "/quit": "/bye", "/new": "/clear"}
NAMES = (*(name.split()[0] for name in HELP), *_ALIASES)
"""Every spelling of a command."""


@dataclass(frozen=True, slots=True)
class Message:
    """A line for the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A line for the session."""

    name: str
    """As in `HELP`, without its argument."""
    argument: str


def parse(line: str) -> Message | Command | None:
    """What `line` means; None if it is blank. Raises UsageError for an unknown command."""
    if not line.strip():
        return None
    if line.startswith("//"):
        return Message(line[1:])
    if not line.startswith("/"):
        return Message(_block(line))
    word, _, argument = line.strip().partition(" ")
    name = _ALIASES.get(word, word)
    if name not in NAMES:
        near = get_close_matches(word, NAMES, n=1)
        hint = f"Did you mean {near[0]}?" if near else "/help lists the commands."
        raise UsageError(f"There is no command {quoted(word)}.", hint=f"{hint} Type //... to send a slash.")
    if argument.strip() and name != "/system":
        raise UsageError(f"{name} takes no argument.")
    return Command(name, argument.strip())


def is_open(text: str) -> bool:
    '''Whether a line goes on: it ends with a backslash, or began a """ block that has not ended.'''
    if text.lstrip().startswith('"""'):
        return text.count('"""') < 2
    return text.endswith("\\")


def _block(text: str) -> str:
    '''The text meant: without the quotes of a """ block, and without the backslashes that continued it.'''
    stripped = text.strip()
    if stripped.startswith('"""'):
        return stripped[3:].removesuffix('"""').strip("\n")
    return text.replace("\\\n", "\n")


def help_text() -> str:
    """The answer to /help."""
    rows = [*HELP.items(), ("", ""), *KEYS.items()]
    width = max(len(name) for name, _ in rows) + 3
    return "\n".join(f"  {name:<{width}}{meaning}".rstrip() for name, meaning in rows)
