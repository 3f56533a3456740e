"""Checkpoints of random weights in the real format on disk, to be served as any other: nothing is downloaded.

A 7B is 15 GB: it is written to /dev/shm where there is room, from one block of noise, as fast as memory is.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from llmrs_cli.bench.startup import write_checkpoint
from llmrs_cli.cli.bench import random_model as random_checkpoint
from llmrs_cli.engine.weights.checkpoint import Checkpoint
from tests.helpers.tiny_model import TinyModel, write_tiny

QWEN = Path(__file__).parent.parent / "tests/data/tokenizers/qwen2.5"
TINY = TinyModel(hidden=64, ffn=128, context=16_384)
SMALL = {"tiny": TINY, "tiny-awq": replace(TINY, awq=True)}
"""Models that run anywhere."""
RAM = Path("/dev/shm")


@contextmanager
def random_model(name: str) -> Iterator[Path]:
    """The folder of a checkpoint, as long as the block lasts: a name of `SMALL`, or what `llmrs bench
    --random-weights` takes: an alias, or a folder with config.json. The tokenizer is Qwen2.5's.

    Where the configuration names AWQ, linear layers are random words in that format.
    """
    if name in SMALL:
        with tempfile.TemporaryDirectory(prefix="llmrs-") as place:
            yield write_tiny(Path(place) / name, SMALL[name])
        return
    checkpoint = random_checkpoint(name)
    with tempfile.TemporaryDirectory(prefix="llmrs-", dir=_room(checkpoint)) as place:
        folder = Path(place)
        write_checkpoint(checkpoint, folder)
        with gzip.open(QWEN / "tokenizer.json.gz") as packed:
            (folder / "tokenizer.json").write_bytes(packed.read())
        shutil.copy(QWEN / "tokenizer_config.json", folder)
        yield folder


def _room(checkpoint: Checkpoint) -> Path | None:
    """Where it is kept in memory, if twice its size is free there."""
    size = sum(parameter.nbytes for parameter in checkpoint.parameters.values())
    return RAM if RAM.is_dir() and shutil.disk_usage(RAM).free > 2 * size else None
