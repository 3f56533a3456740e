"""Measured choices: made once, kept for the GPU and libraries that they were measured with, never trusted from others."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.kernels.gemm import Problem
from llmrs_cli.kernels.tune import Choice, Tuning, default_folder, file_of, lines, read, stored


class Race:
    """Candidates with known times that count how often they are measured."""

    def __init__(self, **times: float) -> None:
        self.measured: list[str] = []
        self.candidates: dict[str, Callable[[], float]] = {
            name: lambda name=name, us=us: self.measure(name, us)  # type: ignore[misc]
            for name, us in times.items()
        }

    def measure(self, name: str, us: float) -> float:
        self.measured.append(name)
        return us


def tuning(folder: Path, gpu: str = "NVIDIA H200", versions: str = "1") -> Tuning:
    return Tuning(folder, gpu, versions)


def test_the_fastest_is_chosen_and_measured_once(tmp_path: Path) -> None:
    race, made = Race(a=3.0, b=1.5, c=2.0), tuning(tmp_path / "t")
    assert [made.choose("gemm 1", race.candidates) for _ in range(3)] == ["b", "b", "b"]
    assert race.measured == ["a", "b", "c"]


def test_turns_are_taken_and_the_first_round_does_not_count(tmp_path: Path) -> None:
    times = {"cool first": iter([1.0, 4.0, 9.0, 4.0]), "steady": iter([5.0, 3.0, 3.5, 9.0])}
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return next(times[name])

    candidates = {name: partial(measure, name) for name in times}
    made = tuning(tmp_path / "t")
    assert made.choose("gemm 1", candidates, rounds=4) == "steady"
    assert order == ["cool first", "steady"] * 4
    assert list(made.lines()) == [f"{'gemm 1':<44} {'steady':<34}{3.5:>10.2f} us"]


def test_another_process_knows_it(tmp_path: Path) -> None:
    tuning(tmp_path / "t").choose("gemm 1", Race(a=3.0, b=1.5).candidates)
    race = Race(a=1.0, b=9.0)
    again = tuning(tmp_path / "t")
    assert again.choose("gemm 1", race.candidates) == "b"
    assert race.measured == []
    assert list(again.lines()) == [f"{'gemm 1':<44} {'b':<34}{1.5:>10.2f} us"]


def test_another_gpu_another_library_or_another_shape_measures_anew(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    tuning(folder).choose("gemm 1", Race(a=3.0, b=1.5).candidates)
    for other, key in (
        (tuning(folder, gpu="NVIDIA L4"), "gemm 1"),
        (tuning(folder, versions="2"), "gemm 1"),
        (tuning(folder), "gemm 2"),
    ):
        race = Race(a=1.0, b=9.0)
        assert other.choose(key, race.candidates) == "a"
        assert race.measured == ["a", "b"]


def test_a_choice_that_is_offered_no_more_is_made_anew(tmp_path: Path) -> None:
    tuning(tmp_path / "t").choose("gemm 1", Race(a=3.0, b=1.5).candidates)
    assert tuning(tmp_path / "t").choose("gemm 1", Race(c=7.0, a=8.0).candidates) == "c"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"gpu": 1}', '{"gpu": "x", "versions": "1", "choices": {"k": 3}}']
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "t"
    folder.mkdir(mode=0o700)
    path = file_of(folder, "NVIDIA H200", "1")
    path.write_text(content)
    assert read(path) == ("", {})
    assert tuning(folder).choose("k", Race(a=1.0).candidates) == "a"
    assert json.loads(path.read_text())["choices"] == {"k": ["a", 1.0]}


def test_a_folder_open_to_others_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    tuning(folder).choose("gemm 1", Race(a=3.0, b=1.5).candidates)
    folder.chmod(0o755)
    made, race = tuning(folder), Race(a=1.0, b=9.0)
    assert made.notice is not None and "open to other users" in made.notice
    assert made.choose("gemm 1", race.candidates) == "a"


def test_nothing_is_kept_without_a_folder() -> None:
    made = Tuning(None, "", "")
    assert made.choose("k", Race(a=2.0, b=1.0).candidates) == "b"
    assert made.notice is None


def test_a_full_disk_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tuning(tmp_path / "t")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert made.choose("k", Race(a=2.0, b=1.0).candidates) == "b"
    assert made.notice is not None and "No space left" in made.notice
    assert made.choose("k", Race(a=1.0, b=2.0).candidates) == "b"


def test_everything_that_is_kept_can_be_printed(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for gpu in ("NVIDIA L4", "NVIDIA H200"):
        tuning(folder, gpu).choose("gemm 1", Race(a=3.0).candidates)
    assert [line for line in stored(folder) if not line.startswith(" ")] == [
        "NVIDIA H200 (1)",
        "NVIDIA L4 (1)",
    ]
    assert list(stored(tmp_path / "none")) == []


@given(st.dictionaries(st.text(max_size=20), st.tuples(st.text(max_size=300), st.floats(0, 1e9)), max_size=5))
def test_lines_come_in_the_order_of_their_keys(choices: dict[str, tuple[str, float]]) -> None:
    made = list(lines({key: Choice(*choice) for key, choice in choices.items()}))
    assert len(made) == len(choices)
    assert all(line.endswith(" us") for line in made)


def test_a_product_has_a_key_of_its_own() -> None:
    keys = {
        str(Problem(m, 8, 16, bf16, wide, bias, add, pitch))
        for m in (1, 2)
        for bf16 in (True, False)
        for wide in (True, False)
        for bias in (True, False)
        for add in (True, False)
        for pitch in (8, 24)
    }
    assert len(keys) == 64
    assert "cublaslt 1 x 8 x 16 bf16 to f32 +bias +out" in keys


def test_the_folder_lies_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLMRS_CACHE_DIR", str(tmp_path))
    assert default_folder() == tmp_path / "tuning"
