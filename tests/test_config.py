"""Settings and directories: precedence, origins, refusals. Needs nothing but a temporary folder."""

from __future__ import annotations

import ast
import os
import stat
from dataclasses import fields
from pathlib import Path

import pytest

from llmrs_cli import config
from llmrs_cli.config import Setting, directories, distrust, load_settings, private_directory
from llmrs_cli.errors import UsageError


def settings_file(folder: Path, text: str) -> Path:
    path = folder / config.SETTINGS_FILE
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_set_gives_defaults_and_says_so(tmp_path: Path) -> None:
    settings = load_settings(env={}, folder=tmp_path)
    assert settings == config.Settings()
    assert {getattr(settings, f.name).origin for f in fields(settings)} == {"default"}


def test_flag_beats_variable_beats_file(tmp_path: Path) -> None:
    path = settings_file(tmp_path, 'device = "cuda"\n')
    assert load_settings(env={}, folder=tmp_path).device == Setting("cuda", str(path))
    env = {"LLMRS_DEVICE": "cpu"}
    assert load_settings(env=env, folder=tmp_path).device == Setting("cpu", "LLMRS_DEVICE")
    flags = {"device": "reference", "context": None}
    settings = load_settings(flags, env, tmp_path)
    assert settings.device == Setting("reference", "--device")
    assert settings.context == Setting(None)


def test_every_key_of_the_file_is_read(tmp_path: Path) -> None:
    settings_file(
        tmp_path, 'model="qwen3-4b"\ndevice="cpu"\ncontext=4096\noffline=true\ncolor="never"\nkeys="vi"\n'
    )
    settings = load_settings(env={}, folder=tmp_path)
    values = [getattr(settings, f.name).value for f in fields(settings)]
    assert values == ["qwen3-4b", "cpu", 4096, True, "never", "vi"]


@pytest.mark.parametrize(
    ("text", "said", "next_step"),
    [
        ('modle = "x"', "'modle'", "Did you mean 'model'?"),
        ("zzz = 1", "'zzz'", "The keys are model, device"),
        ("[model]\nname = 1", "'model' must be the name of a model", ""),
        ('model = ""', "the name of a model", ""),
        ("context = 0", "a positive number of tokens, not 0", ""),
        ("context = true", "a positive number of tokens", ""),
        ('context = "8k"', "a positive number of tokens", ""),
        ("offline = 1", "true or false", ""),
        ('color = "blue"', "auto, always or never", ""),
        ("a = = 1", "is not TOML", ""),
    ],
)
def test_a_wrong_settings_file_is_one_sentence(tmp_path: Path, text: str, said: str, next_step: str) -> None:
    path = settings_file(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_settings(env={}, folder=tmp_path)
    assert said in caught.value.message
    assert str(path) in caught.value.message
    assert next_step in (caught.value.hint or "")


def test_a_settings_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / config.SETTINGS_FILE
    path.write_bytes(b"model = '\xff'")
    with pytest.raises(UsageError, match="is not UTF-8"):
        load_settings(env={}, folder=tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="Cannot read the settings file"):
        load_settings(env={}, folder=tmp_path)


@pytest.mark.parametrize(
    ("env", "key", "expected"),
    [
        ({"LLMRS_MODEL": "qwen3-4b"}, "model", Setting("qwen3-4b", "LLMRS_MODEL")),
        ({"LLMRS_MODEL": ""}, "model", Setting(None)),
        ({"LLMRS_CONTEXT": "8192"}, "context", Setting(8192, "LLMRS_CONTEXT")),
        ({"HF_HUB_OFFLINE": "1"}, "offline", Setting(True, "HF_HUB_OFFLINE")),
        ({"HF_HUB_OFFLINE": "yes"}, "offline", Setting(True, "HF_HUB_OFFLINE")),
        ({"HF_HUB_OFFLINE": "0"}, "offline", Setting(False, "HF_HUB_OFFLINE")),
        ({"HF_HUB_OFFLINE": ""}, "offline", Setting(False)),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, "color", Setting("never", "NO_COLOR")),
        ({"FORCE_COLOR": "1"}, "color", Setting("always", "FORCE_COLOR")),
        ({"FORCE_COLOR": "0"}, "color", Setting("auto")),
    ],
)
def test_variables_set_their_key(
    tmp_path: Path, env: dict[str, str], key: str, expected: Setting[object]
) -> None:
    assert getattr(load_settings(env=env, folder=tmp_path), key) == expected


