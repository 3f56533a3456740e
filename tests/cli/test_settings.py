"""`llmrs config`, `default` and `alias`: what they say, what they write, and what they leave alone."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import Result

from llmrs_cli.cli.help import SETTINGS, TOPICS
from llmrs_cli.config import VARIABLES
from llmrs_cli.errors import ExitCode
from llmrs_cli.hub.aliases import ALIASES, BUILT_IN
from llmrs_cli.hub.fit import GPU_DEFAULT
from tests.cli.conftest import MakeLadder, Run


@pytest.fixture
def settings(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file of a user who has set nothing, whatever variables the other tests need."""
    monkeypatch.delenv("LLMRS_DEVICE")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return environment / ".config" / "llmrs" / "settings.toml"


def done(result: Result) -> None:
    """The command did what it should, and had nothing to say."""
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


# -- config -------------------------------------------------------------------------------------------


def test_every_setting_is_listed_with_its_origin(llmrs: Run, settings: Path) -> None:
    done(llmrs("config", "set", "device", "cpu"))
    env = {"LLMRS_CONTEXT": "4096", "LLMRS_DEVICE": ""}
    report = json.loads(llmrs("config", "list", "--json", env=env).stdout)
    assert report == {
        "model": {"value": None, "origin": "default"},
        "device": {"value": "cpu", "origin": str(settings)},
        "context": {"value": 4096, "origin": "LLMRS_CONTEXT"},
        "offline": {"value": False, "origin": "default"},
        "color": {"value": "auto", "origin": "default"},
        "keys": {"value": "emacs", "origin": "default"},
    }
    text = llmrs("config", "list", env=env).stdout
    assert [line.split()[:2] for line in text.splitlines()[1:]] == [
        ["model", "-"],
        ["device", "cpu"],
        ["context", "4096"],
        ["offline", "false"],
        ["color", "auto"],
        ["keys", "emacs"],
    ]
    assert llmrs("config", env=env).stdout == text


def test_the_path_is_that_of_the_file_which_is_private(llmrs: Run, settings: Path) -> None:
    assert llmrs("config", "path").stdout == f"{settings}\n"
    assert not settings.exists()
    done(llmrs("config", "set", "color", "never"))
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600


def editor(folder: Path, script: str) -> str:
    """A program that does `script` with the file it is given."""
    path = folder / "editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


def test_the_file_is_edited_in_the_user_s_editor(llmrs: Run, settings: Path, tmp_path: Path) -> None:
    program = editor(tmp_path, 'test -e "$1" && echo \'keys = "vi"\' >> "$1"')
    done(llmrs("config", "edit", env={"VISUAL": program}))
    assert llmrs("config", "get", "keys").stdout == "vi\n"
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600


def test_a_file_that_was_edited_badly_is_said_to_be_so(llmrs: Run, settings: Path, tmp_path: Path) -> None:
    program = editor(tmp_path, 'echo \'keys = "vim"\' > "$1"')
    result = llmrs("config", "edit", env={"VISUAL": program})
    assert result.exit_code == ExitCode.USAGE
    assert "must be emacs or vi, not 'vim'" in result.stderr


def test_an_editor_that_fails_is_one_sentence(llmrs: Run, settings: Path, tmp_path: Path) -> None:
    for program in (editor(tmp_path, "exit 3"), "/nowhere/editor"):
        result = llmrs("config", "edit", env={"VISUAL": program})
        assert result.exit_code == 1
        assert result.stderr.startswith("llmrs: The editor failed") and "Set VISUAL" in result.stderr


