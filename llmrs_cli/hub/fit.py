"""Whether a model fits in memory, from its configuration alone: before the first byte of weights is fetched.

    needed = weights + KV cache + reserve

Weights are counted as they lie in memory: 16 bits a parameter, or packed codes with their group scales and
zeros where the configuration says that the linears are quantised. The KV cache holds a key and a value of
every layer and KV head for each token of the context, times the requests that run at once. A sliding window
is not taken off: that errs on the safe side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llmrs_cli.engine.model.spec import ModelSpec, from_config
from llmrs_cli.errors import DoesNotFitError, quoted
from llmrs_cli.hub.aliases import ALIASES, BUILT_IN
from llmrs_cli.hub.bring import Check
from llmrs_cli.hub.files import size_text

RESERVE = 256 << 20
"""Bytes for activations, workspace and code, beside weights and cache."""
LEAST_CONTEXT = 2048
"""Tokens that must fit where the user asked for no context; the engine then takes as many as there is room for."""
GPU_DEFAULT = "qwen2.5-3b"
"""The model where none is named and a GPU holds it; otherwise the built-in one."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A memory plan; all sizes in bytes, contexts in tokens."""

    weights: int
    kv_per_token: int
    """0 where nothing but the files' size is known."""
    context: int
    """Tokens per request that were asked for."""
    parallel: int
    """Requests that run at once."""
    model_context: int
    """Tokens that the model was made for."""
    free: int

    @property
    def kv(self) -> int:
        """The KV cache of all requests at full length."""
        return self.kv_per_token * self.context * self.parallel

    @property
    def needed(self) -> int:
        """All of it."""
        return self.weights + self.kv + RESERVE

    @property
    def fits(self) -> bool:
        """Whether it is free."""
        return self.needed <= self.free

    @property
    def largest_context(self) -> int:
        """The longest context per request that would fit, at most the model's; 0 if the weights do not."""
        room = self.free - self.weights - RESERVE
        return max(0, min(self.model_context, room // max(1, self.kv_per_token * self.parallel)))


def plan(
    config: Mapping[str, object],
    *,
    free: int,
    context: int | None = None,
    parallel: int = 1,
    weights: int | None = None,
    kv_itemsize: int = 2,
) -> Fit:
    """The memory plan of the model that `config` (config.json) describes.

    `weights` is the size of its files where known; else it is computed. `kv_itemsize`: bytes of a cached
    value. Raises ModelError if the configuration is not one that we can run.
    """
    spec = from_config(config)
    return Fit(
        weights=weight_bytes(spec, config) if weights is None else weights,
        kv_per_token=2 * spec.layers * spec.kv_heads * spec.head_dim * kv_itemsize,
        context=min(spec.max_context, LEAST_CONTEXT) if context is None else context,
        parallel=parallel,
        model_context=spec.max_context,
        free=free,
    )


def weight_bytes(spec: ModelSpec, config: Mapping[str, object]) -> int:
    """Bytes of the weights in memory."""
    heads = (
        spec.heads + 2 * spec.kv_heads
    ) * spec.head_dim * spec.hidden + spec.heads * spec.head_dim * spec.hidden
    linears = spec.layers * (heads + 3 * spec.hidden * spec.ffn)
    tables = spec.vocab * spec.hidden * (1 if spec.tied_head else 2)
    norms = (2 * spec.layers + 1) * spec.hidden
    plain = 4 if spec.dtype == "float32" else 2
    return int(linears * _bytes_per_weight(config, plain)) + (tables + norms) * plain


def _bytes_per_weight(config: Mapping[str, object], plain: int) -> float:
    """Of a linear: its code, and its share of the group's scale (16 bits) and zero point."""
    match config.get("quantization_config"):
        case {"bits": int(bits), "group_size": int(group)} if bits > 0:
            return bits / 8 + (2 + bits / 8) / group if group > 0 else bits / 8
        case _:
            return plain


def require_fit(fit: Fit, name: str) -> None:
    """Raise DoesNotFitError unless `fit` fits, saying what would: a shorter context, or another variant."""
    if fit.fits:
        return
    parts = f"weights {size_text(fit.weights)}, KV cache {size_text(fit.kv)} for {fit.context:,} tokens"
    if not fit.kv_per_token:
        parts = f"weights {size_text(fit.weights)}, before any KV cache"
    elif fit.parallel > 1:
        parts += f" × {fit.parallel} requests"
    raise DoesNotFitError(
        f"{quoted(name)} needs {size_text(fit.needed)} of memory ({parts}), and {size_text(fit.free)} are free.",
        hint=_way_out(fit, name),
    )


def fit_check(name: str, *, free: int, context: int | None, parallel: int = 1, kv_itemsize: int = 2) -> Check:
    """A check for `store.locate`: refuses a model that does not fit before its weights are fetched."""

    def check(config: Mapping[str, object], weights: int) -> None:
        if not config:  # a lone GGUF file says what it is only once it is here; its size is known
            fit = Fit(weights, kv_per_token=0, context=0, parallel=parallel, model_context=0, free=free)
        else:
            fit = plan(
                config,
                free=free,
                context=context,
                parallel=parallel,
                weights=weights,
                kv_itemsize=kv_itemsize,
            )
        require_fit(fit, name)

    return check


def default_model(gpu_free: int | None) -> str:
    """The alias to use where none is named; `gpu_free` bytes on the GPU, None: there is none to use."""
    if gpu_free is not None and plan(ALIASES[GPU_DEFAULT].config, free=gpu_free).fits:
        return GPU_DEFAULT
    return BUILT_IN


def _way_out(fit: Fit, name: str) -> str:
    if fit.largest_context >= LEAST_CONTEXT:
        return f"It fits with --ctx {_round_down(fit.largest_context)}."
    for other in _variants(name):
        if plan(ALIASES[other].config, free=fit.free, parallel=fit.parallel).fits:
            return f"{other} fits."
    return "Free some memory, or take a smaller model."


def _round_down(context: int) -> int:
    return context // 1024 * 1024


def _variants(name: str) -> Iterator[str]:
    """Aliases to offer in place of `name`, of the same maker if it has any: larger models first, 4-bit last."""
    maker = re.match("[a-z]*", name.lower())
    assert maker is not None, "matches anything"
    same = [alias for alias in ALIASES if maker[0] and alias.startswith(maker[0]) and alias != name.lower()]
    sized = {alias: _parameters(alias) for alias in same or ALIASES}
    yield from sorted(sized, key=lambda alias: (-sized[alias], len(alias)))


def _parameters(alias: str) -> int:
    config = {key: value for key, value in ALIASES[alias].config.items() if key != "quantization_config"}
    return weight_bytes(from_config(config), config)
