"""Any course of a conversation, against a list of what was said: nothing is lost, doubled or sent out of turn.

The model's answer is a function of the number of requests, so that every answer can be told from every other.
An action that cannot be done is an error, and everything is as it was before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmrs_cli.chat.conversation import from_json
from llmrs_cli.chat.fitting import Overflow
from llmrs_cli.chat.store import SessionStore
from llmrs_cli.engine import FinishReason, Request, TokenEvent
from llmrs_cli.errors import LlmrsError
from tests.helpers.byte_tokenizer import IM_END, byte_ids
from tests.helpers.talk import Seen, prompt_of, session_over, talk_over, talk_through

CONTEXT = 320
WORDS = st.text(alphabet="abc", min_size=1, max_size=40)


class Conversations(RuleBasedStateMachine):
    """Drives a talk and keeps `said`: questions with the beginning of their answers."""

    @initialize(overflow=st.sampled_from(list(Overflow)), system=st.sampled_from([None, "S"]))
    def begin(self, overflow: Overflow, system: str | None) -> None:
        self.session, self.fake = session_over(
            self.answer, context=CONTEXT, system=system, overflow=overflow, max_tokens=20
        )
        self.folder = TemporaryDirectory()
        self.talk = talk_over(self.session, Path(self.folder.name), "kept")
        self.system = system
        self.said: list[tuple[str, str]] = []
        self.cut = False
        """Whether the next answers are longer than they may be."""

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def answer(self, request: Request) -> Iterator[TokenEvent]:
        """A name that no other answer has, then dots if it is to be cut."""
        tokens = byte_ids(f"<{len(self.fake.requests)}>") + [*byte_ids(".")] * (99 if self.cut else 0)
        most = request.params.max_tokens
        for number, token in enumerate([*tokens[:most], IM_END][: most + 1]):
            ended = token == IM_END or number + 1 == most
            finish = FinishReason.STOP if token == IM_END else FinishReason.LENGTH
            yield TokenEvent(request.id, (token,), finish=finish if ended else None)
            if ended:
                return

    def do(self, line: str) -> Seen:
        """Type one line; the screen with what this line alone gave."""
        self.talk.screen = Seen()
        return talk_through(self.talk, line)

    def answered(self, seen: Seen, before: int) -> bool:
        """Whether the model said something, rather than that it could not be asked."""
        assert bool(seen.answers.strip()) == (len(self.fake.requests) > before and bool(seen.figures))
        return bool(seen.figures)

    @rule(question=WORDS, cut=st.booleans())
    def ask(self, question: str, cut: bool) -> None:
        self.cut, before = cut, len(self.fake.requests)
        if self.answered(self.do(question), before):
            self.said.append((question, f"<{len(self.fake.requests)}>"))
            assert question in prompt_of(self.fake)

    @precondition(lambda self: self.said)
    @rule(cut=st.booleans())
    def regenerate(self, cut: bool) -> None:
        self.cut, before = cut, len(self.fake.requests)
        if self.answered(self.do("/regen"), before):
            self.said[-1] = (self.said[-1][0], f"<{len(self.fake.requests)}>")

    @precondition(lambda self: self.said)
    @rule(question=WORDS)
    def edit(self, question: str) -> None:
        self.cut, before = False, len(self.fake.requests)
        desk: Any = self.talk.desk
        desk.edited = question
        if self.answered(self.do("/edit"), before):
            self.said[-1] = (question, f"<{len(self.fake.requests)}>")

    @precondition(lambda self: self.said)
    @rule()
    def go_on(self) -> None:
        turn = self.session.last_turn()
        ids, requests = turn.ids, len(self.fake.requests)
        self.cut = False
        seen = self.do("/continue")
        if len(self.fake.requests) == requests:
            assert seen.warnings and self.session.last_turn() == turn
        elif seen.figures:
            assert self.session.last_turn().answer.startswith(turn.answer)
            assert self.fake.requests[-1].prompt_ids[-len(ids) :] == ids or not ids

    @rule(count=st.integers(1, 4))
    def undo(self, count: int) -> None:
        self.do(f"/undo {count}")
        del self.said[max(0, len(self.said) - count) :]

    @precondition(lambda self: self.said)
    @rule()
    def compact(self) -> None:
        self.cut = False
        self.do("/compact")

    @rule()
    def clear(self) -> None:
        self.do("/clear")
        self.said = []

    @precondition(lambda self: self.said)
    @rule()
    def load_what_was_saved(self) -> None:
        assert self.talk.name is not None
        loaded = self.talk.store.load(self.talk.name).conversation
        assert loaded == self.session.conversation
        self.session.take_up(loaded)

    @invariant()
    def everything_that_was_said_is_kept_in_order(self) -> None:
        if not hasattr(self, "said"):
            return
        turns = self.session.turns
        assert [turn.question for turn in turns] == [question for question, _ in self.said]
        for turn, (_, name) in zip(turns, self.said, strict=True):
            assert turn.answer[: len(name)] == name[: len(turn.answer)], (
                "a full context may cut even the name"
            )
        assert from_json(self.session.conversation.to_json()) == self.session.conversation

    @invariant()
    def what_is_sent_is_what_the_toolbar_counts(self) -> None:
        if not hasattr(self, "said"):
            return
        assert 0 <= self.session.left_out <= len(self.session.turns)
        assert all(len(request.prompt_ids) < CONTEXT for request in self.fake.requests)
        prompt = self.session.prompt()
        kept = self.session.conversation.messages(self.session.left_out)
        assert (prompt is None) == (not kept)
        if prompt is not None:
            assert all(message["content"] in prompt.text for message in kept)
            assert (self.system or "") in prompt.text


Conversations.TestCase.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
TestConversations = Conversations.TestCase


# -- a talk on disk -----------------------------------------------------------------------------------


def says(text: str) -> Any:
    """A model that says `text`."""

    def script(request: Request) -> Iterator[TokenEvent]:
        yield TokenEvent(request.id, (*byte_ids(text), IM_END), finish=FinishReason.STOP)

    return script


def test_a_session_of_another_model_is_loaded_without_its_tokens(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    talk = talk_over(session_over(says("one"))[0], tmp_path, "mine")
    talk_through(talk, "a")
    cut = replace(talk.session.last_turn(), finish=FinishReason.LENGTH, ids=(1, 2))
    conversation = replace(talk.session.conversation, turns=(cut,))
    store.save("same", talk.model, conversation)
    store.save("other", "another model", conversation)
    talk_through(talk, "/load-session same")
    assert talk.session.last_turn().ids == (1, 2)
    talk_through(talk, "/load-session other")
    assert (talk.session.last_turn().ids, talk.session.last_turn().cut) == ((), True)
    assert talk.name == "other"


def test_a_disk_that_is_full_for_a_while_is_told_once_and_tried_again_on_request(tmp_path: Path) -> None:
    talk = talk_over(session_over(says("one"))[0], tmp_path, "mine")
    full = True

    class Full(SessionStore):
        def save(self, *args: Any) -> None:
            if full:
                raise LlmrsError("Cannot save the session: No space left on device.")
            super().save(*args)

    talk.store = Full(tmp_path)
    seen = talk_through(talk, "a", "b", "c")
    assert [warning.count("/save tries again") for warning in seen.warnings] == [1]
    assert (len(talk.session.turns), talk.name) == (3, None)
    assert talk_through(talk, "/save mine").said == [], "it was not saved"
    full = False
    assert talk_through(talk, "/save mine").said == ["This session is saved as mine."]
    assert len(talk.store.load("mine").conversation.turns) == 3
    talk_through(talk, "d")
    assert len(talk.store.load("mine").conversation.turns) == 4
