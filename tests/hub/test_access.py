"""Where the Hub is: what the environment says, what an address may look like, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.errors import UsageError
from llmrs_cli.hub.access import DEFAULT_ENDPOINT, HubAccess


def located(env: dict[str, str], *, offline: bool = False) -> HubAccess:
    return HubAccess.from_environment(offline=offline, env={"HOME": "/home/a"} | env)


def access(endpoint: str) -> HubAccess:
    return located({"HF_ENDPOINT": endpoint})


def refusal(endpoint: str) -> str:
    with pytest.raises(UsageError) as caught:
        access(endpoint).check()
    return str(caught.value)


def test_an_environment_that_says_nothing_means_the_public_hub() -> None:
    bare = located({})
    assert bare.endpoint == DEFAULT_ENDPOINT == "https://huggingface.co"
    assert bare.hub == Path("/home/a/.cache/huggingface/hub")
    assert bare == access(""), "an empty variable is none"


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.test")
    assert HubAccess.from_environment(offline=True).endpoint == "http://mirror.test"


def test_whether_to_go_there_is_the_callers_to_say() -> None:
    assert not located({}).offline and located({}, offline=True).offline
    assert not located({"HF_HUB_OFFLINE": "1"}).offline, "the setting has it in it already"


@pytest.mark.parametrize(
    ("env", "hub"),
    [
        ({"HF_HOME": "/data/hf"}, "/data/hf/hub"),
        ({"HF_HUB_CACHE": "/data/cache"}, "/data/cache"),
        ({"HF_HOME": "/data/hf", "HF_HUB_CACHE": "/data/cache"}, "/data/cache"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/huggingface/hub"),
    ],
)
def test_the_cache_is_where_other_hub_programs_have_theirs(env: dict[str, str], hub: str) -> None:
    assert located(env).hub == Path(hub)


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://huggingface.co",
        "http://127.0.0.1:8080",
        "http://[::1]:8080",
        "https://mirror.test/hub",
        "HTTPS://MIRROR.TEST",
        "http://localhost",
    ],
)
def test_these_are_addresses_of_a_hub(endpoint: str) -> None:
    access(endpoint).check()
    access(endpoint + "/").check()


@pytest.mark.parametrize(
    "endpoint",
    [
        "huggingface.co",
        "ftp://huggingface.co",
        "file:///etc/passwd",
        "https://",
        "https:///path",
        "http://:8080",
        "http://host:0",
        "http://host:99999",
        "http://host:port",
        "http://[::1",
        "https://host?token=1",
        "https://host#part",
        "https://user:1/@hub",
        "https://user@hub",
        "https://host/user:2@hub",
        "https://ho\tst",
        "https://host\x1b[31m",
    ],
)
def test_these_are_none(endpoint: str) -> None:
    said = refusal(endpoint)
    assert said.startswith("HF_ENDPOINT is not the address of a Hub: ")
    assert said.endswith("It looks like https://host or http://host:port.")
    assert said.isprintable()


@given(password=st.text("0123456789:?#%/@", min_size=8, max_size=12))
def test_a_password_in_an_address_is_refused_and_never_shown(password: str) -> None:
    assert password not in refusal(f"https://user:{password}@hub.example")


@given(st.text(max_size=30))
def test_any_endpoint_is_taken_or_refused_in_one_sentence(endpoint: str) -> None:
    try:
        access(endpoint).check()
    except UsageError as error:
        assert "\n" not in str(error)


@given(slashes=st.integers(0, 3), repo=st.sampled_from(["gpt2", "a/b", "org/model.v1"]))
def test_pages_have_one_slash_before_the_repository(slashes: int, repo: str) -> None:
    assert access("https://hub.example" + "/" * slashes).page(repo) == f"https://hub.example/{repo}"
