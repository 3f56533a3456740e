"""From the options of `chat` and `run` to an answer or a conversation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from llmrs_cli.cli.ask import Ask
from llmrs_cli.cli.bandwidth import known_bandwidth
from llmrs_cli.cli.faults import TimedOut
from llmrs_cli.cli.models import Chosen, check_ids, choose, drawing_note, open_engine
from llmrs_cli.cli.options import ModelOptions, Sampling, over
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.cli.time_limit import time_limit
from llmrs_cli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from llmrs_cli.chat.reader import Reader
    from llmrs_cli.chat.store import SessionStore
    from llmrs_cli.chat.talk import Talk
    from llmrs_cli.cli.desk import TerminalDesk
    from llmrs_cli.text.generate import GenerateOptions, TextEngine


def ask_or_talk(
    model: ModelOptions, prompt: str | None, ask: Ask, sampling: Sampling, terminal: Terminal
) -> int:
    """Answer one question if there is one, else talk if both ends are a terminal; the exit status."""
    if ask.hide_thinking:
        terminal.hide_thinking()
    if ask.markdown is not False:
        terminal.paint_markdown()
    model = _model_of_session(model, ask)
    with _ended_line(terminal), time_limit(ask.timeout):
        if prompt is None and not ask.files and _is_interactive(terminal):
            if ask.wants_result:
                raise UsageError("--json, -x, --n and --choices need a question.", hint="Give it with -p.")
            return _converse(model, ask, sampling, terminal)
        return _ask(model, prompt, ask, sampling, terminal)


@contextmanager
def _ended_line(terminal: Terminal) -> Iterator[None]:
    """An answer that the time limit cuts ends with its line, and the message stands on one of its own."""
    try:
        yield
    except TimedOut:
        terminal.end_answer()
        raise


def _is_interactive(terminal: Terminal) -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and terminal.out_is_terminal


def _ask(model: ModelOptions, prompt: str | None, ask: Ask, sampling: Sampling, terminal: Terminal) -> int:
    from llmrs_cli.cli.desk import TerminalDesk
    from llmrs_cli.cli.drafts import answer_often
    from llmrs_cli.cli.one_shot import answer_once, choose_label, question_of

    system = _system_prompt(ask)
    question = question_of(prompt, ask, terminal)
    if not question.strip():
        if prompt is not None or ask.files:
            raise UsageError("The prompt is empty.", hint="Give it a text with -p.")
        terminal.notice("stdin is empty: there is nothing to answer.")
        return ExitCode.OK
    options = _options(sampling, ask)
    chosen = choose(model, terminal)
    with open_engine(chosen, terminal, rows=model.rows or _rows(ask)) as engine:
        check_ids(engine, sampling.given())
        desk = TerminalDesk(model, terminal, commit=chosen.commit)
        talk = _talk(engine, chosen, system, options, ask, desk)
        if ask.choices:
            return choose_label(talk, question, ask, terminal)
        _introduce(chosen, engine, sampling, ask, terminal)
        if ask.n > 1:
            return answer_often(talk, question, ask, terminal)
        return answer_once(talk, question, ask, terminal)


def _beginning(chosen: Chosen, engine: TextEngine, sampling: Sampling) -> str:
    """What answers, and how."""
    return f"{chosen}; {over(engine.defaults, sampling.given())}; context {engine.context} tokens."


def _introduce(chosen: Chosen, engine: TextEngine, sampling: Sampling, ask: Ask, terminal: Terminal) -> None:
    """With -v say all of it; else, to a person, only what the model's files decide."""
    if ask.verbose:
        terminal.notice(_beginning(chosen, engine, sampling))
    elif terminal.err_is_terminal and not ask.as_json and (note := drawing_note(engine, sampling.given())):
        terminal.stats(note)


def _rows(ask: Ask) -> int:
    return max(1, min(max(len(ask.choices), ask.n), 16))


