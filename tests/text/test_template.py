"""Templates render as Hugging Face renders them; what goes wrong is said in one sentence."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.errors import ModelError, RequestError
from llmrs_cli.text.prompt import ChatPrompts
from llmrs_cli.text.template import ChatTemplate, english_time
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.byte_tokenizer import CHAT_TEMPLATE

GOLDEN = json.loads((Path(__file__).parent.parent / "data/golden/chat-templates.json").read_text())
Real = dict[str, tuple[Tokenizer, ChatTemplate]]


def template(source: str = CHAT_TEMPLATE, **names: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, names)


def rendered(chat: ChatTemplate, *messages: dict[str, Any], **options: Any) -> str:
    return chat.render(chat.conversation(messages, **options))


def user(text: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['tokenizer']}-{len(case['text'])}")
def test_real_templates_give_the_text_and_ids_of_hugging_face(real: Real, case: dict[str, Any]) -> None:
    tokenizer, chat = real[case["tokenizer"]]
    talk = chat.conversation(case["messages"], tools=case["tools"], arguments=case["kwargs"])
    assert chat.render(talk) == case["text"]
    assert list(ChatPrompts(chat, tokenizer).build(talk).ids) == case["ids"]


def test_an_empty_system_message_is_not_replaced_by_the_default(real: Real) -> None:
    _, chat = real["qwen2.5"]
    assert rendered(chat, user()).startswith("<|im_start|>system\nYou are Qwen")
    silent = rendered(chat, {"role": "system", "content": ""}, user())
    assert silent.startswith("<|im_start|>system\n<|im_end|>\n<|im_start|>user\nhi")


def test_exactly_one_bos_is_in_a_chat_prompt(real: Real) -> None:
    tokenizer, chat = real["llama3.2"]
    ids = ChatPrompts(chat, tokenizer).build(chat.conversation([user()])).ids
    assert ids.count(128000) == 1
    assert ids[0] == 128000


# -- which template -----------------------------------------------------------------------------------


def test_a_model_without_a_template_says_what_to_do() -> None:
    assert template().exists
    assert not ChatTemplate({}).exists
    with pytest.raises(ModelError, match="no chat template") as error:
        rendered(ChatTemplate({}), user())
    assert "plain prompts" in str(error.value)


def test_a_template_for_tools_is_used_when_there_are_tools() -> None:
    chat = ChatTemplate({"default": "D", "tool_use": "U {{ tools | length }}"})
    assert rendered(chat, user()) == "D"
    assert rendered(chat, user(), tools=[]) == "D"
    assert rendered(chat, user(), tools=[{"name": "f"}]) == "U 1"


def test_a_lone_template_needs_no_name_and_several_need_a_default() -> None:
    assert rendered(ChatTemplate({"rag": "R"}), user()) == "R"
    with pytest.raises(ModelError, match="default"):
        rendered(ChatTemplate({"rag": "R", "x": "X"}), user())


# -- variables and functions --------------------------------------------------------------------------


def test_token_names_and_arguments_are_variables_and_absent_ones_print_nothing() -> None:
    chat = template(
        "{{ bos_token }}|{{ eos_token }}|{{ enable_thinking }}|{{ tools is none }}", bos_token="<s>"
    )
    assert rendered(chat, user(), arguments={"enable_thinking": False}) == "<s>||False|True"


def test_the_date_is_english_whatever_the_locale() -> None:
    source = "{{ strftime_now('%Y-%m-%d %H:%M') }}|{{ strftime_now('%d %b %Y') }}"
    moment = datetime(2026, 11, 29, 7, 5)
    chat = ChatTemplate({"default": source}, now=lambda: moment)
    assert rendered(chat, user()) == "2026-11-29 07:05|29 Nov 2026"


class Abroad(datetime):
    """A moment in a process whose locale has other names and forms."""

    def strftime(self, form: str) -> str:
        assert form[-1] not in "aAbBhpPcxXDr", f"{form} depends on the locale"
        return super().strftime(form)


def test_no_form_asks_the_locale() -> None:
    moment = Abroad(2026, 3, 1, 13, 4, 5)
    text = english_time(moment, "%a %A %b %B %h %p %P|%c|%x|%X|%D|%r|%-d %H")
    named, *_, numbers = text.split("|")
    assert named == "Sun Sunday Mar March Mar PM pm"
    assert numbers == "1 13"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%A %a %B %b %h %p %P %%", "Sunday Sun March Mar Mar PM pm %"),
        ("%x %X %D %r", "03/01/26 13:04:05 03/01/26 01:04:05 PM"),
        ("%c", "Sun Mar  1 13:04:05 2026"),
        ("%-d/%_d/%0d", "1/ 1/01"),
        ("%999999999d", "%999999999d"),
        ("100%", "100%"),
    ],
)
def test_time_forms(form: str, text: str) -> None:
    assert english_time(datetime(2026, 3, 1, 13, 4, 5), form) == text


# -- errors -------------------------------------------------------------------------------------------


def test_what_a_template_says_against_the_messages_is_passed_on_escaped_and_short() -> None:
    chat = template("{{ raise_exception('Roles must\x1b[31m alternate' ~ 'x' * 1000) }}")
    with pytest.raises(RequestError, match="Roles must") as error:
        rendered(chat, user())
    assert error.value.code == "chat_template"
    assert len(error.value.message) < 600
    assert error.value.message.isprintable()


def test_a_syntax_error_is_a_model_error_with_its_line() -> None:
    with pytest.raises(ModelError, match="line 2"):
        rendered(template("a\n{% if %}"), user())


@pytest.mark.parametrize(
    "source", ["{{ 'a' * 1000000000 }}", "{{ ''.__class__.mro() }}", "{{ range(1000000) }}"]
)
def test_a_hostile_template_is_a_model_error(source: str) -> None:
    with pytest.raises(ModelError, match="may not do"):
        rendered(template(source), user())


@pytest.mark.parametrize(
    "source",
    ["{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"],
)
def test_what_is_nested_too_deeply_is_a_model_error(source: str) -> None:
    with pytest.raises(ModelError):
        rendered(template(source), user())


def test_a_prompt_far_larger_than_its_conversation_is_refused() -> None:
    with pytest.raises(ModelError, match="far too long"):
        rendered(template("{{ 'a' * 5000000 }}"), user())


def test_an_operation_that_fails_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="fails on these messages"):
        rendered(template("{{ 1 + messages[0].content }}"), user())


# -- continuing the last message ----------------------------------------------------------------------


@pytest.mark.parametrize("content", ["Hel", [{"type": "text", "text": "Hel"}]])
def test_an_answer_can_be_continued_where_it_ends(content: Any) -> None:
    chat = template()
    talk = [user(), {"role": "assistant", "content": content}]
    assert rendered(chat, *talk, continue_last=True).endswith("<|im_start|>assistant\nHel")
    assert rendered(chat, *talk).endswith("assistant\nHel<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(("filter", "text"), [("", "[ Hel "), ("| trim", "[Hel")])
def test_trailing_blanks_are_kept_if_the_template_keeps_them(filter: str, text: str) -> None:
    chat = template(f"[{{{{ messages[-1].content {filter} }}}}]")
    talk = [user(), {"role": "assistant", "content": " Hel "}]
    assert rendered(chat, *talk, continue_last=True) == text


def test_only_text_of_the_assistant_can_be_continued() -> None:
    for last in (user(), {"role": "assistant", "content": " "}):
        with pytest.raises(RequestError, match="continued only"):
            rendered(template(), user(), last, continue_last=True)
    with pytest.raises(RequestError, match="does not show"):
        rendered(template("-"), user(), {"role": "assistant", "content": "Hel"}, continue_last=True)
