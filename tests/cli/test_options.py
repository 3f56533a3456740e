"""Option groups: what arrives in a command, other spellings, variables, and messages that name the flag."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from llmrs_cli.cli import root as root_module
from llmrs_cli.cli.options import ModelOptions, Sampling, model_options, quiet_option, sampling_options
from llmrs_cli.cli.parameters import memory
from llmrs_cli.cli.root import root


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces `llmrs chat` by a command that keeps what it was given."""
    values: dict[str, Any] = {}

    @click.command()
    @model_options()
    @sampling_options
    @quiet_option
    def command(model: ModelOptions, sampling: Sampling, quiet: bool) -> None:
        values.update(model=model, sampling=sampling, quiet=quiet)

    monkeypatch.setattr(root_module.Root, "get_command", lambda self, ctx, name: command)
    return values


def run(*args: str, **env: str) -> Result:
    return CliRunner(env=env).invoke(root, ["chat", *args])


def test_nothing_given_means_nothing_said(heard: dict[str, Any]) -> None:
    assert run().exit_code == 0
    assert heard["model"] == ModelOptions(None, None, None, None, False, None)
    assert heard["sampling"].given() == {}


def test_everything_given_arrives_under_the_request_names(heard: dict[str, Any]) -> None:
    line = (
        "tiny --device cuda:1 --ctx 8k --rows 4 --offline --revision main -t 0.5 --top-p 0.9 --top-k 40 "
        "--min-p 0.1 --repeat-penalty 1.1 --presence-penalty 1 --frequency-penalty -1 --seed 7 "
        "--max-tokens 9 --min-tokens 2 --stop a --stop b --stop-token-id 3 --logit-bias 42:-100 "
        "--ignore-eos -q --gpu-memory 40GiB --deterministic --quantize-head"
    )
    assert run(*line.split()).stderr == ""
    assert heard["model"] == ModelOptions("tiny", "cuda:1", 8192, 4, True, "main", 40 << 30, True, True)
    assert heard["quiet"] is True
    assert heard["sampling"].given() == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "seed": 7,
        "max_tokens": 9,
        "min_tokens": 2,
        "stop": ("a", "b"),
        "stop_token_ids": (3,),
        "logit_bias": ((42, -100.0),),
        "ignore_eos": True,
    }


def test_zero_is_something_said(heard: dict[str, Any]) -> None:
    run("-t", "0", "--top-k", "0", "--seed", "0", "--top-p", "0")
    assert heard["sampling"].given() == {
        "temperature": 0.0,
        "top_p": 0.0,
        "top_k": 0,
        "seed": 0,
    }


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["--temp", "1"], "temperature", 1.0),
        (["--num-predict", "5"], "max_tokens", 5),
        (["--max-new-tokens", "5"], "max_tokens", 5),
        (["--repetition-penalty", "1.5"], "repetition_penalty", 1.5),
    ],
)
def test_other_tools_names_work(heard: dict[str, Any], args: list[str], field: str, value: float) -> None:
    assert run(*args).exit_code == 0
    assert heard["sampling"].given() == {field: value}


def test_other_tools_names_are_not_listed(heard: dict[str, Any]) -> None:
    shown = run("--help").stdout
    assert "--temperature" in shown
    assert "--num-predict" not in shown
    assert "--max-model-len" not in shown
    assert "--max-tokens" in shown


@pytest.mark.parametrize(
    ("variable", "value", "field", "heard_as"),
    [
        ("LLMRS_CHAT_TEMPERATURE", "0.25", "temperature", 0.25),
        ("LLMRS_CHAT_REPEAT_PENALTY", "1.5", "repetition_penalty", 1.5),
        ("LLMRS_CHAT_MAX_TOKENS", "12", "max_tokens", 12),
        ("LLMRS_CHAT_IGNORE_EOS", "1", "ignore_eos", True),
    ],
)
def test_every_flag_may_come_from_a_variable(
    heard: dict[str, Any], variable: str, value: str, field: str, heard_as: Any
) -> None:
    assert run(**{variable: value}).exit_code == 0
    assert heard["sampling"].given() == {field: heard_as}


def test_a_flag_wins_over_its_variable(heard: dict[str, Any]) -> None:
    run("-t", "1", LLMRS_CHAT_TEMPERATURE="0.25")
    assert heard["sampling"].temperature == 1.0


