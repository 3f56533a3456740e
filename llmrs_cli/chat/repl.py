"""The conversation at a terminal: read a line, answer it or carry out its command, until it is time to leave.

How lines are read is given (`reader.Reader` at a terminal, a list in a test).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from llmrs_cli.chat.commands import Command, help_text, parse
from llmrs_cli.chat.screen import Screen
from llmrs_cli.chat.session import Session
from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import EngineFault, LlmrsError

TWICE = 1.0
"""Seconds within which a second Ctrl-C on an empty line leaves."""


def converse(session: Session, screen: Screen, read: Callable[[], str]) -> None:
    """Answer what `read` gives until it raises EOFError or /bye is typed.

    Raises KeyboardInterrupt for Ctrl-C pressed twice, and EngineFault if the engine can do no more; any
    other error is told, and the conversation goes on.
    """
    interrupted = float("-inf")
    while True:
        try:
            if not _turn(session, screen, read()):
                return
        except EOFError:
            return
        except KeyboardInterrupt:
            if time.monotonic() - interrupted < TWICE:
                raise
            interrupted = time.monotonic()
            screen.say("Ctrl-C again leaves; so do Ctrl-D and /bye.")
        except EngineFault:
            raise
        except LlmrsError as error:
            screen.warn(str(error))


def _turn(session: Session, screen: Screen, line: str) -> bool:
    """Deal with one line; False if it says to leave."""
    meant = parse(line)
    if meant is None:
        return True
    if isinstance(meant, Command):
        return _carry_out(meant, session, screen)
    shown = session.ask(meant.text, screen)
    if shown.finish is FinishReason.ABORT:
        screen.say("[stopped; the answer so far stays in the conversation]")
    elif shown.finish is FinishReason.LENGTH:
        screen.warn("The answer was cut at the token limit; it stays in the conversation as it is.")
    screen.stats(shown.figures.line(session.context))
    return True


def _carry_out(command: Command, session: Session, screen: Screen) -> bool:
    match command.name:
        case "/bye":
            return False
        case "/help":
            screen.say(help_text())
        case "/clear":
            session.clear()
            screen.say("A new conversation begins.")
        case "/stats":
            screen.say(
                session.last.figures.line(session.context) if session.last else "Nothing was said yet."
            )
        case "/system":
            _set_system(command.argument, session, screen)
    return True


def _set_system(argument: str, session: Session, screen: Screen) -> None:
    if argument:
        session.system = None if argument.lower() == "off" else argument
    screen.say(f"System prompt: {session.system}" if session.system else "There is no system prompt.")
