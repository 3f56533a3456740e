"""What `llmrs bench --scenario` takes: names alone, so that a help page loads no engine."""

LOADS = ("single", "throughput", "prefill", "mixed", "sampled", "long", "prefix")
"""Keys of `bench.scenarios.SCENARIOS`."""
NAMES = (*LOADS, "startup", "profile", "all")
