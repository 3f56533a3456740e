"""How fast earlier runs were on this machine, for an estimate of the next: one small file in the cache."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmrs_cli.batch import durable
from llmrs_cli.batch.job import Counts

KEPT = 64
"""Models and devices that are remembered."""
FEWEST = 8
"""Rows of a run that say something."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One run, all rows together."""

    tokens_per_second: float
    """Generated."""
    mean_answer: float
    """Tokens."""


def recall(file: Path, key: str) -> Speed | None:
    """What is known of `key` (a model on a device)."""
    found = _read(file).get(key)
    try:
        speed = Speed(float(found["tokens_per_second"]), float(found["mean_answer"])) if found else None
    except (KeyError, TypeError, ValueError):
        return None
    return speed if speed and math.isfinite(speed.mean_answer) and speed.tokens_per_second > 0 else None


def remember(file: Path, key: str, counts: Counts, seconds: float) -> None:
    """Keep the speed of a run; a cache that cannot be written is no matter."""
    rows = counts.rows - counts.failed
    if rows < FEWEST or counts.completion_tokens == 0 or seconds <= 0:
        return
    speed = Speed(counts.completion_tokens / seconds, counts.completion_tokens / rows)
    known = _read(file)
    known.pop(key, None)
    latest = dict(list(known.items())[-(KEPT - 1) :])
    with contextlib.suppress(OSError):
        durable.write_file(file, json.dumps({**latest, key: asdict(speed)}, indent=1).encode())


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
