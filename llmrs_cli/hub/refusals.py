"""What a Hub's refusal means, in one sentence each; pure functions from status and headers to an error.

The Hub names the reason in `X-Error-Code`, and for gated repositories in the words of `X-Error-Message`.
Neither is repeated to the user: the texts here are ours, and a token is never part of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmrs_cli.errors import AccessError, LlmrsError, ModelError, NetworkError, quoted
from llmrs_cli.hub.aliases import ALIASES
from llmrs_cli.hub.names import nearest

OFFLINE_HINT = "Check the network; with --offline only what is on this machine is used."
MAX_WAIT = 60.0
"""Seconds that a server may make us wait between two tries."""


class BusyError(NetworkError):
    """The Hub or the way to it failed in a manner that may pass: worth another try after `wait` seconds.

    `reached` says that the Hub itself answered so.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, wait: float = 0.0, reached: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.wait = wait
        self.reached = reached


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for; messages name it."""

    repo: str
    page: str
    """Address of the repository for a person."""
    revision: str | None = None
    file: str | None = None


def refusal(status: int, headers: Mapping[str, str], wanted: Wanted, *, with_token: bool) -> LlmrsError:
    """The error for an answer of `status` ≥ 400 to a request for `wanted`."""
    code = headers.get("X-Error-Code", "")
    words = headers.get("X-Error-Message", "").lower()
    if code == "GatedRepo":
        return _gated(words, wanted, with_token=with_token)
    if code == "RevisionNotFound":
        return ModelError(
            f"{quoted(wanted.repo)} has no revision {quoted(wanted.revision)}.",
            hint=f"The page lists branches and tags: {wanted.page}/tree/main",
        )
    if code == "EntryNotFound":
        return ModelError(f"{quoted(wanted.repo)} has no file {quoted(wanted.file)}.")
    if status == 401 and "invalid credentials" in words:
        return AccessError(
            "The Hub does not know the token it was given.",
            hint="Make a new one at the Hub's settings page and put it into HF_TOKEN.",
        )
    if code == "RepoNotFound" or status in (401, 404):
        return _no_repo(wanted, with_token=with_token)
    if status == 403:
        return AccessError(
            f"The Hub does not let this token read {quoted(wanted.repo)}.",
            hint=f"Check the token's permissions, and the page: {wanted.page}",
        )
    if status == 429:
        return BusyError(
            "The Hub says that there were too many requests.",
            hint="Wait a few minutes; with a token in HF_TOKEN the limits are higher.",
            wait=_retry_after(headers),
            reached=True,
        )
    if status >= 500:
        return BusyError(
            f"The Hub is out of order (status {status}).",
            hint="Try again later.",
            wait=_retry_after(headers),
            reached=True,
        )
    return NetworkError(f"The Hub refuses the request (status {status}).", hint=f"See {wanted.page}")


def _gated(words: str, wanted: Wanted, *, with_token: bool) -> AccessError:
    repo = quoted(wanted.repo)
    if not with_token:
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


def _no_repo(wanted: Wanted, *, with_token: bool) -> ModelError:
    near = nearest(wanted.repo)
    hints = [f"Did you mean {near!r}?"] if near and ALIASES[near].repo != wanted.repo else []
    if not with_token:
        hints.append("If it is private, put a token into HF_TOKEN.")
    return ModelError(f"The Hub has no repository {quoted(wanted.repo, 120)}.", hint=" ".join(hints) or None)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds of a Retry-After header; its date form counts as nothing said."""
    text = headers.get("Retry-After", "")
    return min(float(text), MAX_WAIT) if text.isascii() and text.isdigit() and len(text) < 9 else 0.0
