"""Is a backend right about a model? A teacher-forced comparison with the reference, token by token.

The backend under test has generated greedily; the reference makes one pass over prompt + answer. Its best
token must be the one generated wherever its margin (best logit minus the generated token's) exceeds a bound;
below that, rounding may decide. The first difference comes with both backends' logits and with the first
fused op whose output strays, found by running both decoders side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.engine.backends.base import Backend, Hidden
from llmrs_cli.engine.backends.registry import open_backend
from llmrs_cli.engine.forced import ForcedReader, Loaded, load
from llmrs_cli.engine.model.decoder import run_head
from llmrs_cli.engine.model.spec import from_config
from llmrs_cli.engine.saturation import Saturations
from llmrs_cli.engine.weights.random import random_checkpoint
from llmrs_cli.errors import EngineFault

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Bound:
    """What rounding may explain on a backend."""

    margin: float
    """Logits: a smaller lead of the reference's token decides nothing."""
    error: float
    """‖Δ‖/‖x‖ of an op's output or of logits."""


BOUNDS = {
    ("reference", "float32"): Bound(1e-3, 1e-5),
    ("cpu", "float32"): Bound(0.02, 1e-4),
    ("cuda", "float16"): Bound(0.1, 3e-3),
    ("cuda", "bfloat16"): Bound(0.5, 2e-2),
}
"""By backend and dtype of its activations."""


def bound_for(backend: str, dtype: str | None) -> Bound:
    """The bound of a backend on a model of `dtype` (as stored; bfloat16 if nobody says)."""
    activations = (dtype or "bfloat16") if backend == "cuda" else "float32"
    return BOUNDS[backend, "float16" if activations == "float32" and backend == "cuda" else activations]


@dataclass(frozen=True, slots=True)
class Difference:
    """A token that the reference would not have drawn."""

    position: int
    """Counts tokens of the answer from 0."""
    expected: int
    found: int
    expected_logits: tuple[float, float]
    """Of the expected token: by the reference, by the backend under test."""
    found_logits: tuple[float, float]
    """The same of the token that was generated."""
    culprit: str | None = None
    """The first op whose output strays, such as "layer 3 attend"; None if only rounding adds up."""

    @property
    def margin(self) -> float:
        """By how much the reference prefers its own token."""
        return self.expected_logits[0] - self.found_logits[0]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one answer."""

    tokens: int
    close: int
    """Positions where the two best logits of the reference lie within the bound: either would do."""
    error: float
    """Largest ‖Δlogits‖/‖logits‖ of a position."""
    difference: Difference | None
    saturated: Mapping[str, int] = field(default_factory=dict)
    """Activations at the end of their 16-bit type, by place; see `engine.saturation`."""

    @property
    def agrees(self) -> bool:
        return self.difference is None


def compare(
    tested: Loaded, reference: Loaded, prompt: Sequence[int], answer: Sequence[int], bound: Bound
) -> Verdict:
    """Check `answer`, which the tested backend generated greedily after `prompt` (token ids, not empty)."""
    ids = [*prompt, *answer]
    right = forced_logits(reference, ids, len(prompt))
    watched = Saturations(tested.backend, len(ids) - 1)
    ours = forced_logits(tested, ids, len(prompt), watched)
    error = float(np.max(_relative(ours, right)))
    at = first_difference(right, answer, bound.margin)
    difference = None
    if at is not None:
        best, found = int(right[at].argmax()), answer[at]
        difference = Difference(
            position=at,
            expected=best,
            found=found,
            expected_logits=(float(right[at, best]), float(ours[at, best])),
            found_logits=(float(right[at, found]), float(ours[at, found])),
            culprit=find_culprit(tested, reference, ids[: len(prompt) + at], bound.error),
        )
    return Verdict(len(answer), _count_close(right, bound.margin), error, difference, watched.counts)


def first_difference(logits: Logits, answer: Sequence[int], margin: float) -> int | None:
    """The first position of (P, V) `logits` whose best token leads `answer`'s by more than `margin`."""
    drawn = np.take_along_axis(logits, np.asarray(answer)[:, None], axis=1)[:, 0]
    wrong = np.flatnonzero(~(logits.max(axis=1) - drawn <= margin))  # a NaN is wrong as well
    return int(wrong[0]) if len(wrong) else None


def forced_logits(loaded: Loaded, ids: Sequence[int], first: int, ops: Any = None) -> Logits:
    """(len(ids) - first, V): what the model expects at each position from `first` on, in one pass.

    `ops`: what the decoder calls instead of the backend.
    """
    body, step = ForcedReader(loaded, len(ids)).read(ids, ops)
    backend = loaded.backend if ops is None else ops
    return _to_host(run_head(backend, loaded.model, body, step.scored_tokens[first - 1 :]))


