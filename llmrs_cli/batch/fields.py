"""Fields of a row or request body that say how to generate: their kinds, and what they are called with us.

Only kinds are checked here (a number is a number); ranges are checked where requests are made, once for every
front end. `null` means absent. What resembles a field but is none is never passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llmrs_cli.errors import RequestError

if TYPE_CHECKING:
    from llmrs_cli.text.forms import AnswerForm

MAX_CHOICES = 128
LONGEST = 64
"""Characters of a key that may be a slip for one of ours."""

_FOREIGN = {
    "temp": "temperature",
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "stop_sequences": "stop",
    "best_of": "n",
    "guided_json": "structured_outputs",
    "guided_regex": "structured_outputs",
    "guided_choice": "structured_outputs",
    "guided_grammar": "structured_outputs",
}
"""What other tools call our fields."""


def read_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Generation options among `fields`, under our names and of the right kinds.

    Raises RequestError naming the field. Two names for one option must not both be given.
    """
    options: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None or name not in OPTIONS:
            continue
        target, convert = OPTIONS[name]
        converted = convert(name, value)
        if target is None:
            continue
        if target in options:
            raise refuse(name, "given twice, under two names")
        options[target] = converted
    if "top_logprobs" in options:
        return _with_alternatives(options)
    return options


def nearest_option(name: str, known: frozenset[str]) -> str | None:
    """The known field that `name` was probably meant to be, or None if it is something else."""
    return None if len(name) > LONGEST else _nearest(name, known)


@lru_cache(maxsize=1024)
def _nearest(name: str, known: frozenset[str]) -> str | None:
    """Rows of one file have the same keys, so it is asked again and again."""
    plain = name.lower().replace("-", "_")
    if plain in _FOREIGN:
        return _FOREIGN[plain]
    near = get_close_matches(plain, sorted(known), n=1, cutoff=0.8)
    return near[0] if near else None


def refuse(name: str, rule: str, code: str = "invalid_value") -> RequestError:
    """An error that names the field."""
    return RequestError(f"The field {name!r} is {rule}.", code=code, param=name)


def _with_alternatives(options: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's pair for chats, logprobs: true and top_logprobs: k, as one number."""
    alternatives = options.pop("top_logprobs")
    if "logprobs" not in options:
        raise refuse("top_logprobs", "only allowed with logprobs")
    return options | {"logprobs": alternatives}


# -- kinds --------------------------------------------------------------------------------------------


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise refuse(name, "not a finite number")
    return float(value)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(name, "not an integer")
    return value


def _choices(name: str, value: Any) -> int:
    count = _integer(name, value)
    if not 1 <= count <= MAX_CHOICES:
        raise refuse(name, f"not between 1 and {MAX_CHOICES}")
    return count


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refuse(name, "neither true nor false")
    return value


def _stop(name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise refuse(name, "neither a text nor a list of texts")
    if "" in texts:
        raise refuse(name, "or holds an empty text, which every answer contains")
    return tuple(texts)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise refuse(name, "not a list of token ids")
    return tuple(_integer(name, token) for token in value)


def _bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict) or not all(key.isascii() and key.isdigit() for key in value):
        raise refuse(name, "not an object of token ids and numbers")
    return tuple((int(key[:20]), _number(name, bias)) for key, bias in value.items())


def _logprobs(name: str, value: Any) -> int | None:
    """true (OpenAI chats) reports the drawn token alone; a number adds that many alternatives."""
    if isinstance(value, bool):
        return 0 if value else None
    return _integer(name, value)


def _template_arguments(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse(name, "not an object")
    return value


def _form(name: str, value: Any) -> AnswerForm:
    from llmrs_cli.text.forms import answer_form

    return answer_form(value)


def _structure(name: str, value: Any) -> AnswerForm:
    from llmrs_cli.text.forms import structured_form

    return structured_form(value)


def _only(*accepted: Any) -> Callable[[str, Any], None]:
    """A field that is understood but has one value so far."""

    def check(name: str, value: Any) -> None:
        if value not in accepted:
            raise refuse(name, "not supported here with this value", code="unsupported")

    return check


OPTIONS: Mapping[str, tuple[str | None, Callable[[str, Any], Any]]] = {
    "temperature": ("temperature", _number),
    "top_p": ("top_p", _number),
    "top_k": ("top_k", _integer),
    "min_p": ("min_p", _number),
    "repetition_penalty": ("repetition_penalty", _number),
    "presence_penalty": ("presence_penalty", _number),
    "frequency_penalty": ("frequency_penalty", _number),
    "logit_bias": ("logit_bias", _bias),
    "seed": ("seed", _integer),
    "max_tokens": ("max_tokens", _integer),
    "max_completion_tokens": ("max_tokens", _integer),
    "min_tokens": ("min_tokens", _integer),
    "stop": ("stop", _stop),
    "stop_token_ids": ("stop_token_ids", _ids),
    "ignore_eos": ("ignore_eos", _boolean),
    "n": ("n", _choices),
    "logprobs": ("logprobs", _logprobs),
    "top_logprobs": ("top_logprobs", _integer),
    "chat_template_kwargs": ("chat_template_kwargs", _template_arguments),
    "response_format": ("form", _form),
    "structured_outputs": ("form", _structure),
    "stream": (None, _only(False)),
    "tools": (None, _only([])),
    "tool_choice": (None, _only("none", "auto")),
}
"""Field of a row → (our name, or None if it changes nothing; how its value is read)."""

IGNORED = frozenset({"model", "user", "metadata", "store", "service_tier", "safety_identifier"})
"""Fields of an OpenAI request that do not change an answer."""
