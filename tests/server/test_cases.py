"""What went wrong in other servers, tried on ours over the wire: tokens to text, templates, ends, sampling, scores.

Scripted models (LADDER) say exactly what is to be told. Real tokenizers are in `test_cases_real`, and what needs
attention, to which these models are blind, in `test_cases_engine`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.asking import complete, pieces, rendered
from tests.helpers.byte_tokenizer import (
    CHAT_TEMPLATE,
    END_OF_MESSAGE,
    END_OF_TEXT,
    IM_END,
    byte_id,
    sp_tokenizer_json,
)
from tests.helpers.ladder import TOP, Ladder, chain, step_ids, write_ladder
from tests.helpers.served import Served, served

A, B, C, D, X = (byte_id(ord(letter)) for letter in "ABCDX")
THOUGHT = ("<think>", "o", "k", "</think>", "1", IM_END)
TOOL_TEMPLATE = (
    "{{ tools[0].function | tojson }}|{{ strftime_now('%Y-%m-%d %H:%M') }}|{{ strftime_now('%d %b %Y') }}"
)


def after(letter: str, *steps: str | int) -> dict[int, dict[int, float]]:
    return chain(step_ids(steps), byte_id(ord(letter)))


TABLE = {
    **after("q", "O", "K", END_OF_MESSAGE, "Z"),
    **after("h", "abc", "de", IM_END),
    **after("g", "?", IM_END),
    **{byte_id(ord(last)): {IM_END: TOP, END_OF_TEXT: 15.0, X: 10.0} for last in "mX"},
    byte_id(ord("a")): {A: 1.0, B: 0.9},
    byte_id(ord("p")): {
        token: math.log(p) for token, p in zip((A, B, C, D), (0.5, 0.3, 0.15, 0.05), strict=True)
    },
    byte_id(ord("r")): {A: 1.5, C: 1.0},
    byte_id(ord("s")): {A: -1.0, C: -1.5},
    byte_id(ord("t")): {A: 1.0, B: 0.0, C: -1.0, D: -2.0},
}


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Three end tokens, two templates, sampling of its own."""
    folder = tmp_path_factory.mktemp("ladder")
    generation = {"repetition_penalty": 2.0, "temperature": 1.5, "do_sample": True}
    eos = (IM_END, END_OF_TEXT, END_OF_MESSAGE)
    write_ladder(folder, Ladder(THOUGHT, table=TABLE, eos=eos, generation=generation))
    named = {"default": CHAT_TEMPLATE, "tool_use": TOOL_TEMPLATE}
    change(folder, chat_template=[{"name": name, "template": text} for name, text in named.items()])
    with served(folder, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A sentencepiece tokenizer; no end token in the configuration, and two templates of which a file of its own wins."""
    folder = tmp_path_factory.mktemp("sentences")
    hello, world, mark, last, end = 259, 260, 262, 263, 2
    table = {a: {b: TOP} for a, b in zip((last, hello, world, mark), (hello, world, mark, end), strict=True)}
    write_ladder(folder, Ladder((), table=table, eos=None, chat_template="T"))
    (folder / "tokenizer.json").write_bytes(sp_tokenizer_json())
    (folder / "chat_template.jinja").write_text("J")
    change(folder, eos_token="</s>", pad_token="</s>")
    with served(folder, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """No generation_config.json; the template is in a file alone."""
    folder = write_ladder(tmp_path_factory.mktemp("bare"), Ladder(generation=None, chat_template=None))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    with served(folder, tmp_path_factory.mktemp("server")) as server:
        yield server


def change(folder: Path, **fields: Any) -> None:
    """Other fields in tokenizer_config.json."""
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


# -- tokens to text --------------------------------------------------------------------------------------


def test_pieces_of_sentences_keep_the_blanks_between_words(sentences: Served) -> None:
    told = pieces(sentences, "a")  # what comes while another is written goes with it
    ends = {len("".join(told[:count])) for count in range(len(told) + 1)}
    assert "".join(told) == "Hello world!" and ends <= {
        0,
        len("Hello"),
        len("Hello world"),
        len("Hello world!"),
    }
    assert complete(sentences, "a")["text"] == "Hello world!"


def test_added_tokens_get_no_blanks_and_thoughts_come_apart(ladder: Served) -> None:
    assert complete(ladder, "\n")["text"] == "<think>ok</think>1"
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "repetition_penalty": 1.0}
    message = ladder.post("/v1/chat/completions", body).json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("ok", "1")
    events = ladder.post("/v1/chat/completions", {**body, "stream": True}).events
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "ok"
    assert "".join(delta.get("content") or "" for delta in deltas) == "1"


# -- templates -------------------------------------------------------------------------------------------


def test_named_templates_tool_schemas_and_dates(ladder: Served) -> None:
    function = {"name": "f", "description": 'a < b & "c" é', "parameters": {"type": "object"}}
    before = time.localtime()
    prompt = rendered(ladder, ("user", "hi"), tools=[{"type": "function", "function": function}])["prompt"]
    schema, minute, day = prompt.split("|")
    assert schema == json.dumps(function, ensure_ascii=False)
    times = (before, time.localtime())
    assert minute in [time.strftime("%Y-%m-%d %H:%M", one) for one in times]
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    assert day in [f"{one.tm_mday:02} {months[one.tm_mon - 1]} {one.tm_year}" for one in times]
    assert rendered(ladder, ("user", "hi"))["prompt"].startswith("<|im_start|>user\nhi")


def test_a_template_in_a_file_of_its_own_wins(sentences: Served, bare: Served) -> None:
    assert rendered(sentences, ("user", "hi"))["prompt"] == "J"
    assert rendered(bare, ("user", "hi"))["prompt"].startswith("<|im_start|>user\nhi")


# -- ends ------------------------------------------------------------------------------------------------


def test_every_end_token_ends(ladder: Served, sentences: Served, bare: Served) -> None:
    """Of a list; of the tokenizer, where the configuration has null; of the tokenizer, where there is no file."""
    last = complete(ladder, "q")
    assert (last["text"], last["finish_reason"], last["tokens"]) == ("OK", "stop", 3)
    assert complete(sentences, "a")["finish_reason"] == "stop"
    assert (complete(bare, "\n")["text"], complete(bare, "\n")["finish_reason"]) == ("Hello world", "stop")


@pytest.mark.parametrize(
    ("prompt", "stop", "tokens", "text"),
    [("h", "def", 9, "abcde"), ("h", "def", 2, "abcde"), ("g", "?\n", 9, "?"), ("g", "?\n", 1, "?")],
)
def test_what_only_began_a_stop_string_is_told(
    ladder: Served, prompt: str, stop: str, tokens: int, text: str
) -> None:
    fields = {"stop": [stop], "max_tokens": tokens}
    assert complete(ladder, prompt, **fields)["text"] == "".join(pieces(ladder, prompt, **fields)) == text


def test_nothing_ends_an_answer_before_its_least_length(ladder: Served) -> None:
    choice = complete(ladder, "m", min_tokens=5)
    assert (choice["text"], choice["finish_reason"]) == ("X" * 5, "stop")
    assert complete(ladder, "m", min_tokens=0)["text"] == ""
    stopped = complete(ladder, "m", min_tokens=5, stop=["XX"])
    assert stopped["finish_reason"] == "stop" and stopped["tokens"] >= 5


# -- sampling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [{}, {"top_p": 0.1}, {"top_k": 1}, {"top_k": 50}, {"seed": 3}])
def test_temperature_zero_is_the_best_token(ladder: Served, rule: dict[str, Any]) -> None:
    assert {complete(ladder, "x" * n + "a", max_tokens=1, **rule)["text"] for n in range(5)} == {"A"}


@pytest.mark.parametrize(("top_p", "letters"), [(1, "ABCD"), (0.6, "AB"), (0, "A")])
def test_top_p_keeps_what_it_says(ladder: Served, top_p: float, letters: str) -> None:
    prompts = ["x" * n + "p" for n in range(8)]  # an answer depends on its place too
    body = {
        "prompt": prompts,
        "n": 8,
        "max_tokens": 1,
        "temperature": 1,
        "repetition_penalty": 1,
        "top_p": top_p,
    }
    replies = [ladder.post("/v1/completions", {**body, "seed": seed}).json["choices"] for seed in range(4)]
    assert {choice["text"] for choices in replies for choice in choices} == set(letters)


@pytest.mark.parametrize("prompt", ["Ar", "As"])
def test_a_repetition_penalty_makes_what_stands_in_the_prompt_less_likely(
    ladder: Served, prompt: str
) -> None:
    assert complete(ladder, prompt, max_tokens=1)["text"] == "A"
    assert complete(ladder, prompt, max_tokens=1, repetition_penalty=2)["text"] == "C"


def test_the_model_s_own_sampling_holds_until_a_request_says_otherwise(ladder: Served) -> None:
    def drawn(prompt: str, **fields: Any) -> set[str]:
        body = {"prompt": prompt, "max_tokens": 1, "n": 8, "seed": 1, **fields}
        return {choice["text"] for choice in ladder.post("/v1/completions", body).json["choices"]}

    assert drawn("Ar", temperature=0) == {"C"}
    assert drawn("Ar", temperature=0, repetition_penalty=1.0) == {"A"}
    assert len(drawn("p")) > 1
    assert drawn("p", temperature=0) == {"A"}
    assert "repetition_penalty" in ladder.errors.read_text().replace(" ", "_")


@pytest.mark.parametrize(
    "rule", [{"temperature": t} for t in (0, 0.5, 1, 2)] + [{"temperature": 1, "top_p": 0.1}]
)
def test_scores_are_the_model_s_whatever_the_sampling(ladder: Served, rule: dict[str, Any]) -> None:
    scores = complete(ladder, "t", max_tokens=1, logprobs=4, **rule)["logprobs"]
    right = {"A": -0.4402, "B": -1.4402, "C": -2.4402, "D": -3.4402}
    assert {name: scores["top_logprobs"][0][name] for name in right} == pytest.approx(right, abs=1e-3)
    assert scores["token_logprobs"] == pytest.approx([right[scores["tokens"][0]]], abs=1e-3)
