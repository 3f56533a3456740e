"""How fast this machine's memory is, as `llmrs doctor` or `llmrs bench` measured it last; one small file in the cache.

A chat compares its own speed with it and never measures: a machine that nobody measured has no figure.
"""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from pathlib import Path

from llmrs_cli.config import directories, private_directory
from llmrs_cli.errors import UsageError

KEPT = 16
"""Devices that are remembered; a cache folder may be shared by machines."""


def threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def known_bandwidth(device: str) -> float | None:
    """Bytes a second of the memory that `device` (cpu, cuda:N …) computes from; None if nobody measured it."""
    found = _read().get(_key(device))
    return float(found) if isinstance(found, (int, float)) and 0 < found < float("inf") else None


def remember_bandwidth(device: str, bandwidth: float) -> None:
    """Keep a measurement; a cache that cannot be written is no matter."""
    from llmrs_cli.hub.files import write_whole

    known = {key: value for key, value in _read().items() if key != _key(device)}
    latest = dict(list(known.items())[-(KEPT - 1) :])
    with suppress(OSError, UsageError):
        private_directory(_file().parent)
        write_whole(_file(), json.dumps({**latest, _key(device): bandwidth}, indent=1).encode())


def _key(device: str) -> str:
    """What a measurement belongs to: a GPU as this process sees it, or the cores that it may use."""
    if device.startswith("cuda"):
        name = device if ":" in device else f"{device}:0"
        return f"{platform.node()} {name} of {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"
    return f"{platform.node()} {threads()} cores"


def _file() -> Path:
    return directories().cache / "bandwidth.json"


def _read() -> dict[str, object]:
    try:
        found = json.loads(_file().read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
