"""What an exception means to the person at the shell: an exit status and one sentence.

`explain` is a pure function of the exception; `cli.root` prints what it says and exits. Foreign exceptions
that the rooms did not turn into an `LlmrsError` are known here by kind (interrupts, closed pipes, a full
disk, no memory); everything else is a fault of ours and gets an id that names the place in the code.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import click

from llmrs_cli.errors import ExitCode, LlmrsError

DEBUG_VARIABLE = "LLMRS_DEBUG"
"""Set to 1, it adds the traceback to every error message."""

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "LLMRS_API_KEY")
"""Variables whose values no traceback may show, whoever wrote them into an error."""

_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})


class Terminated(BaseException):
    """SIGTERM arrived; raised in the main thread so that open files are finished on the way out."""


class TimedOut(BaseException):
    """`--timeout` was reached; raised in the main thread, past everything that catches errors."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Fault:
    """How a command ends: nothing is printed if `message` is None."""

    exit_code: int
    message: str | None = None
    hint: str | None = None


def explain(error: BaseException) -> Fault:
    """Exit status and sentence of an exception that ended a command."""
    match error:
        case LlmrsError():
            return Fault(error.exit_code, error.message, error.hint)
        case KeyboardInterrupt() | click.Abort():
            return Fault(ExitCode.INTERRUPTED)
        case Terminated():
            return Fault(ExitCode.TERMINATED)
        case TimedOut():
            return Fault(ExitCode.TIMEOUT, f"The time limit of {error.seconds:g} s was reached.")
        case BrokenPipeError():
            return Fault(ExitCode.BROKEN_PIPE)
        case click.exceptions.Exit():
            return Fault(error.exit_code)
        case click.UsageError():
            return Fault(ExitCode.USAGE, error.format_message(), _usage_hint(error))
        case click.ClickException():
            return Fault(ExitCode.USAGE, error.format_message())
        case MemoryError():
            return Fault(ExitCode.DOES_NOT_FIT, "Memory ran out.", "A smaller --ctx or model needs less.")
        case OSError() if error.strerror:
            return _os_fault(error)
        case _:
            return _unexpected(error)


def fault_id(error: BaseException) -> str:
    """Eight hex digits that are equal for equal faults: the exception's kind and the places it passed."""
    import hashlib

    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{os.path.basename(frame.filename)}:{frame.name}" for frame in frames]  # noqa: PTH119
    return hashlib.sha256("|".join([type(error).__name__, *places]).encode()).hexdigest()[:8]


def debug_lines(error: BaseException, env: Mapping[str, str] | None = None) -> list[str]:
    """The traceback of `error` without the secrets of `env` (the process's own by default)."""
    text = "".join(traceback.format_exception(error))
    for secret in _secrets(os.environ if env is None else env):
        text = text.replace(secret, "***")
    return text.splitlines()


def _secrets(env: Mapping[str, str]) -> Iterator[str]:
    from llmrs_cli.config import directories

    yield from (env[name] for name in SECRETS if env.get(name))
    with suppress(LlmrsError, OSError, ValueError):
        if token := directories(env).token_file.read_text("utf-8").strip():
            yield token


def _usage_hint(error: click.UsageError) -> str | None:
    return f"Try '{error.ctx.command_path} --help'." if error.ctx is not None else None


def _os_fault(error: OSError) -> Fault:
    name = f" {error.filename!r}" if isinstance(error.filename, str) else ""
    if error.errno in _FULL_DISK:
        return Fault(
            ExitCode.RUNTIME, f"No space is left to write{name or ' the output'}.", "Free some and try again."
        )
    return Fault(ExitCode.RUNTIME, f"Cannot use{name or ' a file'}: {error.strerror}.")


def _unexpected(error: BaseException) -> Fault:
    return Fault(
        ExitCode.RUNTIME,
        f"Something went wrong inside llmrs (fault {fault_id(error)}).",
        f"Set {DEBUG_VARIABLE}=1 to see where, and report it with that text.",
    )
