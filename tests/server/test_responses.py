"""/v1/responses by OpenAI's client, which insists on the order of its events."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import response_create_params

from llmrs_cli.server.schema import RESPONSE
from tests.helpers.served import Reply, Served

FLAT_TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in "fg"]


def ask(server: Served, **body: Any) -> Reply:
    return server.post("/v1/responses", {"temperature": 0, **body})


def events(server: Served, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each under its own name and numbered in order."""
    blocks = ask(server, stream=True, **body).data.decode().split("\n\n")
    assert blocks.pop() == ""
    told = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)
        told.append(event)
    return told


def test_every_field_of_openai_s_request_has_a_standing() -> None:
    theirs = set(response_create_params.ResponseCreateParamsBase.__annotations__) | {"stream"}
    assert theirs - set(RESPONSE) == set()


def test_the_official_client_gets_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(model="script", input="hi", temperature=0, store=False)
    assert response.output_text == "Hello world"
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.output_tokens == 3


def test_the_official_client_streams_a_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="script", input="hi", temperature=0, store=False) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text == "Hello world"


def test_the_events_of_a_text_come_in_order(server: Served) -> None:
    told = events(server, input="hi")
    kinds = [event["type"].removeprefix("response.") for event in told]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    whole = ask(server, input="hi").json
    final = told[-1]["response"]
    assert final["output"][0]["content"] == whole["output"][0]["content"]
    assert "".join(event.get("delta", "") for event in told) == "Hello world"


def test_an_answer_at_its_limit_is_incomplete(server: Served) -> None:
    response = ask(server, input="hi", max_output_tokens=1).json
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert response["output"][0]["status"] == "incomplete"
    assert events(server, input="hi", max_output_tokens=1)[-1]["type"] == "response.incomplete"


def test_a_required_call_is_an_item(server: Served) -> None:
    tool = {
        "type": "function",
        "name": "f",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    }
    body = {
        "input": "hi",
        "tools": [tool],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 200,
    }
    (item,) = ask(server, **body).json["output"]
    assert (item["type"], item["name"], item["status"]) == ("function_call", "f", "completed")
    kinds = [event["type"].removeprefix("response.") for event in events(server, **body)]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]


def test_a_schema_is_kept_to(server: Served) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"enum": [True]}, "strict": True}
    assert ask(server, input="hi", text={"format": form}).json["output"][0]["content"][0]["text"] == "true"


def test_items_of_a_conversation_are_understood(server: Served) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "calling"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
    ]
    response = ask(server, input=items, instructions="Be brief.", tools=FLAT_TOOLS)
    assert response.status == 200, response.data


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "hi", "store": True}, "store"),
        ({"input": "hi", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "hi", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "hi", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"input": [{"role": "wizard", "content": "hi"}]}, "input"),
        ({"input": "a" * 600}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": "hi", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        (
            {
                "input": "hi",
                "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}},
            },
            "text.format",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(server: Served, fields: dict[str, Any], param: str) -> None:
    reply = ask(server, **fields)
    assert reply.status == 400, reply.data
    assert reply.error["param"] is not None
    assert reply.error["param"].startswith(param)
    assert "messages" not in reply.error["message"]
