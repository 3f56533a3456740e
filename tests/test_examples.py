"""Every example runs, on a small scripted model, and is short.

The scripts name no model: LLMRS_MODEL and LLMRS_DEVICE do, as they may for any user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.byte_tokenizer import piece_ids
from tests.helpers.ladder import TOP, Ladder, write_ladder

EXAMPLES = Path(__file__).parent.parent / "examples"
VOCAB = 384
PATIENCE = 110


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says "Hello world" to everything."""
    return write_ladder(tmp_path_factory.mktemp("model"), Ladder(vocab=VOCAB))


def run(example: str, *args: str, model: Path, folder: Path, stdin: str = "") -> tuple[str, str]:
    """Run an example as a user would, in `folder`; stdout and stderr."""
    path = EXAMPLES / example
    program = [sys.executable] if path.suffix == ".py" else ["bash"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLMRS_", "XDG_"))}
    process = subprocess.run(
        [*program, str(path), *args],
        cwd=folder,
        env={
            **kept,
            "HOME": str(folder / "home"),
            "LLMRS_MODEL": str(model),
            "LLMRS_DEVICE": "reference",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    return process.stdout, process.stderr


def test_every_example_is_short_and_has_a_test_here() -> None:
    tests = Path(__file__).read_text("utf-8")
    files = [path for path in EXAMPLES.iterdir() if path.is_file()]
    assert len(files) == 5
    for path in files:
        assert len(path.read_text("utf-8").splitlines()) <= 40, path.name
        assert f'run("{path.name}"' in tests
        assert path.suffix == ".py" or os.access(path, os.X_OK), path.name


def test_a_pipeline(model: Path, tmp_path: Path) -> None:
    out, _ = run("pipeline.sh", model=model, folder=tmp_path, stdin="Some notes.\n")
    assert out == "Hello world\n"


def test_a_commit_message(model: Path, tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "file.txt").write_text("one\n")
    subprocess.run([*git, "add", "file.txt"], cwd=tmp_path, check=True)
    out, _ = run("commit-message.sh", model=model, folder=tmp_path)
    assert out == "Hello world\n"


def test_a_classification(model: Path, tmp_path: Path) -> None:
    if shutil.which("jq") is None:
        end = pytest.fail if "LLMRS_REQUIRE_JQ" in os.environ else pytest.skip
        end("no jq: apt-get install jq")
    (tmp_path / "reviews.csv").write_text('review\n"Good, very good"\nBad\nBad\n')
    args = ("reviews.csv", "labels.jsonl")
    out, said = run("classify.sh", *args, model=model, folder=tmp_path)
    lines = [line.split("\t") for line in out.splitlines()]
    assert [review for _, review in lines] == ["Good, very good", "Bad", "Bad"]
    assert {label for label, _ in lines} <= {"positive", "negative", "mixed"}
    assert "1 equal to others" in said
    assert run("classify.sh", *args, model=model, folder=tmp_path)[0] == out


def test_a_batch_that_is_killed_goes_on(tmp_path: Path) -> None:
    abc, de = piece_ids()["abc"], piece_ids()["de"]
    endless = write_ladder(
        tmp_path / "model", Ladder(("abc", "de"), table={de: {abc: TOP}}, vocab=VOCAB, context=512)
    )
    rows = [{"id": n, "prompt": "Hi", "seed": n, "max_tokens": 1 if n == 0 else 100} for n in range(6)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, said = run("resume.sh", "in.jsonl", "out.jsonl", model=endless, folder=tmp_path)
    assert "from before" in said or "killed after 6 of 6" in said, "a busy machine may be late with the kill"
    made = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in made] == list(range(6))
    assert [row["usage"]["completion_tokens"] for row in made] == [1, *[100] * 5]


def test_the_library(model: Path, tmp_path: Path) -> None:
    out, _ = run("library.py", model=model, folder=tmp_path)
    assert out.splitlines() == [
        "Hello world",
        *(f"{place}: Hello world" for place in ("Peru", "Norway", "Kenya")),
    ]
