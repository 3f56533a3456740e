"""What went wrong in other servers with prefix caches, full pools and long prompts, tried on ours over the wire.

The models are small random ones, whose answers depend on every token before. An answer alone, and cold, is one under a
cache salt of its own.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from typing import Any

import numpy as np
import pytest

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.memory import plan_memory, weight_bytes
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from tests.helpers.served import JSON, Reply, Served, served, wait_until
from tests.helpers.tiny_model import TinyModel, write_tiny

BLOCK = ReferenceBackend.block_size
SALTS = (f"alone {number}" for number in count())
RANDOM = np.random.default_rng(7)
PROMPT = RANDOM.integers(0, 300, 3 * BLOCK + 5).tolist()


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def roomy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Memory for all that these tests ask for."""
    folder = write_tiny(tmp_path_factory.mktemp("roomy"), TinyModel(request.param))
    with served(folder, tmp_path_factory.mktemp("server"), "--rows", "4") as server:
        yield server


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A context of six blocks, and memory for eight."""
    folder = write_tiny(tmp_path_factory.mktemp("narrow"), TinyModel("qwen3"))
    checkpoint, backend = open_checkpoint(folder), ReferenceBackend()
    plan = plan_memory(
        checkpoint.spec, backend, weight_bytes(checkpoint, backend), context=6 * BLOCK, rows=2, memory=2**30
    )
    memory = plan.weights + plan.workspace + 8 * plan.kv // plan.limits.blocks
    flags = ("--ctx", str(6 * BLOCK), "--rows", "2", "--gpu-memory", f"{math.ceil(memory / 1024)}K")
    with served(folder, tmp_path_factory.mktemp("server"), *flags) as server:
        assert server.metric("kv_cache_blocks") == 8
        yield server


def body(prompt: list[int], tokens: int = 8, **fields: Any) -> dict[str, Any]:
    plain = {"temperature": 0, "ignore_eos": True, "logprobs": 2, "return_token_ids": True}
    return {"prompt": prompt, "max_tokens": tokens, **plain, **fields}


def ask(server: Served, prompt: list[int], tokens: int = 8, **fields: Any) -> Reply:
    return server.post("/v1/completions", body(prompt, tokens, **fields))


def alone(server: Served, prompt: list[int], tokens: int = 8, **fields: Any) -> Reply:
    """Of a request that finds nothing in the cache."""
    return ask(server, prompt, tokens, cache_salt=next(SALTS), **fields)


def cached(reply: Reply) -> int:
    tokens: int = reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def same(one: Reply, other: Reply) -> None:
    """The same tokens, with the same scores but for the order in which sums were taken."""
    first, second = (reply.json["choices"][0] for reply in (one, other))
    assert first["token_ids"] == second["token_ids"]
    assert first["text"] == second["text"]
    scores = [[s or 0.0 for s in choice["logprobs"]["token_logprobs"]] for choice in (first, second)]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)


# -- the prefix cache ------------------------------------------------------------------------------------


def test_a_warm_cache_gives_what_a_cold_one_gives(roomy: Served) -> None:
    longer = [*PROMPT, *RANDOM.integers(0, 300, BLOCK + 3).tolist()]
    akin = [*PROMPT[:BLOCK], *RANDOM.integers(0, 300, 2 * BLOCK).tolist()]
    salt = next(SALTS)
    for prompt, found in (
        (PROMPT, 0),
        (PROMPT, 3),
        (PROMPT, 3),
        (longer, 3),
        (akin, 1),
        (longer, 4),
        (PROMPT, 3),
    ):
        warm = ask(roomy, prompt, cache_salt=salt)
        assert cached(warm) == found * BLOCK
        same(warm, alone(roomy, prompt))


def test_a_cached_prompt_is_scored_alike(roomy: Served) -> None:
    fields = {"echo": True, "logprobs": 1, "cache_salt": next(SALTS)}
    first = ask(roomy, PROMPT, 1, **fields)
    ask(roomy, PROMPT, 4, cache_salt=fields["cache_salt"])
    again = ask(roomy, PROMPT, 1, **fields)
    assert len(first.json["choices"][0]["logprobs"]["token_logprobs"]) == len(PROMPT) + 1
    same(first, again)


def test_who_leaves_in_the_middle_of_its_prompt_leaves_nothing_half_done(roomy: Served) -> None:
    chance = random.Random(1)
    prompt = RANDOM.integers(0, 300, 480).tolist()
    right = alone(roomy, prompt)
    for _ in range(5):
        salt = next(SALTS)
        with closing(roomy.connect()) as connection:
            data = json.dumps(body(prompt, cache_salt=salt)).encode()
            connection.request("POST", "/v1/completions", data, JSON)
            for _ in range(chance.randrange(4)):
                roomy.get("/health/live")
        same(ask(roomy, prompt, cache_salt=salt), right)
    roomy.settle()


# -- a pool that is too small for all --------------------------------------------------------------------


def test_two_requests_that_do_not_fit_together_both_end_as_if_alone(narrow: Served) -> None:
    shared = RANDOM.integers(0, 300, 2 * BLOCK).tolist()
    prompts = [[*shared, *RANDOM.integers(0, 300, 5).tolist()] for _ in range(2)]
    right = [alone(narrow, prompt, 50) for prompt in prompts]
    before = narrow.metric("num_preemptions_total")
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            salt = next(SALTS)
            replies = pool.map(lambda prompt: ask(narrow, prompt, 50, cache_salt=salt), prompts)  # noqa: B023
            for reply, one in zip(replies, right, strict=True):
                same(reply, one)
    assert narrow.metric("num_preemptions_total") > before
    narrow.settle()


def test_a_prompt_that_never_fits_is_refused_with_both_numbers_and_holds_nobody_up(narrow: Served) -> None:
    reply = ask(narrow, PROMPT * 3)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert str(3 * len(PROMPT)) in reply.error["message"]
    assert str(6 * BLOCK) in reply.error["message"]
    assert ask(narrow, PROMPT[:10]).status == 200
    assert narrow.get("/v1/models").json["data"][0]["max_model_len"] == 6 * BLOCK


# -- long prompts and short ones -------------------------------------------------------------------------


def test_a_short_request_passes_long_ones_and_these_end_as_if_alone(roomy: Served) -> None:
    """Their prompts are longer than what a step computes while anything decodes."""
    long = [RANDOM.integers(0, 300, 300).tolist() for _ in range(2)]
    right = [alone(roomy, prompt, 200) for prompt in long]
    with ThreadPoolExecutor(3) as pool:
        busy = pool.submit(ask, roomy, PROMPT[:3], 400)
        wait_until(lambda: roomy.metric("num_requests_running") == 1)
        asked = [pool.submit(alone, roomy, prompt, 200) for prompt in long]
        wait_until(lambda: roomy.metric("num_requests_running") == 3 or busy.done())
        assert ask(roomy, PROMPT[:10], 1).status == 200
        assert not any(one.done() for one in asked)
        for one, alike in zip(asked, right, strict=True):
            same(one.result(), alike)
    roomy.settle()
