"""From what a row asks to token ids: templates, plain text, ids, and the system prompt of the job."""

from __future__ import annotations

from typing import Any

import pytest

from llmrs_cli.batch.job import Job
from llmrs_cli.batch.prompts import Prompter
from llmrs_cli.batch.records import Ask
from llmrs_cli.batch.results import Writer
from llmrs_cli.errors import LlmrsError
from llmrs_cli.text.generate import GenerateOptions, TextEngine
from llmrs_cli.text.options import SamplingDefaults
from llmrs_cli.text.template import ChatTemplate
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.byte_tokenizer import byte_tokenizer_json
from tests.helpers.fake_engine import FakeEngine, reply

TEMPLATE = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{{ mood }}"
TOKENIZER = Tokenizer(byte_tokenizer_json())


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def prompter(template: str | None = TEMPLATE, system: str | None = None, **arguments: Any) -> Prompter:
    engine = TextEngine(
        FakeEngine(reply((1,)), context=512),
        tokenizer=TOKENIZER,
        template=ChatTemplate({} if template is None else {"default": template}),
        defaults=SamplingDefaults(),
    )
    return Prompter(engine, Job(GenerateOptions(), 1, Writer("m", 0), system, arguments=arguments))


def texts(prompter: Prompter, *asks: Ask) -> list[str]:
    """Prompts as text, or the message of the error."""
    found = prompter.ids_of(asks)
    return [one.message if isinstance(one, LlmrsError) else TOKENIZER.decode(one) for one in found]


def test_each_kind_is_made_in_its_way_and_in_order() -> None:
    asks = (
        Ask(messages=user("a")),
        Ask(text="[b]"),
        Ask(token_ids=(5, 6)),
        Ask(messages=user("c"), plain=True),
        Ask(messages=[{"role": "robot"}]),
        Ask(messages=user("d")),
    )
    found = prompter().ids_of(asks)
    assert found[2] == (5, 6)
    said = texts(prompter(), *asks)
    assert (said[0], said[1], said[3], said[5]) == ("[user:a]", "[b]", "[user:c]", "[user:d]")
    assert isinstance(found[4], LlmrsError)


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        (user("a"), "[system:S][user:a]"),
        ([{"role": "system", "content": "own"}, *user("a")], "[system:own][user:a]"),
        ([{"role": "developer", "content": "own"}, *user("a")], "[system:own][user:a]"),
    ],
)
def test_the_system_prompt_of_the_job_is_for_rows_without_one(messages: Any, prompt: str) -> None:
    assert texts(prompter(system="S"), Ask(messages=messages)) == [prompt]


def test_a_system_prompt_is_for_messages_and_not_for_text_as_it_stands() -> None:
    assert texts(prompter(system="S"), Ask(text="a"), Ask(messages=user("b"))) == [
        "a",
        "[system:S][user:b]",
    ]


def test_variables_reach_the_template_and_a_rows_own_win() -> None:
    asks = (Ask(messages=user("a")), Ask(messages=user("a"), options={"chat_template_kwargs": {"mood": "!"}}))
    assert texts(prompter(mood="?"), *asks) == ["[user:a]?", "[user:a]!"]


def test_without_a_template_a_bare_prompt_is_text_and_a_conversation_an_error() -> None:
    bare = prompter(template=None)
    plain, chat = texts(bare, Ask(messages=user("a"), plain=True), Ask(messages=user("b")))
    assert plain == "a"
    assert "chat template" in chat
