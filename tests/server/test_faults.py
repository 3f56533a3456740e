"""Exceptions as HTTP: a status, OpenAI's error object, and not a word that somebody else wrote."""

from __future__ import annotations

import pytest

from llmrs_cli.errors import (
    ContextLengthError,
    DoesNotFitError,
    EngineFault,
    GenerationError,
    LlmrsError,
    ModelError,
    RequestError,
)
from llmrs_cli.server.faults import HttpError, as_http, overloaded, unavailable


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestError("No.", param="n"), 400, "invalid_request_error", "invalid_request"),
        (RequestError("No.", code="unsupported"), 400, "invalid_request_error", "unsupported"),
        (
            ContextLengthError("Too long.", limit=4, prompt=5),
            400,
            "invalid_request_error",
            "context_length_exceeded",
        ),
        (ModelError("It has no template."), 400, "invalid_request_error", "model_cannot"),
        (EngineFault("It broke."), 503, "server_error", "engine_fault"),
        (GenerationError("Not a number.", code="numeric"), 500, "server_error", "numeric"),
        (
            GenerationError("Too complex.", code="form_too_complex"),
            400,
            "invalid_request_error",
            "form_too_complex",
        ),
        (GenerationError("Odd."), 500, "server_error", "generation_failed"),
        (LlmrsError("Not a number."), 500, "server_error", "generation_failed"),
        (DoesNotFitError("Too large."), 500, "server_error", "generation_failed"),
        (RuntimeError("/home/me/secret"), 500, "server_error", "internal_error"),
        (KeyError("secret"), 500, "server_error", "internal_error"),
        (MemoryError(), 500, "server_error", "internal_error"),
        (SystemExit("secret"), 500, "server_error", "internal_error"),
    ],
)
def test_each_kind_of_error_has_its_status_and_code(
    error: BaseException, status: int, kind: str, code: str
) -> None:
    fault = as_http(error)
    told = fault.body["error"]
    assert (fault.status, told["type"], told["code"]) == (status, kind, code)
    assert set(told) == {"message", "type", "param", "code"}
    assert "secret" not in told["message"]


def test_an_error_of_ours_keeps_its_sentence_hint_and_place() -> None:
    told = as_http(RequestError("n is wrong.", param="n", hint="Give 1.")).body["error"]
    assert told["param"] == "n"
    assert "n is wrong." in told["message"]
    assert "Give 1." in told["message"]


def test_an_http_error_is_itself() -> None:
    error = HttpError(418, "No coffee.", code="teapot", headers={"x": "y"})
    assert as_http(error) is error
    assert error.headers == {"x": "y"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_the_type_follows_the_status(status: int, kind: str) -> None:
    assert HttpError(status, "x", code="y").body["error"]["type"] == kind


def test_what_may_work_later_says_when() -> None:
    assert overloaded().headers == {"retry-after": "1"}
    assert (overloaded().status, unavailable("x", "loading").status) == (429, 503)
    assert unavailable("x", "loading").headers == {"retry-after": "2"}
