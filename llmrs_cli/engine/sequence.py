"""One request on its way: what is known, computed, in flight, and which blocks hold it.

All index arithmetic of the scheduler stands here. Positions count from the start of the prompt:

    0 …… confirmed …… computed        KV that finished steps wrote; KV that launched steps write
    0 ……………………… len(tokens) …… known   ids on the host; ids that launched steps draw
                                            known never exceeds `limit`

A step brings `computed` closer to `known` and, on reaching it, draws one more token. Nothing here decides
who runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from enum import Enum, auto

from llmrs_cli.engine.blocks import Key, next_key
from llmrs_cli.engine.plan import BlockGrant, Chunk, RowStart
from llmrs_cli.engine.types import FinishReason, Request, TokenLogprob


class State(Enum):
    """WAITING ⇄ RUNNING → FINISHED; a waiting one holds neither row nor blocks."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """Tokens, blocks and progress of one request."""

    __slots__ = (
        "_keys",
        "_scoring",
        "arrival",
        "block_size",
        "blocks",
        "cached",
        "computed",
        "confirmed",
        "in_flight",
        "known",
        "limit",
        "prompt_length",
        "published",
        "request",
        "row",
        "scores",
        "state",
        "tokens",
    )

    def __init__(self, request: Request, arrival: int, limit: int, block_size: int, root: Key) -> None:
        self.request = request
        self.arrival = arrival
        """Age: requests are numbered as they arrive."""
        self.limit = limit
        """Length, in tokens, at which the sequence ends."""
        self.block_size = block_size
        self.state = State.WAITING
        self.tokens = array("I", request.prompt_ids)
        """Converted once: rows and keys are made of its bytes."""
        self.prompt_length = len(self.tokens)
        self.known = self.prompt_length
        """Tokens that exist, on the host or only on the device."""
        self.in_flight = 0
        """Chunks in such steps."""
        self.row = 0
        self.blocks: list[int] = []
        self.computed = 0
        self.confirmed = 0
        self.published = 0
        """Leading blocks that were handed to the prefix index."""
        self.cached: int | None = None
        """Prompt tokens that the prefix cache held when the sequence first ran."""
        self.scores: list[TokenLogprob] = []
        """Log-probabilities of prompt tokens 1, 2, …"""
        self._scoring = False
        self._keys = [root]
        """Root, then the key of each full block of `tokens`, as far as anybody asked."""

    # -- questions ------------------------------------------------------------------------------------

    @property
    def wanted(self) -> int:
        """Tokens to compute before the next one can be drawn; 0 when the last one is drawn."""
        known = self.known
        return known - self.computed if known < self.limit else 0

    @property
    def decoding(self) -> bool:
        """One token in, one token out: the prompt lies behind."""
        known = self.known
        return known == self.computed + 1 and self.prompt_length < known < self.limit

    @property
    def blocks_at_start(self) -> int:
        """Blocks that hold everything known now."""
        return self._blocks_for(self.known)

    @property
    def needs_block(self) -> bool:
        """The next token has no slot yet."""
        return self.computed >= len(self.blocks) * self.block_size

    @property
    def may_grow(self) -> bool:
        """It could still ask for a block before its end; the last token is never computed."""
        return self._blocks_for(self.limit - 1) > len(self.blocks)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    # -- prefix ---------------------------------------------------------------------------------------

    @property
    def shareable(self) -> int:
        """Leading full blocks that may come from the cache.

        Never all tokens: the last one is computed into a block of its own, for its logits. A request
        for prompt log-probabilities wants every prompt logit, so it shares nothing.
        """
        return 0 if self._wants_scores else (len(self.tokens) - 1) // self.block_size

    def key(self, index: int) -> Key:
        """Key of full block `index`; worked out when somebody asks, and once."""
        keys, size = self._keys, self.block_size
        while len(keys) <= index + 1:
            end = len(keys) * size
            keys.append(next_key(keys[-1], self.tokens[end - size : end]))
        return keys[index + 1]

    def will_publish(self, index: int, key: Key) -> bool:
        """A step still to come computes prompt block `index`, and its content is `key`."""
        return self.published <= index < self.prompt_length // self.block_size and self.key(index) == key

    def publishable(self, tokens: int) -> list[tuple[int, Key, Key]]:
        """(block, key, key before) of the full blocks within the first `tokens`, each given out once."""
        first, full = self.published, tokens // self.block_size
        if full <= first:
            return []
        self.published = full
        self.key(full - 1)
        return [(self.blocks[i], self._keys[i + 1], self._keys[i]) for i in range(first, full)]

    @property
    def completed_block(self) -> bool:
        """A block is full of confirmed tokens and not published yet."""
        return self.confirmed // self.block_size > self.published

    def known_keys(self) -> list[Key]:
        """Keys of all blocks that it ever published or found published."""
        return self._keys[1:]

    # -- running --------------------------------------------------------------------------------------

    def start(self, row: int, shared: int) -> RowStart:
        """Take a row; `grant` follows, with `shared` blocks of the prefix cache in front."""
        assert self.state is State.WAITING and not self.in_flight
        self.state = State.RUNNING
        self.row = row
        self.published = shared
        self.computed = self.confirmed = shared * self.block_size
        if self.cached is None:
            self.cached = self.computed
        self._scoring = self._wants_scores
        if self._scoring:
            self.scores.clear()
        request = self.request
        return RowStart(row, self.tokens[:], self.prompt_length, request.params, request.choice)

    def grant(self, blocks: Seq[int]) -> BlockGrant:
        """Append blocks to the table."""
        first = len(self.blocks)
        self.blocks += blocks
        return BlockGrant(self.row, first, tuple(blocks))

    def advance(self, count: int) -> Chunk:
        """The next `count` tokens are computed by the step being planned."""
        start, wanted = self.computed, self.wanted
        assert 0 < count <= wanted
        samples = count == wanted
        scored = max(0, min(start + count, self.prompt_length - 1) - start) if self._scoring else 0
        self.computed += count
        self.in_flight += 1
        self.known += samples
        return Chunk(self.request.id, self.row, start, count, samples, scored)

    def decode(self) -> Chunk:
        """`advance(1)` of a sequence that is `decoding`, without asking again what that implies."""
        start = self.computed
        self.computed = start + 1
        self.in_flight += 1
        self.known += 1
        return Chunk(self.request.id, self.row, start, 1, True)

    def retract(self, chunk: Chunk) -> Chunk:
        """The launched step of `chunk`, which samples, draws nothing after all: what is left of it. Its last token is to
        be computed again, for its logits."""
        assert chunk.samples and self.state is State.RUNNING
        self.computed -= 1
        self.known -= 1
        return chunk._replace(count=chunk.count - 1, samples=False)

    def land(self, chunk: Chunk, scores: Seq[TokenLogprob]) -> None:
        """The step of `chunk` has finished; its token, if it drew one, goes to `append`."""
        self.in_flight -= 1
        if scores:
            self.scores += scores
        if self.state is State.RUNNING:
            self.confirmed = chunk.start + chunk.count

    def append(self, token: int) -> FinishReason | None:
        """A drawn token has come back; whether it ends the sequence, and why."""
        self.tokens.append(token)
        params = self.request.params
        if token in params.stop_ids and not params.ignore_eos:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) == self.limit else None

    def prompt_scores(self) -> tuple[TokenLogprob | None, ...] | None:
        """One per prompt token, if the request asked; complete once a token has been drawn."""
        return (None, *self.scores) if self.request.params.prompt_logprobs is not None else None

    def stop(self, state: State) -> list[int]:
        """Give up the row and the blocks, which are returned; back to WAITING, or FINISHED for good.

        Steps in flight may still bring a token: a waiting sequence keeps it, a finished one does not.
        """
        blocks, self.blocks = self.blocks, []
        self.state = state
        self.computed = self.confirmed = self.published = 0
        return blocks

    @property
    def _wants_scores(self) -> bool:
        asked = self.request.params.prompt_logprobs is not None
        return asked and len(self.scores) < self.prompt_length - 1
