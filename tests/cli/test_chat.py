"""`llmrs chat` with one question: what reaches stdout, how it ends, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmrs_cli.errors import ExitCode
from tests.cli.conftest import MakeLadder, Run
from tests.helpers.byte_tokenizer import byte_ids

END = "<|im_end|>"


def test_stdout_is_the_answer_and_nothing_else(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder(), "-p", "Hi", "-t", "0")
    assert (result.exit_code, result.stdout) == (0, "Hello world\n")


@pytest.mark.parametrize(
    ("reply", "options", "said"),
    [
        (("abc", *byte_ids("😊"), END), (), "abc😊\n"),
        (("abc", "de", END), ("--stop", "cd"), "ab\n"),
        (("abc", "de", END), ("--stop", "def"), "abcde\n"),
        (("abc", "de", END), ("--stop", "xyz", "--stop", "de"), "abc\n"),
        (("Hello", END, "de"), ("--ignore-eos", "--max-tokens", "3"), "Hellode\n"),
        (("Hello", "abc", "de"), ("--stop-token-id", "257"), "Helloabc\n"),
        (("Hello", "\n\n", END), (), "Hello\n\n"),
        (
            ("Hello", END),
            ("--logit-bias", "259:-100", "--logit-bias", "256:100", "--max-tokens", "1"),
            "abc\n",
        ),
    ],
    ids=[
        "emoji over tokens",
        "stop over tokens",
        "half a stop",
        "two stops",
        "no end",
        "stop id",
        "newline",
        "bias",
    ],
)
def test_scripted_answers(
    llmrs: Run, ladder: MakeLadder, reply: tuple[str | int, ...], options: tuple[str, ...], said: str
) -> None:
    result = llmrs("chat", ladder(*reply), "-p", "Hi", "-t", "0", *options)
    assert (result.exit_code, result.stdout) == (0, said)


@pytest.mark.parametrize("end", [300, 301, 302])
def test_every_end_token_of_the_model_ends_the_answer(llmrs: Run, ladder: MakeLadder, end: int) -> None:
    model = ladder("OK", "abc", end, "de", eos=(300, 301, 302))
    assert llmrs("chat", model, "-p", "Hi", "-t", "0").stdout == "OKabc\n"


def test_a_padded_vocabulary_never_answers_with_padding(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs(
        "chat", ladder(), "-p", "Hi", "-t", "2", "--seed", "3", "--max-tokens", "40", "--ignore-eos"
    )
    assert result.exit_code == 0


def test_an_answer_cut_at_the_limit_says_so(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder("abc", "de", "OK", END), "-p", "Hi", "-t", "0", "--max-tokens", "2")
    assert (result.exit_code, result.stdout) == (0, "abcde\n")
    assert "--max-tokens" in result.stderr


def test_an_answer_cut_by_the_context_says_so(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder("abc", "de", "OK", END), "-p", "Hi", "-t", "0", "--ctx", "23")
    assert (result.exit_code, result.stdout) == (0, "abcde\n")
    assert "context of 23 tokens is full" in result.stderr


def test_a_prompt_over_the_context_is_refused_with_both_numbers(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder(), "-p", "x" * 100, "--ctx", "64")
    assert result.exit_code == ExitCode.USAGE
    assert result.stdout == ""
    assert "119" in result.stderr
    assert "64" in result.stderr


def test_thoughts_go_to_stderr(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder("<think>", "abc", "</think>", "\n\n", "OK", END), "-p", "Hi", "-t", "0")
    assert result.stdout == "OK\n"
    assert "abc" in result.stderr
    assert "think>" not in result.stdout + result.stderr


def test_model_text_is_byte_exact_in_a_pipe(llmrs: Run, ladder: MakeLadder) -> None:
    nasty = "a\x1b[31mb\x07"
    assert llmrs("chat", ladder(nasty, END), "-p", "Hi", "-t", "0").stdout == nasty + "\n"


# -- where the question comes from --------------------------------------------------------------------


def prompt_length(result_stdout: str) -> int:
    row = json.loads(result_stdout)
    assert row["error"] is None
    return int(row["usage"]["prompt_tokens"])


def test_piped_text_follows_the_prompt(llmrs: Run, ladder: MakeLadder, tmp_path: Path) -> None:
    """The context is made to fit the assembled text exactly, so its length shows."""
    (tmp_path / "a.txt").write_text("one\n")
    text = "Sum up.\n\none\n\ntwo"
    row = llmrs("batch", "-", "-m", ladder(), stdin=json.dumps({"prompt": text}))
    needed = prompt_length(row.stdout) + 1
    args = ("chat", ladder(), "-p", "Sum up.", "-f", str(tmp_path / "a.txt"), "-t", "0", "--max-tokens", "1")
    assert llmrs(*args, "--ctx", str(needed), stdin="two\n").exit_code == 0
    assert llmrs(*args, "--ctx", str(needed - 1), stdin="two\n").exit_code == 2
    assert llmrs(*args, "--ctx", str(needed - 1), "--no-stdin", stdin="two\n").exit_code == 0


def test_empty_input_ends_at_once_with_nothing(llmrs: Run) -> None:
    result = llmrs("chat", "no-such-model-is-looked-for", stdin="")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "stdin is empty" in result.stderr


@pytest.mark.parametrize(
    ("args", "status", "part"),
    [
        (["-p", ""], 2, "empty"),
        (["-p", "x", "-f", "missing.txt"], 5, "'missing.txt'"),
        (["-p", "x", "-s", "a", "--system-file", "b"], 2, "--system-file"),
        (["-p", "x", "--system-file", "missing.txt"], 5, "'missing.txt'"),
        (["-p", "a\udcff"], 2, "not UTF-8"),
        (["-p", "x", "-s", "a\udcff"], 2, "not UTF-8"),
    ],
)
def test_a_bad_question_is_refused_before_any_model(
    llmrs: Run, args: list[str], status: int, part: str
) -> None:
    result = llmrs("chat", "no-such-model-is-looked-for", *args, stdin="")
    assert (result.exit_code, result.stdout) == (status, "")
    assert part in result.stderr
    assert len(result.stderr.splitlines()) <= 2


def test_bad_bytes_on_stdin_are_refused(llmrs: Run) -> None:
    result = llmrs("chat", "any", stdin=b"a\xff\xfe")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "stdin is not UTF-8" in result.stderr


def test_a_system_prompt_takes_part(llmrs: Run, ladder: MakeLadder) -> None:
    args = ("chat", ladder(), "-p", "Hi", "-t", "0", "--ctx", "24")
    assert llmrs(*args).exit_code == 0
    assert llmrs(*args, "-s", "Be brief.").exit_code == 2


# -- models that cannot answer ------------------------------------------------------------------------


def change_config(folder: str, tmp_path: Path, **changes: object) -> str:
    """A copy of a model with other values in config.json."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in Path(folder).iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    return str(copy)


