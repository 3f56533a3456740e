"""BlockPool: who uses which block, what the cache keeps, and that the books always balance."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from llmrs_cli.engine.blocks import BlockPool, Key, next_key, root_key

ROOT = root_key("model", "float32", "")


def chain(*blocks: tuple[int, ...], root: Key = ROOT) -> list[Key]:
    """Root, then the key of each block."""
    keys = [root]
    for tokens in blocks:
        keys.append(next_key(keys[-1], tokens))
    return keys


def published(pool: BlockPool, keys: list[Key]) -> list[int]:
    """Claim blocks for keys[1:] and publish them."""
    blocks = pool.claim((), len(keys) - 1)
    assert blocks is not None
    for block, key, parent in zip(blocks, keys[1:], keys, strict=False):
        pool.publish(block, key, parent)
    return blocks


def test_a_key_is_sha256_of_parent_and_token_ids() -> None:
    ids = b"\x01\0\0\0\xff\xff\x01\0\x00\0\0\0"
    assert next_key(ROOT, (1, 0x1FFFF, 0)) == hashlib.sha256(ROOT + ids).digest()


@pytest.mark.parametrize(
    "other",
    [("modelf", "loat32", ""), ("model", "float16", ""), ("model", "float32", "a"), ("", "", "")],
)
def test_model_dtype_and_salt_all_tell_keys_apart(other: tuple[str, str, str]) -> None:
    assert root_key(*other) != ROOT


def test_the_same_tokens_after_another_prefix_are_another_block() -> None:
    assert chain((1, 2, 3), (7, 8, 9))[2] != chain((1, 2, 4), (7, 8, 9))[2]


def test_blocks_are_taken_in_the_order_they_were_freed() -> None:
    pool = BlockPool(4)
    assert pool.claim((), 4) == [0, 1, 2, 3]
    keys = chain((1,), (2,), (3,), (4,))
    for block in range(4):
        pool.publish(block, keys[block + 1], keys[block])
    pool.release([2])
    pool.release([0, 1])
    assert pool.claim((), 3) == [2, 1, 0], "least recently used first, the tail of a table before its head"


def test_a_block_worth_nothing_is_taken_before_a_cached_one() -> None:
    pool = BlockPool(3)
    cached = published(pool, chain((1,)))
    other = pool.claim((), 1)
    assert other is not None
    pool.release(cached)
    pool.release(other)
    assert pool.claim((), 2) == [1, 2]
    assert pool.find(chain((1,))[1:]) == cached


def test_a_released_prefix_is_found_and_shared_again() -> None:
    pool = BlockPool(4)
    keys = chain((1, 2, 3), (4, 5, 6))
    blocks = published(pool, keys)
    pool.release(blocks)
    assert pool.free == 4
    assert pool.find(keys[1:]) == blocks
    assert pool.claim(blocks, 1) == [*blocks, 2]
    assert pool.claim(blocks, 0) == blocks
    pool.check([[*blocks, 2], blocks])


def test_only_an_unbroken_prefix_is_found() -> None:
    pool = BlockPool(4)
    keys = chain((1,), (2,), (3,))
    published(pool, keys)
    assert pool.find([keys[1], b"other", keys[3]]) == [0]
    assert pool.find([b"other"]) == []


def test_a_claim_is_all_or_nothing() -> None:
    pool = BlockPool(3)
    keys = chain((1,), (2,))
    blocks = published(pool, keys)
    pool.release(blocks)
    assert pool.claim(blocks, 2) is None, "the shared blocks are free ones too, but not for others"
    assert pool.claim((), 2, spare=2) is None
    assert pool.free == 3
    assert pool.find(keys[1:]) == blocks, "a refused claim evicts nothing"
    pool.check([])


def test_taking_a_cached_block_evicts_its_content() -> None:
    pool = BlockPool(2)
    keys = chain((1,), (2,))
    pool.release(published(pool, keys))
    assert pool.claim((), 1) == [1], "the end of the prefix goes first"
    assert pool.find(keys[1:]) == [0]


def test_the_first_copy_of_a_content_stays_published() -> None:
    pool = BlockPool(2)
    keys = chain((1,))
    first = published(pool, keys)
    second = published(pool, keys)
    assert pool.find(keys[1:]) == first
    pool.release(second)
    pool.release(first)
    assert pool.find(keys[1:]) == first
    pool.check([])


def test_unpublishing_hides_a_block_and_all_that_was_computed_on_it() -> None:
    pool = BlockPool(8)
    stem = chain((1,), (2,))
    left, right = chain((3,), (4,), root=stem[2]), chain((5,), root=stem[2])
    other = chain((9,))
    for keys in (stem, left, right, other):
        published(pool, keys)
    pool.unpublish([stem[2]])
    assert pool.find(stem[1:]) == [0]
    assert pool.find(left[1:]) == [] == pool.find(right[1:])
    assert pool.find(other[1:]) == [5]
    pool.check([range(6)])


def test_an_unpublished_free_block_is_the_next_to_be_taken() -> None:
    pool = BlockPool(3)
    keys, other = chain((1,)), chain((2,))
    blocks, rest = published(pool, other), published(pool, keys)
    pool.release(blocks)
    pool.release(rest)
    pool.unpublish(keys[1:])
    assert pool.claim((), 2) == [1, 2]


def test_releasing_or_publishing_a_free_block_is_our_own_mistake() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="block 0 is released"):
        pool.release([0])
    with pytest.raises(AssertionError, match="block 1 is published"):
        pool.publish(1, b"key", ROOT)


def test_check_gives_both_sides_of_the_equation_that_fails() -> None:
    pool = BlockPool(3)
    blocks = pool.claim((), 2)
    assert blocks is not None
    pool.check([blocks])
    with pytest.raises(AssertionError, match=r"block 1: users 1 != tables 0"):
        pool.check([[0]])
    with pytest.raises(AssertionError, match=r"block 2: users 0 != tables 1"):
        pool.check([blocks, [2]])
    pool._free[0] = None
    with pytest.raises(AssertionError, match=r"free 2 \+ used 2 != total 3"):
        pool.check()
    del pool._free[0]
    pool._index[b"key"] = 2
    with pytest.raises(AssertionError, match="index .* != entries"):
        pool.check()


class Pool(RuleBasedStateMachine):
    """The pool against a model: tables as plain lists, and what each block was last published as."""

    tables = Bundle("tables")
    TOTAL = 7

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.TOTAL)
        self.live: dict[int, list[int]] = {}
        self.content: dict[int, Key] = {}
        self.names = 0

    @rule(target=tables, path=st.lists(st.integers(0, 1), max_size=4), fresh=st.integers(0, 4))
    def claim(self, path: list[int], fresh: int) -> object:
        keys = chain(*((step,) for step in path))
        shared = self.pool.find(keys[1:])
        assert [self.content[block] for block in shared] == keys[1 : len(shared) + 1]
        used = {block for table in self.live.values() for block in table}
        fits = fresh <= self.TOTAL - len(used | set(shared))
        blocks = self.pool.claim(shared, fresh)
        assert (blocks is not None) == fits
        if blocks is None:
            return multiple()
        assert not used & set(blocks[len(shared) :]), "a block in use was given away"
        for block in blocks[len(shared) :]:
            self.content.pop(block, None)
        for block, key, parent in zip(blocks, keys[1:], keys, strict=False):
            if block not in self.content and not self.pool.find([key]):
                self.pool.publish(block, key, parent)
                self.content[block] = key
        self.names += 1
        self.live[self.names] = blocks
        return self.names

    @rule(name=tables)
    def release(self, name: int) -> None:
        self.pool.release(self.live.pop(name, []))

    @rule(path=st.lists(st.integers(0, 1), min_size=1, max_size=4))
    def unpublish(self, path: list[int]) -> None:
        key = chain(*((step,) for step in path))[-1]
        self.pool.unpublish([key])
        assert self.pool.find([key]) == []
        self.content = {block: key for block, key in self.content.items() if self.pool.find([key]) == [block]}

    @invariant()
    def books_balance(self) -> None:
        self.pool.check(self.live.values())


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
