"""Batches whose answers are held to a form: by the command line, by a row, and what cannot be kept to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import MakeLadder, Run

LABELS = {"enum": ["yes", "no"]}
"""The model would say "Hello world"."""


def text_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.fixture
def batch(llmrs: Run, ladder: MakeLadder, tmp_path: Path) -> Any:
    """Runs a batch; output rows, status, stderr."""

    def run(*rows: Any, args: tuple[str, ...] = ()) -> tuple[list[dict[str, Any]], int, str]:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        result = llmrs("batch", "-", "-m", ladder(), "-t", "0", *args, stdin=text)
        return [json.loads(line) for line in result.stdout.splitlines()], result.exit_code, result.stderr

    return run


def test_a_schema_holds_every_row_and_its_value_is_in_the_line(batch: Any, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(LABELS))
    for given in (json.dumps(LABELS), str(tmp_path / "schema.json")):
        rows, status, _ = batch({"prompt": "Hi"}, {"prompt": "Ho", "n": 2}, args=("--schema", given))
        assert status == 0
        assert rows[0]["json"] in ("yes", "no")
        assert json.loads(rows[0]["text"]) == rows[0]["json"]
        assert set(rows[1]["json"]) <= {"yes", "no"}


def test_a_row_names_a_form_of_its_own(batch: Any) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "response_format": text_format({"enum": [7]})}
    rows, status, _ = batch(
        {"prompt": "Hi", "response_format": {"type": "regex", "regex": "maybe|perhaps"}},
        {"prompt": "Hi", "response_format": {"type": "text"}},
        {"prompt": "Hi", "response_format": {"type": "grammar", "grammar": 'start: "a" "b"'}},
        {"custom_id": "c", "url": "/v1/chat/completions", "body": chat},
        {"prompt": "Hi"},
        {"prompt": "Hi", "structured_outputs": {"choice": ["this", "that"]}},
        args=("--schema", json.dumps(LABELS)),
    )
    assert status == 0
    assert rows[0]["text"] in ("maybe", "perhaps")
    assert [row.get("text") for row in rows[1:3]] == ["Hello world", "ab"]
    assert rows[3]["response"]["body"]["choices"][0]["message"]["content"] == "7"
    assert ["json" in row for row in rows] == [False, False, False, False, True, False]
    assert rows[5]["text"] in ("this", "that")


def test_a_form_that_cannot_be_kept_to_is_an_error_of_its_row(batch: Any) -> None:
    rows, status, _ = batch(
        {"prompt": "Hi", "response_format": text_format({"not": {}})},
        {"prompt": "Hi", "response_format": {"type": "xml"}},
        {"prompt": "Hi", "response_format": text_format(LABELS), "ignore_eos": True},
        {"prompt": "Hi", "structured_outputs": {"regex": "("}},
        {"prompt": "Hi", "guided_json": LABELS},
        {"prompt": "Hi", "structured_outputs": {"regex": "a"}, "response_format": text_format(LABELS)},
        {"prompt": "Hi"},
    )
    assert status == 3
    assert [row["error"] and row["error"]["param"] for row in rows] == [
        "response_format",
        "response_format.type",
        "ignore_eos",
        "structured_outputs",
        "guided_json",
        "response_format",
        None,
    ]
    assert "'structured_outputs'" in rows[4]["error"]["message"]


def test_a_form_that_would_never_be_compiled_holds_nothing_up(batch: Any) -> None:
    """Its cost is bounded by the kernel, in a process of its own; equal ones are tried once."""
    endless = {"prompt": "Hi", "response_format": text_format({"type": "integer", "multipleOf": 9_999_991})}
    rows, status, _ = batch(endless, {"prompt": "Hi"}, endless)
    assert status == 3
    assert ["takes too long" in str(row["error"]) for row in rows] == [True, False, True]
    assert rows[1]["text"] == "Hello world"


def test_an_answer_that_is_cut_has_no_value(batch: Any) -> None:
    (row,), status, _ = batch(
        {"prompt": "Hi", "max_tokens": 3},
        args=("--schema", '{"type": "string", "minLength": 20, "maxLength": 30}'),
    )
    assert (status, row["finish_reason"], row["json"]) == (0, "length", None)
    assert row["text"].startswith('"')


def test_any_json_object_may_be_asked_for(batch: Any) -> None:
    (row,), status, _ = batch({"prompt": "Hi", "max_tokens": 2}, args=("--json-mode",))
    assert (status, row["text"][0], row["json"]) == (0, "{", None)


@pytest.mark.parametrize(
    ("given", "status", "part"),
    [
        ('{"type": "nothing"}', 2, "cannot be followed"),
        ("{", 2, "not a JSON object"),
        ("no-such-file", 5, "no file"),
    ],
)
def test_a_schema_is_looked_at_before_any_model(llmrs: Run, given: str, status: int, part: str) -> None:
    result = llmrs("batch", "-", "-m", "./none", "--schema", given, stdin='{"prompt":"Hi"}\n')
    assert (result.exit_code, result.stdout) == (status, "")
    assert part in result.stderr


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("--schema", "{}", "--json-mode"), "--schema and --json-mode"),
        (("-s", "a", "--system-file", "b"), "-s and --system-file"),
        (("--template-kwargs", "[]"), "not a JSON object"),
    ],
)
def test_options_that_contradict_are_refused(llmrs: Run, args: tuple[str, ...], part: str) -> None:
    result = llmrs("batch", "-", "-m", "./none", *args, stdin='{"prompt":"Hi"}\n')
    assert (result.exit_code, part in result.stderr) == (2, True)


def test_a_look_before_the_run_tells_of_forms_too(llmrs: Run, ladder: MakeLadder, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    good, bad = text_format(LABELS), text_format({"not": {}})
    source.write_text(
        "".join(json.dumps({"prompt": "Hi", "response_format": form}) + "\n" for form in (good, bad, good))
    )
    result = llmrs("batch", str(source), "--dry-run", "-t", "0", "-m", ladder())
    assert result.exit_code == 3
    assert "3 rows, 1 cannot be answered" in result.stdout
    assert "1 row equal to others" in result.stdout
    assert "line 2: The form cannot be followed" in result.stdout


def test_rows_of_different_forms_are_different_and_so_is_a_resume(
    llmrs: Run, ladder: MakeLadder, tmp_path: Path
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt":"Hi"}\n{"prompt":"Hi","response_format":{"type":"regex","regex":"x"}}\n')
    command = ("batch", str(source), "-o", str(out), "-t", "0", "-m", ladder())
    assert llmrs(*command, "--schema", json.dumps(LABELS)).exit_code == 0
    assert len({json.loads(line)["text"] for line in out.read_text().splitlines()}) == 2
    manifest = json.loads(out.with_name("out.jsonl.manifest.json").read_text())
    assert manifest["settings"]["schema"] == LABELS
    refused = llmrs(*command, "--resume")
    assert (refused.exit_code, "schema" in refused.stderr) == (2, True)
