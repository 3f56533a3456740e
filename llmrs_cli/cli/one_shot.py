"""One question, one answer: as a stream, as JSON, as its code block, or as one of a few labels."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from llmrs_cli.chat.answer import Shown
from llmrs_cli.chat.blocks import code_blocks
from llmrs_cli.chat.talk import Talk
from llmrs_cli.cli.ask import Ask
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import ExitCode

if TYPE_CHECKING:
    from llmrs_cli.text.generate import TextEngine


def question_of(prompt: str | None, ask: Ask, terminal: Terminal) -> str:
    """Prompt, files and what is piped in; nothing of it is read twice."""
    from llmrs_cli.chat import source

    def waiting() -> None:
        terminal.notice("Reading stdin; end it with Ctrl-D, or use --no-stdin.")

    texts = [
        source.read_stdin(sys.stdin, waiting) if name == "-" else source.read_file(name) for name in ask.files
    ]
    alone = prompt is None and not ask.files
    if not ask.no_stdin and "-" not in ask.files and (alone or source.is_piped(sys.stdin)):
        texts.append(source.read_stdin(sys.stdin, waiting))
    return source.compose(prompt, texts)


def answer_once(talk: Talk, question: str, ask: Ask, terminal: Terminal) -> int:
    """Print what `ask` wants of the answer to `question`; the exit status."""
    whole = ask.as_json or ask.extract or ask.no_stream
    shown = talk.session.ask(question, Gathering(terminal) if whole else terminal)
    if ask.as_json:
        terminal.data(json.dumps(_report(talk, shown, ask), ensure_ascii=False))
    elif ask.extract:
        print_code(shown.text, terminal)
    elif ask.no_stream:
        terminal.answer(shown.text)
        terminal.end_answer()
    if shown.finish is FinishReason.LENGTH:
        terminal.warn(_cut(shown.figures.used, talk.session.engine))
    if ask.stats or ask.verbose or (terminal.err_is_terminal and not ask.as_json):
        terminal.stats(talk.line(shown.figures))
    talk.save()
    return ExitCode.INTERRUPTED if shown.finish is FinishReason.ABORT else ExitCode.OK


def choose_label(talk: Talk, question: str, ask: Ask, terminal: Terminal) -> int:
    """Print the likeliest label, or with --json all of them."""
    from llmrs_cli.text.choices import score_labels

    engine, system = talk.session.engine, talk.session.system
    head = [{"role": "system", "content": system}] if system else []
    prompt = engine.render(
        [*head, {"role": "user", "content": question}],
        template_arguments={"enable_thinking": False, **ask.arguments},
    )
    with terminal.working("Weighing the choices"):
        shares = score_labels(engine, prompt.ids, ask.choices)
    ranked = sorted(zip(ask.choices, shares, strict=True), key=lambda pair: -pair[1])
    if ask.as_json:
        report = {
            "model": talk.model,
            "commit": talk.desk.commit,
            "choice": ranked[0][0],
            "probabilities": dict(zip(ask.choices, shares, strict=True)),
        }
        terminal.data(json.dumps(report, ensure_ascii=False))
        return ExitCode.OK
    terminal.answer(f"{ranked[0][0]}\n")
    if ask.stats or ask.verbose or terminal.err_is_terminal:
        terminal.stats(", ".join(f"{label} {100 * share:.1f} %" for label, share in ranked))
    return ExitCode.OK


class Gathering:
    """A screen on which the answer does not appear: it is printed whole, or in another form."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.thinking, self.notice, self.warn = terminal.thinking, terminal.notice, terminal.warn
        self.say, self.stats = terminal.say, terminal.stats

    def answer(self, text: str) -> None:
        """Not yet."""

    def recall(self, text: str) -> None:
        """Not yet."""

    def end_answer(self) -> None:
        """Not yet."""

    def undisturbed(self) -> AbstractContextManager[Any]:
        return self._terminal.undisturbed()

    def working(self, text: str) -> AbstractContextManager[Any]:
        return self._terminal.working(text)


def _report(talk: Talk, shown: Shown, ask: Ask) -> dict[str, Any]:
    text = extracted(shown.text) if ask.extract else shown.text
    figures = shown.figures
    return {
        "model": talk.model,
        "commit": talk.desk.commit,
        "text": text,
        "reasoning": shown.thought or None,
        "finish_reason": str(shown.finish),
        "usage": {
            "prompt_tokens": figures.prompt_tokens,
            "completion_tokens": figures.tokens,
            "cached_tokens": figures.cached,
        },
        "seed": shown.seed,
        "seconds": {"first_token": round(figures.first, 3), "total": round(figures.total, 3)},
        "tokens_per_second": _rounded(figures.rate, 1),
        "share_of_memory_speed": _rounded(talk.share(figures), 3),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def extracted(text: str) -> str | None:
    """The first code block of an answer; None if it has none."""
    return next(iter(code_blocks(text)), None)


def print_code(text: str, terminal: Terminal) -> None:
    """Print the first code block, or all of an answer that has none, which is said."""
    code = extracted(text)
    if code is None:
        terminal.warn("The answer has no code block; this is all of it.")
    terminal.answer(text if code is None else code)
    terminal.end_answer()


def _cut(used: int, engine: TextEngine) -> str:
    if used >= engine.context:
        return f"The answer was cut: the context of {engine.context} tokens is full (--ctx sets it)."
    return "The answer was cut at --max-tokens."
