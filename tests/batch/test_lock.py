"""One run per output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmrs_cli.batch.lock import OutputLock
from llmrs_cli.errors import UsageError


def test_a_second_run_is_told_who_has_the_output(tmp_path: Path) -> None:
    with OutputLock(tmp_path / "out"):
        with pytest.raises(UsageError) as caught:
            OutputLock(tmp_path / "out")
        assert str(os.getpid()) in caught.value.message
        OutputLock(tmp_path / "other").close()
    assert list(tmp_path.iterdir()) == []
    OutputLock(tmp_path / "out").close()


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from llmrs_cli.batch.lock import OutputLock;"
        "OutputLock(Path(sys.argv[1])); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")]).returncode == 9
    assert (tmp_path / "out.lock").exists()
    OutputLock(tmp_path / "out").close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot write"):
        OutputLock(tmp_path / "none" / "out")
