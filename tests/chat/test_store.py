"""Saved sessions: private files, replaced whole, listed by their last change, none of them trusted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from llmrs_cli.chat.conversation import Conversation, Turn
from llmrs_cli.chat.store import SessionStore
from llmrs_cli.errors import LlmrsError, ModelError, UsageError

TALK = Conversation("S", (Turn("How are\nyou?", "Fine."),))


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "state")


def test_what_was_saved_is_loaded(store: SessionStore) -> None:
    store.save("a", "m", TALK)
    loaded = store.load("a")
    assert (loaded.name, loaded.model, loaded.conversation) == ("a", "m", TALK)


def test_a_name_that_is_like_another_is_found(store: SessionStore) -> None:
    assert store.similar("work") is None
    for name in ("work", "holiday"):
        store.save(name, "m", TALK)
    assert [store.similar(name) for name in ("wrok", "holidays", "xyz")] == ["work", "holiday", None]


def test_files_and_folders_are_private_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        SessionStore(tmp_path / "state").save("a", "m", TALK)
    finally:
        os.umask(before)
    path = tmp_path / "state/sessions/a.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


def test_saving_again_replaces_and_leaves_nothing_else(store: SessionStore, tmp_path: Path) -> None:
    store.save("a", "m", TALK)
    store.save("a", "m", TALK.with_turn(Turn("x", "y")))
    assert len(store.load("a").conversation.turns) == 2
    assert [path.name for path in (tmp_path / "state/sessions").iterdir()] == ["a.json"]


def test_a_failed_save_leaves_the_old_one(
    store: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save("a", "m", TALK)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(LlmrsError, match="No space"):
        store.save("a", "m", Conversation())
    assert store.load("a").conversation == TALK
    assert [path.name for path in (tmp_path / "state/sessions").iterdir()] == ["a.json"]


def test_the_latest_is_the_one_that_changed_last(store: SessionStore, tmp_path: Path) -> None:
    assert store.latest() is None
    for name, moment in (("b", 200), ("a", 300), ("c", 100)):
        store.save(name, "m", TALK)
        os.utime(tmp_path / f"state/sessions/{name}.json", (moment, moment))
    latest = store.latest()
    assert latest is not None and latest.name == "a"
    assert store.names() == ("c", "b", "a")
    assert [(entry.name, entry.turns, entry.title) for entry in store.listing()][-1] == (
        "a",
        1,
        "How are you?",
    )


def test_a_damaged_session_is_named_and_hides_no_other(store: SessionStore, tmp_path: Path) -> None:
    store.save("good", "m", TALK)
    (tmp_path / "state/sessions/bad.json").write_bytes(b"\xff{")
    assert [entry.name for entry in store.listing()] == ["good"]
    with pytest.raises(UsageError, match="'bad' is damaged"):
        store.load("bad")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\0b", "x" * 101, "-c\n"])
def test_a_name_is_never_a_path(store: SessionStore, name: str) -> None:
    for use in (store.load, store.remove, lambda n: store.save(n, "m", TALK)):
        with pytest.raises(UsageError, match="cannot be the name"):
            use(name)


def test_removing_and_renaming(store: SessionStore) -> None:
    store.save("a", "m", TALK)
    store.save("b", "m", TALK)
    with pytest.raises(UsageError, match="already"):
        store.rename("a", "b")
    store.rename("a", "c")
    store.remove("b")
    assert store.names() == ("c",)
    with pytest.raises(ModelError, match="no session 'b'"):
        store.remove("b")


def test_fresh_names_differ(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmrs_cli.chat.store.time.strftime", lambda form: "20260101-000000")
    names = []
    for _ in range(3):
        names.append(store.fresh_name())
        store.save(names[-1], "m", TALK)
    assert names == ["20260101-000000", "20260101-000000-2", "20260101-000000-3"]


def test_a_clock_that_goes_back_hides_no_session(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(10**9, 0, -3600))
    monkeypatch.setattr("llmrs_cli.chat.store.time.strftime", lambda form: f"{next(now)}")
    names = {store.fresh_name() for _ in range(5)}
    for name in names:
        store.save(name, "m", TALK)
    assert set(store.names()) == names == {entry.name for entry in store.listing()}
