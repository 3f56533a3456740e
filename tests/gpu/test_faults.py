"""A GPU that fails ends the process with a sentence and status 8; memory that is taken by others ends it with 6."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmrs_cli.cli.bench import random_model
from llmrs_cli.engine.api import open_engine
from llmrs_cli.errors import DoesNotFitError
from tests.gpu.halves import cp
from tests.helpers.tiny_model import write_tiny

# The copy of row edits is launched in every step, outside of recordings; from the tenth on it reads nowhere.
FAILING = """
import struct, sys
from llmrs_cli.kernels.device import CudaDevice
launch, count = CudaDevice.launch, 0
def failing(self, kernel, shape, slots):
    global count
    count += kernel.name == "scatter"
    launch(self, kernel, shape, struct.pack("<QQ", 16, 16) if kernel.name == "scatter" and count > 9 else slots)
CudaDevice.launch = failing
from llmrs_cli.cli.root import main
main()
"""


def test_an_illegal_address_ends_the_process_with_status_8(tmp_path: Path) -> None:
    model = str(write_tiny(tmp_path / "tiny"))
    arguments = [
        "chat",
        model,
        "-p",
        "Hi",
        "--device",
        "cuda",
        "--ctx",
        "256",
        "--max-tokens",
        "60",
        "--ignore-eos",
        "--no-stdin",
    ]
    run = subprocess.run(
        [sys.executable, "-c", FAILING, *arguments],
        env={**os.environ, "LLMRS_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 8, run.stderr
    assert "The engine failed in step" in run.stderr and "1 request" in run.stderr
    assert "illegal" in run.stderr.lower()
    assert "Traceback" not in run.stderr


def test_memory_that_others_took_is_refused_with_needed_and_free() -> None:
    from llmrs_cli.engine.backends.cuda import CudaBackend

    free, _ = cp.cuda.runtime.memGetInfo()
    taken = cp.cuda.runtime.malloc(free - (1 << 30))  # one GiB is left
    try:
        with pytest.raises(
            DoesNotFitError, match=r"weights .* GiB \+ workspace .* available \d+ MiB"
        ) as caught:
            open_engine(random_model("qwen2.5-7b"), CudaBackend(0), context=2048)
        assert caught.value.exit_code == 6
    finally:
        cp.cuda.runtime.free(taken)
