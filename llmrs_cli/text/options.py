"""How to generate: what a caller says, what the model's files say, and what holds in the end.

A caller's explicit value always wins, 0 and 1.0 included. What it leaves open comes from the model's
generation_config.json, then from `DEFAULT_TEMPERATURE` and neutral values. The same in every front end.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmrs_cli.engine import SamplingParams, check_params
from llmrs_cli.errors import ModelError, RequestError, quoted
from llmrs_cli.text.stream import check_stops

DEFAULT_TEMPERATURE = 0.7
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """What a caller wants; None leaves it to the model's defaults. Ranges: `engine.types`."""

    max_tokens: int | None = None
    """Tokens of the answer, end token included; None: until the model ends or the context is full. More
    than fits is lowered to what fits, and the answer then ends with "length"."""
    min_tokens: int = 0
    """Neither an end token nor a stop string ends the answer before this many tokens."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    """None: a fresh one, which `Generation.seed` tells."""
    stop: tuple[str, ...] = ()
    """The answer ends before the first of these that completes."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the answer beside the model's own; their text is not part of it."""
    include_stop: bool = False
    """Keep the stop string in the text."""
    ignore_eos: bool = False
    n: int = 1
    """Answers to the same prompt; they share the seed and differ in their random streams."""
    logprobs: int | None = None
    """Log-probability of each token and of this many alternatives, before any sampling rule."""
    prompt_logprobs: int | None = None
    specials: bool = False
    """Control tokens are part of the text."""
    grammar: str = ""
    """What the answer must match (`text.grammar`); it then ends where that ends, or at max_tokens."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What holds where a caller says nothing."""

    temperature: float = DEFAULT_TEMPERATURE
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    from_model: bool = False
    """At least one of them stands in generation_config.json."""

    def __str__(self) -> str:
        """For the line that a front end shows at start: 'temperature 0.7, top-p 0.8 (from the model)'."""
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top-p {self.top_p:g}"] if self.top_p != 1.0 else []
        parts += [f"top-k {self.top_k}"] if self.top_k else []
        parts += [f"min-p {self.min_p:g}"] if self.min_p else []
        parts += [f"repetition penalty {self.repetition_penalty:g}"] if self.repetition_penalty != 1.0 else []
        return ", ".join(parts) + (" (from the model)" if self.from_model else "")


KINDS: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
}


def model_defaults(generation: Mapping[str, Any]) -> SamplingDefaults:
    """Defaults of a generation_config.json ({} if there is none). ModelError for values of no use.

    `do_sample: false` means greedy, whatever temperature stands beside it, as with Hugging Face.
    """
    found = {name: _number(name, generation[name]) for name in KINDS if generation.get(name) is not None}
    if found.get("top_k", 0) < 0:
        found["top_k"] = 0  # some publishers write -1 for "off"
    if generation.get("do_sample") is False:
        found["temperature"] = 0.0
    defaults = SamplingDefaults(**found, from_model=bool(found))  # type: ignore[arg-type]
    try:
        check_params(resolve(GenerateOptions(), defaults, eos_ids=(), room=1), vocab=1)
    except RequestError as error:
        raise ModelError(f"generation_config.json is not usable: {error.message}") from None
    return defaults


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"generation_config.json is not usable: {name} is {quoted(value)}, not a number.")
    try:
        return KINDS[name](value)
    except (ValueError, OverflowError):  # NaN or infinity where an integer belongs
        raise ModelError(f"generation_config.json is not usable: {name} is {value}.") from None


def resolve(
    options: GenerateOptions, defaults: SamplingDefaults, *, eos_ids: tuple[int, ...], room: int
) -> SamplingParams:
    """What the engine gets. `room` is how many tokens fit after the prompt, at least 1.

    RequestError for what only this layer can see (stop strings, n); `check_params` does the rest.
    """
    check_stops(options.stop)
    if not 1 <= options.n <= MAX_CHOICES:
        raise RequestError(f"n must be between 1 and {MAX_CHOICES}, not {options.n}.", param="n")
    if options.grammar and (options.ignore_eos or options.min_tokens):
        param = "ignore_eos" if options.ignore_eos else "min_tokens"
        raise RequestError(f"{param} does not go with a form that ends by itself.", param=param)
    chosen = {
        name: getattr(defaults, name) if getattr(options, name) is None else getattr(options, name)
        for name in KINDS
    }
    return SamplingParams(
        max_tokens=room if options.max_tokens is None else min(options.max_tokens, room),
        min_tokens=options.min_tokens,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=options.logit_bias,
        seed=secrets.randbits(64) if options.seed is None else options.seed,
        stop_ids=tuple(dict.fromkeys((*eos_ids, *options.stop_token_ids))),
        ignore_eos=options.ignore_eos,
        logprobs=options.logprobs,
        prompt_logprobs=options.prompt_logprobs,
        **chosen,
    )