def _converse(model: ModelOptions, ask: Ask, sampling: Sampling, terminal: Terminal) -> int:
    from llmrs_cli.chat.display import last_exchange
    from llmrs_cli.chat.fitting import exchanges
    from llmrs_cli.chat.repl import converse
    from llmrs_cli.cli.desk import TerminalDesk

    system, options = _system_prompt(ask), _options(sampling, ask)
    with terminal.undisturbed():  # a line that is typed meanwhile is the first one that is asked
        chosen = choose(model, terminal)
        engine = open_engine(chosen, terminal, rows=model.rows or 1)
    reader = _reader(ask, terminal)
    desk = TerminalDesk(model, terminal, reader, engine, chosen.commit)
    try:
        check_ids(engine, sampling.given())
        talk = _talk(engine, chosen, system, options, ask, desk)
        _dress(reader, talk)
        terminal.notice(f"{_beginning(chosen, engine, sampling)} /help lists what can be typed.")
        if talk.session.turns:
            terminal.say(f"{talk.name}: {exchanges(len(talk.session.turns))}\n{last_exchange(talk.session)}")
        converse(talk, reader.read)
    finally:
        talked_to = desk.opened
        assert talked_to is not None, "an engine was opened above"
        talked_to.close()
    return ExitCode.OK


def _options(sampling: Sampling, ask: Ask) -> GenerateOptions:
    """How answers are drawn; what is wrong with a form is known before a model is fetched for it."""
    from llmrs_cli.text.generate import GenerateOptions

    return GenerateOptions(**sampling.given(), grammar=ask.grammar())


def _talk(
    engine: TextEngine,
    chosen: Chosen,
    system: str | None,
    options: GenerateOptions,
    ask: Ask,
    desk: TerminalDesk,
) -> Talk:
    """A session as the options want it: a fresh one, or the saved one that they name."""
    from llmrs_cli.chat.fitting import Overflow
    from llmrs_cli.chat.session import Session
    from llmrs_cli.chat.store import SessionStore
    from llmrs_cli.chat.talk import Talk
    from llmrs_cli.config import directories

    overflow = Overflow(ask.overflow or ("oldest" if desk.reader is not None else "error"))
    session = Session(
        engine,
        options,
        overflow=overflow,
        arguments=ask.arguments,
    )
    store = SessionStore(directories().state)
    talk = Talk(session, desk.terminal, desk, chosen.name.text, store, None)
    talk.bandwidth = known_bandwidth(chosen.device)
    name = _session_name(store, ask)
    if name is not None and store.exists(name):
        talk.load(name)
    elif name is not None and not ask.no_save and desk.terminal.err_is_terminal:
        desk.terminal.notice(_begun(name, store.similar(name)))
    if system is not None:
        session.system = system
    named = name is not None or desk.reader is not None
    talk.name = (name or store.fresh_name()) if named and not ask.no_save else None
    return talk


def _begun(name: str, near: str | None) -> str:
    """That a session of this name is a new one, which a slip of the keyboard would not show."""
    return f"New session {name}." + (f" Did you mean {near}?" if near else "")


def _model_of_session(model: ModelOptions, ask: Ask) -> ModelOptions:
    """Where no model is named, a saved session goes on with its own."""
    from llmrs_cli.chat.store import SessionStore
    from llmrs_cli.config import directories

    if model.model is not None or not (ask.cont or ask.session):
        return model
    store = SessionStore(directories().state)
    name = _session_name(store, ask)
    if name is None or not store.exists(name):
        return model
    return replace(model, model=store.load(name).model or None)


def _session_name(store: SessionStore, ask: Ask) -> str | None:
    """The session that the options name, saved or not."""
    if not ask.cont:
        return ask.session
    latest = store.latest()
    if latest is None:
        raise UsageError("There is no session to go on with.", hint="Begin one with llmrs chat.")
    return latest.name


def _reader(ask: Ask, terminal: Terminal) -> Reader:
    from llmrs_cli.chat.reader import Reader
    from llmrs_cli.config import load_settings

    keys = load_settings({"keys": {True: "vi", False: "emacs", None: None}[ask.vi]}).keys.value
    history = None if ask.no_save else _history_file(terminal)
    return Reader(history, vi=keys == "vi", colour=terminal.out_colour)


def _dress(reader: Reader, talk: Talk) -> None:
    """Give the input line what it shows of the talk: completions and the toolbar."""
    from llmrs_cli.chat.complete import TalkCompleter
    from llmrs_cli.chat.display import toolbar

    reader.dress(TalkCompleter(talk.desk.models, talk.store.names), lambda: toolbar(talk))


def _system_prompt(ask: Ask) -> str | None:
    from llmrs_cli.chat.source import read_file

    return ask.system if ask.system_file is None else read_file(ask.system_file)


def _history_file(terminal: Terminal) -> Path | None:
    """Where typed lines are kept; None if there is no place for them."""
    from llmrs_cli.config import directories, private_directory

    try:
        return private_directory(directories().state) / "history"
    except UsageError as error:
        terminal.notice(f"{error.message} Typed lines are not kept.")
        return None
