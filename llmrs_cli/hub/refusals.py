"""What the errors of the Hub's library mean, in one sentence each; pure functions from theirs to ours.

For gated repositories the Hub names the reason in the words of `X-Error-Message`. Nothing that it writes is
repeated to the user: the texts here are ours, and a token or a signed address is never part of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmrs_cli.errors import AccessError, LlmrsError, ModelError, NetworkError, quoted
from llmrs_cli.hub.aliases import ALIASES
from llmrs_cli.hub.names import nearest

if TYPE_CHECKING:
    import httpx2

OFFLINE_HINT = "Check the network; with --offline only what is on this machine is used."
MAX_WAIT = 60.0
"""Seconds that a server may make us wait between two tries."""


class BusyError(NetworkError):
    """The Hub or the way to it failed in a manner that may pass: worth another try after `wait` seconds."""

    def __init__(self, message: str, *, hint: str | None = None, wait: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for, and by whom; messages name it."""

    repo: str
    page: str
    """Address of the repository for a person."""
    with_token: bool
    revision: str
    file: str | None = None
    """None: the repository's listing."""


def refusal(error: BaseException | None, wanted: Wanted) -> LlmrsError:
    """The error for one that the library raised at a request for `wanted`."""
    import httpx2
    from huggingface_hub import errors

    match error:
        case errors.LocalEntryNotFoundError():  # "and it is not in the cache"; what happened is its cause
            return refusal(error.__cause__, wanted)
        case errors.GatedRepoError():
            return _gated(error.response, wanted)
        case errors.RevisionNotFoundError():
            return ModelError(
                f"{quoted(wanted.repo)} has no revision {quoted(wanted.revision)}.",
                hint=f"The page lists branches and tags: {wanted.page}/tree/main",
            )
        case errors.RemoteEntryNotFoundError() if wanted.file is not None:
            return ModelError(f"{quoted(wanted.repo)} has no file {quoted(wanted.file)}.")
        case errors.RepositoryNotFoundError():
            return _no_repo(wanted)
        case errors.HfHubHTTPError():
            return _by_status(error.response, wanted)
        case httpx2.TooManyRedirects():
            hint = "Check HF_ENDPOINT and the proxy variables."
            return NetworkError("The Hub redirects in a circle.", hint=hint)
        case httpx2.RequestError():
            what = f"transfer of {quoted(wanted.file)}" if wanted.file else "Hub's answer"
            return BusyError(f"The {what} was cut.", hint=OFFLINE_HINT)
        case _:
            return not_a_hub()


def not_a_hub() -> NetworkError:
    """The error for an answer that no Hub gives."""
    return NetworkError(
        "The answer to the request for the model's files is not a Hub's.",
        hint="Is HF_ENDPOINT right, and does a proxy or log-in page stand in between? " + OFFLINE_HINT,
    )


def _by_status(answer: httpx2.Response, wanted: Wanted) -> LlmrsError:
    """The error for a refusal that the library has no class for."""
    status = answer.status_code
    if status == 401 and "invalid credentials" in _words(answer):
        return AccessError(
            "The Hub does not know the token it was given.",
            hint="Make a new one at the Hub's settings page and put it into HF_TOKEN.",
        )
    if status in (401, 404):
        return _no_repo(wanted)
    if status == 403:
        return AccessError(
            f"The Hub does not let this token read {quoted(wanted.repo)}.",
            hint=f"Check the token's permissions, and the page: {wanted.page}",
        )
    if status == 429:
        return BusyError(
            "The Hub says that there were too many requests.",
            hint="Wait a few minutes; with a token in HF_TOKEN the limits are higher.",
            wait=_retry_after(answer),
        )
    if status >= 500:
        message = f"The Hub is out of order (status {status})."
        return BusyError(message, hint="Try again later.", wait=_retry_after(answer))
    return NetworkError(f"The Hub refuses the request (status {status}).", hint=f"See {wanted.page}")


def _gated(answer: httpx2.Response, wanted: Wanted) -> AccessError:
    repo, words = quoted(wanted.repo), _words(answer)
    if not wanted.with_token:
        return AccessError(
            f"{repo} is gated, and no token was given.",
            hint=f"Accept the licence at {wanted.page} and put a token of your account into HF_TOKEN.",
        )
    if "awaiting" in words or "pending" in words:
        return AccessError(
            f"Your request for access to {repo} is pending.",
            hint=f"Its authors have yet to answer; the state is shown at {wanted.page}",
        )
    if "rejected" in words:
        return AccessError(f"Your request for access to {repo} was rejected.", hint=f"See {wanted.page}")
    return AccessError(
        f"The licence of {repo} has not been accepted by the account of this token.",
        hint=f"Accept it at {wanted.page} and run the command again.",
    )


def _no_repo(wanted: Wanted) -> ModelError:
    near = nearest(wanted.repo)
    hints = [f"Did you mean {near!r}?"] if near and ALIASES[near].repo != wanted.repo else []
    if not wanted.with_token:
        hints.append("If it is private, put a token into HF_TOKEN.")
    return ModelError(f"The Hub has no repository {quoted(wanted.repo, 120)}.", hint=" ".join(hints) or None)


def _words(answer: httpx2.Response) -> str:
    return answer.headers.get("X-Error-Message", "").lower()


def _retry_after(answer: httpx2.Response) -> float:
    """Seconds of a Retry-After header; its date form counts as nothing said."""
    text = answer.headers.get("Retry-After", "")
    return min(float(text), MAX_WAIT) if text.isascii() and text.isdigit() and len(text) < 9 else 0.0