@pytest.mark.parametrize("text", ["-5", "0", "8k", "٣", "1e3"])
def test_a_context_variable_that_is_no_number_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"LLMRS_CONTEXT"):
        load_settings(env={"LLMRS_CONTEXT": text}, folder=tmp_path)


def test_no_setting_is_read_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("settings.toml", ".llmrs.toml", "llmrs.toml", ".env"):
        (tmp_path / name).write_text('device = "cuda"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_settings(env={"HOME": "/nowhere"}).device == Setting("auto")


def test_every_field_has_one_rule() -> None:
    assert list(config._KEYS) == [f.name for f in fields(config.Settings)]


def test_every_variable_that_the_module_reads_is_in_the_table() -> None:
    source = ast.parse(Path(config.__file__).read_text(encoding="utf-8"))
    names = {
        node.value
        for node in ast.walk(source)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith(("LLMRS_", "HF_", "XDG_")) and node.value.isupper() and " " not in node.value
    }
    assert names <= set(config.VARIABLES)


def test_directories_follow_xdg() -> None:
    env = {"HOME": "/home/ada", "XDG_CONFIG_HOME": "/c", "XDG_CACHE_HOME": "/k", "XDG_STATE_HOME": "/s"}
    found = directories(env)
    assert (found.config, found.cache, found.state) == (Path("/c/llmrs"), Path("/k/llmrs"), Path("/s/llmrs"))
    assert found.hub == Path("/k/huggingface/hub")
    assert found.token_file == Path("/k/huggingface/token")


def test_a_relative_xdg_folder_is_ignored() -> None:
    found = directories({"HOME": "/home/ada", "XDG_CACHE_HOME": "cache"})
    assert found.cache == Path("/home/ada/.cache/llmrs")
    assert found.state == Path("/home/ada/.local/state/llmrs")


def test_our_variables_and_those_of_the_hub_move_folders() -> None:
    env = {"HOME": "/home/ada", "LLMRS_CACHE_DIR": "~/k", "LLMRS_CONFIG_DIR": "/c", "LLMRS_STATE_DIR": "/s"}
    found = directories({**env, "HF_HOME": "/h"})
    assert (found.config, found.cache, found.state) == (Path("/c"), Path("/home/ada/k"), Path("/s"))
    assert (found.hub, found.token_file) == (Path("/h/hub"), Path("/h/token"))
    found = directories({**env, "HF_HOME": "/h", "HF_HUB_CACHE": "/big/hub", "HF_TOKEN_PATH": "/t"})
    assert (found.hub, found.token_file) == (Path("/big/hub"), Path("/t"))


def test_no_home_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="no home directory"):
        directories({"HOME": "relative"})


def test_private_directories_are_private_from_the_first_moment(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        leaf = private_directory(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in (leaf, leaf.parent)]
    assert modes == [0o700, 0o700]
    assert private_directory(leaf) == leaf


def test_a_file_in_the_way_of_a_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="Cannot create the folder"):
        private_directory(tmp_path / "a" / "b")


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    folder = private_directory(tmp_path / "a")
    assert distrust(folder) is None
    folder.chmod(0o770)
    assert distrust(folder) == "other users may write to it"
    folder.chmod(0o755)
    assert distrust(folder) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    folder = private_directory(tmp_path / "a")
    os.chown(folder, 12345, -1)
    assert distrust(folder) == "it belongs to another user"
