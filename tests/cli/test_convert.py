"""`llmrs convert`: a copy that is found by the model's name, answers alike on every device, and is kept or made anew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmrs_cli.errors import ExitCode
from tests.cli.conftest import MakeLadder, Run
from tests.helpers.ladder import Ladder, write_ladder
from tests.helpers.tiny_model import TinyModel, write_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A scripted model whose layers are AWQ words."""
    folder = tmp_path_factory.mktemp("model") / "m"
    return str(write_ladder(folder, Ladder(vocab=384, awq=True)))


def ask(llmrs: Run, model: str) -> str:
    result = llmrs("chat", model, "-p", "Hi", "-t", "0", "-q")
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


def test_a_copy_in_a_folder_answers_as_its_source(llmrs: Run, model: str, tmp_path: Path) -> None:
    target = tmp_path / "copies" / "c"
    result = llmrs("convert", model, "-o", str(target))
    assert (result.exit_code, result.stdout) == (0, f"{target}\n"), result.stderr
    assert ask(llmrs, str(target)) == ask(llmrs, model) == "Hello world\n"


def test_without_a_folder_the_copy_is_found_by_the_model_s_name(llmrs: Run, model: str) -> None:
    first = json.loads(llmrs("convert", model, "--json").stdout)
    assert first["new"] and Path(first["output"]).parent.name == "converted"
    asked = llmrs("chat", model, "-p", "Hi", "-t", "0")
    assert (asked.stdout, "Using the converted copy" in asked.stderr) == ("Hello world\n", True)
    again = llmrs("convert", model, "--json")
    assert "was converted before" in again.stderr
    assert json.loads(again.stdout) | {"seconds": 0} == first | {"new": False, "seconds": 0}


def test_a_damaged_copy_is_refused_by_name_and_made_anew(llmrs: Run, model: str) -> None:
    place = Path(llmrs("convert", model).stdout.strip())
    path = place / "layer-0000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    asked = llmrs("chat", model, "-p", "Hi")
    assert (asked.exit_code, asked.stdout) == (ExitCode.MODEL, "")
    assert "is not what was written" in asked.stderr and "Convert the model again" in asked.stderr
    anew = llmrs("convert", model)
    assert anew.exit_code == 0 and "is damaged and made anew" in anew.stderr
    assert ask(llmrs, model) == "Hello world\n"


def test_a_copy_that_others_may_change_is_not_used(llmrs: Run, model: str) -> None:
    place = Path(llmrs("convert", model).stdout.strip())
    place.parent.chmod(0o777)
    asked = llmrs("chat", model, "-p", "Hi", "-t", "0")
    assert (asked.stdout, "is not used: " in asked.stderr) == ("Hello world\n", True)


def test_show_tells_what_it_is(llmrs: Run, model: str, tmp_path: Path) -> None:
    target = str(tmp_path / "c")
    llmrs("convert", model, "-o", target)
    report = json.loads(llmrs("show", target, "--json").stdout)
    assert report["converted_from"] == model
    assert any("in tiles" in form for form in report["weights"])
    assert "into the order of the kernels" in llmrs("show", target).stdout


def test_two_commands_at_once_make_one_copy(model: str, environment: Path, tmp_path: Path) -> None:
    """The second waits for the first and keeps what it made."""
    command = [sys.executable, "-m", "llmrs_cli", "convert", model, "--json"]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    reports = [json.loads(process.communicate()[0]) for process in running]
    assert sorted(report["new"] for report in reports) == [False, True]
    assert reports[0]["output"] == reports[1]["output"]


@pytest.mark.parametrize(
    ("awq", "arguments", "status", "message"),
    [
        (False, (), ExitCode.MODEL, "has no 4-bit layers"),
        (True, ("-o", "{tmp}"), ExitCode.USAGE, "exists already"),
        (True, ("-o", "{tmp}/m/config.json/c"), ExitCode.RUNTIME, "Cannot use"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    llmrs: Run, tmp_path: Path, awq: bool, arguments: tuple[str, ...], status: ExitCode, message: str
) -> None:
    source = str(write_tiny(tmp_path / "m", TinyModel(layers=1, awq=awq)))
    result = llmrs("convert", source, *(argument.format(tmp=tmp_path) for argument in arguments))
    assert (result.exit_code, result.stdout, message in result.stderr) == (status, "", True)


def test_a_model_must_be_named(llmrs: Run, ladder: MakeLadder) -> None:
    assert llmrs("convert").exit_code == ExitCode.USAGE
    assert "No such option" in llmrs("convert", ladder(), "--device", "cpu").stderr
    assert llmrs("convert", "/nowhere/at/all").exit_code == ExitCode.MODEL
