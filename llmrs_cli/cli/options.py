"""Groups of options that arrive in a command as one frozen value each.

    @model_options      MODEL or -m, --device, --ctx, --rows, --gpu-memory, …         →  model: ModelOptions
    @sampling_options   how an answer is drawn                                        →  sampling: Sampling
    @quiet_option       -q                                                            →  quiet: bool

The root command's `auto_envvar_prefix` gives each of them a variable LLMRS_<COMMAND>_<FLAG>. Values are
checked here as far as they can be without a model, so that messages name the flag.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

from llmrs_cli.cli import complete
from llmrs_cli.cli.parameters import AliasedOption, FiniteRange, bias, device, memory, some_text, tokens
from llmrs_cli.engine.types import BIAS_LIMIT, MAX_SEED, MAX_TEMPERATURE
from llmrs_cli.errors import UsageError

if TYPE_CHECKING:
    from llmrs_cli.text.generate import SamplingDefaults

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model, where, and how much of it."""

    model: str | None
    """As typed; None: the default model."""
    device: str | None = None
    """auto, cuda, cuda:N, cpu or reference; None: what the settings say"""
    ctx: int | None = None
    """Tokens of prompt and answer; None: what the model and the memory allow."""
    rows: int | None = None
    """Sequences that run at once; None: what the command and the backend find good."""
    offline: bool = False
    revision: str | None = None
    gpu_memory: int | float | None = None
    """Bytes, or a share of what is free, for weights and everything else; None: most of what is free."""
    deterministic: bool = False
    quantize_head: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the command line says about drawing tokens; None: not said, so the model's own value holds."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repeat_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    stop: tuple[str, ...]
    stop_token_id: tuple[int, ...]
    logit_bias: tuple[tuple[int, float], ...]
    ignore_eos: bool

    def given(self) -> dict[str, Any]:
        """What was said, by the names of the request fields (`repetition_penalty`, `stop_token_ids`)."""
        renamed = {"repeat_penalty": "repetition_penalty", "stop_token_id": "stop_token_ids"}
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {
            renamed.get(name, name): value
            for name, value in values
            if not (value is None or value is False or value == ())
        }


def over(defaults: SamplingDefaults, given: Mapping[str, Any]) -> SamplingDefaults:
    """`defaults` with what was `given` (by field name) in their place; for the line that says how tokens are drawn."""
    names = {field.name for field in fields(defaults)} - {"from_model"}
    said = {name: value for name, value in given.items() if name in names and value is not None}
    return replace(defaults, **said, from_model=defaults.from_model and said.keys() != names)


def model_options(*, positional: bool = True, required: bool = False, runs: bool = True) -> Decorator:
    """Adds the model group; the command takes it as `model: ModelOptions`.

    `positional`: the model may be the command's first argument; `required`: it must be named; `runs`: the
    command runs it, so where and with how much room may be said.
    """
    parameters: list[Decorator] = [
        click.option(
            "-m",
            "--model",
            "model",
            metavar="MODEL",
            shell_complete=complete.models,
            help="Alias, owner/repo, folder or .gguf file.",
        ),
        *([*_room(USUAL), *_ENGINE] if runs else []),
        click.option("--offline", is_flag=True, help="Use only what is on this machine."),
        revision_option,
    ]
    if positional:
        parameters.insert(
            0,
            click.argument(
                "positional_model",
                metavar="MODEL" if required else "[MODEL]",
                required=False,
                shell_complete=complete.models,
            ),
        )

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def with_model(**values: Any) -> Any:
            chosen = _choose_model(values.pop("positional_model", None), values.pop("model"), required)
            given = {name: values.pop(name) for name in MODEL_FIELDS if name in values}
            return function(model=ModelOptions(chosen, **given), **values)

        return _apply(parameters, with_model)

    return decorate


MODEL_FIELDS = (
    "device",
    "ctx",
    "rows",
    "offline",
    "revision",
    "gpu_memory",
    "deterministic",
    "quantize_head",
)
"""Of ModelOptions, but for the model: the names of the flags that fill them."""


def _choose_model(positional: str | None, named: str | None, required: bool) -> str | None:
    if positional is not None and named is not None and _is_typed("model"):
        raise UsageError(f"Two models are named, {positional!r} and {named!r}.", hint="Name one of them.")
    chosen = positional if positional is not None else named
    if chosen is None and required:
        raise UsageError("No model is named.", hint="Name one, such as smollm2-135m.")
    if chosen is not None and not chosen.strip():
        raise UsageError("The name of the model is empty.", hint="Name one, such as smollm2-135m.")
    return chosen


