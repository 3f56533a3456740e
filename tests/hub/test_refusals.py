"""Every refusal is one class of error and one sentence of ours, whatever the Hub writes into its headers."""

from __future__ import annotations

import httpx2
import pytest
from huggingface_hub import errors, hf_raise_for_status
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import AccessError, LlmrsError, ModelError, NetworkError
from llmrs_cli.hub.refusals import MAX_WAIT, BusyError, Wanted, refusal


def refused(
    status: int, headers: dict[str, str], *, with_token: bool = True, file: str | None = "config.json"
) -> LlmrsError:
    """Our error for the one that the library makes of an answer."""
    request = httpx2.Request("GET", "https://hub/api/models/a/b")
    raw = httpx2.Headers([(name.encode(), value.encode()) for name, value in headers.items()])
    answer = httpx2.Response(status, headers=raw, request=request, content=b"{}")
    with pytest.raises(errors.HfHubHTTPError) as caught:
        hf_raise_for_status(answer)
    return refusal(caught.value, Wanted("a/b", "https://hub/a/b", with_token, "v1", file))


@pytest.mark.parametrize(
    ("status", "code", "words", "kind"),
    [
        (401, "GatedRepo", "", AccessError),
        (403, "GatedRepo", "awaiting a review", AccessError),
        (401, "", "Invalid credentials in Authorization header", AccessError),
        (403, "", "", AccessError),
        (401, "RepoNotFound", "", ModelError),
        (404, "RepoNotFound", "", ModelError),
        (401, "", "Invalid username or password.", ModelError),
        (404, "", "", ModelError),
        (404, "RevisionNotFound", "", ModelError),
        (404, "EntryNotFound", "", ModelError),
        (429, "", "", BusyError),
        (500, "", "", BusyError),
        (504, "", "", BusyError),
        (400, "", "", NetworkError),
        (416, "", "", NetworkError),
        (451, "", "", NetworkError),
    ],
)
@pytest.mark.parametrize("with_token", [True, False])
def test_each_refusal_has_its_class(
    status: int, code: str, words: str, kind: type[LlmrsError], with_token: bool
) -> None:
    error = refused(status, {"X-Error-Code": code, "X-Error-Message": words}, with_token=with_token)
    assert type(error) is kind


def test_the_three_texts_of_a_gated_repository_differ_and_name_the_page() -> None:
    texts = {
        str(refused(403, {"X-Error-Code": "GatedRepo", "X-Error-Message": words}, with_token=token))
        for words, token in (("", False), ("", True), ("Your request is awaiting a review", True))
    }
    assert len(texts) == 3
    assert all("https://hub/a/b" in text for text in texts)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("5", 5.0),
        ("0", 0.0),
        ("86400", MAX_WAIT),
        ("", 0.0),
        ("-1", 0.0),
        ("9" * 400, 0.0),
        ("Wed, 21 Oct", 0.0),
    ],
)
def test_a_server_may_ask_for_a_wait_within_reason(header: str, seconds: float) -> None:
    error = refused(429, {"Retry-After": header})
    assert isinstance(error, BusyError)
    assert error.wait == seconds


@given(
    status=st.integers(400, 599),
    code=st.sampled_from(["", "GatedRepo", "RepoNotFound", "RevisionNotFound", "EntryNotFound", "\x1b[31m"]),
    words=st.text(max_size=50),
    wait=st.text(max_size=10),
    file=st.sampled_from(["config.json", None]),
)
def test_nothing_that_the_hub_writes_is_repeated_and_nothing_is_called_none(
    status: int, code: str, words: str, wait: str, file: str | None
) -> None:
    planted = f"{words} \x1b]52;c;planted\x07"
    headers = {"X-Error-Code": code, "X-Error-Message": planted, "Retry-After": wait}
    text = str(refused(status, headers, file=file))
    assert text.isprintable() and "planted" not in text and "None" not in text
