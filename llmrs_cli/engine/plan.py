"""What one step will compute and what it gave: the values that pass between scheduler and runner.

Plain Python only, no arrays: the scheduler makes a `StepPlan`, the runner turns it into arrays, and a
`StepResult` comes back for `Scheduler.commit`. Nothing here decides anything.

A *row* is a slot of device-resident state (tokens, block table, sampling state) that a sequence holds
while it runs. `starts` and `grants` are edits to rows, applied in order before the chunks are computed.

What is made for every row in every step is a tuple: a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llmrs_cli.engine.types import SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True)
class RowStart:
    """A sequence takes a row: when first admitted, and again after a preemption."""

    row: int
    tokens: Sequence[int]
    """Every token known so far: the prompt, and what was generated before a preemption."""
    prompt_length: int
    params: SamplingParams
    choice: int


@dataclass(frozen=True, slots=True)
class BlockGrant:
    """KV blocks appended to a row's table from entry `first` on."""

    row: int
    first: int
    blocks: tuple[int, ...]


class Chunk(NamedTuple):
    """Tokens `start … start + count - 1` of a row, computed in this step.

    The last of them may be a token that an earlier, still running step samples: its id is only on the
    device. `samples` says that this chunk ends at the row's last token, so that a new one is drawn.
    """

    request_id: str
    row: int
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    samples: bool
    scored: int = 0
    """The first `scored` tokens of the chunk want their logits compared with the token that follows
    (prompt log-probabilities); 0 unless the request asked."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of the engine. Empty only when there is nothing to do."""

    number: int
    """Steps count from 1; a plan is launched and committed in this order."""
    starts: tuple[RowStart, ...]
    grants: tuple[BlockGrant, ...]
    chunks: tuple[Chunk, ...]

    @property
    def tokens(self) -> int:
        """T: tokens computed in this step."""
        return sum(chunk.count for chunk in self.chunks)


class Sampled(NamedTuple):
    """The token drawn for one chunk with `samples`."""

    token: int
    logprob: TokenLogprob | None = None
    failed: bool = False
    """The row's logits held a NaN or no finite value: the token is a placeholder."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave, in the order of the plan's chunks."""

    sampled: tuple[Sampled | None, ...]
    """One per chunk; None where the chunk does not sample."""
    scored: tuple[tuple[TokenLogprob, ...], ...] = ()
    """One tuple per chunk (empty where nothing was asked), or () if no chunk asked."""
