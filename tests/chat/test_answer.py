"""Figures of an answer: how fast it came, and what share that is of what the memory allows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.chat.answer import Figures
from llmrs_cli.text.generate import TextEngine
from tests.helpers.fake_engine import FakeEngine, reply
from tests.helpers.talk import engine_over, session_over, talk_over

FIGURES = Figures(prompt_tokens=100, tokens=41, first=0.5, total=2.5, cached=64)


def test_the_line_says_everything() -> None:
    assert FIGURES.line(282) == (
        "41 tokens, 20.0 tok/s, first after 0.50 s, 64 of 100 prompt tokens reused, context 141 of 282 (50%)"
    )
    assert "20.0 tok/s (42% of what memory allows)" in FIGURES.line(282, 0.42)


def test_one_token_has_no_rate_and_no_share() -> None:
    talk = talk_over(session_over(reply((1,)))[0])
    talk.bandwidth = 1e9
    one = replace(FIGURES, tokens=1)
    assert (one.rate, talk.share(one)) == (None, None)
    assert "tok/s" not in talk.line(one)


def engine(weights: int, token_bytes: int) -> TextEngine:
    fake = FakeEngine(reply((1,)))
    fake.limits = replace(fake.limits, token_bytes=token_bytes)
    made = engine_over(fake)
    made._weight_bytes = weights
    return made


@given(weights=st.integers(1, 1 << 40), kv=st.integers(0, 1 << 20))
def test_the_share_counts_weights_and_the_keys_and_values_before_each_token(weights: int, kv: int) -> None:
    talk = talk_over(session_over(reply((1,)))[0])
    talk.session.engine = engine(weights, kv)
    assert talk.share(FIGURES) is None, "nobody has measured the memory"
    talk.bandwidth = 1e12
    read = sum(weights + kv * (100 + i + 0.5) for i in range(41)) / 41
    assert talk.share(FIGURES) == pytest.approx(20.0 * read / 1e12)


def test_an_engine_that_does_not_know_its_bytes_has_no_share() -> None:
    talk = talk_over(session_over(reply((1,)))[0])
    talk.bandwidth = 1e12
    assert talk.share(FIGURES) is None
