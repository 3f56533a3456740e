"""`llmrs batch --dry-run`: figures of an input without loading weights, and the estimate of its time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.batch.job import Counts
from llmrs_cli.batch.speeds import Speed, recall, remember
from tests.cli.conftest import MakeLadder, Run


@pytest.fixture
def plan(llmrs: Run, ladder: MakeLadder, tmp_path: Path) -> Any:
    def run(*rows: Any, args: tuple[str, ...] = ()) -> tuple[int, str]:
        source = tmp_path / "in.jsonl"
        source.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
        result = llmrs("batch", str(source), "--dry-run", "-t", "0", "-m", ladder(), *args)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"], "nothing is written"
        return result.exit_code, result.stdout

    return run


def test_rows_tokens_and_what_cannot_be_answered_are_told(plan: Any) -> None:
    status, said = plan(
        {"prompt": "Hi"}, {"prompt": "Hi"}, "{", {"prompt": "x" * 3000}, {"prompt": "a", "temperature": 9}
    )
    assert status == 3
    assert "5 rows, 3 cannot be answered, 1 of them too long" in said
    assert "1 row equal to others" in said
    assert [line.split(":")[0] for line in said.splitlines() if line.startswith("line")] == [
        "line 3",
        "line 4",
        "line 5",
    ]


@pytest.mark.parametrize("flags", [[], ["--ctx", "3000"], ["--ctx", "2500", "--rows", "2"]], ids=" ".join)
def test_a_look_refuses_the_rows_that_a_run_refuses(
    llmrs: Run, ladder: MakeLadder, tmp_path: Path, flags: list[str]
) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"prompt_token_ids": [1] * length, "max_tokens": 1} for length in (10, 2030, 2400, 2900, 5000)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ["batch", str(source), "-m", ladder(context=4096), "-t", "0", *flags]
    run = llmrs(*args, "-o", "-")
    errors = [json.loads(line)["error"] for line in run.stdout.splitlines()]
    look = llmrs(*args, "--dry-run")
    found = [line for line in look.stdout.splitlines() if line.startswith("line ")]
    refused = {error["line"]: error["code"] for error in errors if error is not None}
    assert set(refused.values()) == {"context_length_exceeded"}
    assert [line.split(":")[0] for line in found] == [f"line {number}" for number in refused]
    assert (look.exit_code, run.exit_code) == (3, 3)


def test_a_look_says_how_much_of_the_models_context_there_is(
    llmrs: Run, ladder: MakeLadder, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    args = ("batch", str(tmp_path / "in.jsonl"), "--dry-run", "-m", ladder(context=8192))
    assert "the context holds 4096 of the model's 8192 (--ctx)" in llmrs(*args).stdout
    assert "the context holds 8192 of the model's 8192 (--ctx)" in llmrs(*args, "--ctx", "8k").stdout
    assert llmrs(*args, "--ctx", "9k").exit_code == 2, "as a run would say"


def test_a_good_file_has_status_0(plan: Any) -> None:
    status, said = plan({"prompt_token_ids": [1, 2, 3], "n": 2}, args=("--max-tokens", "7"))
    assert status == 0
    assert "3 prompt tokens" in said
    assert "2 answers of at most 7 tokens" in said
    assert "time unknown" in said


def test_ids_beyond_the_vocabulary_are_found(plan: Any) -> None:
    assert plan({"prompt_token_ids": [5000]})[0] == 3


def test_the_time_is_told_from_the_last_run(
    plan: Any, llmrs: Run, ladder: MakeLadder, tmp_path: Path
) -> None:
    rows = "".join(json.dumps({"prompt": "Hi", "seed": n}) + "\n" for n in range(10))
    assert llmrs("batch", "-", "-m", ladder(), "-t", "0", stdin=rows).exit_code == 0
    status, said = plan({"prompt": "Hi"})
    assert "if answers have 3 tokens" in said


def test_stdin_cannot_be_looked_at_before(llmrs: Run) -> None:
    result = llmrs("batch", "-", "--dry-run", stdin='{"prompt":"Hi"}\n')
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Only a file" in result.stderr


def test_speeds_are_remembered_for_models_that_were_measured(tmp_path: Path) -> None:
    file = tmp_path / "speeds.json"
    counts = Counts(rows=10, prompt_tokens=5, completion_tokens=100)
    remember(file, "a", counts, 2.0)
    remember(file, "b", Counts(rows=2, completion_tokens=10), 2.0)
    assert recall(file, "a") == Speed(50.0, 10.0)
    assert recall(file, "b") is None, "too few rows"
    for number in range(100):
        remember(file, str(number), counts, 2.0)
    assert recall(file, "a") is None
    assert recall(file, "99") is not None


@pytest.mark.parametrize(
    "content", ["", "[]", '{"a": 1}', '{"a": {"tokens_per_second": "x", "mean_answer": 1}}']
)
def test_a_damaged_cache_is_no_cache(tmp_path: Path, content: str) -> None:
    (tmp_path / "s").write_text(content)
    assert recall(tmp_path / "s", "a") is None


def test_what_a_flag_asks_of_the_model_is_refused_by_a_look_as_by_a_run(
    llmrs: Run, ladder: MakeLadder, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    args = ("batch", str(tmp_path / "in.jsonl"), "-m", ladder(), "--logit-bias", "384:1")
    look, run = llmrs(*args, "--dry-run"), llmrs(*args)
    assert (look.exit_code, look.stdout, look.stderr) == (run.exit_code, run.stdout, run.stderr)
    assert run.exit_code == 2 and "--logit-bias" in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
