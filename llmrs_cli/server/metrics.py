"""Prometheus series with the names that vLLM made usual, under `llmrs:`.

Counters of the engine are read from its last beat when they are asked for; latencies are observed here,
where the client is: they hold the queue, the pipe and the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from llmrs_cli.engine.stats import QUEUE_BOUNDS, EngineStats

FIRST_TOKEN = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96)
BETWEEN = (0.001, 0.002, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024)
WHOLE = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
"""Upper bounds of the histograms' buckets in seconds."""


class Metrics:
    """Everything that /metrics shows."""

    def __init__(self, model: str, stats: Callable[[], EngineStats | None]) -> None:
        """`stats`: the engine's counters, None while there is no engine."""
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(model, stats))
        self._model = model

        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"llmrs:{name}", about, ["model_name"], buckets=buckets, registry=self._registry)
            return made.labels(model)

        self.first_token = histogram(
            "time_to_first_token_seconds", "From request to first token.", FIRST_TOKEN
        )
        self.between = histogram("inter_token_latency_seconds", "Between deliveries of tokens.", BETWEEN)
        self.whole = histogram("e2e_request_latency_seconds", "From request to last token.", WHOLE)
        self._finished = Counter(
            "llmrs:request_success",
            "Answers that have ended, by reason: abort if the client left.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._responses = Counter(
            "llmrs:http_responses",
            "Responses by route and status: 499 if the client left before the end.",
            ["path", "status"],
            registry=self._registry,
        )

    def finished(self, reason: str) -> None:
        """An answer has ended."""
        self._finished.labels(self._model, reason).inc()

    def responded(self, path: str, status: int) -> None:
        """A response has ended."""
        self._responses.labels(path, str(status)).inc()

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """The engine's own counters."""

    def __init__(self, model: str, stats: Callable[[], EngineStats | None]) -> None:
        self._model = model
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if stats is None:
            return
        used = stats.blocks_used / stats.blocks
        for name, about, value in (
            ("num_requests_running", "Sequences in the batch.", stats.running),
            ("num_requests_waiting", "Sequences that wait for room.", stats.waiting),
            ("kv_cache_usage_perc", "Share of KV blocks that running sequences hold (1 = all).", used),
            ("kv_cache_blocks", "KV blocks.", stats.blocks),
            ("kv_cache_blocks_used", "KV blocks that running sequences hold.", stats.blocks_used),
        ):
            gauge = GaugeMetricFamily(f"llmrs:{name}", about, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        for name, about, count in (
            ("num_preemptions", "Sequences that gave up their blocks.", stats.preemptions),
            ("prompt_tokens", "Prompt tokens of answered requests.", stats.prompt_tokens),
            ("generation_tokens", "Tokens generated.", stats.generated_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens found there.", stats.cached_tokens),
            ("engine_steps", "Steps of the engine.", stats.steps),
        ):
            counter = CounterMetricFamily(f"llmrs:{name}", about, labels=["model_name"])
            counter.add_metric([self._model], count)
            yield counter
        queued = HistogramMetricFamily(
            "llmrs:request_queue_time_seconds", "Between arrival and first step.", labels=["model_name"]
        )
        bounds = [*map(floatToGoString, QUEUE_BOUNDS), "+Inf"]
        buckets = list(zip(bounds, accumulate(stats.queued), strict=True))
        queued.add_metric([self._model], buckets, sum_value=stats.queue_seconds)
        yield queued
