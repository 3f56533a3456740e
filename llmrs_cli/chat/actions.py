"""What each slash command does; `ACTIONS` has one function for every command of `commands.COMMANDS`.

A function gets the talk and the command's argument. It raises an LlmrsError if it cannot do its work; the
conversation is then as it was. `/bye` is not here: leaving is the loop's own business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from llmrs_cli.chat import display
from llmrs_cli.chat.blocks import code_blocks
from llmrs_cli.chat.commands import help_text
from llmrs_cli.chat.export import exported, format_of, write_export
from llmrs_cli.chat.fitting import exchanges
from llmrs_cli.chat.parameters import assignments, listed, parameter
from llmrs_cli.chat.talk import Talk
from llmrs_cli.errors import UsageError, quoted

Action = Callable[[Talk, str], None]
HISTORY_LINES = 20


def _help(talk: Talk, argument: str) -> None:
    talk.screen.say(help_text(argument))


def _clear(talk: Talk, argument: str) -> None:
    talk.begin_anew()
    talk.screen.say("A new conversation begins.")


def _regenerate(talk: Talk, argument: str) -> None:
    options = replace(talk.session.options, **assignments(argument))  # type: ignore[arg-type]
    talk.finish(talk.session.regenerate(talk.screen, options))


def _continue(talk: Talk, argument: str) -> None:
    talk.finish(talk.session.resume(talk.screen))


def _undo(talk: Talk, argument: str) -> None:
    if argument and not (argument.isascii() and argument.isdigit()):
        raise UsageError(f"/undo takes a number, not {quoted(argument)}.")
    gone = talk.session.undo(int(argument[:9] or 1))
    talk.save()
    left = len(talk.session.turns)
    talk.screen.say(f"{exchanges(gone)} forgotten, {left} left." if gone else "Nothing was said yet.")


def _edit(talk: Talk, argument: str) -> None:
    before = talk.session.last_turn().question
    after = talk.desk.edit(before)
    if after is None or not after.strip() or after.strip() == before.strip():
        talk.screen.say("The question is unchanged.")
        return
    talk.finish(talk.session.ask_instead(after.strip("\n"), talk.screen))


def _system(talk: Talk, argument: str) -> None:
    if argument:
        talk.session.system = None if argument.lower() == "off" else argument
    system = talk.session.system
    talk.screen.say(f"System prompt: {system}" if system else "There is no system prompt.")


def _file(talk: Talk, argument: str) -> None:
    for path in _paths(argument):
        talk.screen.say(talk.attached.add(path))


def _paths(argument: str) -> list[str]:
    """One path if there is such a file, else one a word; quotes keep blanks."""
    import shlex
    from pathlib import Path

    if Path(argument).expanduser().is_file():
        return [argument]
    try:
        return shlex.split(argument)
    except ValueError:
        return [argument]


def _model(talk: Talk, argument: str) -> None:
    if not argument:
        talk.screen.say(talk.model)
        return
    talk.session.engine = talk.desk.open_model(argument, talk.session.engine)
    talk.model = argument
    kept = f"; {exchanges(len(talk.session.turns))} kept" if talk.session.turns else ""
    talk.screen.say(f"{argument} answers from now on{kept}.")


def _list_models(talk: Talk, argument: str) -> None:
    talk.screen.say("\n".join(talk.desk.models()) or "There is no model on this machine yet.")


def _set(talk: Talk, argument: str) -> None:
    name, _, value = argument.removeprefix("parameter ").strip().partition(" ")
    value = value.strip()
    if not name:
        talk.screen.say(listed(talk.session.options, talk.session.engine.defaults))
    elif name == "system":
        _system(talk, value)
    elif name in _SWITCHES:
        _SWITCHES[name](talk, value)
    elif not value:
        raise UsageError(f"/set {name} needs a value.", hint="/set alone shows what is set.")
    else:
        field, number = parameter(name, value)
        talk.set_option(**{field: number})
        talk.screen.say(f"{field} is {'left to the model' if value == 'default' else value} from now on.")


def _set_stats(on: bool) -> Action:
    def switch(talk: Talk, value: str) -> None:
        talk.show_stats = on
        talk.screen.say(f"Figures are {'shown' if on else 'not shown'} after an answer.")

    return switch


def _set_vi(talk: Talk, value: str) -> None:
    on = _is_on(value or "on", "/set vi")
    talk.desk.use_vi(on)
    keys = "vi" if on else "emacs"
    talk.screen.say(f"{keys} keys from now on. (llmrs config set keys {keys} keeps them.)")


def _set_format(talk: Talk, value: str) -> None:
    from llmrs_cli.text.grammar import json_object

    if value not in ("json", "", "text"):
        raise UsageError(f"/set format knows json and text, not {quoted(value)}.")
    talk.set_option(grammar=json_object() if value == "json" else "")
    talk.screen.say(f"Answers are {'JSON objects' if value == 'json' else 'free text'} from now on.")


def _think(talk: Talk, argument: str) -> None:
    if argument:
        talk.session.arguments["enable_thinking"] = _is_on(argument, "/think")
    else:
        talk.session.arguments.pop("enable_thinking", None)
    wanted = talk.session.arguments.get("enable_thinking")
    state = "the model's choice" if wanted is None else "on" if wanted else "off"
    knows = "" if talk.session.engine.thinks else " (this model does not know how to)"
    talk.screen.say(f"Thinking: {state}{knows}.")


def _is_on(word: str, command: str) -> bool:
    if word.lower() not in ("on", "off"):
        raise UsageError(f"{command} is on or off, not {quoted(word)}.")
    return word.lower() == "on"


def _show(talk: Talk, argument: str) -> None:
    talk.screen.say(display.shown(talk, argument or "info"))


def _context(talk: Talk, argument: str) -> None:
    talk.screen.say(display.context(talk.session))


def _compact(talk: Talk, argument: str) -> None:
    talk.screen.say(talk.session.compact(talk.screen))
    talk.save()


def _tokens(talk: Talk, argument: str) -> None:
    talk.screen.say(display.tokens(talk.session.engine, argument))


def _copy(talk: Talk, argument: str) -> None:
    text = talk.session.last_turn().answer
    if argument not in ("", "code"):
        raise UsageError(f"/copy takes nothing or 'code', not {quoted(argument)}.")
    if argument:
        blocks = code_blocks(text)
        if not blocks:
            raise UsageError("The last answer has no code block.", hint="/copy copies all of it.")
        text = blocks[-1]
    talk.screen.say(talk.desk.copy(text.strip("\n")))


def _export(talk: Talk, argument: str) -> None:
    kind = format_of(argument)
    talk.session.last_turn()
    write_export(argument, exported(talk.session.conversation, talk.model, kind))
    talk.screen.say(f"{exchanges(len(talk.session.turns))} written to {argument}.")


def _save(talk: Talk, argument: str) -> None:
    if argument or talk.name is None:
        talk.rename(argument or talk.store.fresh_name())
    talk.save()
    if talk.name is not None:
        talk.screen.say(f"This session is saved as {talk.name}.")


def _sessions(talk: Talk, argument: str) -> None:
    talk.screen.say(display.sessions(talk.store.listing(), talk.name))


def _load_session(talk: Talk, argument: str) -> None:
    talk.save()
    turns = talk.load(argument)
    talk.screen.say(f"{argument}: {exchanges(turns)}.\n{display.last_exchange(talk.session)}")


def _history(talk: Talk, argument: str) -> None:
    if argument not in ("", "clear"):
        raise UsageError(f"/history takes nothing or 'clear', not {quoted(argument)}.")
    if argument:
        talk.desk.forget_typed()
        talk.screen.say("The lines that were typed are forgotten.")
        return
    talk.screen.say("\n".join(talk.desk.typed()[-HISTORY_LINES:]) or "Nothing was typed yet.")


def _stats(talk: Talk, argument: str) -> None:
    last = talk.session.last
    talk.screen.say(talk.line(last.figures) if last else "Nothing was said yet.")


_SWITCHES: Mapping[str, Action] = {
    "verbose": _set_stats(True),
    "quiet": _set_stats(False),
    "vi": _set_vi,
    "emacs": lambda talk, value: _set_vi(talk, "off"),
    "format": _set_format,
    "think": lambda talk, value: _think(talk, value or "on"),
    "nothink": lambda talk, value: _think(talk, "off"),
}
"""What /set takes beside parameters."""
ACTIONS: Mapping[str, Action] = {
    "/help": _help,
    "/clear": _clear,
    "/regen": _regenerate,
    "/continue": _continue,
    "/undo": _undo,
    "/edit": _edit,
    "/system": _system,
    "/file": _file,
    "/model": _model,
    "/ls": _list_models,
    "/set": _set,
    "/think": _think,
    "/show": _show,
    "/context": _context,
    "/compact": _compact,
    "/tokens": _tokens,
    "/copy": _copy,
    "/export": _export,
    "/save": _save,
    "/sessions": _sessions,
    "/load-session": _load_session,
    "/history": _history,
    "/stats": _stats,
}
