"""Where compiled loops are kept: only in a folder of the user's own, under a name that sources decide."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from llmrs_cli.kernels.simd import program


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_is_made_for_the_user_alone(tmp_path: Path) -> None:
    folder, notice = program.private_folder(tmp_path / "llmrs" / "simd")
    assert notice is None
    assert folder == tmp_path / "llmrs" / "simd" / program.program_key()
    assert [mode(place) for place in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3


def test_a_folder_that_others_may_enter_is_not_used(tmp_path: Path) -> None:
    cache = tmp_path / "simd"
    cache.mkdir()
    cache.chmod(0o755)
    folder, notice = program.private_folder(cache)
    assert folder is None
    assert notice is not None and "open to other users" in notice


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "simd").write_text("")
    folder, notice = program.private_folder(tmp_path / "simd")
    assert folder is None
    assert notice is not None and notice.startswith("Compiled loops are not kept")


def test_the_key_is_another_one_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program.program_key()
    assert before == program.program_key()
    monkeypatch.setenv("NUMBA_CPU_NAME", "nocona")
    assert program.program_key() != before


def test_the_cache_folder_obeys_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LLMRS_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert program.default_cache() == tmp_path / "llmrs" / "simd"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert program.default_cache().is_absolute()
    monkeypatch.setenv("LLMRS_CACHE_DIR", str(tmp_path / "mine"))
    assert program.default_cache() == tmp_path / "mine" / "simd"


def test_loops_are_kept_in_the_folder_and_numba_s_own_setting_stays(tmp_path: Path) -> None:
    config: Any = numba.config
    before = config.CACHE_DIR
    with program.kept_in(tmp_path):
        loop: Any = numba.njit(cache=True)(add_one)
    assert before == config.CACHE_DIR
    assert loop(1) == 2
    assert list(tmp_path.glob("*/test_program.add_one-*.nbc"))


def add_one(x: int) -> int:
    return x + 1


def test_another_signature_is_refused_rather_than_compiled() -> None:
    loops = program.load(program.default_cache())
    with pytest.raises(TypeError, match="No matching definition"):
        loops.silu_mul(np.zeros((1, 4)), np.zeros((1, 2)))


def test_a_process_is_given_its_loops_once() -> None:
    assert program.load(program.default_cache()) is program.load(program.default_cache())
