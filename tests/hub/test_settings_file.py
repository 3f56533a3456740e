"""One line of the settings file changes; the rest stays, and a file that cannot be changed so is let be."""

from __future__ import annotations

import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.config import load_settings
from llmrs_cli.errors import UsageError
from llmrs_cli.hub.settings_file import change_setting, toml_value

LINES = {
    "model": ("'model' = 'a/b'", 'model="x" # mine', "model   =   'é'"),
    "device": ("device = 'cpu'", '"device"="cuda"'),
    "context": ("context = 4_096", "context=1"),
    "offline": ("offline = true",),
    "color": ("  color = 'never'",),
    "keys": ('keys = "vi"',),
}
VALUES = {
    "model": st.text(alphabet=st.characters(codec="utf-8"), min_size=1).filter(str.strip),
    "device": st.sampled_from(["cpu", "cuda:1"]),
    "context": st.integers(1, 10**6),
    "offline": st.booleans(),
    "color": st.sampled_from(["auto", "always", "never"]),
    "keys": st.sampled_from(["vi", "emacs"]),
}
COMMENTS = st.sampled_from(["", "# model = 'a comment'", "   ", "# color"])


@st.composite
def files(draw: st.DrawFn) -> str:
    """Settings files as people write them."""
    keys = draw(st.lists(st.sampled_from(sorted(LINES)), unique=True))
    lines = [line for key in keys for line in (draw(COMMENTS), draw(st.sampled_from(LINES[key])))]
    return "\n".join([*lines, draw(COMMENTS)]) + draw(st.sampled_from(["", "\n"]))


@given(files(), st.sampled_from(sorted(VALUES)), st.data())
def test_one_key_changes_and_every_other_line_stays(before: str, key: str, data: st.DataObject) -> None:
    value = data.draw(st.none() | VALUES[key])
    wanted = {name: entry for name, entry in tomllib.loads(before).items() if name != key}
    if value is not None:
        wanted[key] = value
    with TemporaryDirectory() as folder:
        path = Path(folder) / "settings.toml"
        path.write_text(before, encoding="utf-8")
        try:
            change_setting(Path(folder), key, value)
        except UsageError as error:
            assert "by hand" in (error.hint or "")
            assert path.read_text(encoding="utf-8") == before
            assert not str(value).isprintable(), "only characters that TOML cannot quote are refused"
            return
        after = path.read_text(encoding="utf-8")
    assert tomllib.loads(after) == wanted
    kept = [line for line in before.splitlines() if key not in line.split("=")[0] or line.startswith("#")]
    assert [line for line in after.splitlines() if line in kept] == kept


def test_a_link_to_the_settings_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "llmrs.toml"
    real.write_text("color = 'never'\n", encoding="utf-8")
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "settings.toml").symlink_to(real)
    change_setting(folder, "context", 4096)
    assert (folder / "settings.toml").is_symlink()
    assert tomllib.loads(real.read_text(encoding="utf-8")) == {"context": 4096, "color": "never"}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("colour", "x", "no setting 'colour'"),
        ("color", "blue", "auto, always or never"),
        ("context", 0, "tokens"),
    ],
)
def test_a_wrong_value_never_reaches_the_file(tmp_path: Path, key: str, value: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        change_setting(tmp_path / "config", key, value)
    assert not (tmp_path / "config").exists()


@pytest.mark.parametrize("value", ["\udcff", "a\x7fb"])
def test_what_toml_cannot_hold_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(UsageError, match="Cannot change 'model'"):
        change_setting(tmp_path, "model", value)
    assert not (tmp_path / "settings.toml").exists()


def test_a_value_over_several_lines_is_left_to_its_author(tmp_path: Path) -> None:
    before = 'model = """\\\n  a/b"""\n'
    (tmp_path / "settings.toml").write_text(before, encoding="utf-8")
    assert load_settings(env={}, folder=tmp_path).model.value == "a/b"
    with pytest.raises(UsageError, match="Cannot change"):
        change_setting(tmp_path, "model", "c/d")
    assert (tmp_path / "settings.toml").read_text(encoding="utf-8") == before


def test_taking_out_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    change_setting(tmp_path, "color", None)
    assert not (tmp_path / "settings.toml").exists()


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x7f")))
def test_any_text_comes_back_from_toml(text: str) -> None:
    assert tomllib.loads(f"x = {toml_value(text)}") == {"x": text}
