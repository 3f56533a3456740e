"""Exceptions that carry one clear sentence and an exit code; nothing here prints or exits.

    LlmrsError                  1   something failed at run time
    ├── UsageError              2   wrong usage, parameter or configuration
    ├── RequestError            2   one request cannot be served (a batch row, an HTTP 400)
    │   └── ContextLengthError      ... because prompt and answer exceed the context
    ├── RowsFailedError         3   a batch finished, some of its rows failed
    ├── AccessError             4   token missing, licence not accepted, access pending
    ├── ModelError              5   a model or file is missing or not usable
    ├── DoesNotFitError         6   weights or KV cache do not fit in memory
    ├── NetworkError            7   network down, or offline and not in the cache
    └── EngineFault             8   the engine or the device failed

`cli.root` is the only place that turns these into text and an exit status. Code that meets a foreign
exception it understands (OSError, a Hub error, a tokenizer error) raises one of these `from` it.
"""

from __future__ import annotations

import reprlib
from enum import IntEnum


def quoted(value: object, limit: int = 60) -> str:
    """A name or value from a file or a user as it may stand in a message: quoted, escaped, shortened."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = shortener.maxlong = limit
    return shortener.repr(value)


def escaped(name: str, limit: int = 256) -> str:
    """A name from a file or a user that stands in a message without quotes: on one line, shortened."""
    return (
        name[:limit] if name[:limit].isprintable() else name[:limit].encode("unicode_escape").decode("ascii")
    )


def counted(count: int, noun: str) -> str:
    """'1 row', '3 rows'."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


class ExitCode(IntEnum):
    """Exit statuses of the command `llmrs`; `llmrs help exit-codes` prints this table."""

    OK = 0
    RUNTIME = 1
    USAGE = 2
    ROWS_FAILED = 3
    ACCESS = 4
    MODEL = 5
    DOES_NOT_FIT = 6
    NETWORK = 7
    ENGINE_FAULT = 8
    TIMEOUT = 124
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


class LlmrsError(Exception):
    """A failure with one sentence for the user.

    `message` says what is wrong; `hint`, if given, says what to do next. Both are single sentences
    written by us: never a repr, an address or a path that the user did not name or would not know.
    """

    exit_code = ExitCode.RUNTIME

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} {self.hint}"


class UsageError(LlmrsError):
    """Arguments, settings or parameters are wrong."""

    exit_code = ExitCode.USAGE


class RequestError(LlmrsError):
    """One request cannot be served; others are unaffected.

    `code` is the machine-readable reason (OpenAI's words where they exist, such as
    "context_length_exceeded"); `param` names the offending field, if one does.
    """

    exit_code = ExitCode.USAGE

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_request",
        param: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.param = param


class GenerationError(LlmrsError):
    """A request that was being answered cannot be finished; others are unaffected. `code`: why, for programs."""

    def __init__(self, message: str, *, code: str = "generation_failed") -> None:
        super().__init__(message)
        self.code = code


class ContextLengthError(RequestError):
    """The prompt, or prompt plus requested answer, is longer than the context; lengths in tokens."""

    def __init__(self, message: str, *, limit: int, prompt: int, hint: str | None = None) -> None:
        super().__init__(message, code="context_length_exceeded", param="messages", hint=hint)
        self.limit = limit
        self.prompt = prompt


class RowsFailedError(LlmrsError):
    """A batch finished and some of its rows are error rows."""

    exit_code = ExitCode.ROWS_FAILED


class AccessError(LlmrsError):
    """The Hub refuses access: no token, licence not accepted, or access pending."""

    exit_code = ExitCode.ACCESS


class ModelError(LlmrsError):
    """A model or one of its files is missing, damaged or of a kind that we cannot run."""

    exit_code = ExitCode.MODEL


class DoesNotFitError(LlmrsError):
    """Weights, workspace or KV cache exceed the memory there is."""

    exit_code = ExitCode.DOES_NOT_FIT


class NetworkError(LlmrsError):
    """The network is down, or we are offline and the file is not in the cache."""

    exit_code = ExitCode.NETWORK


class EngineFault(LlmrsError):
    """The engine or its device failed; every request in flight ends with this error."""

    exit_code = ExitCode.ENGINE_FAULT
