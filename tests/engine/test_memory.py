"""The memory plan: what fits is taken, what does not is refused with its sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine import open_engine
from llmrs_cli.engine.backends.base import RowLimits, Sizes
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.memory import MemoryPlan, copy_bytes, model_sizes, plan_memory, size, weight_bytes
from llmrs_cli.engine.model.spec import ModelSpec, from_config
from llmrs_cli.engine.weights.random import random_checkpoint
from llmrs_cli.errors import DoesNotFitError, UsageError

MIB = 1 << 20
SPEC = from_config(
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
    },
    {},
)
BLOCK_BYTES = 2 * 4 * 8 * 16 * 4 * 32
"""Keys and values, float32, 8 layers, 16 tokens, 4 heads of 32: 128 KiB."""


class Machine(ReferenceBackend):
    """So much free memory, and such usual sizes."""

    def __init__(self, free: int, **sizes: Any) -> None:
        self.free = free
        self.sizes = replace(Sizes(rows=4, context=1024, kv_bytes=26 * MIB), **sizes)  # type: ignore[misc]

    def free_bytes(self) -> int:
        return self.free


def plan(
    free: int = 10_000 * MIB, spec: ModelSpec = SPEC, weights: int = 50 * MIB, **wishes: Any
) -> MemoryPlan:
    sizes = wishes.pop("sizes", {})
    return plan_memory(spec, Machine(free, **sizes), weights, **wishes)


def test_by_default_the_cache_is_as_large_as_the_backend_says() -> None:
    limits = plan().limits
    assert (limits.rows, limits.context, limits.block_size) == (4, 1024, 16)
    assert limits.blocks == 26 * MIB // BLOCK_BYTES == 208


def test_one_full_context_always_fits_even_beyond_the_usual_size() -> None:
    assert plan(context=8192).limits.blocks == 8192 // 16


def test_a_large_model_gets_a_larger_cache() -> None:
    assert plan(weights=60 * MIB).limits.blocks * BLOCK_BYTES == 30 * MIB


@pytest.mark.parametrize(
    "wishes", [{"rows": 4, "context": 1024}, {"memory": 5_000 * MIB}, {"sizes": {"kv_bytes": None}}]
)
def test_exact_wishes_get_a_context_for_each_row(wishes: dict[str, Any]) -> None:
    assert plan(**wishes).limits.blocks == 4 * 1024 // 16


def test_the_cache_takes_no_more_than_is_left() -> None:
    limits = plan(memory=100 * MIB, rows=64).limits
    workspace = Machine(0).workspace_bytes(model_sizes(SPEC), RowLimits(64, 1024, 1000, tokens=512))
    room = 100 * MIB - 50 * MIB - workspace
    assert limits.blocks == room // BLOCK_BYTES < 64 * 64


def test_a_context_that_nobody_asked_for_shrinks_to_what_fits() -> None:
    made = plan(memory=61 * MIB)
    assert 512 <= made.limits.context < 1024
    assert made.limits.blocks * 16 >= made.limits.context
    assert made.weights + made.workspace + made.kv <= 61 * MIB
    assert made.limits.cut_from == 1024


def test_a_context_that_is_as_it_should_be_is_not_called_cut() -> None:
    assert plan().limits.cut_from == 0
    assert plan(context=600).limits.cut_from == 0
    assert plan(spec=replace(SPEC, max_context=200)).limits.cut_from == 0


def test_the_bytes_of_a_token_are_those_of_its_keys_and_values() -> None:
    assert plan().limits.token_bytes == BLOCK_BYTES // 16


def test_a_model_with_a_short_context_keeps_it() -> None:
    assert plan(spec=replace(SPEC, max_context=200)).limits.context == 200


def test_a_context_that_was_asked_for_is_refused_with_all_sizes() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        plan(memory=58 * MIB, context=4096)
    assert str(caught.value).startswith(
        "A context of 4096 tokens does not fit: weights 50 MiB + workspace 6 MiB + KV cache 32 MiB"
        " = 88 MiB, available 58 MiB. Choose"
    )


def test_a_model_larger_than_memory_is_refused() -> None:
    with pytest.raises(DoesNotFitError, match="weights 50 MiB .* available 36 MiB"):
        plan(free=40 * MIB)


@pytest.mark.parametrize("context", [0, 1, 8193])
def test_a_context_that_the_model_does_not_have_is_refused(context: int) -> None:
    with pytest.raises(UsageError, match=f"from 2 to 8192 tokens, not {context}"):
        plan(context=context)


def test_budgets_grow_with_the_rows() -> None:
    limits = plan(rows=400).limits
    assert (limits.busy_budget, limits.idle_budget) == (800, 800)
    assert (plan().limits.busy_budget, plan().limits.idle_budget) == (64, 512)


def test_no_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 for rows"):
        plan(rows=0)


@pytest.mark.parametrize(("count", "text"), [(3 * MIB, "3 MiB"), (3 << 29, "1.5 GiB"), (-MIB, "-1 MiB")])
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert size(count) == text


def test_memory_that_is_not_there_cannot_be_asked_for() -> None:
    with pytest.raises(DoesNotFitError, match="5.9 GiB of memory were asked for; 4.9 GiB are free"):
        plan(free=5_000 * MIB, memory=6_000 * MIB)


def test_a_backend_may_know_its_workspace_and_weights_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "workspace_bytes", lambda self, model, limits: limits.tokens * model.hidden)
    assert plan().workspace == 512 * 256
    monkeypatch.setattr(Machine, "weight_bytes", lambda self, shape, form, nbytes: nbytes // 2)
    checkpoint = random_checkpoint(SPEC)
    stored = sum(parameter.nbytes for parameter in checkpoint.parameters.values())
    assert weight_bytes(checkpoint, Machine(0)) == stored // 2
    assert weight_bytes(checkpoint, ReferenceBackend()) == stored


@given(
    free=st.integers(60, 2_000),
    weights=st.integers(1, 50),
    context=st.none() | st.integers(2, 8192),
    rows=st.none() | st.integers(1, 64),
    asked=st.booleans(),
)
def test_a_plan_fits_or_is_refused(
    free: int, weights: int, context: int | None, rows: int | None, asked: bool
) -> None:
    """One context at least, one for each row at most, and never more than there is."""
    memory = free * MIB if asked else None
    try:
        made = plan(free * MIB, weights=weights * MIB, context=context, rows=rows, memory=memory)
    except DoesNotFitError as error:
        assert f"weights {weights} MiB" in str(error)
        return
    limits, one = made.limits, -(-made.limits.context // 16)
    assert made.weights + made.workspace + made.kv <= made.available <= free * MIB
    assert one <= limits.blocks <= one * limits.rows
    assert made.kv == limits.blocks * BLOCK_BYTES
    assert limits.context == context if context else 512 <= limits.context <= 1024
    assert limits.rows == (rows or 4)
    assert limits.idle_budget >= limits.busy_budget >= 2 * limits.rows
    assert limits.cut_from in (0, 1024)
    assert bool(limits.cut_from) == (context is None and limits.context < 1024)


@given(st.lists(st.integers(70, 1_000), min_size=2, max_size=2), st.none() | st.integers(2, 4096))
def test_more_memory_never_makes_a_smaller_engine(memory: list[int], context: int | None) -> None:
    def blocks(size: int) -> tuple[int, int]:
        try:
            limits = plan(2_000 * MIB, context=context, memory=size * MIB).limits
        except DoesNotFitError:
            return 0, 0
        return limits.context, limits.blocks

    less, more = (blocks(size) for size in sorted(memory))
    assert less[0] <= more[0] and less[1] <= more[1]


@given(copies=st.integers(1, 200), memory=st.integers(100, 2_000))
def test_copies_of_weights_take_at_most_an_eighth_of_what_is_left(copies: int, memory: int) -> None:
    made = plan(2_000 * MIB, memory=memory * MIB, context=512, rows=512, copies=copies * MIB)
    left = made.available - made.weights - made.workspace
    assert made.copies == (copies * MIB if 8 * copies * MIB <= left else 0)
    assert made.kv <= left - made.copies
    assert (f" + copies {size(made.copies)} + " in str(made)) == bool(made.copies)
    whole = made.weights + made.copies + made.workspace + made.kv
    assert f"= {size(whole)}, available {size(made.available)}" in str(made)


class Copying(Machine):
    """Would like so many bytes of copies for each parameter."""

    each = 1 << 10

    def copy_bytes(self, shape: tuple[int, ...], form: str) -> int:
        return self.each

    def copied(self, model: ModelWeights) -> ModelWeights:
        self.made = True
        return super().copied(model)


@pytest.mark.parametrize(("each", "made"), [(1 << 10, True), (1 << 30, False)])
def test_an_engine_has_copies_where_the_plan_says_so(each: int, made: bool) -> None:
    checkpoint, backend = random_checkpoint(SPEC), Copying(2_000 * MIB)
    backend.each, backend.made = each, False
    assert copy_bytes(checkpoint, backend) == each * len(checkpoint.parameters)
    assert copy_bytes(checkpoint, Machine(0)) == 0
    open_engine(checkpoint, backend, context=64, rows=2).close()
    assert backend.made == made


def test_memory_that_a_model_holds_already_counts_as_free() -> None:
    with pytest.raises(DoesNotFitError):
        plan(free=40 * MIB)
    assert plan(free=40 * MIB, held=50 * MIB).available == 90 * MIB * 9 // 10
    assert plan(free=40 * MIB, held=50 * MIB, memory=90 * MIB).available == 90 * MIB
