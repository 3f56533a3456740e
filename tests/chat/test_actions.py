"""What slash commands do to a conversation, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmrs_cli.chat.attach import Typed
from llmrs_cli.chat.commands import COMMANDS
from llmrs_cli.chat.talk import Talk
from llmrs_cli.engine import FinishReason
from tests.helpers.byte_tokenizer import IM_END, byte_ids, piece_ids
from tests.helpers.fake_engine import FakeEngine, reply
from tests.helpers.talk import PaperDesk, engine_over, prompt_of, session_over, talk_over, talk_through

ABC, DE = piece_ids()["abc"], piece_ids()["de"]
SAYS_ABC = reply((ABC,), (IM_END,), finish=FinishReason.STOP)


@pytest.fixture
def talk() -> tuple[Talk, FakeEngine]:
    session, fake = session_over(SAYS_ABC, context=1000)
    return talk_over(session), fake


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Talk, FakeEngine]:
    session, fake = session_over(SAYS_ABC, context=1000)
    return talk_over(session, tmp_path, "first"), fake


def desk_of(talk: Talk) -> PaperDesk:
    assert isinstance(talk.desk, PaperDesk)
    return talk.desk


@pytest.mark.parametrize("name", [entry.name for entry in COMMANDS if entry.name != "/bye"])
def test_no_command_ends_a_conversation_that_has_not_begun(name: str, tmp_path: Path) -> None:
    session, fake = session_over(SAYS_ABC)
    seen = talk_through(talk_over(session, tmp_path), name, name + " nonsense=1", "Hi")
    assert seen.answers == "abc\n"
    assert len(fake.requests) == 1
    assert len(seen.said) + len(seen.warnings) >= 2, "each said something"


def test_regen_answers_again_with_other_parameters_for_once(talk: tuple[Talk, FakeEngine]) -> None:
    talking, fake = talk
    talk_through(talking, "one", "/regen temp=1.5 seed=3", "two")
    first, second, third = fake.requests
    assert first.prompt_ids == second.prompt_ids
    assert (second.params.temperature, second.params.seed) == (1.5, 3)
    assert third.params.temperature == first.params.temperature
    assert len(talking.session.turns) == 2


def test_undo_forgets_so_many_exchanges(talk: tuple[Talk, FakeEngine]) -> None:
    talking, fake = talk
    seen = talk_through(talking, "one", "two", "three", "/undo 2", "four", "/undo 99", "/undo", "/undo x")
    assert "two" not in prompt_of(fake) and "one" in prompt_of(fake)
    assert seen.said == [
        "2 exchanges forgotten, 1 left.",
        "2 exchanges forgotten, 0 left.",
        "Nothing was said yet.",
    ]
    assert "number" in seen.warnings[0]


def test_edit_asks_what_the_editor_gave_in_place_of_the_last_question(talk: tuple[Talk, FakeEngine]) -> None:
    talking, fake = talk
    desk_of(talking).edited = "better @nothing.txt\n"
    seen = talk_through(talking, "one", "/edit")
    assert desk_of(talking).shown_to_editor == ["one"]
    assert "user\nbetter @nothing.txt<" in prompt_of(fake)
    assert "one" not in prompt_of(fake)
    assert seen.warnings == []


@pytest.mark.parametrize("given", [None, "", "one\n"])
def test_an_editor_that_changes_nothing_asks_nothing(
    talk: tuple[Talk, FakeEngine], given: str | None
) -> None:
    talking, fake = talk
    desk_of(talking).edited = given
    assert talk_through(talking, "one", "/edit").said == ["The question is unchanged."]
    assert len(fake.requests) == 1


def test_files_of_file_and_of_a_mention_but_not_of_a_paste(
    talk: tuple[Talk, FakeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my notes.txt").write_text("alpha")
    (tmp_path / "b.txt").write_text("beta")
    talking, fake = talk
    seen = talk_through(
        talking,
        "/file my notes.txt",
        "one",
        "two @b.txt",
        Typed("three @b.txt", ("@b.txt",)),
        "/file nope b.txt",
    )
    prompts = [
        prompt_of(fake, index).rpartition("user\n")[2].partition("<|im_end|>")[0] for index in range(3)
    ]
    assert prompts == ["one\n\nalpha", "two @b.txt\n\nbeta", "three @b.txt"]
    assert "no file 'nope'" in seen.warnings[0]


def test_another_model_goes_on_with_the_conversation(talk: tuple[Talk, FakeEngine]) -> None:
    talking, fake = talk
    other = FakeEngine(reply((DE,), (IM_END,), finish=FinishReason.STOP), context=500)
    desk_of(talking).others["other"] = engine_over(other)
    seen = talk_through(talking, "one", "/model other", "two", "/model", "/ls")
    assert fake.closed
    assert "one" in prompt_of(other) and "assistant\nabc" in prompt_of(other)
    assert seen.said == ["other answers from now on; 1 exchange kept.", "other", "other"]
    assert "of 500" in seen.figures[-1]


def test_set_changes_shows_and_refuses(talk: tuple[Talk, FakeEngine]) -> None:
    talking, fake = talk
    seen = talk_through(
        talking,
        "/set temperature 0.25",
        "/set parameter top_k 7",
        "/set max_tokens 3",
        "/set stop END",
        "one",
        "/set",
        "/set temperature default",
        "two",
        "/set temprature 1",
        "/set temperature",
        "/set quiet",
        "three",
    )
    params = [request.params for request in fake.requests]
    assert (params[0].temperature, params[0].top_k, params[0].max_tokens) == (0.25, 7, 3)
    assert params[1].temperature == 0.7
    assert "0.25" in seen.said[4] and "('END',)" in seen.said[4]
    assert "temperature?" in seen.warnings[0]
    assert "needs a value" in seen.warnings[1]
    assert len(seen.figures) == 2, "quiet shows no figures"


def test_answers_can_be_held_to_json(talk: tuple[Talk, FakeEngine]) -> None:
    talking, fake = talk
    seen = talk_through(talking, "/set format json", "one", "/set format text", "two", "/set format xml")
    assert [bool(request.grammar) for request in fake.requests] == [True, False]
    assert "json and text" in seen.warnings[0]


def test_keys_are_switched(talk: tuple[Talk, FakeEngine]) -> None:
    talking, _ = talk
    talk_through(talking, "/set vi on")
    assert desk_of(talking).vi
    seen = talk_through(talking, "/set vi off", "/set vi maybe")
    assert not desk_of(talking).vi
    talk_through(talking, "/set vi", "/set emacs")
    assert not desk_of(talking).vi
    assert "on or off" in seen.warnings[0]


TEMPLATE_THAT_THINKS = (
    "{{- messages[-1].content }}{{ '[think]' if enable_thinking is not defined else enable_thinking }}\n"
)


def test_thinking_is_switched_through_the_template() -> None:
    session, fake = session_over(SAYS_ABC, template=TEMPLATE_THAT_THINKS)
    seen = talk_through(
        talk_over(session), "a", "/think off", "b", "/set think", "c", "/think", "d", "/think x"
    )
    assert [prompt_of(fake, index).strip() for index in range(4)] == [
        "a[think]",
        "bFalse",
        "cTrue",
        "d[think]",
    ]
    assert [line.partition(" (")[0].rstrip(".") for line in seen.said] == [
        *("Thinking: off", "Thinking: on", "Thinking: the model's choice")
    ]
    assert "on or off" in seen.warnings[0]


def test_show_prompt_is_the_text_that_the_model_gets(talk: tuple[Talk, FakeEngine]) -> None:
    talking, fake = talk
    seen = talk_through(talking, "one", "/show prompt", "/show", "/show template", "/show nothing")
    assert seen.said[0].startswith(prompt_of(fake, 0)[:30])
    assert seen.said[0].endswith(" tokens]")
    assert "1000 tokens" in seen.said[1]
    assert "add_generation_prompt" in seen.said[2]
    assert "info, system" in seen.warnings[0]


def test_show_info_names_the_commit_of_a_model_from_the_hub(talk: tuple[Talk, FakeEngine]) -> None:
    talking, _ = talk
    assert "commit" not in talk_through(talking, "/show").said[-1]
    desk_of(talking).commit = "0123abc"
    assert "  commit        0123abc\n" in talk_through(talking, "/show info").said[-1]


def test_context_adds_up(talk: tuple[Talk, FakeEngine]) -> None:
    talking, _ = talk
    seen = talk_through(talking, "one", "/system S", "/context")
    counts = {line.split()[0]: int(line.split()[-1]) for line in seen.said[-1].splitlines()[1:]}
    assert counts["questions"] == 3 and counts["answers"] == 3 and counts["system"] == 1
    assert sum(counts.values()) == 1000


def test_tokens_of_a_text(talk: tuple[Talk, FakeEngine]) -> None:
    seen = talk_through(talk[0], "/tokens hé")
    first, *_ = byte_ids("h")
    assert seen.said[0].startswith(f"'h':{first} ")
    assert "'\\xc3':" in seen.said[0]
    assert seen.said[0].endswith("\n3 tokens")


def test_copy_takes_the_answer_or_its_code() -> None:
    text = "Try\n```sh\nls\n```\n"
    session, _ = session_over(
        reply(tuple(byte_ids(text)), (IM_END,), finish=FinishReason.STOP), max_tokens=99
    )
    talking = talk_over(session)
    seen = talk_through(talking, "one", "/copy", "/copy code", "/copy all")
    assert desk_of(talking).copied == [text.strip("\n"), "ls"]
    assert "'all'" in seen.warnings[0]


def test_copy_of_code_that_is_not_there(talk: tuple[Talk, FakeEngine]) -> None:
    assert "no code block" in talk_through(talk[0], "one", "/copy code").warnings[0]


def test_typed_lines_are_listed_and_forgotten(talk: tuple[Talk, FakeEngine]) -> None:
    desk_of(talk[0]).lines = [f"line {number}" for number in range(30)]
    seen = talk_through(talk[0], "/history", "/history clear", "/history")
    assert seen.said[0].splitlines()[0] == "line 10"
    assert seen.said[2] == "Nothing was typed yet."


# -- saved sessions -----------------------------------------------------------------------------------


def test_every_answer_is_saved(saved: tuple[Talk, FakeEngine]) -> None:
    talking, _ = saved
    talk_through(talking, "one", "two")
    assert [turn.question for turn in talking.store.load("first").conversation.turns] == ["one", "two"]


def test_nothing_is_saved_before_an_answer_or_without_a_name(saved: tuple[Talk, FakeEngine]) -> None:
    talking, _ = saved
    talk_through(talking, "/system S")
    talking.name = None
    talk_through(talking, "one")
    assert talking.store.names() == ()


def test_clear_begins_another_session_and_keeps_the_old_one(saved: tuple[Talk, FakeEngine]) -> None:
    talking, _ = saved
    talk_through(talking, "one", "/clear", "two")
    assert len(talking.store.names()) == 2
    assert [turn.question for turn in talking.store.load("first").conversation.turns] == ["one"]


def test_save_names_and_load_session_goes_on(saved: tuple[Talk, FakeEngine]) -> None:
    talking, fake = saved
    seen = talk_through(
        talking,
        "one",
        "/save better",
        "/sessions",
        "/clear",
        "two",
        "/load-session better",
        "three",
        "/load-session no",
    )
    assert "* better" in seen.said[1]
    assert "one" in prompt_of(fake) and "two" not in prompt_of(fake)
    assert "better" in talking.store.names() and "first" not in talking.store.names()
    assert "no session 'no'" in seen.warnings[0]


def test_a_session_that_is_loaded_where_nothing_is_saved_stays_as_it_was(
    saved: tuple[Talk, FakeEngine],
) -> None:
    talking, _ = saved
    talk_through(talking, "one")
    talking.name = None
    talk_through(talking, "/load-session first", "two")
    assert len(talking.session.turns) == 2
    assert len(talking.store.load("first").conversation.turns) == 1


def test_a_name_that_is_taken_is_refused(saved: tuple[Talk, FakeEngine]) -> None:
    talking, _ = saved
    seen = talk_through(talking, "one", "/clear", "two", "/save first")
    assert "already" in seen.warnings[0]
    assert [turn.question for turn in talking.store.load("first").conversation.turns] == ["one"]


def test_a_disk_that_takes_nothing_does_not_end_the_conversation(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("not a folder")
    session, _ = session_over(SAYS_ABC)
    seen = talk_through(talk_over(session, tmp_path, "x"), "one", "two")
    assert seen.answers == "abc\nabc\n"
    assert "Cannot" in seen.warnings[0] and "/save" in seen.warnings[0]
    assert len(seen.warnings) == 1


@pytest.mark.parametrize("name", ["x.md", "x.json", "x.jsonl"])
def test_export_writes_once(talk: tuple[Talk, FakeEngine], tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    seen = talk_through(
        talk[0], f"/export {path}", "one", f"/export {path}", f"/export {path}", "/export x.doc"
    )
    assert "one" in path.read_text()
    assert name.endswith("md") or json.loads(path.read_text())
    assert [("Nothing" in w, "exists" in w, ".json or" in w) for w in seen.warnings] == [
        *((True, False, False), (False, True, False), (False, False, True))
    ]
