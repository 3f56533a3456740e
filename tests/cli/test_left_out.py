"""Who lacks a part that was left out is told what to type."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmrs_cli import extras
from llmrs_cli.cli import doctor
from tests.cli.conftest import MakeLadder, Run

EDITABLE = '{"dir_info": {"editable": true}, "url": "file:///home/me/llmrs"}'


def test_who_lacks_the_packages_of_serve_is_told_what_to_type(
    llmrs: Run, ladder: MakeLadder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "distribution", lambda _: SimpleNamespace(read_text=lambda _: EDITABLE))
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "uvicorn" else find(name, *rest)
    )
    result = llmrs("serve", ladder())
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Install them: pip install -e '.[serve]' in the checkout of llmrs." in result.stderr
    assert any("pip install -e '.[serve]'" in line for line in doctor.optional_parts().values())


def test_the_readme_names_the_command_for_what_make_chat_has_installed() -> None:
    text = (Path(__file__).parent.parent.parent / "README.md").read_text()
    assert "`pip install -e '.[serve]'`" in text and "`pip install '." not in text
