"""`llmrs batch`: a row in, a row out, in order; errors as rows; statuses; what is refused before any work.

Longer than most files: a test for each promise of the command's simplest use, with one way to run it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import MakeLadder, Run
from tests.helpers.ladder import NEWLINE

END = "<|im_end|>"
CHAT_URL = "/v1/chat/completions"


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def batch(llmrs: Run, ladder: MakeLadder, tmp_path: Path) -> Any:
    """Runs a batch over lines given as values or text; output rows, status, stderr."""

    def run(
        *lines: Any, args: tuple[str, ...] = (), model: str | None = None
    ) -> tuple[list[dict[str, Any]], int, str]:
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        (tmp_path / "in.jsonl").write_text(text, encoding="utf-8")
        out = tmp_path / "out.jsonl"
        result = llmrs(
            *("batch", str(tmp_path / "in.jsonl"), "-o", str(out), "--overwrite", "-t", "0"),
            *("-m", model or ladder(), *args),
        )
        assert result.stdout == ""
        return rows_of(out.read_text("utf-8")), result.exit_code, result.stderr

    return run


def test_all_kinds_of_rows_in_one_file(batch: Any) -> None:
    rows, status, _ = batch(
        {"prompt": "Hi", "id": 7, "label": "x"},
        {"messages": [{"role": "user", "content": "Hi"}], "custom_id": "m"},
        {"prompt_token_ids": [1, 2, NEWLINE]},
        {
            "custom_id": "a",
            "method": "POST",
            "url": CHAT_URL,
            "body": {"messages": [{"role": "user", "content": "Hi"}]},
        },
        {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi\n"}},
    )
    assert status == 0
    assert [row.get("text") for row in rows[:3]] == ["Hello world"] * 3
    assert (rows[0]["id"], rows[0]["label"], rows[1]["custom_id"]) == (7, "x", "m")
    assert rows[0]["usage"]["completion_tokens"] == 3
    assert rows[3]["response"]["body"]["choices"][0]["message"]["content"] == "Hello world"
    assert rows[4]["response"]["body"]["choices"][0]["text"] == "Hello world"


def test_one_bad_line_never_stops_or_shifts_the_others(batch: Any) -> None:
    good = {
        "custom_id": "good",
        "method": "POST",
        "url": CHAT_URL,
        "body": {"messages": [{"role": "user", "content": "Hi"}]},
    }
    rows, status, stderr = batch(
        good,
        '{"custom_id":"b"',
        "[]",
        "5",
        "null",
        '{"custom_id":"c"}',
        {**good, "custom_id": "long", "body": {"messages": [{"role": "user", "content": "x" * 3000}]}},
        {**good, "custom_id": "u", "url": "/v1/embeddings"},
        {**good, "custom_id": "g", "method": "GET"},
        {**good, "custom_id": "last"},
    )
    assert status == 3
    assert "8 of 10 rows failed" in stderr
    assert [row["error"] and row["error"]["line"] for row in rows] == [None, 2, 3, 4, 5, 6, 7, 8, 9, None]
    assert [row["custom_id"] for row in rows] == [
        "good",
        None,
        None,
        None,
        None,
        "c",
        "long",
        "u",
        "g",
        "last",
    ]
    assert rows[6]["error"]["code"] == "context_length_exceeded"
    assert "2048" in rows[6]["error"]["message"]


def test_line_ends_blank_lines_and_separators(llmrs: Run, ladder: MakeLadder) -> None:
    data = '\ufeff{"custom_id":"a","prompt":"p\u2028q"}\r\n\r\n   \n\n{"custom_id":"b","prompt":"r\u0085s"}'
    result = llmrs("batch", "-", "-m", ladder("a\u2028b", END), "-t", "0", stdin=data.encode())
    lines = result.stdout.splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == ["a", "b"]
    assert json.loads(lines[0])["text"] == "a\u2028b"


def test_an_empty_file_is_no_rows(batch: Any) -> None:
    rows, status, _ = batch()
    assert (rows, status) == ([], 0)


def test_a_very_long_line_is_an_error_or_an_answer_and_the_next_row_runs(batch: Any) -> None:
    rows, status, _ = batch(
        {"id": 1, "prompt": "a " * 200_000},
        {"id": 2, "prompt": "Hi", "metadata": "x" * 200_000},
        {"id": 3, "prompt": "Hi"},
    )
    assert status == 3
    assert rows[0]["error"]["code"] == "context_length_exceeded"
    assert [row["text"] for row in rows[1:]] == ["Hello world"] * 2
    assert len(rows[1]["metadata"]) == 200_000


# -- options ------------------------------------------------------------------------------------------


def test_token_ids_come_on_request_with_the_end_token(batch: Any) -> None:
    rows, _, _ = batch({"prompt": "Hi"}, args=("--return-token-ids",))
    assert rows[0]["token_ids"] == [259, 260, 300]


def test_a_rows_own_options_win(batch: Any) -> None:
    rows, status, _ = batch(
        {"prompt": "Hi"},
        {"prompt": "Hi", "max_tokens": 1},
        {"prompt": "Hi", "stop": "wor"},
        {"prompt": "Hi", "n": 2},
        {"prompt": "Hi", "ignore_eos": True, "max_tokens": 5},
        {"prompt": "Hi", "temperature": 3},
        args=("--max-tokens", "2"),
    )
    assert [row.get("text") for row in rows[:3]] == ["Hello world", "Hello", "Hello "]
    assert [row.get("finish_reason") for row in rows[:3]] == ["length", "length", "stop"]
    assert rows[3]["texts"] == ["Hello world"] * 2
    assert rows[4]["usage"]["completion_tokens"] == 5
    assert (rows[5]["error"]["param"], status) == ("temperature", 3)


def test_ignore_eos_runs_to_the_limit(batch: Any) -> None:
    rows, _, _ = batch({"prompt": "Hi"}, args=("--ignore-eos", "--max-tokens", "6", "--return-token-ids"))
    assert len(rows[0]["token_ids"]) == 6
    assert rows[0]["finish_reason"] == "length"


def test_logprobs_in_each_form(batch: Any) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 1}
    rows, _, _ = batch(
        {"prompt": "Hi"},
        {"custom_id": "a", "url": CHAT_URL, "body": body},
        {"custom_id": "b", "url": "/v1/completions", "body": {"prompt": "Hi\n", "logprobs": 1}},
        args=("--logprobs", "2"),
    )
    flat = rows[0]["logprobs"][0]
    assert (flat["token"], flat["id"], len(flat["top_logprobs"])) == ("Hello", 259, 2)
    chat = rows[1]["response"]["body"]["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in chat][:2] == ["Hello", " world"]
    assert len(chat[0]["top_logprobs"]) == 1
    completion = rows[2]["response"]["body"]["choices"][0]["logprobs"]
    assert completion["tokens"][:2] == ["Hello", " world"]


def test_a_seed_repeats_a_run_and_rows_differ(batch: Any) -> None:
    lines = [{"prompt_token_ids": [5]}] * 4  # after which every token is equally likely
    args = ("-t", "1", "--seed", "3", "--max-tokens", "6", "--return-token-ids")
    first, second = (batch(*lines, args=args)[0] for _ in range(2))
    drawn = [tuple(row["token_ids"]) for row in first]
    assert drawn == [tuple(row["token_ids"]) for row in second]
    assert len(set(drawn)) == 4


def test_variables_of_the_template_for_every_row(batch: Any, ladder: MakeLadder) -> None:
    template = "{{ 'x' * (count or 0) }}\n"
    lines = [{"prompt": "Hi"}, {"prompt": "Hi", "chat_template_kwargs": {"count": 5}}]
    rows, _, _ = batch(
        *lines,
        args=("--max-tokens", "1", "--template-kwargs", '{"count": 3}'),
        model=ladder(chat_template=template),
    )
    assert [row["usage"]["prompt_tokens"] for row in rows] == [3, 5]


def test_a_system_prompt_for_rows_without_one(batch: Any, tmp_path: Path) -> None:
    lines = [
        {"prompt": "Hi"},
        {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "Hi"}]},
    ]
    bare, _, _ = batch(*lines)
    given, _, _ = batch(*lines, args=("-s", "Be brief."))
    (tmp_path / "system").write_text("Be brief.")
    assert batch(*lines, args=("--system-file", str(tmp_path / "system")))[0] == given
    lengths = [[row["usage"]["prompt_tokens"] for row in rows] for rows in (bare, given)]
    assert lengths[1][0] > lengths[0][0]
    assert lengths[1][1] == lengths[0][1]


def test_a_prompt_for_a_model_without_a_template_is_plain_text(batch: Any, ladder: MakeLadder) -> None:
    rows, status, _ = batch(
        {"prompt": "Hi\n"},
        {"messages": [{"role": "user", "content": "Hi"}]},
        model=ladder(chat_template=None),
    )
    assert (rows[0]["text"], rows[0]["usage"]["prompt_tokens"]) == ("Hello world", 3)
    assert "chat template" in rows[1]["error"]["message"]
    assert status == 3


def test_a_model_without_a_tokenizer_runs_on_ids(batch: Any, ladder: MakeLadder) -> None:
    rows, _, _ = batch(
        {"prompt_token_ids": [NEWLINE]},
        {"prompt": "Hi"},
        {"prompt_token_ids": [5000]},
        model=ladder(tokenizer=False),
        args=("--return-token-ids",),
    )
    assert rows[0]["token_ids"] == [259, 260, 300]
    assert "tokenizer" in rows[1]["error"]["message"]
    assert "5000" in rows[2]["error"]["message"]


# -- messages and statuses ----------------------------------------------------------------------------


def test_another_model_in_the_body_is_mentioned_once(batch: Any) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "model": "gpt-4o"}
    _, _, stderr = batch(*({"custom_id": str(i), "url": CHAT_URL, "body": body} for i in range(3)))
    assert stderr.count("gpt-4o") == 1


def test_columns_that_give_way_to_ours_are_mentioned(batch: Any) -> None:
    rows, _, stderr = batch({"prompt": "Hi", "text": "theirs"}, {"prompt": "Hi", "text": "theirs"})
    assert rows[0]["text"] == "Hello world"
    assert stderr.count("'text'") == 1


def test_a_summary_stands_on_stderr_unless_quiet(batch: Any) -> None:
    assert "2 rows, 6 tokens" in batch({"prompt": "a"}, {"prompt": "b"})[2]
    assert batch({"prompt": "a"}, {"prompt": "b"}, args=("-q",))[2] == ""


def test_stdin_to_stdout(llmrs: Run, ladder: MakeLadder) -> None:
    for name in ("batch", "run-batch"):
        result = llmrs(name, "-", "-m", ladder(), "-t", "0", stdin='{"prompt":"Hi"}\n')
        assert (result.exit_code, rows_of(result.stdout)[0]["text"]) == (0, "Hello world")


@pytest.mark.parametrize(
    ("args", "status", "part"),
    [
        ((), 2, "No input"),
        (("a", "-i", "b"), 2, "Two inputs"),
        (("missing.jsonl",), 5, "'missing.jsonl'"),
        (("IN", "-o", "IN"), 2, "same file"),
        (("IN", "-o", "OUT"), 2, "--overwrite"),
        (("IN", "-o", "FOLDER"), 2, "folder"),
        (("FOLDER",), 2, "folder"),
        (("IN", "-o", "FOLDER/none/out"), 2, "folder"),
        (("IN", "--temperature", "-1"), 2, "--temperature"),
        (("IN", "--logprobs", "21"), 2, "--logprobs"),
    ],
)
def test_what_is_refused_before_any_model(
    llmrs: Run, tmp_path: Path, args: tuple[str, ...], status: int, part: str
) -> None:
    (tmp_path / "in").write_text('{"prompt":"Hi"}\n')
    (tmp_path / "out").write_text("old\n")
    places = {"IN": str(tmp_path / "in"), "OUT": str(tmp_path / "out"), "FOLDER": str(tmp_path)}
    full = [next((arg.replace(k, v) for k, v in places.items() if arg.startswith(k)), arg) for arg in args]
    result = llmrs("batch", *full, "-m", "no-such-model-is-looked-for")
    assert (result.exit_code, result.stdout) == (status, "")
    assert part in result.stderr
    assert (tmp_path / "out").read_text() == "old\n"


def test_a_missing_model_leaves_an_old_output_alone(llmrs: Run, tmp_path: Path) -> None:
    (tmp_path / "in").write_text('{"prompt":"Hi"}\n')
    (tmp_path / "out").write_text("old\n")
    result = llmrs("batch", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--overwrite", "-m", "./none")
    assert result.exit_code == 5
    assert (tmp_path / "out").read_text() == "old\n"


# -- where lines go -----------------------------------------------------------------------------------


def test_failed_rows_of_a_stream_may_go_to_a_file(llmrs: Run, ladder: MakeLadder, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    rows = '{"prompt":"Hi"}\n{\n{"prompt":"Hi"}\n'
    args = ("batch", "-", "-m", ladder(), "-t", "0", "--errors", str(bad))
    result = llmrs(*args, stdin=rows)
    assert (result.exit_code, [row["index"] for row in rows_of(result.stdout)]) == (3, [0, 2])
    assert [row["index"] for row in rows_of(bad.read_text())] == [1]
    assert llmrs(*args, stdin=rows).exit_code == 2
    assert llmrs("batch", "-", "-m", "./none", "--errors", str(bad), "--overwrite", stdin=rows).exit_code == 5
    assert bad.read_text(), "nothing is touched before the model is there"


def test_plain_text_in_and_out(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("batch", "-", "-m", ladder(), "-t", "0", "--output-format", "text", stdin="Hi\n\nHo\n")
    assert (result.exit_code, result.stdout) == (0, "Hello world\nHello world\n")


def test_a_table_and_a_template(llmrs: Run, ladder: MakeLadder, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('id,text\nx,"a, b"\n')
    args = ("batch", str(tmp_path / "in.csv"), "-m", ladder(), "-t", "0")
    (row,) = rows_of(llmrs(*args, "--prompt-template", "Judge: {text}", "--n", "2").stdout)
    assert (row["id"], row["texts"]) == ("x", ["Hello world"] * 2)
    refused = llmrs("batch", str(tmp_path / "in.csv"), "-m", "./none")
    assert (refused.exit_code, "'prompt'" in refused.stderr) == (2, True)


def test_lines_may_come_as_rows_finish(llmrs: Run, ladder: MakeLadder) -> None:
    rows = "".join(json.dumps({"id": n, "prompt": "Hi", "seed": n}) + "\n" for n in range(5))
    result = llmrs("batch", "-", "-m", ladder(), "-t", "0", "--order", "done", stdin=rows)
    assert sorted(row["id"] for row in rows_of(result.stdout)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "args", [("--shard", "3/2"), ("--shard", "x"), ("--resume",), ("--prompt-template", "{")]
)
def test_options_that_mean_nothing_are_refused(llmrs: Run, args: tuple[str, ...]) -> None:
    result = llmrs("batch", "-", "-m", "./none", *args, stdin='{"prompt":"Hi"}\n')
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write")
def test_a_home_that_cannot_be_written_is_no_matter(
    llmrs: Run, ladder: MakeLadder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the speed of the run would be kept there."""
    monkeypatch.setenv("HOME", "/proc/none")
    rows = tmp_path / "in.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "Hi", "seed": n}) + "\n" for n in range(10)))
    for more in ((), ("--dry-run",)):
        result = llmrs("batch", str(rows), "-m", ladder(), "-t", "0", *more)
        assert (result.exit_code, "folder" in result.stderr) == (0, False)


@pytest.mark.parametrize("name", ["/proc/none", "/dev/none/out", "/proc/self/none"])
def test_an_output_that_cannot_be_made_is_refused_before_any_model(llmrs: Run, name: str) -> None:
    result = llmrs("batch", "-", "-o", name, "-m", "./none", stdin='{"prompt":"Hi"}\n')
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) <= 2
