"""What a conversation tells about itself: texts of /show, /context, /tokens and /sessions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmrs_cli.chat.fitting import exchanges
from llmrs_cli.chat.parameters import listed
from llmrs_cli.errors import UsageError, quoted

if TYPE_CHECKING:
    from llmrs_cli.chat.session import Session
    from llmrs_cli.chat.store import Saved
    from llmrs_cli.chat.talk import Talk
    from llmrs_cli.text.generate import TextEngine

PARTS = ("info", "system", "template", "parameters", "prompt")
"""What /show can show."""
BAR = 20
"""Cells of the bar of /context."""


def shown(talk: Talk, part: str) -> str:
    """The answer to `/show part`. Raises UsageError for an unknown part."""
    session = talk.session
    match part:
        case "info":
            return _info(talk)
        case "system":
            return session.system or "There is no system prompt."
        case "template":
            return session.engine.template_source
        case "parameters":
            return listed(session.options, session.engine.defaults)
        case "prompt":
            prompt = session.prompt()
            return f"{prompt.text}\n[{len(prompt.ids)} tokens]" if prompt else "Nothing was said yet."
    raise UsageError(f"/show knows nothing of {quoted(part)}.", hint=f"It shows {', '.join(PARTS)}.")


def _info(talk: Talk) -> str:
    session = talk.session
    rows = {
        "model": talk.model,
        **({"commit": talk.desk.commit} if talk.desk.commit else {}),
        "context": f"{session.context} tokens",
        "vocabulary": f"{session.engine.vocab} tokens",
        "session": talk.name or "not saved",
        "conversation": exchanges(len(session.turns)),
        "drawing": str(session.engine.defaults),
    }
    return "\n".join(f"  {name:<14}{value}" for name, value in rows.items())


def context(session: Session) -> str:
    """How many tokens each part of the conversation takes."""
    engine = session.engine
    tokens = engine.encode
    kept = session.turns[max(session.left_out, session.conversation.summed) :]
    parts = {
        "system prompt": len(tokens(session.system)) if session.system else 0,
        "summary": len(tokens(session.conversation.recap)) if session.conversation.recap else 0,
        "questions": sum(len(tokens(turn.question)) for turn in kept),
        "answers": sum(len(tokens(turn.answer)) for turn in kept),
    }
    prompt = session.prompt()
    used = len(prompt.ids) if prompt else 0
    parts["template"] = max(0, used - sum(parts.values()))
    lines = [f"{meter(used, session.context)}  {used} of {session.context} tokens"]
    lines += [f"  {name:<14}{count:>8}" for name, count in parts.items() if count]
    lines.append(f"  {'free':<14}{max(0, session.context - used):>8}")
    if session.left_out > session.conversation.summed:
        lines.append(f"The oldest {exchanges(session.left_out)} are no longer sent.")
    return "\n".join(lines)


def meter(used: int, limit: int, cells: int = BAR) -> str:
    """A bar that is full when `used` reaches `limit`."""
    full = min(cells, -(-cells * used // limit))
    return "[" + "#" * full + "." * (cells - full) + "]"


def toolbar(talk: Talk) -> str:
    """The line at the foot of the terminal: the context first, since it matters most in a narrow one."""
    session = talk.session
    used, limit = session.used, session.context
    parts = [f"{meter(used, limit, 10)} {100 * used // limit} % of {limit}", talk.model]
    out = session.left_out - session.conversation.summed
    parts += [f"{exchanges(out)} left out"] if out > 0 else []
    parts += [f"{exchanges(session.conversation.summed)} summed up"] if session.conversation.summed else []
    parts += [f"{len(talk.attached.waiting)} file(s) waiting"] if talk.attached.waiting else []
    return "  ".join(parts)


def tokens(engine: TextEngine, text: str) -> str:
    """The pieces of a text with their ids, and their number."""
    assert engine.tokenizer is not None, "it renders conversations"
    ids = engine.tokenizer.encode(text, bos=False)
    pieces = (f"{_piece(engine.tokenizer.token_bytes(id))}:{id}" for id in ids)
    return " ".join(pieces) + f"\n{len(ids)} tokens"


def _piece(data: bytes) -> str:
    """The text of a token in quotes; a part of a character as its bytes."""
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data).removeprefix("b")


def sessions(saved: Sequence[Saved], current: str | None) -> str:
    """A line for each saved session."""
    if not saved:
        return "No session is saved yet."
    width = max(len(entry.name) for entry in saved)
    return "\n".join(
        f"{'*' if entry.name == current else ' '} {entry.name:<{width}}  {moment(entry.changed)}  {entry.title}"
        for entry in saved
    )


def moment(seconds: float) -> str:
    """A time since the epoch as people here write it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def last_exchange(session: Session) -> str:
    """The last question and the beginning of its answer."""
    if not session.turns:
        return ""
    turn = session.turns[-1]
    return f"> {_short(turn.question)}\n{_short(turn.answer)}"


def _short(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[:limit] + " ..."
