"""What `llmrs bench --scenario` takes: names alone, so that a help page loads no engine."""

LOADS = ("single", "throughput", "prefill", "mixed", "budget", "sampled", "long", "prefix")
"""Keys of `bench.scenarios.SCENARIOS`."""
ALONE = ("startup", "deterministic")
"""What opens engines of its own, and so runs before the others."""
NAMES = (*LOADS, *ALONE, "profile", "all")