def one_sentence(result_stderr: str) -> bool:
    return len(result_stderr.splitlines()) <= 2 and "Traceback" not in result_stderr


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("./nowhere", 5),
        ("~/nowhere", 5),
        ("nowhere/", 5),
        ("C:\\models\\qwen", 5),
        ("smollm3-135m", 5),
        ("smollm2-360m", 7),
        ("owner/repo", 7),
        ("What is this?", 2),
    ],
)
def test_a_model_that_is_not_there(llmrs: Run, name: str, status: int) -> None:
    result = llmrs("chat", name, "-p", "Hi")
    assert (result.exit_code, result.stdout) == (status, "")
    assert one_sentence(result.stderr)


def test_a_prompt_in_place_of_a_model_suggests_the_flag(llmrs: Run) -> None:
    assert "-p 'What is this?'" in llmrs("chat", "What is this?", stdin="x").stderr


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"architectures": ["GPT9ForCausalLM"], "model_type": "gpt9"}, "gpt9"),
        ({"hidden_size": 448}, ""),
        ({"quantization_config": {"quant_method": "magic", "bits": 3}}, "magic"),
    ],
    ids=["unknown architecture", "wrong shape", "unknown quantisation"],
)
def test_a_model_that_cannot_be_run(
    llmrs: Run, ladder: MakeLadder, tmp_path: Path, changes: dict[str, object], part: str
) -> None:
    result = llmrs("chat", change_config(ladder(), tmp_path, **changes), "-p", "Hi")
    assert (result.exit_code, result.stdout) == (5, "")
    assert part in result.stderr.lower()
    assert one_sentence(result.stderr)


def test_a_truncated_file_is_named(llmrs: Run, ladder: MakeLadder, tmp_path: Path) -> None:
    folder = change_config(ladder(), tmp_path)
    weights = Path(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    result = llmrs("chat", folder, "-p", "Hi")
    assert (result.exit_code, result.stdout) == (5, "")
    assert "model.safetensors" in result.stderr
    assert one_sentence(result.stderr)


def test_a_model_without_a_template_cannot_chat(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder(chat_template=None), "-p", "Hi")
    assert (result.exit_code, result.stdout) == (5, "")
    assert "chat template" in result.stderr


# -- the default model --------------------------------------------------------------------------------


def test_the_default_model_is_announced(llmrs: Run) -> None:
    result = llmrs("chat", "-p", "Hi")
    assert result.exit_code == 7, "the built-in model is not there, and the network is not to be used"
    assert "No model is named: using smollm2-135m on reference." in result.stderr


def test_a_variable_names_the_model(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", "-p", "Hi", "-t", "0", env={"LLMRS_MODEL": ladder()})
    assert result.stdout == "Hello world\n"
    assert "No model is named" not in result.stderr


def test_a_revision_belongs_to_a_repository(llmrs: Run, ladder: MakeLadder) -> None:
    assert llmrs("chat", ladder(), "-p", "Hi", "--revision", "main").exit_code == 2


def test_a_prompt_beyond_the_context_names_the_flag_that_gives_more(llmrs: Run, ladder: MakeLadder) -> None:
    asked = ("chat", ladder(context=8192), "-p", "x" * 5000, "-t", "0", "--max-tokens", "1")
    refused = llmrs(*asked)
    assert (refused.exit_code, refused.stdout) == (ExitCode.USAGE, "")
    assert "the context holds 4096" in refused.stderr
    assert "--ctx" in refused.stderr
    assert llmrs(*asked, "--ctx", "8k").exit_code == ExitCode.OK


@pytest.mark.parametrize(
    ("schema", "said"), [("./none.json", "There is no file './none.json'."), ("{", "is not a JSON object")]
)
def test_a_form_that_is_none_is_refused_before_a_model_is_looked_for(
    llmrs: Run, schema: str, said: str
) -> None:
    result = llmrs("chat", "./no-model", "-p", "Hi", "--schema", schema)
    assert said in result.stderr
    assert "no-model" not in result.stderr
