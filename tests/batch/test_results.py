"""From an outcome to an output line: both formats, errors, and characters that would split a line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.records import Ask, Row, Shape
from llmrs_cli.batch.results import Answer, Choice, Form, Writer, encode
from llmrs_cli.errors import ContextLengthError, EngineFault, LlmrsError, RequestError

WRITER = Writer(model="tiny", created=1_700_000_000)
ANSWER = Answer([Choice("Lima", (5, 6, 2), "stop")], prompt_tokens=12)
TWO = Answer([Choice("a", (1,), "length"), Choice("b", (2, 3), "stop")], prompt_tokens=4)


def row(shape: Shape = Shape.FLAT, ids: dict[str, Any] | None = None, **extras: Any) -> Row:
    return Row(index=3, line=9, shape=shape, ids=ids or {}, extras=extras, ask=Ask())


def written(row: Row, outcome: Answer | LlmrsError, writer: Writer = WRITER) -> dict[str, Any]:
    record = json.loads(writer.line(row, outcome))
    assert isinstance(record, dict)
    return record


def test_a_flat_answer() -> None:
    assert written(row(ids={"id": 7}, label="x"), ANSWER) == {
        "index": 3,
        "id": 7,
        "text": "Lima",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
        "error": None,
        "label": "x",
    }


def test_several_choices_are_columns() -> None:
    record = written(row(), TWO, Writer("tiny", 0, token_ids=True))
    assert record["texts"] == ["a", "b"]
    assert record["finish_reasons"] == ["length", "stop"]
    assert record["token_ids"] == [[1], [2, 3]]
    assert record["usage"]["completion_tokens"] == 3


def test_token_ids_hold_the_end_token() -> None:
    assert written(row(), ANSWER, Writer("tiny", 0, token_ids=True))["token_ids"] == [5, 6, 2]


def test_a_flat_error_has_the_same_keys_and_the_line() -> None:
    record = written(row(ids={"custom_id": "a"}), RequestError("Bad.", code="no_prompt", param="prompt"))
    assert (record["text"], record["finish_reason"], record["usage"]) == (None, None, None)
    assert record["custom_id"] == "a"
    assert record["error"] == {"code": "no_prompt", "message": "Bad.", "param": "prompt", "line": 9}


def test_our_keys_win_over_columns_of_the_row() -> None:
    assert written(row(text="theirs", usage="theirs", note="kept"), ANSWER)["text"] == "Lima"


def test_an_openai_chat_answer() -> None:
    record = written(row(Shape.CHAT, {"custom_id": "a"}), ANSWER)
    assert (record["custom_id"], record["error"]) == ("a", None)
    assert record["id"].startswith("batch_req_")
    assert record["response"]["status_code"] == 200
    body = record["response"]["body"]
    assert (body["object"], body["model"], body["created"]) == ("chat.completion", "tiny", 1_700_000_000)
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Lima"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


def test_an_openai_completion_answer() -> None:
    body = written(row(Shape.COMPLETION, {"custom_id": "a"}), TWO)["response"]["body"]
    assert body["object"] == "text_completion"
    assert [choice["text"] for choice in body["choices"]] == ["a", "b"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]


@pytest.mark.parametrize("outcome", [ANSWER, TWO])
def test_the_official_client_takes_our_bodies(outcome: Answer) -> None:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

    for shape, model in ((Shape.CHAT, ChatCompletion), (Shape.COMPLETION, Completion)):
        body = written(row(shape, {"custom_id": "a"}), outcome)["response"]["body"]
        read = model.model_validate(body, strict=True)
        assert read.usage is not None
        assert read.usage.completion_tokens == outcome.completion_tokens


def test_an_openai_error_stands_where_every_reader_looks() -> None:
    overflow = ContextLengthError("Too long.", limit=64, prompt=200)
    record = written(row(Shape.CHAT, {"custom_id": "a"}), overflow)
    assert record["response"]["status_code"] == 400
    assert record["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert record["response"]["body"]["error"]["type"] == "invalid_request_error"
    assert record["error"]["code"] == "context_length_exceeded"
    assert record["error"]["line"] == 9


def test_an_engine_fault_is_a_server_error() -> None:
    record = written(row(Shape.CHAT, {"custom_id": "a"}), EngineFault("NaN."))
    assert record["response"]["status_code"] == 500
    assert record["error"]["code"] == "engine_error"


def test_response_ids_differ_between_rows_and_repeat_for_a_row() -> None:
    first, second = row(Shape.CHAT), Row(4, 10, Shape.CHAT, {}, {}, Ask())
    assert written(first, ANSWER)["id"] == written(first, ANSWER)["id"] != written(second, ANSWER)["id"]


@pytest.mark.parametrize(
    "text", ["a\u2028b", "a\u0085b", "a\x0b\x0c\x1c\x1eb", "a\r\nb", "\u202eb", "a\x9b31m"]
)
def test_no_reader_splits_a_line(text: str) -> None:
    line = encode({"text": text})
    assert line.splitlines() == [line]
    assert line.isprintable()
    assert json.loads(line) == {"text": text}


def test_readable_text_stays_readable() -> None:
    assert encode({"text": "Größe 😊 日本"}) == '{"text":"Größe 😊 日本"}'


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_every_text_comes_back(text: str) -> None:
    line = encode({"text": text})
    line.encode("utf-8")
    assert len(line.splitlines()) == 1
    assert json.loads(line)["text"] == text


# -- forms that the user asks for ---------------------------------------------------------------------


def test_flat_rows_may_be_answered_as_openai_does() -> None:
    writer = Writer("tiny", 0, form=Form.OPENAI)
    answers = [written(row(ids=ids), ANSWER, writer) for ids in ({"custom_id": "a"}, {"id": 7}, {})]
    assert [record["custom_id"] for record in answers] == ["a", "7", "row-3"]
    body = answers[0]["response"]["body"]
    assert (body["object"], body["choices"][0]["message"]["content"]) == ("chat.completion", "Lima")
    failed = written(row(), RequestError("Odd."), writer)
    assert failed["response"]["status_code"] == 400


def test_requests_may_be_answered_flat() -> None:
    record = written(row(Shape.COMPLETION, {"custom_id": "a"}), ANSWER, Writer("tiny", 0, form=Form.FLAT))
    assert (record["custom_id"], record["text"], record["index"]) == ("a", "Lima", 3)


def test_plain_text_is_one_line_whatever_was_said() -> None:
    writer = Writer("tiny", 0, form=Form.TEXT)
    said = Answer([Choice("a\r\n\tb\\n\u2028\x0b\x0c\x85", (1,), "stop")], prompt_tokens=1)
    line = writer.line(row(), said)
    assert line == r"a\r\n\tb\\n\u2028\x0b\x0c\u0085"
    assert line.splitlines() == [line]
    assert writer.line(row(), TWO) == "a\tb"
    assert writer.line(row(), RequestError("Odd.")) == ""


# -- answers that are held to JSON ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}),
        ('"good"', "good"),
        ('{"a": ', None),
        ("1e999", None),
        ("9" * 5000, None),
        ("[" * 100_000, None),
        ('"\\ud800"', "\ud800"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_answer_in_json_stands_in_a_flat_line_as_its_value(text: str, value: Any) -> None:
    answer = Answer([Choice(text, (5,), "stop")], prompt_tokens=1, is_json=True)
    record = written(row(), answer)
    assert (record["text"], record["json"]) == (text, value)
    assert "json" not in written(row(Shape.CHAT), answer)


def test_each_of_several_answers_in_json_has_its_value() -> None:
    two = Answer([Choice("1", (1,), "stop"), Choice('"', (2,), "length")], prompt_tokens=1, is_json=True)
    assert written(row(json="theirs"), two)["json"] == [1, None]
