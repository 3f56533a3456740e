"""Every field of every request body, in tables: what it takes, and whether it is honoured (`fields`).

One table an endpoint; OpenAPI is made of the same ones.
"""

from __future__ import annotations

from typing import Any

from llmrs_cli.engine.types import BIAS_LIMIT, MAX_BIAS_ENTRIES, MAX_LOGPROBS, MAX_SEED, MAX_TEMPERATURE
from llmrs_cli.server.fields import Field, Standing, Table
from llmrs_cli.server.forms import STRUCTURED_OUTPUTS
from llmrs_cli.server.kinds import (
    Kind,
    array,
    either,
    flag,
    integer,
    number,
    one_of,
    plain_object,
    positive,
    record,
    refuse,
    text,
    texts,
)

MAX_CHOICES = 8
MAX_PROMPTS = 64
"""Prompts of one request, times choices."""
MAX_MESSAGES, MAX_TOOLS = 4096, 128
MAX_STOPS, MAX_STOP_LENGTH = 16, 256
MAX_PROMPT_LOGPROBS = 5
MAX_TOKENS_IN_LIST = 262_144
MAX_NAME = 256


def _bias() -> Kind:
    entry = number(-BIAS_LIMIT, BIAS_LIMIT)
    rule = f"an object of at most {MAX_BIAS_ENTRIES} token ids with numbers"

    def read(where: str, value: Any) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict) or len(value) > MAX_BIAS_ENTRIES:
            raise refuse(where, rule)
        if not all(key.isascii() and key.isdigit() and len(key) < 16 for key in value):
            raise refuse(where, "keyed by token ids")
        return tuple((int(key), entry.read(where, bias)) for key, bias in value.items())

    schema = {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,15}$"},
        "additionalProperties": entry.schema,
        "maxProperties": MAX_BIAS_ENTRIES,
    }
    return Kind(rule, read, schema)


def _stops() -> Kind:
    one = text(MAX_STOP_LENGTH, 1)
    kind = either("a text, or a list of at most 16", one, array(one, MAX_STOPS))

    def read(where: str, value: Any) -> tuple[str, ...]:
        stops = kind.read(where, value)
        return (stops,) if isinstance(stops, str) else stops

    return Kind(kind.rule, read, kind.schema)


def _refused(instead: str | None = None) -> Field:
    return Field(plain_object(), Standing.REFUSED, instead=instead)


def _inert(kind: Kind) -> Field:
    return Field(kind, Standing.INERT)


TOKEN_ID = integer(0)
TOKEN_IDS = array(TOKEN_ID, MAX_TOKENS_IN_LIST, 1)
MESSAGES = array(
    plain_object({"properties": {"role": {"type": "string"}}, "required": ["role"]}), MAX_MESSAGES, 1
)
TOOL = record(
    {
        "type": one_of("function"),
        "function": record(
            {
                "name": text(64, 1),
                "description": text(),
                "parameters": plain_object(),
                "strict": flag(),
            },
            ("name",),
        ),
    },
    ("type", "function"),
)
TOOL_CHOICE = either(
    '"none", "auto", "required" or a function',
    one_of("none", "auto", "required"),
    record(
        {"type": one_of("function"), "function": record({"name": text(64, 1)}, ("name",))},
        ("type", "function"),
    ),
)
OBFUSCATION = one_of(False)
"""Padding that hides the length of tokens from whoever sees their packets: there is none."""
STREAM_OPTIONS = record({"include_usage": flag(), "include_obfuscation": OBFUSCATION})
METADATA = texts(16, 64, 512)

SAMPLING: Table = {
    "temperature": Field(number(0.0, MAX_TEMPERATURE)),
    "top_p": Field(number(0.0, 1.0)),
    "top_k": Field(integer(-1)),
    "min_p": Field(number(0.0, 1.0)),
    "repetition_penalty": Field(positive(100.0)),
    "presence_penalty": Field(number(-2.0, 2.0)),
    "frequency_penalty": Field(number(-2.0, 2.0)),
    "logit_bias": Field(_bias()),
    "seed": Field(integer(-(2**63), MAX_SEED - 1)),
    "min_tokens": Field(integer(0)),
    "stop": Field(_stops()),
    "stop_token_ids": Field(array(TOKEN_ID, MAX_BIAS_ENTRIES)),
    "include_stop_str_in_output": Field(flag()),
    "ignore_eos": Field(flag()),
    "skip_special_tokens": Field(flag()),
    "n": Field(integer(1, MAX_CHOICES)),
    "prompt_logprobs": Field(integer(0, MAX_PROMPT_LOGPROBS)),
    "return_token_ids": Field(flag()),
    "timings": Field(flag()),
    "structured_outputs": Field(STRUCTURED_OUTPUTS),
    **dict.fromkeys(
        ("guided_json", "guided_json_object", "guided_regex", "guided_choice", "guided_grammar"),
        _refused("structured_outputs"),
    ),
    "guided_decoding_backend": _refused(),
    "guided_whitespace_pattern": _refused(),
    "cache_salt": Field(text(MAX_NAME, 1)),
    "stream": Field(flag()),
    "stream_options": Field(STREAM_OPTIONS),
    "user": _inert(text()),
}
"""Fields that chats and completions share."""

