"""What errors promise: the exit status of each class, and values that are safe to show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli import errors
from llmrs_cli.errors import ExitCode, LlmrsError, counted, quoted


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("LlmrsError", 1),
        ("UsageError", 2),
        ("RequestError", 2),
        ("ContextLengthError", 2),
        ("RowsFailedError", 3),
        ("AccessError", 4),
        ("ModelError", 5),
        ("DoesNotFitError", 6),
        ("NetworkError", 7),
        ("EngineFault", 8),
    ],
)
def test_every_class_has_its_exit_status(kind: str, code: int) -> None:
    assert getattr(errors, kind).exit_code == ExitCode(code)


def test_a_hint_follows_the_message() -> None:
    assert str(LlmrsError("It broke.")) == "It broke."
    assert str(LlmrsError("It broke.", hint="Mend it.")) == "It broke. Mend it."


@pytest.mark.parametrize(("count", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows")])
def test_one_is_no_plural(count: int, text: str) -> None:
    assert counted(count, "row") == text


@given(value=st.text() | st.integers() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()))
def test_a_quoted_value_is_short_and_prints_nothing_hidden(value: object) -> None:
    shown = quoted(value, 40)
    assert shown.isprintable()
    assert len(shown) < 600


def test_long_text_is_cut_in_the_middle() -> None:
    shown = quoted("a" * 1000 + "z", 40)
    assert len(shown) == 40 and shown.startswith("'aaa") and shown.endswith("az'") and "..." in shown
