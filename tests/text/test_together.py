"""Many at once is the same as one at a time: prompts that are encoded together, tokens that arrive together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine import FinishReason, Request, TokenEvent
from llmrs_cli.errors import LlmrsError, ModelError
from llmrs_cli.text.generate import GenerateOptions, TextEngine
from llmrs_cli.text.options import SamplingDefaults
from llmrs_cli.text.template import ChatTemplate
from llmrs_cli.text.tokenizer import Tokenizer
from tests.helpers.byte_tokenizer import CHAT_TEMPLATE, byte_tokenizer_json, tokenizer_config
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.texts import awkward_texts

Script = Callable[[Request], Iterator[TokenEvent]]
contents = st.one_of(
    awkward_texts, st.sampled_from(["<|im_end|>", "a<|im_start|>b", "<|", "\ud800", "x" * 5000, 7, None])
)


def engine(script: Script | None = None, *, tokenizer: bool = True) -> TextEngine:
    loaded = Tokenizer(byte_tokenizer_json(), tokenizer_config()) if tokenizer else None
    template = ChatTemplate({"default": CHAT_TEMPLATE}, {})
    return TextEngine(
        FakeEngine(script or (lambda request: iter(()))),
        tokenizer=loaded,
        template=template,
        defaults=SamplingDefaults(),
    )


def outcome(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except LlmrsError as error:
        return str(error)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system", "nobody"]), contents), max_size=6))
def test_prompts_made_together_are_those_made_alone(asked: list[tuple[str, Any]]) -> None:
    text = engine()
    conversations = [[{"role": role, "content": content}] for role, content in asked]
    together = text.render_many([(messages, None) for messages in conversations])
    alone = [outcome(lambda m=messages: text.render(m)) for messages in conversations]  # type: ignore[misc]
    assert [str(found) if isinstance(found, LlmrsError) else found for found in together] == alone


def test_without_a_tokenizer_each_has_that_error() -> None:
    found = engine(tokenizer=False).render_many([([{"role": "user", "content": "a"}], None)] * 2)
    assert [type(error) for error in found] == [ModelError, ModelError]


@given(
    tokens=st.lists(st.integers(0, 307), min_size=1, max_size=12),
    cuts=st.lists(st.booleans(), min_size=12, max_size=12),
    finish=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    stop=st.sampled_from([(), ("b",), ("zzz",)]),
)
def test_tokens_in_any_groups_make_the_same_answer(
    tokens: list[int], cuts: list[bool], finish: FinishReason, stop: tuple[str, ...]
) -> None:
    groups: list[list[int]] = [[]]
    for token, cut in zip(tokens, cuts, strict=False):
        groups[-1].append(token)
        if cut:
            groups.append([])

    def events(groups: list[list[int]]) -> Script:
        def script(request: Request) -> Iterator[TokenEvent]:
            for i, group in enumerate(groups):
                last = i == len(groups) - 1
                yield TokenEvent(request.id, tuple(group), finish=finish if last else None)

        return script

    groups = [group for group in groups if group]
    options = GenerateOptions(max_tokens=20, stop=stop)
    results = [
        engine(events(shape)).start([1], options).result().choices[0]
        for shape in (groups, [tokens], [[token] for token in tokens])
    ]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("markers", [False, True])
def test_texts_encoded_together_are_those_encoded_alone(markers: bool) -> None:
    tokenizer = Tokenizer(byte_tokenizer_json(), tokenizer_config())
    texts = ["a<|im_end|>b", "", "é"]
    assert tokenizer.encode_batch(texts, markers=markers) == [
        tokenizer.encode(text, markers=markers) for text in texts
    ]
