"""Greedy generation through the runner, all prompts in one batch: no scheduler, no end tokens."""

from __future__ import annotations

from collections.abc import Sequence

from llmrs_cli.engine.backends.base import Backend, RowLimits
from llmrs_cli.engine.backends.handles import ModelWeights
from llmrs_cli.engine.plan import BlockGrant, Chunk, RowStart, StepPlan
from llmrs_cli.engine.runner import Runner
from llmrs_cli.engine.types import SamplingParams


def generate(
    backend: Backend,
    model: ModelWeights,
    vocab: int,
    prompts: Sequence[Sequence[int]],
    count: int,
    params: SamplingParams | None = None,
) -> list[list[int]]:
    """`count` tokens after each prompt; greedy unless `params` say otherwise."""
    context = max(map(len, prompts)) + count
    width = -(-context // backend.block_size)
    geometry = model.layers[0].geometry
    kv = backend.alloc_kv(len(model.layers), width * len(prompts), geometry.kv_heads, geometry.head_dim)
    runner = Runner(backend, model, kv, backend.open_rows(RowLimits(len(prompts), context, vocab)))
    params = params or SamplingParams(max_tokens=count)
    starts = [RowStart(row, tuple(ids), len(ids), params, 0) for row, ids in enumerate(prompts)]
    grants = [BlockGrant(row, 0, tuple(range(row * width, (row + 1) * width))) for row in range(len(prompts))]
    chunks = [Chunk(f"r{row}", row, 0, len(ids), True) for row, ids in enumerate(prompts)]
    runner.launch(StepPlan(1, tuple(starts), tuple(grants), tuple(chunks)))
    steps = [runner.collect()]
    for number in range(1, count):
        chunks = [Chunk(f"r{row}", row, len(ids) + number - 1, 1, True) for row, ids in enumerate(prompts)]
        runner.launch(StepPlan(number + 1, (), (), tuple(chunks)))
        steps.append(runner.collect())
    return [
        [one.token for one in row if one is not None] for row in zip(*(s.sampled for s in steps), strict=True)
    ]
