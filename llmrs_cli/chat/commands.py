"""What a typed line means: a message, or a slash command. No command is carried out here (`actions` does).

An unknown /word is an error with the nearest command and never goes to the model; `//` and a blank in
front send a slash.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from llmrs_cli.errors import UsageError, quoted


@dataclass(frozen=True, slots=True)
class Entry:
    """One slash command of the table."""

    usage: str
    """As it is typed; what may be left out stands in brackets."""
    meaning: str
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """With its slash."""
        return self.usage.split()[0]

    @property
    def takes(self) -> bool:
        """Whether it has an argument."""
        return " " in self.usage

    @property
    def needs(self) -> bool:
        """Whether its argument may not be left out."""
        return self.takes and self.usage.split()[1][0] != "["


COMMANDS = (
    Entry("/help [COMMAND]", "this list, or what one command does", ("/?",)),
    Entry("/bye", "leave (as Ctrl-D does)", ("/exit", "/quit")),
    Entry("/clear", "start a new conversation and keep the system prompt", ("/new",)),
    Entry("/regen [temperature=X]", "answer the last question once more", ("/regenerate",)),
    Entry("/continue", "go on with an answer that was cut"),
    Entry("/undo [N]", "forget the last question and answer, or the last N"),
    Entry("/edit", "change the last question in an editor and ask it again"),
    Entry("/system [TEXT]", "show or set the system prompt; 'off' removes it"),
    Entry(
        "/file PATH...", "add text files to the next message; @PATH in a message does the same", ("/read",)
    ),
    Entry("/model [NAME]", "show the model, or go on with another one", ("/load",)),
    Entry("/ls", "list the models on this machine", ("/list",)),
    Entry("/set [NAME VALUE]", "show or set how answers are drawn, shown and typed"),
    Entry("/think [on|off]", "whether a model that can think does so first; without a word: its own way"),
    Entry("/show [WHAT]", "info, system, template, parameters or prompt (the text the model gets)"),
    Entry("/context", "how full the context is, and of what"),
    Entry("/compact", "sum the conversation up, to make room"),
    Entry("/tokens TEXT", "how the tokenizer cuts a text"),
    Entry("/copy [code]", "copy the last answer, or its last code block"),
    Entry("/export FILE", "write the conversation: .md, .json, or .jsonl for llmrs batch"),
    Entry("/save [NAME]", "name this session; it is saved after every answer"),
    Entry("/sessions", "list saved sessions"),
    Entry("/load-session NAME", "go on with a saved session"),
    Entry("/history [clear]", "the last lines that were typed; 'clear' forgets them all"),
    Entry("/stats", "figures of the last answer"),
)
KEYS = {
    "Enter": "send",
    "Alt+Enter, Ctrl-J": "new line",
    "\\ at the end": "new line",
    '"""': "begin and end a block of lines",
    "Tab": "complete a command, a file or a model",
    "Ctrl-G, Ctrl-X Ctrl-E": "write in $VISUAL or $EDITOR",
    "Ctrl-R": "search earlier lines",
    "Ctrl-C": "stop the answer; on a line, clear it; twice, leave",
    "//text": "send /text",
}
_BY_NAME = {name: entry for entry in COMMANDS for name in (entry.name, *entry.aliases)}
NAMES = tuple(_BY_NAME)
"""Every spelling of a command."""


@dataclass(frozen=True, slots=True)
class Message:
    """A line for the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A line for the session."""

    name: str
    """As in `COMMANDS`, whatever alias was typed."""
    argument: str


def parse(line: str) -> Message | Command | None:
    """What `line` means; None if it is blank. Raises UsageError for a command that is unknown or that has
    an argument too many or too few."""
    if not line.strip():
        return None
    if line.startswith("//"):
        return Message(line[1:])
    if not line.startswith("/"):
        return Message(_block(line))
    word, *rest = line.strip().split(maxsplit=1)
    entry, argument = entry_of(word), "".join(rest)
    if argument and not entry.takes:
        raise UsageError(f"{entry.name} takes no argument.")
    if entry.needs and not argument:
        raise UsageError(f"{entry.name} needs an argument: {entry.usage}.")
    return Command(entry.name, argument)


def entry_of(word: str) -> Entry:
    """The command that `word`, with its slash, names. Raises UsageError with the nearest one."""
    if word not in _BY_NAME:
        near = get_close_matches(word, NAMES, n=1)
        hint = f"Did you mean {near[0]}?" if near else "/help lists the commands."
        raise UsageError(f"There is no command {quoted(word)}.", hint=f"{hint} Type //... to send a slash.")
    return _BY_NAME[word]


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


def help_text(command: str = "") -> str:
    """The answer to /help, of one command if it is named (with or without its slash)."""
    if command:
        entry = entry_of("/" + command.removeprefix("/"))
        also = f"\n  Also {', '.join(entry.aliases)}." if entry.aliases else ""
        return f"  {entry.usage}\n  {entry.meaning}{also}"
    rows = [*((entry.usage, entry.meaning) for entry in COMMANDS), ("", ""), *KEYS.items()]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"  {name:<{width}}{meaning}".rstrip() for name, meaning in rows)