def _is_typed(parameter: str) -> bool:
    """Whether a value stands on the command line, rather than in a variable."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE


def sampling_options(function: Function) -> Function:
    """Adds every flag of drawing tokens; the command takes them as `sampling: Sampling`."""

    @functools.wraps(function)
    def with_sampling(**values: Any) -> Any:
        group = Sampling(**{field.name: values.pop(field.name) for field in fields(Sampling)})
        return function(sampling=group, **values)

    return _apply(_SAMPLING, with_sampling)


def quiet_option(function: Function) -> Function:
    """Adds -q; the command takes it as `quiet: bool`."""
    return click.option("-q", "--quiet", is_flag=True, help="No notices, progress or figures on stderr.")(
        function
    )


def room_options(function: Function) -> Function:
    """Adds --device, --ctx and --rows: where a model is to run and how much room it needs beside its weights."""
    return _apply(_room("2k"), function)


def json_option(function: Function) -> Function:
    """Adds --json; the command takes it as `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def removal_options(function: Function) -> Function:
    """Adds -y and -n; the command takes them as `yes: bool` and `dry_run: bool`."""
    function = click.option("-n", "--dry-run", is_flag=True, help="Say what would be removed.")(function)
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(function)


revision_option: Decorator = click.option(
    "--revision", metavar="REV", help="Branch, tag or commit of a Hub repository."
)


USUAL = "4k on a CPU, 32k on a GPU, less where model or memory end before"
"""Tokens of context, in words."""


def _apply(parameters: Sequence[Callable[[Any], Any]], function: Function) -> Function:
    for parameter in reversed(parameters):
        function = parameter(function)
    return function


def _room(usual: str) -> list[Decorator]:
    """What decides how much memory a model takes. `usual`: the context where nobody asks for one."""
    return [
        click.option(
            "--device",
            type=device,
            metavar="DEVICE",
            shell_complete=complete.one_of("auto", "cuda", "cpu", "reference"),
            help="auto, cuda, cuda:N, cpu or reference.",
        ),
        click.option(
            "--ctx",
            cls=AliasedOption,
            aliases=("--ctx-size", "--context-length", "--num-ctx", "--max-model-len"),
            type=tokens,
            metavar="N",
            help=f"Tokens of prompt and answer, such as 4096 or 8k (= 8192). Default: {usual}.",
        ),
        click.option(
            "--rows",
            cls=AliasedOption,
            aliases=("--parallel",),
            type=click.IntRange(1, 4096),
            metavar="N",
            help="Sequences that run at once.",
        ),
    ]


_ENGINE: list[Decorator] = [
    click.option(
        "--gpu-memory",
        cls=AliasedOption,
        aliases=("--memory", "--gpu-memory-utilization"),
        type=memory,
        metavar="SIZE",
        help="For weights, workspace and KV cache: 40GiB, or a share of what is free such as 0.8.",
    ),
    click.option(
        "--deterministic",
        is_flag=True,
        help="On a GPU: the same bits for a request whatever runs beside it, more slowly.",
    ),
    click.option(
        "--quantize-head",
        is_flag=True,
        help="Round the head to 8 bits: less to read for each token, logits off by about half a percent.",
    ),
]
_PENALTY = FiniteRange(-2.0, 2.0)
_SHARE = FiniteRange(0.0, 1.0)
_SAMPLING: list[Decorator] = [
    click.option(
        "-t",
        "--temperature",
        cls=AliasedOption,
        aliases=("--temp",),
        type=FiniteRange(0.0, MAX_TEMPERATURE),
        metavar="X",
        help="0 takes the likeliest token. Default: the model's own, else 0.7.",
    ),
    click.option("--top-p", type=_SHARE, metavar="X", help="Keep the likeliest tokens that hold this share."),
    click.option(
        "--top-k",
        type=click.IntRange(0),
        metavar="N",
        help="Keep this many of the likeliest tokens; 0 keeps all.",
    ),
    click.option(
        "--min-p", type=_SHARE, metavar="X", help="Drop tokens below this share of the likeliest one."
    ),
    click.option(
        "--repeat-penalty",
        cls=AliasedOption,
        aliases=("--repetition-penalty",),
        type=FiniteRange(0.0, min_open=True),
        metavar="X",
        help="Above 1, make tokens that were seen less likely.",
    ),
    click.option(
        "--presence-penalty", type=_PENALTY, metavar="X", help="Subtracted once from tokens of the answer."
    ),
    click.option("--frequency-penalty", type=_PENALTY, metavar="X", help="Subtracted per use in the answer."),
    click.option(
        "--seed", type=click.IntRange(0, MAX_SEED - 1), metavar="N", help="Makes the draw repeatable."
    ),
    click.option(
        "--max-tokens",
        cls=AliasedOption,
        aliases=("--num-predict", "--n-predict", "--max-new-tokens"),
        type=click.IntRange(1),
        metavar="N",
        help="Tokens of the answer at most.",
    ),
    click.option("--min-tokens", type=click.IntRange(0), metavar="N", help="Tokens of the answer at least."),
    click.option(
        "--stop",
        type=some_text,
        metavar="TEXT",
        multiple=True,
        help="End the answer before this text; repeatable.",
    ),
    click.option(
        "--stop-token-id",
        type=click.IntRange(0),
        metavar="N",
        multiple=True,
        help="End at this token id; repeatable.",
    ),
    click.option(
        "--logit-bias",
        type=bias,
        multiple=True,
        metavar="ID:BIAS",
        help=f"Add to a token's logit, at most {BIAS_LIMIT:g} either way; repeatable.",
    ),
    click.option("--ignore-eos", is_flag=True, help="Do not end at the model's end token."),
]
