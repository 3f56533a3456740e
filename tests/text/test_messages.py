"""Messages in any client's spelling reach the template in one; nothing is dropped without a word."""

from __future__ import annotations

from typing import Any

import pytest

from llmrs_cli.errors import RequestError
from llmrs_cli.text.messages import MAX_MESSAGES, Conversation, conversation
from llmrs_cli.text.template import ChatTemplate
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.byte_tokenizer import CHAT_TEMPLATE


def checked(*messages: Any, **options: Any) -> Conversation:
    return conversation(messages, source=options.pop("source", CHAT_TEMPLATE + "{{ tools }}"), **options)


def user(content: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_text_parts_are_joined(role: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    contents = [checked({"role": role, "content": c}).messages[0]["content"] for c in (parts, [], "")]
    assert contents == ["ab", "", ""]


@pytest.mark.parametrize("message", [{}, {"content": None}])
def test_only_the_assistant_may_say_nothing_at_all(message: dict[str, Any]) -> None:
    assert checked({"role": "assistant", **message}).messages[0]["content"] == ""
    for role in ("system", "user", "tool"):
        with pytest.raises(RequestError, match="must have content") as error:
            checked({"role": role, **message})
        assert error.value.param == "messages[0].content"


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "file:///x"}}, {"type": "text"}, "text", {}]
)
def test_parts_that_are_no_text_are_refused_by_type_and_place(part: Any) -> None:
    with pytest.raises(RequestError, match="text") as error:
        checked(user(), user([{"type": "text", "text": "a"}, part]))
    assert error.value.param == "messages[1].content[1]"


def test_arguments_of_tool_calls_become_objects() -> None:
    for arguments in ('{"city": "Rome"}', {"city": "Rome"}):
        message = checked(user(), call(arguments)).messages[1]
        assert message["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
    for empty in ("", None):
        assert checked(call(empty)).messages[0]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("arguments", ["not json", "[1]", "3", 3, "{" * 100_000, '{"a": "\\ud800"}'])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    with pytest.raises(RequestError) as error:
        checked(call(arguments))
    assert str(error.value.param).startswith("messages[0].tool_calls[0].function.arguments")


def test_arguments_are_rendered_once_quoted(real: dict[str, tuple[Tokenizer, ChatTemplate]]) -> None:
    chat = real["qwen2.5"][1]
    assert '"arguments": {"city": "Rome"}' in chat.render(
        chat.conversation([user(), call('{"city": "Rome"}')])
    )
    items = ChatTemplate(
        {
            "default": "{% for k, v in messages[0].tool_calls[0].function.arguments | items %}{{ k ~ v }}{% endfor %}"
        }
    )
    assert items.render(items.conversation([call('{"city": "Rome"}')])) == "cityRome"


def test_developer_is_system_to_a_template_that_does_not_know_it(
    real: dict[str, tuple[Tokenizer, ChatTemplate]],
) -> None:
    talk = [{"role": "developer", "content": "Be brief."}, user()]
    qwen = real["qwen2.5"][1]
    assert "<|im_start|>system\nBe brief.<|im_end|>" in qwen.render(qwen.conversation(talk))
    strict = ChatTemplate(
        {
            "default": "{% if messages[0].role not in ['system', 'user'] %}{{ raise_exception('role') }}{% endif %}{{ messages[0].content }}"
        }
    )
    assert strict.render(strict.conversation(talk)) == "Be brief."
    assert checked(*talk, source="{{ 'developer' }}").messages[0]["role"] == "developer"


@pytest.mark.parametrize("role", ["wizard", "", None, 3, "User"])
def test_an_unknown_role_is_refused(role: Any) -> None:
    with pytest.raises(RequestError, match="role") as error:
        checked({"role": role, "content": "hi"})
    assert error.value.param == "messages[0].role"


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_field_that_no_template_reads_is_refused(role: str) -> None:
    for key, value in (("contnet", "a"), ("name", "me"), ("prefix", True), ("a\x1b[b", 1)):
        with pytest.raises(RequestError, match="no place for") as error:
            checked({"role": role, "content": "hi", key: value})
        assert (error.value.param or "").startswith("messages[0].")
        assert str(error.value).isprintable()
    with pytest.raises(RequestError, match="Did you mean content"):
        checked({"role": role, "content": "hi", "contnet": "a"})


@pytest.mark.parametrize("access", ["message.name", "message['name']", 'msg["name"]', "m.get('name')"])
def test_a_field_that_the_template_reads_reaches_it(access: str) -> None:
    message = {**user(), "name": "me"}
    assert checked(message, source=f"{{{{ {access} }}}}").messages[0]["name"] == "me"
    with pytest.raises(RequestError):
        checked(message, source="{{ tool_call.name }}")


def test_what_clients_send_back_of_an_answer_is_taken() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "hi",
        "reasoning_content": "hm",
        "refusal": None,
        "annotations": [],
    }
    result = {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "f"}
    assert [message["content"] for message in checked(user(), answer, result).messages] == ["hi", "hi", "1"]


@pytest.mark.parametrize("part", [{"txt": "a"}, {"image_url": "x"}])
def test_a_part_has_nothing_beside_its_text(part: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as error:
        checked(user([{"type": "text", "text": "a", **part}]))
    assert error.value.param == f"messages[0].content[0].{next(iter(part))}"
    assert checked(user([{"type": "text", "text": "a", "cache_control": None}])).messages[0]["content"] == "a"


@pytest.mark.parametrize(
    "messages", [[], ["hi"], [user()] * (MAX_MESSAGES + 1)], ids=["none", "text", "too many"]
)
def test_a_conversation_is_a_list_of_messages(messages: list[Any]) -> None:
    with pytest.raises(RequestError):
        checked(*messages)


def test_bad_text_is_found_wherever_it_stands() -> None:
    with pytest.raises(RequestError) as error:
        checked(user(), user("a\ud800"))
    assert error.value.param == "messages[1].content"
    with pytest.raises(RequestError) as error:
        checked(user(), tools=[{"name": "f", "parameters": {"description": "\udc00"}}])
    assert error.value.param == "tools[0].parameters.description"


def test_values_must_be_plain_and_not_bottomless() -> None:
    deep: Any = {}
    for _ in range(100):
        deep = {"a": deep}
    for value in (deep, object(), {1: 2}):
        with pytest.raises(RequestError):
            checked({**user(), "extra": value})


def test_the_callers_messages_are_never_changed_or_shared() -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": call("{}")["tool_calls"]}
    copy = checked(message).messages[0]
    copy["tool_calls"][0]["function"]["name"] = "other"
    assert message["tool_calls"][0]["function"]["name"] == "f"
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


def test_tools_without_a_place_in_the_template_are_refused() -> None:
    assert checked(user(), tools=[{"name": "f"}]).tools == ({"name": "f"},)
    for tools, source in (([{"name": "f"}], "{{ messages }}"), ([{}] * 129, "tools"), (["f"], "tools")):
        with pytest.raises(RequestError) as error:
            checked(user(), tools=tools, source=source)
        assert error.value.param == "tools"


@pytest.mark.parametrize(
    "name", ["messages", "bos_token", "tokenize", "_x", "a-b", "add_generation_prompt", ""]
)
def test_arguments_cannot_shadow_what_templates_rely_on(name: str) -> None:
    with pytest.raises(RequestError) as error:
        checked(user(), arguments={name: 1})
    assert error.value.param == "chat_template_kwargs"
    assert checked(user(), arguments={"enable_thinking": False}).arguments == {"enable_thinking": False}
