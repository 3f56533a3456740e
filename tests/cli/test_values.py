"""Values of options, taken to their meaning or refused; and what may be asked together, and what may not."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import combinations
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.cli.ask import Ask, ask_options, labels
from llmrs_cli.cli.parameters import FiniteRange, bias, device, memory, some_text, text, tokens
from llmrs_cli.errors import UsageError

PARAMETER = click.Option(["--choices"])
CONTEXT = click.Context(click.Command("chat"))


def refused(convert: Callable[[str], Any], typed: str) -> str:
    with pytest.raises(click.BadParameter) as caught:
        convert(typed)
    return caught.value.message


# -- values ---------------------------------------------------------------------------------------------


@given(
    count=st.integers(1, 10**9),
    unit=st.sampled_from(["", "k", "m", "K", "M"]),
    blank=st.sampled_from(["", " "]),
)
def test_tokens_are_counted_in_1024s(count: int, unit: str, blank: str) -> None:
    assert tokens(f"{blank}{count}{unit}{blank}") == count * {"": 1, "k": 1024, "m": 1 << 20}[unit.lower()]


@pytest.mark.parametrize(
    "typed", ["", "0", "0k", "-1", "+1", "1.5k", "8kb", "k", "1e3", "٣", "8 k", "1_000", "9" * 13]
)
def test_what_is_no_number_of_tokens_is_shown(typed: str) -> None:
    assert refused(tokens, typed) == f"{typed!r} is not a number of tokens such as 4096 or 8k."


@given(count=st.integers(1, 999_999), unit=st.sampled_from("bkmgt"), ending=st.sampled_from(["", "b", "ib"]))
def test_a_size_of_memory_is_the_same_however_it_is_spelled(count: int, unit: str, ending: str) -> None:
    spelled = unit if unit == "b" else unit + ending
    expected = count << (10 * "bkmgt".index(unit))
    assert memory(f"{count}{spelled}") == memory(f" {count} {spelled.upper()} ") == expected
    assert isinstance(memory(f"{count}{spelled}"), int)


@given(percent=st.integers(1, 100))
def test_a_share_is_a_share(percent: int) -> None:
    assert memory(f"{percent}%") == pytest.approx(percent / 100)
    assert memory(f"{percent / 100}") == pytest.approx(percent / 100)


@pytest.mark.parametrize(
    "typed", ["0", "0%", "101%", "1.5", "-1G", "G", "1 GB free", "1e9", "0G", "nan", "half", ""]
)
def test_what_is_neither_size_nor_share_is_shown(typed: str) -> None:
    assert refused(memory, typed).startswith(f"{typed!r} is neither a size such as 40GiB nor a share")


@pytest.mark.parametrize("typed", ["auto", "cpu", "reference", "cuda", "cuda:0", "cuda:12"])
def test_places_to_compute(typed: str) -> None:
    assert device(typed) == typed


@pytest.mark.parametrize(
    "typed", ["gpu", "CUDA", "cuda:", "cuda:x", "cuda:1234", "cpu:0", "cuda:-1", "cuda:٣", " cpu", ""]
)
def test_other_places_are_refused_with_those_there_are(typed: str) -> None:
    assert refused(device, typed) == f"{typed!r} is none of auto, cuda, cuda:N, cpu and reference."


@given(token=st.integers(0, 1 << 20), amount=st.floats(-100, 100))
def test_a_bias_reads_back(token: int, amount: float) -> None:
    assert bias(f"{token}:{amount!r}") == (token, amount)


@pytest.mark.parametrize(
    "typed", ["", "5", ":1", "5:", "x:1", "5:x", "1.5:1", "-1:5", "5:101", "5:-100.1", "5:nan", "5:inf"]
)
def test_a_bias_that_nothing_can_be_done_with_is_refused(typed: str) -> None:
    assert repr(typed) in refused(bias, typed)


@given(st.text())
def test_text_is_taken_as_it_is(typed: str) -> None:
    assert text(typed) == typed


@given(st.text(min_size=1))
def test_text_that_the_locale_could_not_read_is_read_again(meant: str) -> None:
    """In the C locale every byte above 127 arrives as a lone surrogate."""
    assert text(meant.encode().decode("ascii", "surrogateescape")) == meant


def test_bytes_that_are_no_text_are_refused() -> None:
    assert refused(text, os.fsdecode(b"caf\xe9")) == "it is not UTF-8."
    assert refused(some_text, "") == "it must not be empty."


@pytest.mark.parametrize("typed", ["nan", "inf", "-inf", "1e999"])
def test_a_number_is_finite(typed: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a finite number"):
        FiniteRange().convert(typed, None, None)
    assert FiniteRange(0, 2).convert("1.5", None, None) == 1.5


# -- labels ---------------------------------------------------------------------------------------------


def read_labels(typed: str) -> tuple[str, ...]:
    return labels(CONTEXT, PARAMETER, typed)


@given(st.lists(st.text("ab,.é", min_size=1, max_size=4), min_size=2, max_size=5, unique=True))
def test_labels_read_back(found: list[str]) -> None:
    typed = ", ".join(f'"{label}"' if "," in label else label for label in found)
    assert read_labels(typed) == tuple(found)


@pytest.mark.parametrize("typed", ["", "yes", "yes,", ",no", "a,,b", "a,a", "a, a", " , ", '"a,b"'])
def test_fewer_than_two_different_labels_are_no_choice(typed: str) -> None:
    assert refused(read_labels, typed) == f"{typed!r} is not at least two different labels, such as yes,no."


# -- options that go together, or do not ------------------------------------------------------------------


def ask(*typed: str) -> Ask:
    """What a command hears of its line."""
    heard: list[Ask] = []

    @click.command()
    @ask_options
    def command(ask: Ask) -> None:
        heard.append(ask)

    result = CliRunner().invoke(command, list(typed))
    if isinstance(result.exception, UsageError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return heard[0]


GIVEN: dict[str, tuple[str, ...]] = {
    "-s": ("-s", "Be brief."),
    "--system-file": ("--system-file", "x"),
    "-c": ("-c",),
    "--session": ("--session", "x"),
    "--choices": ("--choices", "a,b"),
    "-x": ("-x",),
    "--schema": ("--schema", "{}"),
    "--json-mode": ("--json-mode",),
    "--n": ("--n", "2"),
    "--json": ("--json",),
}
APART = [
    ("-s", "--system-file"),
    ("-c", "--session"),
    ("--choices", "-x"),
    ("--schema", "--json-mode"),
    ("--choices", "--schema"),
    ("--choices", "--json-mode"),
    ("-c", "--choices"),
    ("--session", "--choices"),
    ("-c", "--n"),
    ("--session", "--n"),
    ("--choices", "--n"),
]


@pytest.mark.parametrize(("one", "other"), list(combinations(GIVEN, 2)))
def test_two_options_go_together_unless_they_contradict_each_other(one: str, other: str) -> None:
    line = (*GIVEN[one], *GIVEN[other])
    if {one, other} not in map(set, APART):
        ask(*line)
        return
    for typed in (line, (*GIVEN[other], *GIVEN[one])):
        with pytest.raises(UsageError) as caught:
            ask(*typed)
        assert one in caught.value.message and other in caught.value.message
        assert caught.value.message.endswith("are both given.")


@pytest.mark.parametrize(
    ("typed", "arguments"),
    [
        ((), {}),
        (("--think",), {"enable_thinking": True}),
        (("--think", "off"), {"enable_thinking": False}),
        (("--think", "high"), {"enable_thinking": True, "reasoning_effort": "high"}),
        (("--json-mode",), {"enable_thinking": False}),
        (("--schema", "{}", "--think", "low"), {"enable_thinking": True, "reasoning_effort": "low"}),
        (
            ("--think", "off", "--template-kwargs", '{"enable_thinking": 1, "x": []}'),
            {"enable_thinking": 1, "x": []},
        ),
    ],
)
def test_what_a_template_is_told(typed: tuple[str, ...], arguments: dict[str, Any]) -> None:
    assert ask(*typed).arguments == arguments


@pytest.mark.parametrize("typed", [("--json",), ("-x",), ("--choices", "a,b"), ("--n", "2")])
def test_what_is_only_for_one_answer(typed: tuple[str, ...]) -> None:
    assert ask(*typed).wants_result and not ask().wants_result
