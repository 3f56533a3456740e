"""How much memory an engine takes on a GPU beside its KV blocks, to the buffer; arithmetic alone.

The activations of a step are the arena's buffers at the largest step (`Arena.expect`); the rest is row state,
logits, the sampler's and cuBLASLt's scratch, and what recorded graphs and loaded kernels take.
"""

from __future__ import annotations

from llmrs_cli.engine.backends.base import HEAD_ROWS, ModelSizes, RowLimits
from llmrs_cli.engine.backends.cuda_staging import DRAWN, PAGE, padded
from llmrs_cli.kernels import graphs, sample
from llmrs_cli.kernels.attend_decode import EXTRA
from llmrs_cli.kernels.gemm import WORKSPACE
from llmrs_cli.kernels.launch import ceil_div
from llmrs_cli.kernels.packed_wide_plans import PART_ROWS
from llmrs_cli.kernels.wide_plans import MOST_PARTS, MOST_TOKENS

CODE_BYTES = 256 << 20
"""For what kernels are themselves, cuBLASLt's included."""
LAUNCH_BYTES = 4 << 10
"""Of one launch in a recording, ample."""
LAYER_LAUNCHES = 16
"""Of a layer, or a head, at most: where no product takes what stands beside it along, and cuBLASLt sums in two launches."""
SHARED_SUMS = 64 << 20
"""For sums that blocks of one product share among them (`packed_large`)."""
DENSE_FORMS = ("float32", "float16", "bfloat16")


def workspace_bytes(model: ModelSizes, limits: RowLimits, multiprocessors: int) -> int:
    """Everything but weights and KV blocks."""
    beside = row_bytes(limits) + WORKSPACE + recorded_bytes(model, limits) + CODE_BYTES
    return step_bytes(model, limits, multiprocessors) + beside


def recorded_bytes(model: ModelSizes, limits: RowLimits) -> int:
    """Recordings, however long an engine runs and whatever it is asked."""
    bodies, heads = recordings(limits.rows)
    return LAUNCH_BYTES * LAYER_LAUNCHES * (bodies * model.layers + 2 * heads)


def recordings(rows: int) -> tuple[int, int]:
    """Bodies and heads that are held at most. Bodies: of steps that only decode, for each size one with either kind of
    attention, and as many others as have places. Heads: for each size one of all tokens, and those of chosen rows."""
    sizes = len({padded(count) for count in range(1, rows + 1)})
    return 2 * sizes + graphs.MOST, sizes + len(DRAWN)


def step_bytes(model: ModelSizes, limits: RowLimits, multiprocessors: int) -> int:
    """Buffers of the largest step, body and head."""
    body = activation_bytes(model, padded(limits.tokens))
    return body + head_bytes(model, limits, multiprocessors) + SHARED_SUMS


def activation_bytes(model: ModelSizes, tokens: int) -> int:
    """Buffers of a step's body."""
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    group = model.heads // model.kv_heads
    narrow = model.hidden + (queries + 2 * keys) + 2 * queries + 3 * model.ffn
    wide = model.hidden + group * (model.head_dim + EXTRA)
    scratch = model.hidden  # where cuBLASLt's candidates for a sum into the residual write
    parts = max(MOST_PARTS, ceil_div(model.hidden, PART_ROWS))
    ahead = MOST_TOKENS * (2 * model.hidden + 4 * parts)
    return tokens * (2 * narrow + 4 * (wide + scratch)) + ahead


def row_bytes(limits: RowLimits) -> int:
    """Tokens, block tables, penalty counts and sampling state of every row."""
    state = sample.STATE_WORDS + 2 * sample.MAX_BIASES + sample.MAX_STOPS
    words = limits.context + 1 + ceil_div(limits.context, PAGE) + state
    return limits.rows * (4 * words + 2 * ceil_div(limits.vocab, 2) * 2)


def head_bytes(model: ModelSizes, limits: RowLimits, multiprocessors: int) -> int:
    """Logits of one slice of rows, twice where log-probabilities are asked for, what these rows take of the body, and the
    sampler's scratch."""
    blocks = max(2 * multiprocessors, sample.capacity_for(HEAD_ROWS, model.vocab, multiprocessors))
    words = blocks * sample.PARTIAL_WORDS + HEAD_ROWS * (sample.MEETING_WORDS + sample.LIST_WORDS)
    chosen = HEAD_ROWS * (4 * model.hidden + 2 * model.heads * model.head_dim)
    return 2 * 4 * HEAD_ROWS * model.vocab + chosen + 4 * words


def copy_bytes(shape: tuple[int, ...], form: str) -> int:
    """A 16-bit copy of a matrix of 4-bit codes; others have none."""
    return 2 * shape[0] * shape[1] if len(shape) == 2 and form.startswith("4-bit") else 0


def weight_bytes(shape: tuple[int, ...], form: str, nbytes: int) -> int:
    """A parameter on the GPU: 16-bit matrices, float32 vectors, 4-bit codes as they are with a little more."""
    if len(shape) == 1:
        return 4 * shape[0]
    if form in DENSE_FORMS or not form.startswith("4-bit"):
        return 2 * shape[0] * shape[1]
    return nbytes * 9 // 8
