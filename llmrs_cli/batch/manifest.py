"""The manifest beside an output: which model and settings made it, and what came of it. For people and tools.

It is written when a run starts and when it ends, each time as a whole. A run reads it again only where an
output has no journal any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmrs_cli import __version__
from llmrs_cli.batch import durable
from llmrs_cli.batch.job import Counts

RUNNING, FINISHED, STOPPED = "running", "finished", "stopped"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known when a run starts."""

    settings: Mapping[str, Any]
    """What an answer depends on."""
    seed: int
    arguments: tuple[str, ...]
    device: str
    source: str
    """Path of the input; - for stdin."""
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def write(
        self,
        path: Path,
        status: str,
        reused: Counts,
        computed: Counts,
        *,
        seconds: float = 0.0,
        input_digest: str = "",
    ) -> None:
        """Put it at `path`. `reused`: rows of earlier runs, `computed`: of this one."""
        rows = reused.rows + computed.rows
        record = {
            "llmrs": __version__,
            "status": status,
            "settings": self.settings,
            "seed": self.seed,
            "arguments": self.arguments,
            "device": self.device,
            "input": self.source,
            "input_digest": input_digest,
            "started": self.started.isoformat(timespec="seconds"),
            "ended": None if status == RUNNING else datetime.now(UTC).isoformat(timespec="seconds"),
            "rows": {
                "done": rows,
                "failed": reused.failed + computed.failed,
                "reused": reused.rows,
                "computed": computed.rows - computed.merged,
                "merged": computed.merged,
            },
            "tokens": {
                "prompt": reused.prompt_tokens + computed.prompt_tokens,
                "completion": reused.completion_tokens + computed.completion_tokens,
            },
            "seconds": round(seconds, 3),
            "tokens_per_second": round(computed.completion_tokens / seconds, 1) if seconds else None,
        }
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        durable.write_file(path, text.encode("utf-8", "backslashreplace"))  # \udcXX, as JSON escapes it


@dataclass(frozen=True, slots=True)
class Past:
    """What a manifest says of the run that wrote it."""

    status: str
    settings: Mapping[str, Any]
    seed: int
    done: int
    """Rows."""
    failed: int
    input_digest: str


def read_manifest(path: Path) -> Past | None:
    """What stands there; None if nothing that can be read does."""
    try:
        found = json.loads(path.read_bytes())
        rows = found["rows"]
        return Past(
            found["status"],
            dict(found["settings"]),
            int(found["seed"]),
            int(rows["done"]),
            int(rows["failed"]),
            found["input_digest"],
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
