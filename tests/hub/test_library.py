"""What we make of the Hub's library: where a token goes, what it keeps to itself, and that it never waits long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import get_session

from llmrs_cli.errors import AccessError, LlmrsError, NetworkError
from llmrs_cli.hub.access import HubAccess
from llmrs_cli.hub.library import Library
from tests.helpers.fake_hub import FakeHub, FakeRepo, Fault, fake_hub
from tests.hub.conftest import WEIGHTS, Locate

LISTING = "/api/models/a/b/revision/main"


def library(hub: FakeHub, home: Path) -> Library:
    """The library for the endpoint of `hub`."""
    return Library(HubAccess.from_environment(offline=False, env=hub.env(home)))


@pytest.mark.parametrize("host", ["same", "other"])
def test_a_redirect_takes_the_token_to_the_endpoint_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "t")
    with fake_hub({"a/b": FakeRepo({})}, tokens=frozenset({"t"})) as hub:
        target = hub.endpoint if host == "same" else hub.storage
        hub.fail(LISTING, Fault(status=307, headers={"Location": f"{target}/lfs/none"}))
        with pytest.raises(LlmrsError):
            library(hub, tmp_path).listing("a/b", "main")
        seen = hub.seen[1:] if host == "same" else hub.stored
        assert [request.authorization for request in seen] == ["Bearer t" if host == "same" else None]


def test_a_token_that_the_library_itself_sends_elsewhere_is_dropped(tmp_path: Path) -> None:
    with fake_hub({}) as hub:
        library(hub, tmp_path)
        headers = {"Authorization": "Bearer t"}
        for url in (f"{hub.storage}/x", f"{hub.endpoint}/x"):
            with pytest.raises(httpx2.HTTPError):
                get_session().get(url, headers=headers)
        assert [seen.authorization for seen in hub.stored + hub.seen] == [None, "Bearer t"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://hub:444/x", None),
        ("https://other/x", None),
        ("https://hub:443/x", "Bearer t"),
        ("http://hub/x", ""),
    ],
)
def test_no_request_leaves_tls_or_takes_the_token_to_another_port(
    tmp_path: Path, url: str, said: str | None
) -> None:
    Library(HubAccess(tmp_path, tmp_path, "https://hub"))
    (leave,) = get_session().event_hooks["request"]
    request = httpx2.Request("GET", url, headers={"Authorization": "Bearer t"})
    if said == "":
        with pytest.raises(NetworkError, match="not safe to follow"):
            leave(request)
    else:
        leave(request)
        assert request.headers.get("Authorization") == said


def test_a_relative_redirect_stays_at_the_endpoint(tmp_path: Path) -> None:
    with fake_hub({"a/b": FakeRepo({})}) as hub:
        hub.fail("/api/models/old/name", Fault(status=307, headers={"Location": LISTING}))
        assert library(hub, tmp_path).listing("old/name", "main").repo == "old/name"
        assert hub.seen[-1].path == LISTING


def test_a_token_file_that_cannot_be_read_is_an_access_error(tmp_path: Path) -> None:
    (tmp_path / "hf" / "token").mkdir(parents=True)
    with fake_hub({}) as hub, pytest.raises(AccessError, match="cannot be read"):
        library(hub, tmp_path)


@pytest.mark.parametrize("body", [b"[]", b'"no"', b"\xff", b"{", b'{"errors": [1]}'])
@pytest.mark.parametrize("path", [LISTING, "config.json", "/lfs/"])
def test_a_refusal_whose_words_make_no_sense_is_a_network_error(
    find: Locate, small: FakeRepo, path: str, body: bytes
) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail(path, *[Fault(status=503, body=body)] * 50)
        with pytest.raises(NetworkError, match="status 503|is not a Hub's"):
            find(hub)


def test_a_storage_host_that_falls_silent_is_asked_again(
    find: Locate, small: FakeRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmrs_cli.hub.library.STALL", 0.5)
    with fake_hub({"a/b": small}) as hub:
        hub.fail("/lfs/", Fault(wait=60))
        assert (find(hub).path / "model.safetensors").read_bytes() == WEIGHTS
        assert len(hub.stored) == 2


CHILD = """
from llmrs_cli.hub.access import HubAccess
from llmrs_cli.hub.names import parse_model
from llmrs_cli.hub.progress import Silent
from llmrs_cli.hub.store import locate
locate(parse_model("a/b"), HubAccess.from_environment(offline=False), Silent())
"""


def test_the_library_shows_nothing_and_sends_nothing_beside_the_work(small: FakeRepo, tmp_path: Path) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail("config.json", Fault(status=503, headers={"X-HF-Warning": "; Look here!"}))
        env = {name: text for name, text in hub.env(tmp_path).items() if "DISABLE" not in name}
        run = subprocess.run(
            [sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, check=True
        )
    assert (run.stdout, run.stderr) == ("", "")
    assert [seen.path for seen in hub.seen if "/a/b" not in seen.path] == []
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == ["hub"]
