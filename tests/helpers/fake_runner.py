"""A runner without a model: its next token is a function of the KV contents that it was told to attend to.

Each slot remembers a digest of the tokens up to and including its own. A chunk first reads every slot
before its start, through the row's block table, as attention would; then it writes its own. A wrong
block, a stale slot, a wrong position or a row that misses a token gives another next token than `solo`
gives, and `FakeRunner` says at once which slot held what. Results come back in the order of the launches,
so a scheduler that runs behind can be driven with any delay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from llmrs_cli.engine.plan import Chunk, RowStart, Sampled, StepPlan, StepResult
from llmrs_cli.engine.types import FinishReason, Request, SamplingParams, TokenLogprob

PRIME = (1 << 61) - 1
VOCAB = 11
NAN = -1
"""Content of a slot whose chunk was poisoned."""


def digest(tokens: Sequence[int]) -> list[int]:
    """Content of the slots of `tokens`: each depends on its token and all before it."""
    contents, content = [], 17
    for token in tokens:
        content = (content * 1_000_003 + token + 1) % PRIME
        contents.append(content)
    return contents


def draw(contents: Sequence[int], params: SamplingParams, choice: int) -> int:
    """The token drawn after the attended `contents`."""
    mixed = sum(content * (position + 1) for position, content in enumerate(contents))
    return (mixed + params.seed * 7919 + choice * 104_729) % PRIME % VOCAB


def score(contents: Sequence[int], target: int) -> TokenLogprob:
    """A made-up log-probability of `target` after `contents`."""
    return TokenLogprob(target, -float(sum(contents) % 1009))


def solo(request: Request, context: int) -> tuple[list[int], FinishReason]:
    """The answer to `request` by plain recomputation: no blocks, rows, chunks or neighbours."""
    params, tokens = request.params, list(request.prompt_ids)
    end = min(len(tokens) + params.max_tokens, context)
    while len(tokens) < end:
        tokens.append(draw(digest(tokens), params, request.choice))
        if tokens[-1] in params.stop_ids and not params.ignore_eos:
            return tokens[len(request.prompt_ids) :], FinishReason.STOP
    return tokens[len(request.prompt_ids) :], FinishReason.LENGTH


def solo_scores(request: Request) -> tuple[TokenLogprob | None, ...]:
    """What prompt log-probabilities must be."""
    contents = digest(request.prompt_ids)
    return (None, *(score(contents[:i], request.prompt_ids[i]) for i in range(1, len(contents))))


@dataclass
class Row:
    """A row as the device keeps it."""

    start: RowStart
    tokens: list[int]
    table: list[int] = field(default_factory=list)
    ghost: bool = False
    """Its last token is a placeholder, which the same step again would overwrite."""


class FakeRunner:
    """Keeps rows and slots like a backend; `log` holds every plan that was launched."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.log: list[StepPlan] = []
        self.poisoned: set[str] = set()
        """Requests whose chunks write NaN from now on."""
        self.silent: Collection[str] = ()
        """Requests that draw nothing in the steps launched from now on: all tokens are masked."""
        self.closed = False
        self._rows: dict[int, Row] = {}
        self._slots: dict[int, int] = {}
        self._results: deque[StepResult] = deque()

    def launch(self, plan: StepPlan) -> None:
        assert plan.number == len(self.log) + 1, f"step {plan.number} after {len(self.log)}"
        self.log.append(plan)
        for start in plan.starts:
            self._rows[start.row] = Row(start, list(start.tokens))
        for grant in plan.grants:
            table = self._rows[grant.row].table
            assert grant.first == len(table), f"grant at {grant.first} of a table of {len(table)}"
            table += grant.blocks
        assert len({chunk.row for chunk in plan.chunks}) == len(plan.chunks), "a row twice in one step"
        attended = [self._attend(chunk) for chunk in plan.chunks]
        self._store(plan.chunks, attended)
        outcomes = [self._finish(chunk, seen) for chunk, seen in zip(plan.chunks, attended, strict=True)]
        self._results.append(StepResult(tuple(o[0] for o in outcomes), tuple(o[1] for o in outcomes)))

    def collect(self) -> StepResult:
        return self._results.popleft()

    def close(self) -> None:
        self.closed = True

    def _slot(self, row: Row, position: int) -> int:
        return row.table[position // self.block_size] * self.block_size + position % self.block_size

    def _attend(self, chunk: Chunk) -> list[int]:
        """Contents of positions 0 … start + count - 1, the chunk's own ones included."""
        row = self._rows[chunk.row]
        end = chunk.start + chunk.count
        if row.ghost and chunk.samples and end < len(row.tokens):
            row.tokens.pop()
            row.ghost = False
        assert end <= len(row.tokens), f"{chunk} ends past the row's {len(row.tokens)} tokens"
        assert chunk.samples == (end == len(row.tokens)), f"{chunk} of {len(row.tokens)} tokens"
        right = digest(row.tokens[:end])
        stored = [self._slots.get(self._slot(row, position)) for position in range(chunk.start)]
        for position, (is_, want) in enumerate(zip(stored, right, strict=False)):
            assert is_ in (want, NAN), f"{chunk}: position {position} holds {is_}, not {want}"
        bad = NAN in stored or chunk.request_id in self.poisoned
        return [NAN if bad else content for content in right]

    def _store(self, chunks: Sequence[Chunk], attended: Sequence[list[int]]) -> None:
        written: dict[int, Chunk] = {}
        for chunk, contents in zip(chunks, attended, strict=True):
            for position in range(chunk.start, chunk.start + chunk.count):
                slot = self._slot(self._rows[chunk.row], position)
                assert slot not in written, f"{chunk} and {written[slot]} write the same slot"
                written[slot] = chunk
                self._slots[slot] = contents[position]

    def _finish(self, chunk: Chunk, seen: list[int]) -> tuple[Sampled | None, tuple[TokenLogprob, ...]]:
        row = self._rows[chunk.row]
        first = chunk.start + 1
        scores = tuple(score(seen[:i], row.tokens[i]) for i in range(first, first + chunk.scored))
        if not chunk.samples:
            return None, scores
        if chunk.request_id in self.silent:
            row.tokens.append(0)
            row.ghost = True
            return Sampled(0, failed=True), scores
        token = draw(seen, row.start.params, row.start.choice)
        row.tokens.append(token)
        logprob = score(seen, token) if row.start.params.logprobs is not None else None
        return Sampled(token, logprob, failed=NAN in seen), scores
