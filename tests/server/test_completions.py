"""/v1/completions over the wire: prompts as text and ids, several at once, echoed and scored."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.helpers.byte_tokenizer import byte_ids
from tests.helpers.served import Reply, Served


def ask(server: Served, **body: Any) -> Reply:
    return server.post("/v1/completions", {"temperature": 0, "max_tokens": 8, **body})


def text(events: list[Any], index: int = 0) -> str:
    return "".join(c["text"] for event in events for c in event["choices"] if c["index"] == index)


def test_the_official_client_completes(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="script", prompt="say S", temperature=0, logprobs=1)
    assert answer.choices[0].text == " alpha beta gamma delta"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens is not None
    assert "".join(answer.choices[0].logprobs.tokens[:-1]) == answer.choices[0].text


def test_ids_and_text_are_the_same_prompt(server: Served) -> None:
    ids = ask(server, prompt=byte_ids("say S")).json["choices"]
    assert ids == ask(server, prompt="say S").json["choices"]


def test_several_prompts_are_answered_in_order(server: Served) -> None:
    body = {"prompt": ["S", "E", "L"], "n": 2, "max_tokens": 5, "temperature": 0}
    whole = server.post("/v1/completions", body).json["choices"]
    assert [choice["index"] for choice in whole] == list(range(6))
    assert [choice["text"][:2] for choice in whole] == [" a", " a", " 😊", " 😊", "xy", "xy"]
    events = server.post("/v1/completions", {**body, "stream": True}).events
    assert [text(events, index) for index in range(6)] == [choice["text"] for choice in whole]


def test_usage_comes_once_at_the_end_of_a_stream(server: Served) -> None:
    events = ask(server, prompt="say L", stream=True, stream_options={"include_usage": True}).events
    whole = ask(server, prompt="say L").json["usage"]
    assert [event for event in events if event.get("usage")] == [events[-1]]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == whole["completion_tokens"] == 8


def test_a_list_of_id_lists_is_several_prompts(server: Served) -> None:
    reply = ask(server, prompt=[byte_ids("S"), byte_ids("L")], max_tokens=2)
    assert [choice["text"] for choice in reply.json["choices"]] == [" alpha be", "xy"]


def test_an_echo_stands_before_the_answer(server: Served) -> None:
    whole = ask(server, prompt="say L", echo=True, logprobs=1, max_tokens=2).json["choices"][0]
    assert whole["text"] == "say Lxy"
    scores = whole["logprobs"]
    assert scores["tokens"] == list("say Lxy")
    assert scores["token_logprobs"][0] is None
    assert all(score <= 0 for score in scores["token_logprobs"][1:])
    assert scores["text_offset"] == list(range(7))
    events = ask(server, prompt="say L", echo=True, logprobs=1, max_tokens=2, stream=True).events
    assert text(events) == "say Lxy"
    told = [c["logprobs"] for event in events for c in event["choices"]]
    for name in scores:
        assert [one for part in told for one in part[name]] == scores[name]


def test_scores_of_a_long_echo_come_in_pieces_that_make_the_whole(server: Served) -> None:
    prompt, fields = "0123456789" * 40 + "L", {"echo": True, "logprobs": 5, "max_tokens": 3}
    whole = ask(server, prompt=prompt, **fields).json["choices"][0]
    events = ask(server, prompt=prompt, **fields, stream=True).events
    choices = [choice for event in events for choice in event["choices"]]
    assert max(len(choice["logprobs"]["tokens"]) for choice in choices) < 200
    assert "".join(choice["text"] for choice in choices) == whole["text"] == prompt + "xyx"
    for name, items in whole["logprobs"].items():
        assert [item for choice in choices for item in choice["logprobs"][name]] == items


def test_the_ids_of_a_prompt_are_told_once_a_choice(server: Served) -> None:
    body = {"prompt": "say L", "n": 2, "max_tokens": 5, "return_token_ids": True}
    events = ask(server, **body, stream=True).events
    told = [choice.get("prompt_token_ids") for event in events for choice in event["choices"]]
    assert [ids for ids in told if ids] == [byte_ids("say L")] * 2
    for choice in ask(server, **body).json["choices"]:
        assert choice["prompt_token_ids"] == byte_ids("say L")


def test_a_cached_prompt_is_scored_alike(server: Served) -> None:
    body = {"prompt": "0123456789" * 6 + "L", "echo": True, "logprobs": 1, "max_tokens": 1}
    first = ask(server, **body).json["choices"][0]["logprobs"]
    ask(server, prompt="S")
    assert ask(server, **body).json["choices"][0]["logprobs"] == first


def test_a_prompt_can_be_scored_alone(server: Served) -> None:
    choice = ask(server, prompt="abL", echo=True, logprobs=0, max_tokens=0).json["choices"][0]
    assert choice["text"] == "abL"
    assert len(choice["logprobs"]["tokens"]) == 3
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [384]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a"] * 33, "n": 2}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
    ],
)
def test_what_cannot_be_completed_is_refused_by_name(
    server: Served, fields: dict[str, Any], param: str
) -> None:
    reply = ask(server, **fields)
    assert reply.status == 400
    assert (reply.error["param"] or "").startswith(param)


def test_an_id_without_a_token_is_a_prompt(server: Served) -> None:
    assert ask(server, prompt=[383], max_tokens=1).status == 200


def test_markers_in_a_prompt_are_characters_unless_they_are_meant(server: Served) -> None:
    count = {
        meant: ask(server, prompt="<|im_start|>L", max_tokens=1, parse_special=meant).json["usage"][
            "prompt_tokens"
        ]
        for meant in (False, True)
    }
    assert count == {False: len("<|im_start|>L"), True: 2}


def test_tokens_there_and_back(server: Served) -> None:
    ids = server.post("/tokenize", {"prompt": "né"}).json
    assert ids["tokens"] == byte_ids("né")
    assert ids["count"] == 3
    assert server.post("/detokenize", {"tokens": ids["tokens"]}).json["prompt"] == "né"
    chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json
    assert chat["tokens"][0] == 303


@pytest.mark.parametrize(
    "body", [{}, {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, {"prompt": 5}]
)
def test_tokenize_wants_one_thing(server: Served, body: Any) -> None:
    assert server.post("/tokenize", body).status == 400


def test_ids_beyond_the_vocabulary_have_no_text(server: Served) -> None:
    reply = server.post("/detokenize", {"tokens": [384]})
    assert (reply.status, reply.error["param"]) == (400, "tokens")
