"""What to type to have a part that was left out: it fits the way in which llmrs was installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import distribution as installed
from typing import Any

import pytest

from llmrs_cli import extras

EDITABLE = '{"dir_info": {"editable": true}, "url": "file:///home/me/llmrs"}'
COPIED = '{"dir_info": {}, "url": "file:///home/me/llmrs"}'
WHEEL = '{"archive_info": {}, "url": "file:///home/me/llmrs.whl"}'


class Installed:
    """A package with such a record of where it came from."""

    def __init__(self, record: str | None) -> None:
        self.record = record

    def read_text(self, name: str) -> str | None:
        return self.record if name == "direct_url.json" else None


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(request.param))


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (EDITABLE, "pip install -e '.[serve]' in the checkout of llmrs"),
        (COPIED, "pip install '.[serve]' in the checkout of llmrs"),
        (WHEEL, "pip install 'llmrs-cli[serve]'"),
        (None, "pip install 'llmrs-cli[serve]'"),
    ],
    indirect=["record"],
)
@pytest.mark.usefixtures("record")
def test_the_command_keeps_the_installation_what_it_is(command: str) -> None:
    assert extras.install("serve") == command


def test_a_checkout_that_nobody_installed_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", absent)
    assert extras.install("cuda13") == "pip install '.[cuda13]' in the checkout of llmrs"


def test_the_package_is_known_by_this_name() -> None:
    assert {entry.value for entry in installed(extras.NAME).entry_points} == {"llmrs_cli.__main__:start"}
