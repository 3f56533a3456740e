"""The readers that are fuzzed for long by `benchmarks.fuzz`: their seeds are right, and a little damage is survived."""

from __future__ import annotations

import random

import pytest

from benchmarks.fuzz import NAMES
from benchmarks.fuzz_targets import targets
from llmrs_cli.errors import LlmrsError

TARGETS = targets()


def damaged(seed: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, left out or doubled."""
    data = bytearray(seed)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2:
                data[at:at] = data[at : at + rng.randrange(1, 9)]
            case _:
                del data[at:]
    return bytes(data)


def test_every_target_has_its_name() -> None:
    assert tuple(TARGETS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_is_accepted_at_least_once(name: str) -> None:
    refused = 0
    for seed in TARGETS[name].seeds:
        try:
            TARGETS[name].run(seed)
        except LlmrsError:
            refused += 1
    assert refused < len(TARGETS[name].seeds)


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_survived_or_refused_in_our_words(name: str) -> None:
    rng = random.Random(name)
    for seed in TARGETS[name].seeds:
        for _ in range(25):
            TARGETS[name](damaged(seed, rng))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("reply", b'\x01\x01\x01\x00{"name": {"a": 1}}'),
        ("reply", b'\x00\x01\x01\x00<tool_call>{"name": ["f"]}</tool_call>'),
        ("form", b'z{"ch\x7fice": ["a", "b"]}'),
        ("form", b'a{"type": "json_object", "j s\x7fma": {}}'),
        ("request", b'\x00{"messages": [{"role": "user"}], "stream_options": {"a\xc2\x85b": 1}}'),
    ],
)
def test_what_a_fuzzer_found_once_stays_found(name: str, data: bytes) -> None:
    TARGETS[name](data)
