"""Fields together: every pair of values of any two fields is asked for, and answered, or refused if it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from random import Random
from typing import Any

import pytest

from tests.helpers.served import Reply, Served

SHARED: dict[str, list[Any]] = {
    "temperature": [0, 0.7, 2],
    "top_p": [0, 0.5, 1],
    "top_k": [-1, 1, 20],
    "min_p": [0, 0.5, 1],
    "repetition_penalty": [0.5, 1, 1.3],
    "presence_penalty": [-2, 0, 2],
    "frequency_penalty": [-2, 0, 2],
    "logit_bias": [{}, {"5": 100, "6": -100}],
    "seed": [None, 0, -1],
    "min_tokens": [0, 2],
    "stop": [None, "world", ["x", "lo w"]],
    "stop_token_ids": [[], [5, 9]],
    "ignore_eos": [False, True],
    "n": [1, 3],
    "prompt_logprobs": [None, 2],
    "stream": [False, True],
    "return_token_ids": [False, True],
    "timings": [False, True],
    "skip_special_tokens": [False, True],
    "include_stop_str_in_output": [False, True],
    "response_format": [None, {"type": "json_object"}, {"type": "regex", "regex": "[a-f]{2,9}"}],
    "structured_outputs": [None, {"choice": ["a", "b"]}, {"regex": "[a-f]{2,9}"}],
    "stream_options": [None, {"include_usage": True}],
    "cache_salt": [None, "s"],
}
ASKED = [{"role": "user", "content": "hi"}]
BEGUN = [*ASKED, {"role": "assistant", "content": "F"}]
CHAT: dict[str, list[Any]] = SHARED | {
    "max_tokens": [None, 1, 6],
    "logprobs": [False, True],
    "top_logprobs": [None, 3],
    "tools": [
        None,
        [{"type": "function", "function": {"name": "f"}}],
        [{"type": "function", "function": {"name": "f", "strict": True}}],
    ],
    "tool_choice": [None, "none", "auto", "required"],
    "parallel_tool_calls": [None, True, False],
    "chat_template_kwargs": [None, {"enable_thinking": True}],
    "messages": [ASKED, BEGUN],
    "continue_final_message": [False, True],
}
COMPLETION: dict[str, list[Any]] = SHARED | {
    "prompt": ["say F", ["say F", "S"], [75, 76, 9], [[75], [76]]],
    "max_tokens": [None, 0, 1, 6],
    "logprobs": [None, 0, 3],
    "echo": [False, True],
    "parse_special": [False, True],
}
Pair = tuple[tuple[str, int], tuple[str, int]]
Is = Callable[[Any], bool]


def given(value: Any) -> bool:
    return value is not None


def absent(value: Any) -> bool:
    return value is None


def among(*values: Any) -> Is:
    return lambda value: any(type(value) is type(one) and value == one for one in values)


CLASHES: list[tuple[str, Is, str, Is]] = [
    ("stream", among(False), "stream_options", given),
    ("stream", among(True), "prompt_logprobs", given),
    ("response_format", given, "structured_outputs", given),
    ("min_tokens", among(2), "max_tokens", among(0, 1)),
    ("logprobs", among(False), "top_logprobs", given),
    ("tools", absent, "tool_choice", among("required")),
    ("tool_choice", among("required"), "response_format", given),
    ("tool_choice", among("required"), "structured_outputs", given),
    *(
        (own, runs_on, name, ends)
        for own, runs_on in (("ignore_eos", among(True)), ("min_tokens", among(2)))
        for name, ends in (
            *(("response_format", given), ("structured_outputs", given)),
            *(("tool_choice", among("required")), ("tools", lambda tools: "strict" in str(tools))),
        )
    ),
    ("continue_final_message", among(True), "messages", among(ASKED)),
    ("echo", among(False), "max_tokens", among(0)),
    ("echo", among(True), "prompt_logprobs", given),
    # What follows from these: one wants a stream and one does not, or an echo.
    ("prompt_logprobs", given, "stream_options", given),
    ("prompt_logprobs", given, "max_tokens", among(0)),
]
"""What means nothing together, and is refused."""


def clashes(fields: dict[str, list[Any]], pair: Pair) -> bool:
    values = {name: fields[name][i] for name, i in pair}
    return any(
        a in values and b in values and of_a(values[a]) and of_b(values[b]) for a, of_a, b, of_b in CLASHES
    )


def all_pairs(fields: dict[str, list[Any]]) -> set[Pair]:
    return {
        ((a, i), (b, j))
        for a, b in combinations(fields, 2)
        for i in range(len(fields[a]))
        for j in range(len(fields[b]))
    }


def covering(fields: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Bodies that together hold every pair of values that may be, each made greedily of pairs that are missing."""
    random = Random(0)
    missing = {pair for pair in all_pairs(fields) if not clashes(fields, pair)}
    bodies = []
    while missing:
        chosen: dict[str, int] = dict(random.choice(sorted(missing)))
        for name in random.sample([*fields], len(fields)):
            if name not in chosen:
                pairs = {
                    i: [_pair(fields, (name, i), other) for other in chosen.items()]
                    for i in range(len(fields[name]))
                }
                fit = [i for i in pairs if not any(clashes(fields, pair) for pair in pairs[i])]
                chosen[name] = max(fit, key=lambda i: sum(pair in missing for pair in pairs[i]))
        missing -= {_pair(fields, a, b) for a, b in combinations(chosen.items(), 2)}
        bodies.append({name: fields[name][i] for name, i in chosen.items()})
    return bodies


def _pair(fields: dict[str, list[Any]], a: tuple[str, int], b: tuple[str, int]) -> Pair:
    order = [*fields]
    return (a, b) if order.index(a[0]) < order.index(b[0]) else (b, a)


def ask(server: Served, path: str, body: dict[str, Any]) -> Reply:
    start = {"messages": ASKED} if path.startswith("/v1/chat") else {"prompt": "say F"}
    return server.post(path, {"max_tokens": 8, **start, **{k: v for k, v in body.items() if v is not None}})


PATHS = pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)],
    ids=["chat", "plain"],
)


@PATHS
def test_whatever_may_be_asked_for_together_is_answered(
    server: Served, path: str, fields: dict[str, list[Any]]
) -> None:
    for body in covering(fields):
        reply = ask(server, path, body)
        assert reply.status == 200, (body, reply.data)
        told = reply.events if body["stream"] else reply.json["choices"]
        assert told
        assert not any("error" in event for event in told)


@PATHS
def test_what_means_nothing_together_is_refused_by_name(
    server: Served, path: str, fields: dict[str, list[Any]]
) -> None:
    for pair in sorted(all_pairs(fields)):
        if clashes(fields, pair):
            body = {name: fields[name][i] for name, i in pair}
            reply = ask(server, path, body)
            assert (reply.status, reply.error["param"] in body) == (400, True), (body, reply.data)
