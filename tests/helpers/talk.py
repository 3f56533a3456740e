"""A conversation without a terminal: a screen that keeps what it was shown, a desk of paper, typed lines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from llmrs_cli.chat.attach import Typed
from llmrs_cli.chat.fitting import Overflow
from llmrs_cli.chat.repl import converse
from llmrs_cli.chat.session import Session
from llmrs_cli.chat.store import SessionStore
from llmrs_cli.chat.talk import Talk
from llmrs_cli.errors import ModelError
from llmrs_cli.text.generate import GenerateOptions, TextEngine
from llmrs_cli.text.options import SamplingDefaults
from llmrs_cli.text.template import ChatTemplate
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.byte_tokenizer import CHAT_TEMPLATE, IM_END, byte_tokenizer_json, tokenizer_config
from tests.helpers.fake_engine import FakeEngine, Script

TOKENIZER = Tokenizer(byte_tokenizer_json(), tokenizer_config())


class Seen:
    """A screen that keeps what it was shown."""

    def __init__(self) -> None:
        self.answers = self.thoughts = self.recalled = ""
        self.said: list[str] = []
        self.warnings: list[str] = []
        self.figures: list[str] = []

    def answer(self, text: str) -> None:
        self.answers += text

    def recall(self, text: str) -> None:
        self.recalled += text

    def end_answer(self) -> None:
        self.answers += "\n"

    def thinking(self, text: str) -> None:
        self.thoughts += text

    def notice(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def say(self, text: str) -> None:
        self.said.append(text)

    def stats(self, text: str) -> None:
        self.figures.append(text)

    def undisturbed(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def working(self, text: str) -> AbstractContextManager[Any]:
        return nullcontext()


class PaperDesk:
    """A desk whose every answer a test chooses."""

    def __init__(self) -> None:
        self.copied: list[str] = []
        self.edited: str | None = None
        """What the editor gives back."""
        self.shown_to_editor: list[str] = []
        self.lines: list[str] = []
        self.vi = False
        self.commit: str | None = None
        self.others: dict[str, TextEngine] = {}
        """Models that can be opened."""

    def open_model(self, name: str, old: TextEngine) -> TextEngine:
        if name not in self.others:
            raise ModelError(f"There is no model {name!r}.")
        engine = self.others[name]
        old.close()
        return engine

    def models(self) -> list[str]:
        return sorted(self.others)

    def copy(self, text: str) -> str:
        self.copied.append(text)
        return "copied"

    def edit(self, text: str) -> str | None:
        self.shown_to_editor.append(text)
        return self.edited

    def typed(self) -> list[str]:
        return self.lines

    def forget_typed(self) -> None:
        self.lines.clear()

    def use_vi(self, on: bool) -> None:
        self.vi = on


def engine_over(fake: FakeEngine, template: str = CHAT_TEMPLATE) -> TextEngine:
    return TextEngine(
        fake,
        tokenizer=TOKENIZER,
        template=ChatTemplate({"default": template}, TOKENIZER.names),
        defaults=SamplingDefaults(),
        eos_ids=(IM_END,),
    )


def session_over(
    script: Script,
    *,
    context: int = 400,
    system: str | None = None,
    template: str = CHAT_TEMPLATE,
    overflow: Overflow = Overflow.ERROR,
    max_tokens: int | None = 8,
) -> tuple[Session, FakeEngine]:
    fake = FakeEngine(script, context=context)
    options = GenerateOptions(max_tokens=max_tokens)
    return Session(engine_over(fake, template), options, system, overflow=overflow), fake


def talk_over(session: Session, state: Path = Path("/nonexistent"), name: str | None = None) -> Talk:
    """A talk that saves nothing, unless `state` and `name` say where."""
    return Talk(session, Seen(), PaperDesk(), "model", SessionStore(state), name)


def prompt_of(fake: FakeEngine, index: int = -1) -> str:
    return TOKENIZER.decode(fake.requests[index].prompt_ids, specials=True)


def typed(*lines: str | Typed | BaseException) -> Callable[[], Typed]:
    """A reader that gives these lines, then ends."""
    rest = iter(lines)

    def read() -> Typed:
        line = next(rest, EOFError())
        if isinstance(line, BaseException):
            raise line
        return Typed(line) if isinstance(line, str) else line

    return read


def talk_through(talk: Talk, *lines: str | Typed | BaseException) -> Seen:
    """Type `lines`; the screen afterwards, with what this call showed and what was there before."""
    converse(talk, typed(*lines))
    assert isinstance(talk.screen, Seen)
    return talk.screen


def talk(session: Session, *lines: str | Typed | BaseException) -> Seen:
    """A whole conversation that is not saved."""
    return talk_through(talk_over(session), *lines)
