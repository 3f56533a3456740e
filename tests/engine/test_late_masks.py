"""Late masks on real rows: whoever sits steps out draws the same tokens afterwards, and its neighbours draw theirs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.engine import Engine, FinishReason, open_engine
from llmrs_cli.engine import masks as module
from llmrs_cli.engine.backends.registry import open_backend
from llmrs_cli.engine.types import Request, SamplingParams, TokenEvent
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from tests.engine.test_masks import Hand
from tests.helpers.tiny_model import TinyModel, write_tiny

VOCAB = TinyModel.vocab


class Changing:
    """Allows a twentieth of the tokens, others after each."""

    def __init__(self, name: str) -> None:
        self._random = random.Random(name)
        self.tokens: list[int] = []

    def advance(self, token: int) -> None:
        self.tokens.append(token)

    def mask(self) -> NDArray[np.uint32]:
        flags = np.array([self._random.random() < 0.05 for _ in range(VOCAB)])
        flags[0] = True
        return np.packbits(flags, bitorder="little").view(np.uint32)


def ask(name: str, **changes: Any) -> Request:
    values = {"max_tokens": 14, "ignore_eos": True, "seed": 5, "temperature": 1.0} | changes
    prompt = tuple(7 * n % 300 + 1 for n in range(len(name) * 9))
    return Request(name, prompt, SamplingParams(**values), grammar="" if name.startswith("free") else name)


REQUESTS = [
    ask("free"),
    ask("free too", temperature=0.0, logprobs=2),
    ask("bound", temperature=0.0),
    ask("penalised", repetition_penalty=1.7, frequency_penalty=0.8, presence_penalty=0.3),
    ask("bound by a longer one", top_p=0.8, logprobs=1),
]


def answers(
    engine: Engine, lookahead: int, late: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[TokenEvent]]:
    """What each request gets if `late[n]` masks are computed before step n, and all of them from then on; the engine,
    whose grammars are `Changing`, is closed."""
    monkeypatch.setattr(module, "GRACE", 0)
    monkeypatch.setattr(module, "PAUSE", 0)
    hand = Hand()
    engine.lookahead = lookahead
    assert engine._grammars is not None
    engine._grammars.masks._pools = [hand] * 3
    hand.at_once = not late
    events: list[TokenEvent] = []
    for each in REQUESTS:
        engine.submit(each, engine.matcher(each))
    for most in late:
        hand.work(most)
        events += engine.step()
        engine.check()
    hand.at_once = True
    hand.work()
    while engine.has_work:
        events += engine.step()
    engine.check()
    engine.close()
    return {each.id: [event for event in events if event.request_id == each.id] for each in REQUESTS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("late"), TinyModel("qwen3", seed=3))


def some_late(seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.choice([0, 0, 0, 1, 2]) for _ in range(25)]


def check_alike(
    in_time: dict[str, list[TokenEvent]], found: dict[str, list[TokenEvent]], atol: float
) -> None:
    """Every request got the same tokens to its end, and the same scores."""
    for each in REQUESTS:
        right, given = ([token for e in told[each.id] for token in e.tokens] for told in (in_time, found))
        assert given == right, each.id
        assert len(given) == 14
        assert found[each.id][-1].finish is FinishReason.LENGTH
        scores = [[score.logprob for e in told[each.id] for score in e.logprobs] for told in (in_time, found)]
        np.testing.assert_allclose(scores[1], scores[0], atol=atol)


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_late_masks_change_no_token_of_anybody(
    model: Path, lookahead: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(lookahead: int, late: Sequence[int]) -> dict[str, list[TokenEvent]]:
        backend = open_backend("reference")
        engine = open_engine(open_checkpoint(model), backend, context=320, rows=8, grammars=Changing)
        return answers(engine, lookahead, late, monkeypatch)

    check_alike(told(0, ()), told(lookahead, some_late(seed)), atol=1e-5)
