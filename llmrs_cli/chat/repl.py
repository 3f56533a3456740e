"""The conversation at a terminal: read a line, answer it or carry out its command, until it is time to leave.

How lines are read is given (`reader.Reader` at a terminal, a list in a test).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from llmrs_cli.chat.actions import ACTIONS
from llmrs_cli.chat.attach import Typed
from llmrs_cli.chat.commands import Command, parse
from llmrs_cli.chat.talk import Talk
from llmrs_cli.errors import ContextLengthError, EngineFault, LlmrsError

TWICE = 1.0
"""Seconds within which a second Ctrl-C on an empty line leaves."""
_MORE_ROOM = "/compact and /undo make room, --ctx gives more, --overflow makes it by itself."


def converse(talk: Talk, read: Callable[[], Typed]) -> None:
    """Answer what `read` gives until it raises EOFError or /bye is typed.

    Raises KeyboardInterrupt for Ctrl-C pressed twice, and EngineFault if the engine can do no more; any
    other error is told, and the conversation goes on.
    """
    interrupted = float("-inf")
    while True:
        try:
            if not _turn(talk, read()):
                return
        except EOFError:
            return
        except KeyboardInterrupt:
            if time.monotonic() - interrupted < TWICE:
                raise
            interrupted = time.monotonic()
            talk.screen.say("Ctrl-C again leaves; so do Ctrl-D and /bye.")
        except EngineFault:
            raise
        except ContextLengthError as error:
            talk.screen.warn(f"{error.message} {_MORE_ROOM}")
        except LlmrsError as error:
            talk.screen.warn(str(error))


def _turn(talk: Talk, line: Typed) -> bool:
    """Deal with one line; False if it says to leave."""
    meant = parse(line.text)
    if meant is None:
        return True
    if not isinstance(meant, Command):
        question = talk.attached.put_to(meant.text, line, talk.screen)
        talk.finish(talk.session.ask(question, talk.screen))
    elif meant.name == "/bye":
        return False
    else:
        ACTIONS[meant.name](talk, meant.argument)
    return True
