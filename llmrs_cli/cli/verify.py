"""Shows whether a backend is right about a model, on this very checkpoint.

llmrs verify MODEL [--device DEVICE]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from llmrs_cli.cli.models import Chosen, choose
from llmrs_cli.cli.options import ModelOptions, model_options
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import EngineFault, ExitCode

if TYPE_CHECKING:
    from llmrs_cli.engine.verify import Verdict
    from llmrs_cli.text.generate import TextEngine

PROMPTS = (
    "What is the capital of France?",
    "List the first ten prime numbers.",
    "Write a short poem about the sea.",
    "Explain in one sentence why the sky is blue.",
)
"""Asked as a user where the model can chat, taken as they stand where it cannot."""
SHOWN_PLACES = 3
"""Where activations saturated, the worst first."""
ID_PROMPTS = ((1, 2, 3, 5, 8, 13, 21), (34, 21, 13, 8))
"""For a model without a tokenizer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt with what the backend under test generated greedily."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]


@click.command("verify")
@model_options(required=True)
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 1024),
    metavar="N",
    default=64,
    show_default=True,
    help="Tokens per prompt.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(model: ModelOptions, max_tokens: int, as_json: bool) -> int:
    """Compare a backend with the reference, token by token.

    The backend answers a few prompts greedily; the reference reads prompt and answer in one pass. Wherever
    it prefers another token by more than rounding explains, that token is shown with the logits of both,
    the margin, and the first operation that strays. The status is then 8. Activations that were too large
    for float16, and so were stored as the largest there is, are counted.

    \b
      llmrs verify smollm2-135m
      llmrs verify ./my-model --device cuda
    """
    terminal = Terminal.standard()
    chosen = choose(model, terminal)
    answers, show = _generate(chosen, max_tokens, terminal)
    verdicts = _compare(chosen, answers, terminal)
    if as_json:
        terminal.data(json.dumps({"device": chosen.device, "prompts": [asdict(v) for v in verdicts]}))
    else:
        for line in describe(verdicts, show):
            terminal.data(line)
    wrong = sum(not verdict.agrees for verdict in verdicts)
    if wrong:
        raise EngineFault(
            f"{chosen.device} differs from the reference on {wrong} of {len(verdicts)} prompts.",
            hint="Use another --device, and report it with the lines above.",
        )
    return ExitCode.OK


def _generate(
    chosen: Chosen, max_tokens: int, terminal: Terminal
) -> tuple[list[Answer], Callable[[int], str]]:
    """Greedy answers of the backend under test, and how to show a token."""
    from llmrs_cli.cli.models import open_engine
    from llmrs_cli.text.generate import GenerateOptions

    with open_engine(chosen, terminal, rows=None) as engine, terminal.working("Generating"):
        options = GenerateOptions(max_tokens=max_tokens, temperature=0.0, repetition_penalty=1.0)
        prompts = list(_prompts(engine))
        running = [engine.start(prompt, options) for prompt in prompts]
        ids = [generation.result().choices[0].token_ids for generation in running]
        tokenizer = engine.tokenizer
    answers = [Answer(prompt, found) for prompt, found in zip(prompts, ids, strict=True)]

    def show(token: int) -> str:
        text = "" if tokenizer is None else f" {tokenizer.decode([token], specials=True)!r}"
        return f"{token}{text}"

    return answers, show


def _prompts(engine: TextEngine) -> Iterator[tuple[int, ...]]:
    if engine.tokenizer is None:
        yield from ID_PROMPTS
        return
    for text in PROMPTS:
        yield (
            engine.render([{"role": "user", "content": text}]).ids if engine.can_chat else engine.encode(text)
        )


def _compare(chosen: Chosen, answers: Sequence[Answer], terminal: Terminal) -> list[Verdict]:
    from llmrs_cli.engine.backends.registry import open_backend
    from llmrs_cli.engine.forced import load
    from llmrs_cli.engine.verify import bound_for, compare
    from llmrs_cli.engine.weights.small_head import open_model

    checkpoint = open_model(chosen.path, small_head=chosen.small_head)
    with (
        terminal.working("Comparing with the reference") as status,
        closing(open_backend(chosen.device)) as backend,
        closing(open_backend("reference")) as reference,
    ):
        tested, right = load(checkpoint, backend), load(checkpoint, reference)
        bound = bound_for(backend.name, checkpoint.spec.dtype)
        verdicts = []
        for done, answer in enumerate(answers):
            status.update(done, len(answers))
            verdicts.append(compare(tested, right, answer.prompt, answer.ids, bound))
        return verdicts


def describe(verdicts: Sequence[Verdict], show: Callable[[int], str]) -> Iterator[str]:
    """The comparison for people, a line at a time."""
    for number, verdict in enumerate(verdicts, 1):
        state = "agrees" if verdict.agrees else "DIFFERS"
        close = f", {verdict.close} too close to call" if verdict.close else ""
        yield f"prompt {number}: {state}, {verdict.tokens} tokens{close}, relative error {verdict.error:.1e}"
        yield from _describe_saturated(verdict.saturated)
        if verdict.difference is not None:
            yield from _describe_difference(verdict.difference, show)
    tokens = sum(verdict.tokens for verdict in verdicts)
    yield f"{sum(verdict.agrees for verdict in verdicts)} of {len(verdicts)} prompts agree, {tokens} tokens"


def _describe_saturated(places: Mapping[str, int]) -> Iterator[str]:
    if places:
        most = sorted(places, key=lambda place: -places[place])[:SHOWN_PLACES]
        named = ", ".join(f"{places[place]} in {place}" for place in most)
        rest = sum(places.values()) - sum(places[place] for place in most)
        more = f", {rest} elsewhere" if rest else ""
        yield f"  saturated at the end of float16: {named}{more}"


def _describe_difference(difference: Any, show: Callable[[int], str]) -> Iterator[str]:
    right, ours = difference.expected_logits, difference.found_logits
    yield f"  token {difference.position}: expected {show(difference.expected)}, found {show(difference.found)}"
    yield f"    logits by the reference {right[0]:.4f} and {ours[0]:.4f}, margin {difference.margin:.4f}"
    yield f"    logits by the backend   {right[1]:.4f} and {ours[1]:.4f}"
    yield f"    first operation that strays: {difference.culprit or 'none; rounding adds up'}"