def find_culprit(tested: Loaded, reference: Loaded, ids: Sequence[int], error: float) -> str | None:
    """The first fused op over `ids` whose output differs by more than `error`, or None."""
    if len(ids) < 2:
        return None
    ours, right = _record(tested, ids), _record(reference, ids)
    for (name, mine), (_, theirs) in zip(ours, right, strict=True):
        if mine is None or theirs is None:
            continue
        if not float(np.max(_relative(mine, theirs))) <= error:
            return name
    return None


Seen = list[tuple[str, NDArray[np.float32] | None]]
"""What each op of a pass gave, by its place in the model."""


def _record(loaded: Loaded, ids: Sequence[int]) -> Seen:
    """All layers over all but the last of `ids`."""
    recorder = _Recorder(loaded.backend, len(ids) - 1)
    body, step = ForcedReader(loaded, len(ids)).read(ids, recorder)
    run_head(recorder, loaded.model, body, step.scored_tokens)  # type: ignore[arg-type]
    return recorder.seen


class _Recorder:
    """A backend that keeps what each fused op of the decoder gives, as numbers of the first `tokens` tokens."""

    def __init__(self, backend: Backend, tokens: int) -> None:
        self._backend = backend
        self._looks = backend.looks()
        self._tokens = tokens
        self.seen: Seen = []

    def choose(self, *arguments: Any) -> Any:
        return self._backend.choose(*arguments)

    def head(self, hidden: Hidden, *_: Any) -> Any:
        """Logits have been compared before."""
        return hidden.residual

    def __getattr__(self, op: str) -> Callable[..., Any]:
        call = getattr(self._backend, op)

        def recorded(*arguments: Any) -> Any:
            result = call(*arguments)
            changed = (
                next((x for x in arguments if isinstance(x, Hidden)), None) if result is None else result
            )
            values = changed.residual if isinstance(changed, Hidden) else changed
            self.seen.append((_place(op, len(self.seen)), self._looks.numbers(values, self._tokens)))
            return result

        return recorded


_LAYER_OPS = 5
_OUTPUTS = ("o projection", "down projection")


def _place(op: str, count: int) -> str:
    """Where the `count`-th call of a pass stands: the embedding, then five ops a layer."""
    if count == 0:
        return "embedding"
    layer, index = divmod(count - 1, _LAYER_OPS)
    return f"layer {layer} {_OUTPUTS[index // 4] if op == 'project_add' else op}"


def _relative(ours: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float64]:
    """‖ours - right‖/‖right‖ of each row."""
    mine, theirs = (x.reshape(len(x), -1).astype(np.float64) for x in (ours, right))
    norms: NDArray[np.float64] = np.linalg.norm(mine - theirs, axis=1) / np.maximum(
        np.linalg.norm(theirs, axis=1), 1e-30
    )
    return norms


def _count_close(logits: Logits, margin: float) -> int:
    two = np.partition(logits, -2, axis=1)[:, -2:]
    return int(np.count_nonzero(two[:, 1] - two[:, 0] <= margin))


def _to_host(values: Any) -> NDArray[np.float32]:
    """A copy in NumPy; device arrays know how to come over."""
    host = values.get() if hasattr(values, "get") else values
    return np.array(host, np.float32)


# -- self-test ----------------------------------------------------------------------------------------

_SELF_TEST = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float16",
    "hidden_act": "silu",
}
_SELF_TEST_TOKENS = 96


def self_test(device: str) -> float:
    """Run a small random model on `device` and on the reference; ‖Δlogits‖/‖logits‖ at worst.

    Raises EngineFault if the error is over the bound, and whatever the backend raises.
    """
    checkpoint = random_checkpoint(from_config(_SELF_TEST, None))
    ids = np.random.default_rng(0).integers(0, checkpoint.spec.vocab, _SELF_TEST_TOKENS).tolist()
    with closing(open_backend(device)) as backend, closing(open_backend("reference")) as reference:
        ours = forced_logits(load(checkpoint, backend), ids, 1)
        right = forced_logits(load(checkpoint, reference), ids, 1)
        bound = bound_for(backend.name, checkpoint.spec.dtype)
    error = float(np.max(_relative(ours, right)))
    if not error <= bound.error:
        raise EngineFault(
            f"It computes wrongly: relative error {error:.1e}, at most {bound.error:.0e} is right."
        )
    return error