@pytest.mark.parametrize(
    ("typed", "count"), [("4096", 4096), ("8k", 8192), ("8K", 8192), ("1m", 1 << 20), (" 16k ", 16384)]
)
def test_context_lengths(heard: dict[str, Any], typed: str, count: int) -> None:
    run("--max-model-len", typed)
    assert heard["model"].ctx == count


@pytest.mark.parametrize(
    ("args", "flag"),
    [
        (["--temperature", "-1"], "--temperature"),
        (["--temp", "nan"], "--temperature"),
        (["--temperature", "inf"], "--temperature"),
        (["--temperature", "2.1"], "--temperature"),
        (["--temperature", "warm"], "--temperature"),
        (["--top-p", "1.5"], "--top-p"),
        (["--top-k", "-1"], "--top-k"),
        (["--min-p", "nan"], "--min-p"),
        (["--repeat-penalty", "0"], "--repeat-penalty"),
        (["--seed", str(2**64)], "--seed"),
        (["--max-tokens", "0"], "--max-tokens"),
        (["--stop", ""], "--stop"),
        (["--stop", "a\udcff"], "--stop"),
        (["--logit-bias", "42"], "--logit-bias"),
        (["--logit-bias", "42:nan"], "--logit-bias"),
        (["--logit-bias", "42:101"], "--logit-bias"),
        (["--logit-bias", "-1:1"], "--logit-bias"),
        (["--ctx", "0"], "--ctx"),
        (["--ctx", "8q"], "--ctx"),
        (["--ctx", "-5"], "--ctx"),
        (["--device", "gpu"], "--device"),
        (["--device", "cuda:x"], "--device"),
        (["--rows", "0"], "--rows"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_bad_value_is_one_sentence_that_names_the_flag(
    heard: dict[str, Any], args: list[str], flag: str
) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert flag in result.stderr.splitlines()[0]
    assert len(result.stderr.splitlines()) <= 2
    assert result.stdout == ""
    assert heard == {}


@pytest.mark.parametrize("args", [["a", "-m", "b"], [""], ["-m", " "]])
def test_the_model_is_named_once_and_not_empty(heard: dict[str, Any], args: list[str]) -> None:
    assert run(*args).exit_code == 2


def test_the_model_may_be_named_either_way(heard: dict[str, Any]) -> None:
    run("-m", "tiny")
    assert heard["model"].model == "tiny"


def test_a_model_on_the_command_line_wins_over_its_variable(heard: dict[str, Any]) -> None:
    assert run("typed", LLMRS_CHAT_MODEL="set").exit_code == 0
    assert heard["model"].model == "typed"
    run(LLMRS_CHAT_MODEL="set")
    assert heard["model"].model == "set"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("0.8", 0.8),
        ("80%", 0.8),
        ("1", 1.0),
        ("40GiB", 40 << 30),
        ("1.5g", 3 << 29),
        ("512 MB", 512 << 20),
        ("7b", 7),
    ],
)
def test_memory_is_a_size_or_a_share(typed: str, meant: float) -> None:
    assert memory(typed) == pytest.approx(meant)
    assert isinstance(memory(typed), int) == (typed[-1].lower() == "b" or typed.endswith("g"))


@pytest.mark.parametrize("typed", ["", "0", "1.5", "150%", "-3G", "0G", "lots", "4 tons", "nan"])
def test_no_other_memory_is_taken(typed: str) -> None:
    result = run("--gpu-memory", typed)
    assert result.exit_code == 2
    assert "--gpu-memory" in result.stderr and "40GiB" in result.stderr


def test_the_context_that_help_promises_is_the_one_that_is_taken() -> None:
    from llmrs_cli.engine.backends.base import Sizes
    from llmrs_cli.hub.fit import LEAST_CONTEXT

    taken = Sizes().context
    assert f"Default: {taken // 1024}k on a CPU, " in plain_help("chat")
    assert f"Default: {LEAST_CONTEXT // 1024}k." in plain_help("show")


def plain_help(command: str) -> str:
    """What --help says, on one line."""
    return " ".join(CliRunner().invoke(root, [command, "--help"]).stdout.split())
