"""The same scripted replies through every door of the command line: chat, flat batch rows, OpenAI rows.

What differs between front ends is where such tools go wrong: text, counts and ends must be the same in all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SMALL, MakeLadder, Run
from tests.helpers.byte_tokenizer import IM_END, byte_id, byte_ids
from tests.helpers.ladder import NEWLINE, TOP, Ladder, write_ladder

END = "<|im_end|>"
A, B, C, X = (byte_id(ord(letter)) for letter in "ABCx")
PADDING = SMALL - 4
"""An id with a row in the embedding and no token."""


@dataclass(frozen=True)
class Said:
    """What one door gave."""

    text: str
    finish: str
    tokens: int


Doors = Callable[..., Said]


@pytest.fixture
def every_door(llmrs: Run) -> Doors:
    """Asks a model through chat and both kinds of batch rows; they must agree."""

    def ask(model: str, **options: Any) -> Said:
        flags = [
            part
            for name, value in options.items()
            for one in (value if isinstance(value, list) else [value])
            for part in ([f"--{name.replace('_', '-')}"] + ([] if one is True else [str(one)]))
        ]
        chat = llmrs("chat", model, "-p", "Hi", "-t", "0", *flags)
        assert chat.exit_code == 0, chat.stderr
        request = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, **options}
        lines = [
            {"prompt": "Hi", "temperature": 0, **options},
            {"custom_id": "a", "url": "/v1/chat/completions", "body": request},
        ]
        batch = llmrs("batch", "-", "-m", model, "-q", stdin="".join(json.dumps(x) + "\n" for x in lines))
        assert batch.exit_code == 0, batch.stdout
        flat, openai = (json.loads(line) for line in batch.stdout.splitlines())
        body = openai["response"]["body"]
        (choice,) = body["choices"]
        said = Said(flat["text"], flat["finish_reason"], flat["usage"]["completion_tokens"])
        assert said == Said(
            choice["message"]["content"], choice["finish_reason"], body["usage"]["completion_tokens"]
        )
        assert chat.stdout == said.text + ("\n" if said.text[-1:] not in ("", "\n") else "")
        return said

    return ask


@pytest.mark.parametrize(
    ("reply", "options", "said"),
    [
        ((220, 172, 253, 246, 232, END), {}, Said(" 😊", "stop", 6)),
        ((*byte_ids("龘"), "de", END), {}, Said("龘de", "stop", 5)),
        (("OK", *byte_ids("😊")[:2], END), {}, Said("OK\ufffd", "stop", 4)),
        ((" alpha", " be", "ta gam", "ma", " delta"), {"stop": ["beta gamma"]}, Said(" alpha ", "stop", 4)),
        (("abc", "de", END), {"stop": ["def"]}, Said("abcde", "stop", 3)),
        (("abc", "de", END), {"stop": ["def"], "max_tokens": 2}, Said("abcde", "length", 2)),
        (("End", ".\n\n", "de", END), {"stop": ["\n\n"]}, Said("End.", "stop", 2)),
        (("End", ".", "\n\n", "de", END), {"stop": ["\n\n"]}, Said("End.", "stop", 3)),
        (("I", PADDING, "J", END), {}, Said("IJ", "stop", 4)),
        (("abc", END, "de", "OK"), {"ignore_eos": True, "max_tokens": 4}, Said("abcdeOK", "length", 4)),
        (("abc", END), {"max_tokens": 1}, Said("abc", "length", 1)),
        ((END,), {}, Said("", "stop", 1)),
    ],
    ids=[
        "emoji over tokens",
        "three bytes, then text",
        "end inside a character",
        "stop over tokens",
        "half a stop",
        "half a stop at the limit",
        "stop inside a token",
        "stop is a token",
        "padded vocabulary",
        "end ignored",
        "limit",
        "nothing to say",
    ],
)
def test_scripted_replies(
    every_door: Doors, ladder: MakeLadder, reply: tuple[str | int, ...], options: dict[str, Any], said: Said
) -> None:
    assert every_door(ladder(*reply), **options) == said


@pytest.mark.parametrize("end", [300, 301, 302])
def test_every_end_token_of_a_list(every_door: Doors, ladder: MakeLadder, end: int) -> None:
    model = ladder("OK", "abc", end, "de", END, eos=(300, 301, 302))
    assert every_door(model) == Said("OKabc", "stop", 3)


def test_one_end_token_given_as_a_number(every_door: Doors, ladder: MakeLadder) -> None:
    assert every_door(ladder("OK", END, "de", eos=IM_END)) == Said("OK", "stop", 2)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_p": 0.1}, {"top_k": 50}, {"seed": 7}])
def test_temperature_zero_is_the_best_token_whatever_else_is_set(
    every_door: Doors, ladder: MakeLadder, options: dict[str, Any]
) -> None:
    model = ladder("A", table={NEWLINE: {A: 1.0, B: 0.9}, A: {IM_END: TOP}})
    assert every_door(model, **options) == Said("A", "stop", 2)


def test_the_minimum_holds_back_end_tokens_and_stop_strings(every_door: Doors, ladder: MakeLadder) -> None:
    model = ladder("x", table={last: {IM_END: TOP, X: 0.0} for last in (NEWLINE, X)})
    assert every_door(model, min_tokens=3) == Said("xxx", "stop", 4)
    assert every_door(model, min_tokens=3, stop=["xx"]) == Said("x", "stop", 3)


def test_what_the_model_says_of_sampling_holds_at_every_door_and_can_be_overruled(
    every_door: Doors, ladder: MakeLadder
) -> None:
    """The template puts no A into a prompt of "Hi", but the answer begins with one."""
    table = {NEWLINE: {A: TOP}, A: {A: 1.5, C: 1.0}, C: {IM_END: TOP}}
    model = ladder("A", table=table, generation={"repetition_penalty": 2.0})
    assert every_door(model) == Said("AC", "stop", 3)
    assert every_door(model, repetition_penalty=1.0, max_tokens=3) == Said("AAA", "length", 3)


def test_prompt_ids_reach_to_the_last_row_of_the_embedding(llmrs: Run, tmp_path: Path) -> None:
    model = write_ladder(tmp_path / "model", Ladder(vocab=SMALL, reply=("OK", END), after=SMALL - 1))
    rows = [{"prompt_token_ids": [SMALL - 1]}, {"prompt_token_ids": [SMALL]}]
    result = llmrs("batch", "-", "-m", str(model), "-t", "0", stdin="\n".join(map(json.dumps, rows)))
    good, bad = (json.loads(line) for line in result.stdout.splitlines())
    assert (good["text"], good["error"], bad["text"]) == ("OK", None, None)
    assert str(SMALL) in bad["error"]["message"] and f"0 to {SMALL - 1}" in bad["error"]["message"]
    assert result.exit_code == 3


QWEN3_LIKE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{{- '<|im_start|>assistant\\n' }}{{- THOUGHT }}"
)


@pytest.mark.parametrize(
    ("opening", "reply", "answer", "thought"),
    [
        ("", ("<think>", "abc", "</think>", "\n\n", "Hello", END), "Hello\n", "abc"),
        ("<think>\\n", ("abc", "</think>", "\n\n", "Hello", END), "Hello\n", "abc"),
        ("<think>\\n\\n</think>\\n\\n", ("Hello", END), "Hello\n", ""),
    ],
    ids=["thinks", "the prompt opened the thought", "thinking is off"],
)
def test_thought_and_answer_come_apart_whoever_wrote_the_tags(
    llmrs: Run, ladder: MakeLadder, opening: str, reply: tuple[str, ...], answer: str, thought: str
) -> None:
    model = ladder(*reply, chat_template=QWEN3_LIKE.replace("THOUGHT", f"'{opening}'"))
    result = llmrs("chat", model, "-p", "Hi", "-t", "0")
    assert (result.exit_code, result.stdout) == (0, answer)
    assert result.stderr.strip() == thought


@pytest.mark.parametrize("command", ["chat", "batch", "verify", "bench"])
def test_every_command_that_runs_a_model_takes_a_device(llmrs: Run, command: str) -> None:
    assert "--device" in llmrs(command, "--help").stdout
    refused = llmrs(command, "--device", "abacus", *(["-"] if command == "batch" else ["any"]))
    assert refused.exit_code == 2
    assert "--device" in refused.stderr and "reference" in refused.stderr
