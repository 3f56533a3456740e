"""What a conversation tells about itself at the foot of the terminal, and on request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.chat.display import context, meter, shown, toolbar
from llmrs_cli.chat.fitting import Overflow
from llmrs_cli.engine import FinishReason
from llmrs_cli.errors import UsageError
from tests.helpers.byte_tokenizer import IM_END, piece_ids
from tests.helpers.fake_engine import reply
from tests.helpers.talk import session_over, talk_over, talk_through

SHORT = reply((piece_ids()["abc"],), (IM_END,), finish=FinishReason.STOP)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 40))
def test_a_bar_is_empty_only_at_nothing_and_full_only_at_the_limit(used: int, limit: int, cells: int) -> None:
    bar = meter(used, limit, cells)
    full = bar.count("#")
    assert bar == "[" + "#" * full + "." * (cells - full) + "]"
    assert (full == 0) == (used == 0)
    assert used < limit or full == cells
    assert full <= cells * used / limit + 1


def test_the_toolbar_says_how_full_the_context_is_before_all_else() -> None:
    talk = talk_over(session_over(SHORT, context=400)[0])
    assert toolbar(talk) == "[..........] 0 % of 400  model"
    talk_through(talk, "x" * 150)
    used = talk.session.used
    assert toolbar(talk) == f"[{'#' * -(-10 * used // 400):.<10}] {100 * used // 400} % of 400  model"


def test_the_toolbar_counts_what_is_left_out_summed_up_or_waiting(tmp_path: object) -> None:
    talk = talk_over(session_over(SHORT, context=250, overflow=Overflow.OLDEST)[0])
    talk_through(talk, *("q" * 40 for _ in range(5)))
    out = talk.session.left_out
    assert out > 0 and f"{out} exchange" in toolbar(talk) and "left out" in toolbar(talk)
    assert f"The oldest {out} exchange" in context(talk.session)
    summing = talk_over(session_over(SHORT, context=1000)[0])
    talk_through(summing, "one", "two", "/compact")
    assert "2 exchanges summed up" in toolbar(summing)
    summing.attached.waiting["a.txt"] = "text"
    assert "1 file(s) waiting" in toolbar(summing)


def test_an_unknown_part_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="info, system, template, parameters, prompt"):
        shown(talk_over(session_over(SHORT)[0]), "weights")
