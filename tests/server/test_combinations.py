"""Fields together: every pair of values of any two fields is asked for once, and each request has its answer."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Any

import pytest

from tests.helpers.served import Served

CHAT: dict[str, list[Any]] = {
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
    "max_tokens": [None, 1, 6],
    "stop": [None, "world", ["x", "lo w"]],
    "ignore_eos": [False, True],
    "n": [1, 3],
    "logprobs": [False, True],
    "top_logprobs": [None, 3],
    "prompt_logprobs": [None, 2],
    "stream": [False, True],
    "return_token_ids": [False, True],
    "timings": [False, True],
    "skip_special_tokens": [False, True],
    "include_stop_str_in_output": [False, True],
    "response_format": [None, {"type": "json_object"}, {"type": "regex", "regex": "[a-f]{2,9}"}],
    "tools": [None, [{"type": "function", "function": {"name": "f"}}]],
    "tool_choice": [None, "none", "auto", "required"],
    "cache_salt": [None, "s"],
}
Choice = tuple[tuple[str, int], ...]


def covering(fields: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Bodies that together hold every pair of values, each made greedily of pairs that are still missing."""
    random = Random(0)
    missing = {
        ((a, i), (b, j))
        for a, b in combinations(fields, 2)
        for i in range(len(fields[a]))
        for j in range(len(fields[b]))
    }
    bodies = []
    while missing:
        chosen: dict[str, int] = dict(random.choice(sorted(missing)))
        for name in random.sample([*fields], len(fields)):
            if name not in chosen:
                gains = [
                    sum(_pair(fields, (name, i), other) in missing for other in chosen.items())
                    for i in range(len(fields[name]))
                ]
                chosen[name] = gains.index(max(gains))
        missing -= {_pair(fields, a, b) for a, b in combinations(chosen.items(), 2)}
        bodies.append({name: fields[name][i] for name, i in chosen.items()})
    return bodies


def _pair(fields: dict[str, list[Any]], a: tuple[str, int], b: tuple[str, int]) -> Choice:
    order = [*fields]
    return (a, b) if order.index(a[0]) < order.index(b[0]) else (b, a)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_whatever_is_asked_for_together_is_answered_or_refused_by_name(server: Served, path: str) -> None:
    fields = (
        CHAT if "chat" in path else {k: v for k, v in CHAT.items() if not k.startswith(("to", "logprobs"))}
    )
    answered = refused = 0
    for body in covering(fields):
        start = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "say F"}
        reply = server.post(
            path, {"max_tokens": 8, **start, **{k: v for k, v in body.items() if v is not None}}
        )
        if reply.status == 200:
            answered += 1
            told = reply.events if body["stream"] else reply.json["choices"]
            assert told
            assert not any("error" in event for event in told)
        else:
            refused += 1
            assert (reply.status, reply.error["type"]) == (400, "invalid_request_error"), (body, reply.data)
            assert reply.error["param"] in fields
    assert answered >= 10
    assert refused < 3 * answered
