"""Request bodies to typed requests: the only place that knows both OpenAI's fields and our options.

Fields are read by the tables of `schema`; here they are put together, and combinations that mean nothing
are refused. No tokens, no model: what depends on those is checked where the request is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llmrs_cli.errors import RequestError
from llmrs_cli.server.fields import read_fields
from llmrs_cli.server.forms import asked_form
from llmrs_cli.server.kinds import refuse
from llmrs_cli.server.schema import CHAT, COMPLETION, MAX_PROMPT_LOGPROBS, MAX_PROMPTS
from llmrs_cli.text.generate import GenerateOptions

TEMPLATE_ARGUMENTS = ("enable_thinking", "thinking", "date_string", "tools_in_user_message", "add_vision_id")
"""Variables of published templates that a client may set."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an answer is to be handed over."""

    stream: bool = False
    include_usage: bool = False
    """A last chunk of a stream with the usage."""
    token_ids: bool = False
    timings: bool = False
    """With how long it took."""

    @property
    def with_figures(self) -> bool:
        """A stream has a last chunk that counts."""
        return self.include_usage or self.timings


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A body of /v1/chat/completions."""

    messages: tuple[dict[str, Any], ...]
    options: GenerateOptions
    delivery: Delivery
    model: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    """Those that the model may call; empty if it may not."""
    tool_choice: str = "none"
    """none, auto, required, or the name of a function"""
    parallel_calls: bool = True
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    continue_last: bool = False
    form_field: str = ""
    """Where the form of the answer was asked for."""
    salt: str = ""

    @property
    def must_call(self) -> bool:
        """The answer is a call of a tool."""
        return self.tool_choice not in ("none", "auto")

    @property
    def may_call_strictly(self) -> bool:
        """The answer may call tools, some of them with arguments of their schema and no others."""
        free = self.tool_choice == "auto" and not self.options.grammar
        return free and any(tool["function"].get("strict") for tool in self.tools)


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A body of /v1/completions."""

    prompts: tuple[str | tuple[int, ...], ...]
    options: GenerateOptions
    delivery: Delivery
    model: str | None = None
    echo: bool = False
    only_prompt: bool = False
    """max_tokens 0 with echo: the prompt is scored and nothing is added to it."""
    markers: bool = False
    """Special tokens written in a prompt are meant."""
    form_field: str = ""
    """Where the form of the answer was asked for."""
    salt: str = ""


def chat_request(body: Any) -> ChatRequest:
    """Raises RequestError naming the field."""
    given = read_fields(CHAT, body)
    form = asked_form(given)
    options = _options(given, form.grammar)
    top = given.get("top_logprobs")
    if given.get("logprobs"):
        options = replace(options, logprobs=top or 0)
    elif top:
        raise refuse("top_logprobs", "left out unless logprobs is true")
    if (limit := given.get("max_completion_tokens")) is not None:
        options = replace(options, max_tokens=limit)
    tools, choice = _tools(given)
    request = ChatRequest(
        messages=given["messages"],
        options=options,
        delivery=_delivery(given),
        model=given.get("model"),
        tools=tools,
        tool_choice=choice,
        parallel_calls=given.get("parallel_tool_calls", True),
        template_arguments=template_arguments(given),
        continue_last=continue_last(given),
        form_field=form.field,
        salt=given.get("cache_salt", ""),
    )
    if request.must_call and options.grammar:
        raise RequestError(f"tool_choice asks for a call, so there can be no {form.field}.", param=form.field)
    held = request.must_call or request.may_call_strictly
    return replace(request, form_field="tools") if held else request


def completion_request(body: Any) -> CompletionRequest:
    """Raises RequestError naming the field."""
    given = read_fields(COMPLETION, body)
    form = asked_form(given)
    options = _options(given, form.grammar)
    echo, only_prompt = given.get("echo", False), given.get("max_tokens") == 0
    if only_prompt and not echo:
        raise refuse("max_tokens", "at least 1, unless echo is true")
    if only_prompt:
        options = replace(options, max_tokens=1)
    prompts = given["prompt"]
    if len(prompts) * options.n > MAX_PROMPTS:
        raise refuse("prompt", f"a list of at most {MAX_PROMPTS} prompts, times n")
    if given.get("best_of", options.n) != options.n:
        raise RequestError("best_of must equal n.", code="unsupported", param="best_of")
    logprobs = given.get("logprobs")
    if echo and options.prompt_logprobs is not None:
        raise refuse("prompt_logprobs", "left out where echo is true, which scores the prompt with logprobs")
    if echo and logprobs is not None:
        if logprobs > MAX_PROMPT_LOGPROBS:
            raise refuse("logprobs", f"at most {MAX_PROMPT_LOGPROBS} where echo is true")
        options = replace(options, prompt_logprobs=logprobs)
    return CompletionRequest(
        prompts=prompts,
        options=replace(options, logprobs=logprobs),
        delivery=_delivery(given),
        model=given.get("model"),
        echo=echo,
        only_prompt=only_prompt,
        markers=given.get("parse_special", False),
        form_field=form.field,
        salt=given.get("cache_salt", ""),
    )


def continue_last(given: Mapping[str, Any]) -> bool:
    """Whether the last message is the beginning of the answer."""
    last: bool = given.get("continue_final_message", False)
    if given.get("add_generation_prompt", not last) is last:
        raise refuse("add_generation_prompt", "the opposite of continue_final_message")
    return last


def template_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """chat_template_kwargs, by allow-list."""
    arguments: dict[str, Any] = given.get("chat_template_kwargs", {})
    for name in arguments:
        if name not in TEMPLATE_ARGUMENTS:
            raise refuse(
                "chat_template_kwargs", f"an object with no names but {', '.join(TEMPLATE_ARGUMENTS)}"
            )
    return arguments


def _options(given: Mapping[str, Any], grammar: str) -> GenerateOptions:
    """What both endpoints call the same; both logprobs fields are left to the caller."""
    same = (
        *("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "n", "prompt_logprobs"),
    )
    options = {name: given[name] for name in same if name in given}
    if "seed" in given:
        options["seed"] = given["seed"] % 2**64
    if "top_k" in given:
        options["top_k"] = max(given["top_k"], 0)
    if given.get("max_tokens"):
        options["max_tokens"] = given["max_tokens"]
    return GenerateOptions(
        **options,
        grammar=grammar,
        include_stop=given.get("include_stop_str_in_output", False),
        specials=not given.get("skip_special_tokens", True),
    )


def _delivery(given: Mapping[str, Any]) -> Delivery:
    stream: bool = given.get("stream", False)
    if "stream_options" in given and not stream:
        raise refuse("stream_options", "left out unless stream is true")
    if stream and "prompt_logprobs" in given:
        raise refuse("prompt_logprobs", "left out of a stream")
    usage = given.get("stream_options", {}).get("include_usage", False)
    return Delivery(stream, usage, given.get("return_token_ids", False), given.get("timings", False))


def _tools(given: Mapping[str, Any]) -> tuple[tuple[dict[str, Any], ...], str]:
    """The tools that may be called, and which of them must be."""
    tools = given.get("tools", ())
    choice = given.get("tool_choice", "auto" if tools else "none")
    if not tools:
        if choice not in ("none", "auto"):
            raise refuse("tool_choice", "left out where there are no tools")
        return (), "none"
    if isinstance(choice, dict):
        choice = choice["function"]["name"]
        if choice not in {tool["function"]["name"] for tool in tools}:
            raise refuse("tool_choice", "the name of one of the tools")
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise refuse("tools", "functions of different names")
    return tools, choice
