"""What Tab offers in a conversation: commands, their words, files, models and sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from llmrs_cli.chat.commands import COMMANDS
from llmrs_cli.chat.display import PARTS
from llmrs_cli.chat.parameters import KINDS

Words = Callable[[], Iterable[str]]


class TalkCompleter(Completer):
    """Completes by the first word of the line, and @PATH anywhere in a message."""

    def __init__(self, models: Words, sessions: Words) -> None:
        """Both are asked only when they are needed."""
        self._paths = PathCompleter(expanduser=True)
        self._words: dict[str, Words] = {
            "/model": models,
            "/load": models,
            "/load-session": sessions,
            "/show": lambda: PARTS,
            "/think": lambda: ("on", "off"),
            "/copy": lambda: ("code",),
            "/history": lambda: ("clear",),
            "/set": lambda: (
                *KINDS,
                "stop",
                "system",
                "think",
                "nothink",
                "verbose",
                "quiet",
                "vi",
                "emacs",
                "format",
            ),
            "/help": lambda: [entry.name.removeprefix("/") for entry in COMMANDS],
        }

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        line = document.text_before_cursor
        if not line.startswith("/") or line.startswith("//"):
            word = document.get_word_before_cursor(WORD=True)
            if word.startswith("@"):
                yield from self._files(word[1:], complete_event)
            return
        name, blank, argument = line.partition(" ")
        if not blank:
            yield from _commands(name)
        elif name in ("/file", "/read", "/export"):
            yield from self._files(argument.rpartition(" ")[2], complete_event)
        elif name in self._words and " " not in argument:
            for word in self._words[name]():
                if word.startswith(argument):
                    yield Completion(word, -len(argument))

    def _files(self, prefix: str, event: CompleteEvent) -> Iterator[Completion]:
        yield from self._paths.get_completions(Document(prefix), event)


def _commands(prefix: str) -> Iterator[Completion]:
    for entry in COMMANDS:
        if entry.name.startswith(prefix):
            yield Completion(entry.name, -len(prefix), display_meta=entry.meaning)
