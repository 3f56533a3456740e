"""Which row goes next: the oldest, unless another is found in the prefix cache; nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.window import GAIN, Pool, shared_tokens

LONG = GAIN * 2


def filled(*prompts: tuple[int, ...], window: int = 4096) -> Pool[int]:
    pool: Pool[int] = Pool(window)
    for number, prompt in enumerate(prompts):
        pool.add(number, prompt, number)
    return pool


def drained(pool: Pool[int]) -> list[int]:
    return [pool.take() for _ in range(len(pool))]


@given(st.lists(st.integers(0, 9).map(lambda x: (x,) * 5), max_size=20))
def test_without_long_shared_beginnings_order_is_kept(prompts: list[tuple[int, ...]]) -> None:
    assert drained(filled(*prompts)) == list(range(len(prompts)))


def test_rows_with_one_beginning_go_together() -> None:
    a, b = (1,) * LONG, (2,) * LONG
    assert drained(filled(a + (1,), b + (1,), a + (2,), b + (2,), a + (3,), b + (3,))) == [0, 2, 4, 1, 3, 5]


def test_a_beginning_that_all_share_changes_nothing() -> None:
    system = (7,) * LONG
    assert drained(filled(*(system + (x,) for x in (5, 1, 9, 3)))) == [0, 1, 2, 3]


def test_nobody_is_overtaken_for_ever() -> None:
    pool: Pool[int] = Pool(window=8)
    pool.add(0, (1,) * LONG, 0)
    assert pool.take() == 0
    pool.add(1, (2,), 1)
    taken = []
    for number in range(2, 8):
        pool.add(number, (1,) * LONG + (number,), number)
        taken.append(pool.take())
    assert taken.index(1) == 3, "half a window behind"


@given(st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=4), st.booleans()), max_size=60))
def test_everything_that_goes_in_comes_out_once(steps: list[tuple[list[int], bool]]) -> None:
    pool: Pool[int] = Pool(window=10)
    out = []
    for number, (kinds, take) in enumerate(steps):
        pool.add(number, tuple(kind for kind in kinds for _ in range(GAIN)), number)
        if take:
            out.append(pool.take())
    out += drained(pool)
    assert sorted(out) == list(range(len(steps)))


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_shared_beginnings_are_counted(a: list[int], b: list[int]) -> None:
    naive = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert shared_tokens(tuple(a), tuple(b)) == naive
