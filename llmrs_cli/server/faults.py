"""What goes wrong, as HTTP: a status and OpenAI's error object, in words of ours.

Every exception becomes one of these in one place, so no repr, path or address ever reaches a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrs_cli.engine.types import FORM
from llmrs_cli.errors import EngineFault, GenerationError, LlmrsError, ModelError, RequestError

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class HttpError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = _KINDS.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def as_http(error: BaseException) -> HttpError:
    """The HTTP form of an exception that ended a request; of one nobody expected, no more than that."""
    match error:
        case HttpError():
            return error
        case RequestError():
            return HttpError(400, str(error), code=error.code, param=error.param)
        case ModelError():
            return HttpError(400, str(error), code="model_cannot")
        case EngineFault():
            return HttpError(503, error.message, code="engine_fault")
        case GenerationError(code=code) if code == FORM:
            return HttpError(400, error.message, code=FORM)
        case GenerationError():
            return HttpError(500, error.message, code=error.code)
        case LlmrsError():
            return HttpError(500, error.message, code="generation_failed")
        case _:
            return HttpError(500, "Something went wrong inside the server.", code="internal_error")


def unavailable(message: str, code: str) -> HttpError:
    """The server cannot answer now, and may soon."""
    return HttpError(503, message, code=code, headers={"retry-after": "2"})


def overloaded() -> HttpError:
    """More requests wait than may."""
    return HttpError(429, "Too many requests are waiting.", code="overloaded", headers={"retry-after": "1"})
