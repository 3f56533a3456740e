"""The user's own names for models, and the default model."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from llmrs_cli.config import load_settings
from llmrs_cli.errors import LlmrsError, UsageError
from llmrs_cli.hub.names import parse_model
from llmrs_cli.hub.own_names import add_name, read_names, remove_name, set_default_model


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_a_name_stands_for_a_repository_at_a_revision(tmp_path: Path) -> None:
    add_name(tmp_path, "mine", "a/b@v1")
    own = read_names(tmp_path)
    name = parse_model("mine", own)
    assert (name.text, name.repo, name.revision) == ("mine", "a/b", "v1")
    assert stat.S_IMODE((tmp_path / "aliases.toml").stat().st_mode) == 0o600


def test_a_name_for_a_folder_works_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("möbel 😊").mkdir()
    add_name(tmp_path, "mine", "./möbel 😊")
    monkeypatch.chdir("/")
    assert parse_model("mine", read_names(tmp_path)).path == tmp_path / "here" / "möbel 😊"


def test_a_name_for_a_name_is_a_name_for_what_it_stands_for(tmp_path: Path) -> None:
    add_name(tmp_path, "one", "qwen3-4b")
    add_name(tmp_path, "two", "one")
    remove_name(tmp_path, "one")
    assert read_names(tmp_path) == {"two": "qwen3-4b"}


def test_an_existing_folder_wins_over_a_name_of_ones_own(tmp_path: Path) -> None:
    add_name(tmp_path, "mine", "a/b")
    Path("mine").mkdir()
    assert parse_model("mine", read_names(tmp_path)).kind == "folder"


@pytest.mark.parametrize("name", ["", "a b", "A", "../x", "a/b", "x" * 64, "-x", "qwen3-4b"])
def test_what_cannot_be_a_name_or_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        add_name(tmp_path, name, "a/b")
    assert read_names(tmp_path) == {}


@pytest.mark.parametrize("target", ["./nosuch", "zzzz", "a prompt of words"])
def test_a_target_that_means_nothing_is_refused(tmp_path: Path, target: str) -> None:
    with pytest.raises(LlmrsError):
        add_name(tmp_path, "mine", target)


def test_forgetting_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a name of yours"):
        remove_name(tmp_path, "mine")


@pytest.mark.parametrize("text", ["x = 1", "[table]\n", "= =", "A = 'a/b'"])
def test_a_broken_file_of_names_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "aliases.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"aliases\.toml"):
        read_names(tmp_path)


@pytest.mark.parametrize(
    "before", ["", "# mine\ndevice = 'cpu'\n", "model = 'a/b'\ndevice = 'cpu'\n", '"model"="x"']
)
def test_the_default_model_changes_one_line_of_the_settings(tmp_path: Path, before: str) -> None:
    (tmp_path / "settings.toml").write_text(before, encoding="utf-8")
    set_default_model(tmp_path, "qwen3-4b")
    settings = load_settings(env={}, folder=tmp_path)
    assert settings.model.value == "qwen3-4b"
    text = (tmp_path / "settings.toml").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if "model" not in line] == [
        line for line in before.splitlines() if "model" not in line
    ]


def test_a_broken_settings_file_is_not_made_worse(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("device = =", encoding="utf-8")
    with pytest.raises(UsageError, match="is not TOML"):
        set_default_model(tmp_path, "qwen3-4b")
    assert (tmp_path / "settings.toml").read_text(encoding="utf-8") == "device = ="


def test_a_default_that_means_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LlmrsError):
        set_default_model(tmp_path, "zzzz")
    assert not (tmp_path / "settings.toml").exists()