CHAT: Table = {
    "messages": Field(MESSAGES, required=True),
    "model": Field(text(MAX_NAME)),
    **SAMPLING,
    "max_tokens": Field(integer(1)),
    "max_completion_tokens": Field(integer(1)),
    "logprobs": Field(flag()),
    "top_logprobs": Field(integer(0, MAX_LOGPROBS)),
    "tools": Field(array(TOOL, MAX_TOOLS)),
    "tool_choice": Field(TOOL_CHOICE),
    "parallel_tool_calls": Field(flag()),
    "response_format": Field(plain_object({"required": ["type"]})),
    "chat_template_kwargs": Field(plain_object()),
    "add_generation_prompt": Field(flag()),
    "continue_final_message": Field(flag()),
    "metadata": _inert(METADATA),
    "store": _inert(one_of(False)),
    "safety_identifier": _inert(text()),
    "prompt_cache_key": _inert(text()),
    "service_tier": _inert(one_of("auto", "default")),
    "verbosity": _inert(one_of("medium")),
    "modalities": _inert(array(one_of("text"), 1)),
    "reasoning_effort": _refused(),
    "audio": _refused(),
    "function_call": _refused("tool_choice"),
    "functions": _refused("tools"),
    "moderation": _refused(),
    "prediction": _refused(),
    "prompt_cache_options": _refused(),
    "prompt_cache_retention": _refused(),
    "web_search_options": _refused(),
    "chat_template": _refused(),
    "best_of": _refused("n"),
    "use_beam_search": _refused(),
    "length_penalty": _refused(),
}


def _prompt() -> Kind:
    """One prompt or several, each a text or token ids; read into a tuple of prompts."""
    texts, lists = array(text(), MAX_PROMPTS, 1), array(TOKEN_IDS, MAX_PROMPTS, 1)
    kind = either(
        "a text, a list of texts, a list of token ids or a list of such lists",
        text(),
        TOKEN_IDS,
        texts,
        lists,
    )

    def read(where: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
        if isinstance(value, str):
            return (value,)
        first = value[0] if isinstance(value, list) and value else None
        if isinstance(first, str | list):
            prompts: tuple[Any, ...] = (texts if isinstance(first, str) else lists).read(where, value)
            return prompts
        return (TOKEN_IDS.read(where, value),)

    return Kind(kind.rule, read, kind.schema)


COMPLETION: Table = {
    "prompt": Field(_prompt(), required=True),
    "model": Field(text(MAX_NAME)),
    **SAMPLING,
    "max_tokens": Field(integer(0)),
    "logprobs": Field(integer(0, MAX_LOGPROBS)),
    "echo": Field(flag()),
    "best_of": Field(integer(1, MAX_CHOICES)),
    "parse_special": Field(flag()),
    "response_format": Field(plain_object({"required": ["type"]})),
    "suffix": _refused(),
    "use_beam_search": _refused(),
    "length_penalty": _refused(),
}

RENDER: Table = {name: CHAT[name] for name in ("messages", "model", "tools", "chat_template_kwargs")} | {
    "add_generation_prompt": Field(flag()),
    "continue_final_message": Field(flag()),
}

TOKENIZE: Table = {
    "model": Field(text(MAX_NAME)),
    "prompt": Field(text()),
    "messages": Field(MESSAGES),
    "tools": CHAT["tools"],
    "chat_template_kwargs": CHAT["chat_template_kwargs"],
    "add_special_tokens": Field(flag()),
    "parse_special": Field(flag()),
}
"""`prompt` or `messages`."""

DETOKENIZE: Table = {
    "model": Field(text(MAX_NAME)),
    "tokens": Field(array(TOKEN_ID, MAX_TOKENS_IN_LIST), required=True),
}

RESPONSE_TOOL = record(
    {
        "type": one_of("function"),
        "name": text(64, 1),
        "description": text(),
        "parameters": plain_object(),
        "strict": flag(),
    },
    ("type", "name"),
)
RESPONSE: Table = {
    "input": Field(
        either("a text or a list of items", text(), array(plain_object(), MAX_MESSAGES, 1)), required=True
    ),
    "model": Field(text(MAX_NAME)),
    "instructions": Field(text()),
    "max_output_tokens": Field(integer(1)),
    "temperature": Field(number(0.0, MAX_TEMPERATURE)),
    "top_p": Field(number(0.0, 1.0)),
    "stream": Field(flag()),
    "tools": Field(array(RESPONSE_TOOL, MAX_TOOLS)),
    "tool_choice": Field(
        either(
            '"none", "auto", "required" or a function',
            one_of("none", "auto", "required"),
            record({"type": one_of("function"), "name": text(64, 1)}, ("type", "name")),
        )
    ),
    "parallel_tool_calls": Field(flag()),
    "text": Field(record({"format": plain_object({"required": ["type"]}), "verbosity": one_of("medium")})),
    "metadata": Field(METADATA),
    "store": _inert(one_of(False)),
    "background": _inert(one_of(False)),
    "truncation": _inert(one_of("disabled")),
    "include": _inert(array(text(), 0)),
    "stream_options": _inert(record({"include_obfuscation": OBFUSCATION})),
    "service_tier": _inert(one_of("auto", "default")),
    "safety_identifier": _inert(text()),
    "prompt_cache_key": _inert(text()),
    "user": _inert(text()),
    **{
        name: _refused()
        for name in (
            *("access_programs", "background_options", "context_management", "conversation", "image"),
            *("max_tool_calls", "moderation", "previous_response_id", "prompt", "prompt_cache_options"),
            *("prompt_cache_retention", "reasoning", "top_logprobs"),
        )
    },
}
"""/v1/responses. Nothing is stored, so `store` may only be false, and earlier responses cannot be named."""
