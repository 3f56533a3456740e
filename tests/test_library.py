"""The names that Python programs import: what they are, that nothing loads before, and how a model opens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import llmrs_cli
from tests.helpers.ladder import Ladder, write_ladder
from tests.test_layers import HEAVY


@pytest.fixture(autouse=True)
def fresh_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("LLMRS_MODEL", "LLMRS_DEVICE", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_ladder(tmp_path / "model", Ladder(vocab=384))


def test_a_name_is_loaded_when_it_is_used_and_no_sooner() -> None:
    script = (
        "import sys, llmrs_cli\n"
        f"heavy = {HEAVY!r}\n"
        "assert not heavy & set(sys.modules), 'importing the package'\n"
        "assert llmrs_cli.__version__\n"
        "assert not heavy & set(sys.modules), 'asking for the version'\n"
        "from llmrs_cli import open_model\n"
        "assert callable(open_model)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_there_are_no_other_names() -> None:
    from llmrs_cli import library

    assert llmrs_cli.__all__ == library.__all__
    for name in llmrs_cli.__all__:
        assert getattr(llmrs_cli, name) is getattr(library, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = llmrs_cli.nothing


def test_a_model_answers_and_says_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with llmrs_cli.open_model(folder, device="reference", context=64, rows=2) as model:
        assert (model.context, model.rows) == (64, 2)
        prompt = model.render([{"role": "user", "content": "Hi"}])
        result = model.start(prompt.ids, llmrs_cli.GenerateOptions(max_tokens=5, temperature=0)).result()
    assert [choice.text for choice in result.choices] == ["Hello world"]
    assert capfd.readouterr() == ("", "")


def test_what_is_not_given_holds_as_on_the_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMRS_MODEL", str(folder))
    monkeypatch.setenv("LLMRS_DEVICE", "reference")
    monkeypatch.setenv("LLMRS_CONTEXT", "48")
    with llmrs_cli.open_model() as model:
        assert model.context == 48


def test_a_path_is_never_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(llmrs_cli.LlmrsError, match=r"smollm2-135m"):
        llmrs_cli.open_model(Path("smollm2-135m"), device="reference")
