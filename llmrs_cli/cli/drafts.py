"""Several answers to one question, drawn side by side (--n): printed as they are finished, in order, or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from llmrs_cli.chat.answer import stopped_by_interrupt
from llmrs_cli.chat.talk import Talk
from llmrs_cli.cli.ask import Ask
from llmrs_cli.cli.one_shot import extracted, print_code
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import ExitCode
from llmrs_cli.text.generate import Generation, TextEvent
from llmrs_cli.text.reasoning import Opening, ReasoningSplitter, opening


@dataclass(frozen=True, slots=True)
class Draft:
    """One of the answers."""

    text: str
    thought: str
    finish: FinishReason


def answer_often(talk: Talk, question: str, ask: Ask, terminal: Terminal) -> int:
    """Print `ask.n` answers to `question`, with an empty line between them; the exit status."""
    prompt = talk.session.prompt_of(question)
    options = replace(talk.session.options, n=ask.n)
    generation = talk.session.engine.start(prompt.ids, options)
    started = time.monotonic()
    drafts: list[Draft] = []
    ended = finished(generation, ask.n, opening(prompt.text))
    with stopped_by_interrupt(generation):
        while len(drafts) < ask.n:
            with terminal.working(f"Writing answer {len(drafts) + 1} of {ask.n}"):
                drafts.append(next(ended))
            if not ask.as_json:
                _print(drafts[-1], len(drafts), ask, terminal)
    seconds = time.monotonic() - started
    if ask.as_json:
        terminal.data(json.dumps(_report(talk, drafts, generation, seconds, ask), ensure_ascii=False))
    cut = sum(draft.finish is FinishReason.LENGTH for draft in drafts)
    if cut:
        terminal.warn(f"{cut} of {len(drafts)} answers were cut at --max-tokens or the end of the context.")
    if ask.stats or ask.verbose or (terminal.err_is_terminal and not ask.as_json):
        tokens = generation.result().usage.completion_tokens
        terminal.stats(f"{len(drafts)} answers, {tokens} tokens, {tokens / seconds:.1f} tok/s together")
    stopped = any(draft.finish is FinishReason.ABORT for draft in drafts)
    return ExitCode.INTERRUPTED if stopped else ExitCode.OK


def finished(generation: Iterable[TextEvent], count: int, start: Opening) -> Iterator[Draft]:
    """The answers in the order of their numbers, each as soon as it and all before it have ended."""
    splitters = [ReasoningSplitter(start) for _ in range(count)]
    said = [["", ""] for _ in range(count)]
    ended: dict[int, Draft] = {}
    given = 0
    for event in generation:
        split, parts = splitters[event.choice].push(event.text), said[event.choice]
        parts[0] += split.content
        parts[1] += split.reasoning
        if event.finish_reason is None:
            continue
        rest = splitters[event.choice].finish()
        ended[event.choice] = Draft(parts[0] + rest.content, parts[1] + rest.reasoning, event.finish_reason)
        while given in ended:
            yield ended[given]
            given += 1


def _print(draft: Draft, number: int, ask: Ask, terminal: Terminal) -> None:
    if number > 1:
        terminal.answer("\n")
    if terminal.err_is_terminal:
        terminal.stats(f"{number} of {ask.n}")
    if draft.thought:
        terminal.thinking(draft.thought)
    if ask.extract:
        print_code(draft.text, terminal)
    else:
        terminal.answer(draft.text)
        terminal.end_answer()


def _report(
    talk: Talk, drafts: list[Draft], generation: Generation, seconds: float, ask: Ask
) -> dict[str, Any]:
    usage = generation.result().usage
    return {
        "model": talk.model,
        "commit": talk.desk.commit,
        "texts": [extracted(draft.text) if ask.extract else draft.text for draft in drafts],
        "reasonings": [draft.thought or None for draft in drafts],
        "finish_reasons": [str(draft.finish) for draft in drafts],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        },
        "seed": generation.seed,
        "seconds": {"total": round(seconds, 3)},
    }
