"""`llmrs quantize`: a model that answers, figures for people and programs, and one sentence where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_letters

import pytest

from llmrs_cli.errors import ExitCode
from tests.cli.conftest import MakeLadder, Run
from tests.helpers.gguf_file import GgufFile, Tensor, plain
from tests.helpers.tiny_gguf import stored_tensors, tiny_metadata
from tests.helpers.tiny_model import TinyModel, write_tiny

TEXT = "Pack my box with five dozen liquor jugs. " * 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("model"), TinyModel(layers=1, context=64)))


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text(TEXT)
    return str(tmp_path / "text.txt")


def test_json_says_what_was_lost(llmrs: Run, model: str, text: str, tmp_path: Path) -> None:
    target = tmp_path / "new" / "awq"
    result = llmrs("quantize", model, "-o", str(target), "--calibration", text, "--eval", text, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["method"], report["group_size"], report["output"]) == ("awq", 128, str(target))
    assert (report["calibration"], report["calibration_tokens"]) == (text, len(TEXT))
    assert len(report["layer_errors"]) == 1 and 0 < report["layer_errors"][0] < 0.5
    assert report["bytes_after"] < report["bytes_before"]
    assert report["before"]["nll"] != report["after"]["nll"]
    again = json.loads(llmrs("eval", text, str(target), "--json").stdout)
    assert again["nll"] == report["after"]["nll"]


def test_people_read_errors_by_layer_and_perplexities(
    llmrs: Run, model: str, text: str, tmp_path: Path
) -> None:
    target = str(tmp_path / "q")
    result = llmrs("quantize", model, "-o", target, "--rtn", "--group-size", "32", "--eval", text)
    assert result.exit_code == 0, result.stderr
    layer, size, perplexity = result.stdout.splitlines()
    assert layer.startswith("layer 0: relative error 0.")
    assert f"{target}: 4-bit AWQ, group 32, plain rounding; " in size
    assert "before" in perplexity and "windows of 64, stride 32" in perplexity


def test_a_quantised_model_answers_as_its_source_does(
    llmrs: Run, ladder: MakeLadder, text: str, tmp_path: Path
) -> None:
    """The scripted model's linear layers are all zero, which 4 bits hold exactly."""
    source, target = ladder(), str(tmp_path / "q")
    assert llmrs("quantize", source, "-o", target, "--calibration", text).exit_code == 0
    answers = [llmrs("chat", path, "-p", "Hi", "-t", "0").stdout for path in (source, target)]
    assert answers == ["Hello world\n"] * 2


def test_show_tells_what_it_became(llmrs: Run, model: str, tmp_path: Path) -> None:
    target = str(tmp_path / "q")
    assert llmrs("quantize", model, "-o", target, "--rtn").exit_code == 0
    assert "4-bit AWQ, group 128" in json.loads(llmrs("show", target, "--json").stdout)["weights"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--group-size", "16"), ExitCode.USAGE, "--group-size"),
        (("--calibration", "{tmp}/none.txt"), ExitCode.MODEL, "There is no file"),
        (("--eval", "{tmp}"), ExitCode.USAGE, "is a folder"),
        (("-o", "{tmp}"), ExitCode.USAGE, "exists already"),
        (("-o", "{tmp}/text.txt"), ExitCode.USAGE, "exists already"),
        (("-o", "{tmp}/text.txt/q"), ExitCode.RUNTIME, "Cannot use"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_leaves_nothing(
    llmrs: Run,
    model: str,
    text: str,
    tmp_path: Path,
    arguments: tuple[str, ...],
    status: ExitCode,
    message: str,
) -> None:
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    output = [] if "-o" in given else ["-o", str(tmp_path / "q")]
    result = llmrs("quantize", model, *output, *given)
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_the_output_must_be_named(llmrs: Run, model: str) -> None:
    result = llmrs("quantize", model)
    assert (result.exit_code, "-o" in result.stderr) == (ExitCode.USAGE, True)


def test_a_model_that_is_quantised_already_is_refused_before_anything_is_read(
    llmrs: Run, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmrs_cli.cli.eval.measure", None)
    model = str(write_tiny(tmp_path / "m", TinyModel(layers=1, awq=True)))
    result = llmrs("quantize", model, "-o", str(tmp_path / "q"), "--eval", text)
    assert (result.exit_code, "is quantised already" in result.stderr) == (ExitCode.MODEL, True)


def test_a_full_disk_leaves_nothing(
    llmrs: Run, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    result = llmrs("quantize", model, "-o", str(tmp_path / "q"))
    assert (result.exit_code, "is full" in result.stderr) == (ExitCode.RUNTIME, True)
    assert list(tmp_path.iterdir()) == []


Q4_1, Q5_0, Q8_0 = (3, 20), (6, 22), (8, 34)
"""Number of a GGUF type, and bytes of 32 weights."""
LETTERS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*ascii_letters, ".", "Ġ", "Pa"],
    "tokenizer.ggml.merges": ["P a"],
}


@pytest.mark.parametrize(
    ("kind", "status", "message"),
    [
        (Q4_1, ExitCode.MODEL, "are in 4 bits already. "),
        (Q5_0, ExitCode.MODEL, "In 4 bits {model} would take 318 kB, and it takes 262 kB as it is. "),
        (Q8_0, ExitCode.OK, "318 kB of 403 kB"),
    ],
    ids=["4 bits", "5 bits and a large embedding", "8 bits"],
)
def test_what_would_not_become_smaller_is_refused(
    llmrs: Run, text: str, tmp_path: Path, kind: tuple[int, int], status: ExitCode, message: str
) -> None:
    """Embedding and head become 16 bits, so that few bits may grow."""
    model, (number, size) = TinyModel("llama"), kind
    tensors = [
        one
        if len(one.sizes) == 1
        else Tensor(one.name, one.sizes, number, bytes(one.sizes[0] * one.sizes[1] // 32 * size))
        for one in stored_tensors(model)
    ]
    path = tmp_path / "few.gguf"
    metadata = tiny_metadata(model) | LETTERS
    path.write_bytes(GgufFile([(key, plain(value)) for key, value in metadata.items()], tensors).build())
    result = llmrs("quantize", str(path), "-o", str(tmp_path / "q"), "--calibration", text, "--rtn")
    said = " ".join((result.stderr + result.stdout).split())
    assert (result.exit_code, message.format(model=path) in said) == (status, True), said
    assert (tmp_path / "q").exists() == (status == ExitCode.OK)
    assert ("16 bits that it was made of" in said) == (status == ExitCode.MODEL)