@pytest.mark.parametrize(
    ("key", "typed", "stored", "printed"),
    [
        ("device", "cuda:1", 'device = "cuda:1"', "cuda:1"),
        ("context", "8k", "context = 8192", "8192"),
        ("offline", "True", "offline = true", "true"),
        ("color", "always", 'color = "always"', "always"),
        ("keys", "vi", 'keys = "vi"', "vi"),
        ("model", "qwen2.5-3b", 'model = "qwen2.5-3b"', "qwen2.5-3b"),
    ],
)
def test_what_is_set_is_what_is_got(
    llmrs: Run, settings: Path, key: str, typed: str, stored: str, printed: str
) -> None:
    done(llmrs("config", "set", key, typed))
    assert settings.read_text() == stored + "\n"
    assert llmrs("config", "get", key).stdout == printed + "\n"
    report = json.loads(llmrs("config", "get", key, "--json").stdout)
    assert report["origin"] == str(settings)
    done(llmrs("config", "unset", key))
    assert settings.read_text() == ""


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["set", "colour", "x"], "'colour' is not one of"),
        (["get", "x"], "'x' is not one of"),
        (["set", "color", "blue"], "auto, always or never"),
        (["set", "offline", "perhaps"], "true or false"),
        (["set", "context", "many"], "number of tokens"),
        (["set", "device", "tpu"], "auto, cuda"),
        (["set", "model", "a prompt"], "not a model name"),
        (["set", "model"], "VALUE"),
        (["lst"], "lst"),
    ],
)
def test_a_wrong_setting_is_refused_and_nothing_written(
    llmrs: Run, settings: Path, args: list[str], said: str
) -> None:
    result = llmrs("config", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not settings.exists()


def test_a_variable_that_wins_is_said(llmrs: Run, settings: Path) -> None:
    result = llmrs("config", "set", "device", "cpu", env={"LLMRS_DEVICE": "reference"})
    assert result.exit_code == 0
    assert "LLMRS_DEVICE is set" in result.stderr
    assert "cpu" in settings.read_text()


def test_a_setting_is_obeyed_and_a_flag_beats_it(llmrs: Run, settings: Path) -> None:
    done(llmrs("config", "set", "offline", "true"))
    assert "not to be used" in llmrs("pull", "a/b").stderr
    done(llmrs("config", "set", "device", "reference"))
    report = json.loads(llmrs("show", "qwen2.5-3b", "--json").stdout)
    assert report["memory"]["device"] == "reference"
    report = json.loads(llmrs("show", "qwen2.5-3b", "--json", "--device", "cpu").stdout)
    assert report["memory"]["device"] == "cpu"


def test_help_on_settings_names_every_key_and_real_variables(llmrs: Run) -> None:
    text = llmrs("help", "settings").stdout
    report = json.loads(llmrs("config", "list", "--json").stdout)
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert set(report) <= set(lines)
    named = {word.strip(",") for line in lines.values() for word in line.split() if word.isupper()}
    assert named - {"MODEL"} <= set(VARIABLES)
    assert text == SETTINGS + "\n"


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_every_topic_is_plain_text(llmrs: Run, topic: str) -> None:
    result = llmrs("help", topic)
    assert (result.exit_code, result.stderr) == (0, "")
    assert all(len(line) <= 110 for line in result.stdout.splitlines())


# -- default ------------------------------------------------------------------------------------------


def test_the_default_model_is_shown_set_and_unset(llmrs: Run, settings: Path) -> None:
    first = llmrs("default")
    assert (first.stdout, "No default is set" in first.stderr) == (f"{BUILT_IN}\n", True)
    assert GPU_DEFAULT in first.stderr
    done(llmrs("default", "qwen3-4b"))
    second = llmrs("default")
    assert (second.stdout, str(settings) in second.stderr) == ("qwen3-4b\n", True)
    assert json.loads(llmrs("default", "--json").stdout) == {"model": "qwen3-4b", "origin": str(settings)}
    done(llmrs("config", "unset", "model"))
    assert llmrs("default").stdout == "smollm2-135m\n"


def test_a_default_that_means_nothing_is_refused(llmrs: Run, settings: Path) -> None:
    assert llmrs("default", "qwen9").exit_code == ExitCode.MODEL
    assert not settings.exists()


def test_the_default_model_answers(llmrs: Run, ladder: MakeLadder) -> None:
    done(llmrs("default", ladder()))
    result = llmrs("chat", "-p", "Hi", "-t", "0")
    assert (result.exit_code, result.stdout) == (0, "Hello world\n")


# -- alias --------------------------------------------------------------------------------------------


def test_a_name_of_ones_own_works_wherever_a_model_is_asked_for(llmrs: Run, ladder: MakeLadder) -> None:
    model = ladder()
    done(llmrs("alias", "set", "mine", model))
    assert llmrs("chat", "mine", "-p", "Hi", "-t", "0").stdout == "Hello world\n"
    rows = llmrs("batch", "-", "-m", "mine", "-t", "0", "-q", stdin='{"prompt":"Hi"}')
    assert json.loads(rows.stdout)["text"] == "Hello world"
    assert llmrs("verify", "mine", "--max-tokens", "2").exit_code == 0
    assert json.loads(llmrs("show", "mine", "--json").stdout)["path"] == model
    done(llmrs("default", "mine"))
    assert llmrs("chat", "-p", "Hi", "-t", "0").stdout == "Hello world\n"


def test_names_are_listed_ones_own_first(llmrs: Run) -> None:
    done(llmrs("alias", "set", "small", "qwen2.5-0.5b@main"))
    report = json.loads(llmrs("alias", "list", "--json").stdout)
    assert report[0] == {"name": "small", "model": "qwen2.5-0.5b@main", "origin": "yours"}
    assert [entry["name"] for entry in report[1:]] == list(ALIASES)
    text = llmrs("alias", "list").stdout
    assert text.splitlines()[1].split() == ["small", "qwen2.5-0.5b@main", "yours"]
    assert llmrs("alias").stdout == text


def test_a_forgotten_name_means_nothing(llmrs: Run) -> None:
    done(llmrs("alias", "set", "mine", "a/b"))
    done(llmrs("alias", "rm", "mine"))
    assert llmrs("show", "mine").exit_code == ExitCode.MODEL
    assert llmrs("alias", "rm", "mine").exit_code == 2


@pytest.mark.parametrize(("name", "model"), [("qwen3-4b", "a/b"), ("A B", "a/b"), ("mine", "a prompt")])
def test_a_name_that_cannot_be_given_is_refused(llmrs: Run, name: str, model: str) -> None:
    result = llmrs("alias", "set", name, model)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(json.loads(llmrs("alias", "list", "--json").stdout)) == len(ALIASES)


def test_a_revision_pins_a_name_of_ones_own(llmrs: Run, environment: Path) -> None:
    done(llmrs("alias", "set", "mine", "a/b"))
    result = llmrs("show", "mine", "--revision", "v1")
    assert result.exit_code == ExitCode.NETWORK, "understood, and not here"
