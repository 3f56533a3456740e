"""One model under engines of many sizes: scaling, memory, budgets and who loads when."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.bench import workplace
from llmrs_cli.bench.workplace import Workplace
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.memory import SHARE
from llmrs_cli.engine.model.spec import from_config
from llmrs_cli.engine.types import Request, SamplingParams
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.engine.weights.random import random_checkpoint
from llmrs_cli.errors import DoesNotFitError
from tests.helpers.tiny_model import TinyModel, tiny_config

CHECKPOINT = random_checkpoint(from_config(tiny_config(TinyModel()), {}))


@pytest.fixture
def backend() -> Iterator[ReferenceBackend]:
    opened = ReferenceBackend()
    yield opened
    opened.close()


@pytest.fixture
def place(backend: ReferenceBackend) -> Workplace:
    return Workplace(CHECKPOINT, backend, memory=1 << 28)


@given(st.integers(0, 10_000), st.floats(1e-4, 1.0), st.integers(0, 50))
def test_a_scaled_count_is_a_share_of_it_and_never_too_little(count: int, scale: float, least: int) -> None:
    place = Workplace(CHECKPOINT, ReferenceBackend(), scale=scale, memory=1)
    found = place.scaled(count, least)
    assert found >= least
    assert found == least or abs(found - count * scale) <= 0.5


def test_at_full_scale_counts_are_what_they_are(place: Workplace) -> None:
    assert [place.scaled(count) for count in (1, 256, 32_768)] == [1, 256, 32_768]


def test_the_memory_is_a_share_of_what_is_free(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReferenceBackend, "free_bytes", lambda self: 1000)
    assert Workplace(CHECKPOINT, backend).memory == int(1000 * SHARE)
    assert Workplace(CHECKPOINT, backend, memory=77).memory == 77


def test_a_place_knows_its_model(place: Workplace) -> None:
    assert place.longest == TinyModel().context
    assert place.weights == sum(parameter.nbytes for parameter in CHECKPOINT.parameters.values())


def test_an_engine_has_the_rows_and_the_context_asked_for(place: Workplace) -> None:
    engine = place.stepped(5, 96)
    assert (engine.limits.rows, engine.limits.context) == (5, 96)
    engine.close()


def test_copies_of_weights_are_made_once_and_count_from_then_on(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ModelWeights] = []

    def copied(self: ReferenceBackend, model: ModelWeights) -> ModelWeights:
        made.append(model)
        return model

    monkeypatch.setattr(ReferenceBackend, "copy_bytes", lambda self, shape, form: 100)
    monkeypatch.setattr(ReferenceBackend, "copied", copied)
    for rows in (2, 3):
        place.stepped(rows, 64).close()
    assert len(made) == 1 and place._copies == 100 * len(CHECKPOINT.parameters)


def test_a_budget_holds_while_rows_decode_and_is_no_more_than_without(place: Workplace) -> None:
    usual = place.stepped(2, 64).limits
    small = place.stepped(2, 64, budget=7).limits
    assert small.busy_budget == 7
    assert small.idle_budget == usual.idle_budget
    large = place.stepped(2, 64, budget=usual.idle_budget + 100).limits
    assert large.busy_budget == large.idle_budget == usual.idle_budget + 100


def test_the_model_is_loaded_once_and_its_progress_is_told(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    loads: list[object] = []
    load = load_model

    def counting(*args: object) -> object:
        loads.append(args)
        return load(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(workplace, "load_model", counting)
    place = Workplace(CHECKPOINT, backend, memory=1 << 28, progress=lambda done, of: told.append((done, of)))
    for rows in (1, 2, 3):
        place.stepped(rows, 32).close()
    assert len(loads) == 1
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_engines_one_after_the_other_give_the_same_tokens(place: Workplace) -> None:
    prompt = (5, 9, 200, 17)
    found = []
    for rows in (1, 4):
        engine = place.stepped(rows, 32)
        engine.submit(Request("r", prompt, SamplingParams(6, ignore_eos=True)))
        tokens: list[int] = []
        while engine.has_work:
            for event in engine.step():
                tokens += event.tokens
        engine.close()
        found.append(tokens)
    assert len(found[0]) == 6
    assert found[0] == found[1]


def test_what_does_not_fit_is_refused_before_the_model_is_loaded(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(workplace, "load_model", never)
    place = Workplace(CHECKPOINT, backend, memory=1 << 10)
    with pytest.raises(DoesNotFitError):
        place.stepped(1, 64)


def test_a_thread_of_an_engine_ends_with_its_block(place: Workplace) -> None:
    with place.engine(1, 32) as thread:
        assert thread.vocab == TinyModel().vocab
    with place.engine(2, 64) as other:
        assert other.limits.rows == 2
