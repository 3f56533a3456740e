"""Bodies to typed requests: what the fields mean together."""

from __future__ import annotations

from typing import Any

import pytest

from llmrs_cli.errors import RequestError
from llmrs_cli.server.translate import chat_request, completion_request
from llmrs_cli.text.generate import GenerateOptions

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> Any:
    return chat_request({"messages": MESSAGES, **fields})


def test_nothing_said_is_nothing_meant() -> None:
    request = chat()
    assert request.options == GenerateOptions()
    assert request.delivery.stream is False
    assert request.tools == ()


def test_what_is_said_reaches_the_options() -> None:
    options = chat(
        temperature=0, top_k=-1, stop="a", seed=-1, logprobs=True, top_logprobs=3, skip_special_tokens=False
    ).options
    assert (options.temperature, options.top_k, options.stop) == (0.0, 0, ("a",))
    assert (options.seed, options.logprobs, options.specials) == (2**64 - 1, 3, True)


def test_the_newer_name_of_a_limit_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=3).options.max_tokens == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "tools"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        chat(**fields)
    assert error.value.param == param


def test_tools_may_be_called_unless_the_client_says_no() -> None:
    assert chat(tools=[TOOL]).tool_choice == "auto"
    assert chat(tools=[TOOL], tool_choice="none").tool_choice == "none"
    assert chat(tool_choice="auto").tool_choice == "none"


def test_a_prompt_is_one_or_several() -> None:
    for prompt, prompts in (
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2]], ((1,), (2,))),
    ):
        assert completion_request({"prompt": prompt}).prompts == prompts


def test_an_echo_is_scored_as_the_answer_is() -> None:
    request = completion_request({"prompt": "a", "echo": True, "logprobs": 2, "max_tokens": 0})
    assert (request.options.prompt_logprobs, request.options.logprobs) == (2, 2)
    assert (request.only_prompt, request.options.max_tokens) == (True, 1)


def test_an_echo_scores_its_prompt_within_the_limit_of_prompts_and_alone() -> None:
    with pytest.raises(RequestError, match="at most 5 where echo is true"):
        completion_request({"prompt": "a", "echo": True, "logprobs": 6})
    assert completion_request({"prompt": "a", "logprobs": 6}).options.logprobs == 6
    with pytest.raises(RequestError, match="left out where echo is true"):
        completion_request({"prompt": "a", "echo": True, "prompt_logprobs": 1})


@pytest.mark.parametrize("read", [chat, lambda **given: completion_request({"prompt": "a", **given})])
def test_a_stream_has_no_room_for_scores_of_the_prompt(read: Any) -> None:
    assert read(prompt_logprobs=1).options.prompt_logprobs == 1
    with pytest.raises(RequestError, match="left out of a stream"):
        read(prompt_logprobs=1, stream=True)
