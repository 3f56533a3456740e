"""From a line to a row: the four kinds, options, ids, and everything that can be wrong with a line."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.fields import OPTIONS
from llmrs_cli.batch.lines import Line, read_lines
from llmrs_cli.batch.records import Ask, Row, RowReader, Shape
from llmrs_cli.errors import RequestError
from llmrs_cli.text.forms import AnswerForm
from llmrs_cli.text.grammar import json_object, regex


def read_all(*lines: str | bytes) -> list[Row]:
    data = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines)
    reader = RowReader()
    return [reader.read(line) for line in read_lines(io.BytesIO(data))]


def read(record: Any) -> Row:
    return read_all(record if isinstance(record, (str, bytes)) else json.dumps(record))[0]


def ask(record: Any) -> Ask:
    row = read(record)
    assert isinstance(row.ask, Ask), row.ask
    return row.ask


def error(record: Any) -> RequestError:
    row = read(record)
    assert isinstance(row.ask, RequestError)
    return row.ask


def request(**changes: Any) -> dict[str, Any]:
    record = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "Hi"}]},
    }
    return {key: value for key, value in {**record, **changes}.items() if value != "absent"}


# -- the four kinds -----------------------------------------------------------------------------------


def test_a_prompt_is_a_user_message() -> None:
    row = read({"prompt": "Hi"})
    assert row.ask == Ask(messages=[{"role": "user", "content": "Hi"}], is_prompt=True, plain=True)
    assert row.shape is Shape.FLAT


def test_a_prompt_with_a_system_text_needs_a_template() -> None:
    found = ask({"prompt": "Hi", "system": "Be brief."})
    assert found.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert not found.plain


def test_messages_and_token_ids_are_taken_as_they_are() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert ask({"messages": messages}) == Ask(messages=messages)
    assert ask({"prompt_token_ids": [1, 2, 3]}) == Ask(token_ids=(1, 2, 3))


def test_an_openai_chat_request() -> None:
    row = read(request(body={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "model": "m"}))
    assert row.shape is Shape.CHAT
    assert row.ids == {"custom_id": "a"}
    assert row.ask == Ask(messages=[{"role": "user", "content": "Hi"}], options={"max_tokens": 8}, model="m")


def test_an_openai_completion_takes_its_prompt_raw() -> None:
    row = read(request(url="/v1/completions", body={"prompt": "Once"}))
    assert row.shape is Shape.COMPLETION
    assert row.ask == Ask(text="Once")
    assert ask(request(url="/v1/completions", body={"prompt": [5, 6]})) == Ask(token_ids=(5, 6))


def test_a_flat_row_may_carry_columns_called_url_and_body() -> None:
    row = read({"prompt": "Sum up.", "url": "http://x", "body": "long"})
    assert row.shape is Shape.FLAT
    assert row.extras == {"url": "http://x", "body": "long"}


# -- options, ids, extras -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"max_tokens": 8.0}, {"max_tokens": 8}),
        ({"max_completion_tokens": 8}, {"max_tokens": 8}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "y"]}, {"stop": ("x", "y")}),
        ({"stop": []}, {"stop": ()}),
        ({"stop": None, "temperature": None}, {}),
        ({"logit_bias": {"42": -100}}, {"logit_bias": ((42, -100.0),)}),
        ({"stop_token_ids": [3]}, {"stop_token_ids": (3,)}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": False}, {"logprobs": None}),
        ({"logprobs": 2}, {"logprobs": 2}),
        ({"ignore_eos": True, "n": 2, "seed": 7}, {"ignore_eos": True, "n": 2, "seed": 7}),
        ({"response_format": {"type": "text"}, "stream": False}, {"form": AnswerForm()}),
        ({"response_format": {"type": "json_object"}}, {"form": AnswerForm(json_object(), is_json=True)}),
        ({"response_format": {"type": "regex", "regex": "a"}}, {"form": AnswerForm(regex("a"))}),
        (
            {"structured_outputs": {"regex": "a"}},
            {"form": AnswerForm(regex("a"), field="structured_outputs")},
        ),
    ],
)
def test_options_arrive_under_our_names(given: dict[str, Any], options: dict[str, Any]) -> None:
    assert dict(ask({"prompt": "x", **given}).options) == options


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"max_tokens": []}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_completion_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["", "x"]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"n": 0}, "n"),
        ({"n": 1000000}, "n"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"stream": True}, "stream"),
        ({"tools": [{}]}, "tools"),
    ],
)
def test_an_option_of_the_wrong_kind_is_named(given: dict[str, Any], field: str) -> None:
    found = error({"prompt": "x", **given})
    assert found.param == field
    assert field in found.message


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("temprature", "temperature"),
        ("Temperature", "temperature"),
        ("maxTokens", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("temp", "temperature"),
        ("top-p", "top_p"),
        ("repeat_penalty", "repetition_penalty"),
        ("stop_token_id", "stop_token_ids"),
        ("guided_json", "structured_outputs"),
    ],
)
def test_a_key_that_resembles_an_option_is_an_error(typed: str, meant: str) -> None:
    for record in ({"prompt": "x", typed: 1}, request(body={"messages": [{"role": "user"}], typed: 1})):
        found = error(record)
        assert found.code == "unknown_field"
        assert repr(meant) in found.message


@pytest.mark.parametrize(
    "key", ["label", "topic", "prompt_id", "tokens", "source", "ids", "model", "text", "url"]
)
def test_other_keys_are_copied_through(key: str) -> None:
    row = read({"prompt": "x", key: {"any": [1, None]}})
    assert isinstance(row.ask, Ask)
    assert row.extras == {key: {"any": [1, None]}}


def test_a_key_that_resembles_a_prompt_is_an_error_only_where_there_is_none() -> None:
    assert "'messages'" in error({"message": []}).message
    assert read({"prompt": "x", "message": []}).extras == {"message": []}


@pytest.mark.parametrize("ids", [{"id": 7}, {"custom_id": "a"}, {"id": "x", "custom_id": "y"}, {}])
def test_ids_keep_their_name_and_kind(ids: dict[str, Any]) -> None:
    assert read({"prompt": "x", **ids}).ids == ids


@pytest.mark.parametrize("bad", [True, 1.5, [], {}])
def test_other_ids_are_errors(bad: Any) -> None:
    assert error({"prompt": "x", "id": bad}).param == "id"


def test_a_duplicate_id_is_an_error_of_the_later_row() -> None:
    first, second, other = read_all(
        '{"id":1,"prompt":"a"}', '{"id":1,"prompt":"b"}', '{"id":"1","prompt":"c"}'
    )
    assert isinstance(first.ask, Ask)
    assert isinstance(other.ask, Ask)
    assert isinstance(second.ask, RequestError)
    assert second.ask.code == "duplicate_id"
    assert second.ids == {"id": 1}


# -- lines that cannot be rows ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('{"prompt":', "invalid_json"),
        ("[]", "invalid_json"),
        ("5", "invalid_json"),
        ("null", "invalid_json"),
        ('{"prompt":"x","seed":NaN}', "invalid_json"),
        ('{"prompt":"x","temperature":1e999}', "invalid_json"),
        ('{"prompt":"x","prompt":"y"}', "invalid_json"),
        ('{"prompt":"x","seed":' + "9" * 5000 + "}", "invalid_json"),
        ('{"prompt":"x","deep":' + "[" * 100_000 + "]" * 100_000 + "}", "invalid_json"),
        ('{"prompt":"x","deep":' + "[" * 300 + "]" * 300 + "}", "invalid_json"),
        (b'{"prompt":"\xff"}', "invalid_utf8"),
        ("{}", "no_prompt"),
        ('{"prompt":null}', "no_prompt"),
        ('{"prompt":"x","messages":[]}', "no_prompt"),
        ('{"prompt":5}', "invalid_value"),
        ('{"messages":[]}', "invalid_value"),
        ('{"messages":"x"}', "invalid_value"),
        ('{"prompt_token_ids":[]}', "invalid_value"),
        ('{"prompt_token_ids":[1,true]}', "invalid_value"),
        ('{"prompt_token_ids":[-1]}', "invalid_value"),
        ('{"prompt_token_ids":[1],"system":"x"}', "invalid_value"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_line_says_why(line: str | bytes, code: str) -> None:
    found = error(line)
    assert found.code == code
    assert len(str(found)) < 200


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"custom_id": "absent"}, "custom_id"),
        ({"custom_id": 5}, "custom_id"),
        ({"method": "GET"}, "method"),
        ({"url": "/v1/embeddings"}, "url"),
        ({"url": "absent"}, "url"),
        ({"url": ["x"]}, "url"),
        ({"body": "absent"}, "body"),
        ({"body": []}, "body"),
        ({"bdoy": {}}, "bdoy"),
        ({"body": {}}, "messages"),
    ],
)
def test_a_bad_request_names_the_field(changes: dict[str, Any], field: str) -> None:
    row = read(request(**changes))
    assert isinstance(row.ask, RequestError)
    assert row.ask.param == field


def test_a_line_over_the_limit_is_an_error_row() -> None:
    row = RowReader().read(Line(3, None))
    assert isinstance(row.ask, RequestError)
    assert (row.ask.code, row.line, row.index) == ("line_too_long", 3, 0)


def test_a_line_without_a_kind_is_answered_like_the_one_before() -> None:
    rows = read_all(json.dumps(request()), '{"custom_id":"b"', '{"custom_id":"c"}', '{"prompt":"x"}', "[]")
    assert [row.shape for row in rows] == [Shape.CHAT, Shape.CHAT, Shape.CHAT, Shape.FLAT, Shape.FLAT]
    assert [row.index for row in rows] == [0, 1, 2, 3, 4]


def test_separators_inside_strings_do_not_cut_a_row() -> None:
    rows = read_all('{"custom_id":"a","prompt":"p\u2028q"}', '{"custom_id":"b","prompt":"r\u0085s"}')
    texts = [row.ask.messages[0]["content"] for row in rows if isinstance(row.ask, Ask) and row.ask.messages]
    assert texts == ["p\u2028q", "r\u0085s"]


def test_a_carriage_return_between_tokens_is_json_space() -> None:
    assert isinstance(read('{"custom_id":"x",\r"prompt":"y"}').ask, Ask)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["prompt", "messages", "prompt_token_ids", "body", "url", "custom_id", "id", *OPTIONS])


@given(st.dictionaries(KEYS | st.text(max_size=8), JSON, max_size=6))
def test_any_object_becomes_a_row_or_an_error_row(record: dict[str, Any]) -> None:
    row = read(json.dumps(record))
    assert isinstance(row.ask, (Ask, RequestError))


@given(st.binary(max_size=60).filter(lambda data: b"\n" not in data and data.strip(b" \t\r\xef\xbb\xbf")))
def test_any_bytes_become_a_row_or_an_error_row(data: bytes) -> None:
    assert isinstance(RowReader().read(Line(1, data)).ask, (Ask, RequestError))
