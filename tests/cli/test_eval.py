"""`llmrs eval`: figures for people and programs, and one sentence for what cannot be read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from llmrs_cli.errors import ExitCode
from tests.cli.conftest import Run
from tests.helpers.tiny_model import TinyModel, write_tiny

TEXT = "The quick brown fox jumps over the lazy dog.\n" * 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("model"), TinyModel(layers=1, context=64)))


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text(TEXT)
    return str(tmp_path / "text.txt")


def test_json_says_all_that_a_comparison_needs(llmrs: Run, model: str, text: str) -> None:
    result = llmrs("eval", text, model, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["window"], report["stride"], report["device"]) == (64, 32, "reference")
    assert (report["bytes"], report["tokens"], report["scored"]) == (len(TEXT), len(TEXT), len(TEXT) - 1)
    assert report["perplexity"] == pytest.approx(math.exp(report["nll"] / report["scored"]))
    assert report["bits_per_byte"] == pytest.approx(report["nll"] / math.log(2) / len(TEXT))


def test_people_get_two_lines_and_stdout_nothing_else(llmrs: Run, model: str, text: str) -> None:
    result = llmrs("eval", text, "-m", model, "--window", "32", "--stride", "16")
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first.startswith("perplexity ")
    assert "tokens scored in 5 windows of 32, stride 16" in second


def test_a_head_in_8_bits_costs_next_to_nothing(llmrs: Run, model: str, text: str) -> None:
    plain, small = (
        json.loads(llmrs("eval", text, model, "--json", *flags).stdout)
        for flags in ((), ("--quantize-head",))
    )
    assert plain["nll"] != small["nll"]
    assert small["perplexity"] == pytest.approx(plain["perplexity"], rel=0.02)


def test_stdin_is_a_text_too(llmrs: Run, model: str, text: str) -> None:
    piped = json.loads(llmrs("eval", "-", model, "--json", stdin=TEXT).stdout)
    assert piped["nll"] == json.loads(llmrs("eval", text, model, "--json").stdout)["nll"]


@pytest.mark.parametrize(
    ("content", "arguments", "status", "message"),
    [
        (b"  \n", (), ExitCode.USAGE, "holds no text"),
        (b"x", (), ExitCode.USAGE, "is a single token"),
        (b"caf\xe9", (), ExitCode.USAGE, "is not UTF-8: byte 4"),
        (b"abc", ("--window", "65"), ExitCode.USAGE, "more than the model's context of 64"),
        (b"abc", ("--window", "8", "--stride", "8"), ExitCode.USAGE, "at most 7"),
        (b"abc", ("--window", "1"), ExitCode.USAGE, "--window"),
        (b"abc", ("--stride", "0"), ExitCode.USAGE, "--stride"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(
    llmrs: Run,
    model: str,
    tmp_path: Path,
    content: bytes,
    arguments: tuple[str, ...],
    status: ExitCode,
    message: str,
) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    result = llmrs("eval", str(tmp_path / "bad.txt"), model, *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr


def test_a_file_that_is_missing_or_a_folder_is_named(llmrs: Run, model: str, tmp_path: Path) -> None:
    missing = llmrs("eval", str(tmp_path / "none.txt"), model)
    assert (missing.exit_code, "There is no file" in missing.stderr) == (ExitCode.MODEL, True)
    folder = llmrs("eval", str(tmp_path), model)
    assert (folder.exit_code, "is a folder" in folder.stderr) == (ExitCode.USAGE, True)


def test_a_model_without_a_tokenizer_reads_no_text(llmrs: Run, tmp_path: Path, text: str) -> None:
    folder = str(write_tiny(tmp_path / "bare", TinyModel(layers=1, tokenizer=False)))
    result = llmrs("eval", text, folder)
    assert (result.exit_code, "has no tokenizer" in result.stderr) == (ExitCode.MODEL, True)
