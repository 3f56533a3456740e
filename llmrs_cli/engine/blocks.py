"""Which KV block belongs to whom, and which finished blocks can be shared: book-keeping only.

A block is a number; its keys and values lie in the backend. Each block is in one of three states:

    used      at least one sequence has it in its table           users > 0, not in the free list
    cached    nobody uses it, its content can be found by key     users = 0, in the free list and the index
    empty     nobody uses it, its content is worth nothing        users = 0, in the free list

so that free + used = total, where free = cached + empty. A used block may be in the index as well: that
is how a prefix is shared. A key names content, not a request: SHA-256 over the key of the block before
and the token ids of this one, from a root of model, KV dtype and salt. Sequences under different salts
therefore never meet.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain

Key = bytes


def root_key(model: str, kv_dtype: str, salt: str) -> Key:
    """Parent of every first block: each part goes in behind its length, so none can pose as another."""
    digest = hashlib.sha256()
    for part in (model, kv_dtype, salt):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def next_key(parent: Key, tokens: Sequence[int]) -> Key:
    """Key of a full block with these token ids after the block (or root) `parent`."""
    return hashlib.sha256(parent + array("I", tokens).tobytes()).digest()


class BlockPool:
    """All KV blocks of one engine. Every method leaves `check` true."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._users = [0] * total
        self._free = OrderedDict.fromkeys(range(total))
        """Blocks without a user, least recently used first: the order in which they are taken."""
        self._index: dict[Key, int] = {}
        self._entries: dict[int, tuple[Key, Key]] = {}
        """Block → its key and the key before it; the inverse of the index."""

    @property
    def free(self) -> int:
        """Blocks that can be taken: empty ones and cached ones."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that stand in some table."""
        return self.total - len(self._free)

    def find(self, keys: Iterable[Key]) -> list[int]:
        """Blocks of the longest published prefix of `keys`."""
        found = []
        for key in keys:
            block = self._index.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def claim(self, shared: Sequence[int], fresh: int, spare: int = 0) -> list[int] | None:
        """Become a user of the blocks `shared` and of `fresh` new ones: their list, in that order.

        None, and nothing changes, if fewer than `fresh` + `spare` blocks would be free beside `shared`.
        A cached block that is taken as a new one leaves the index.
        """
        idle = [block for block in shared if not self._users[block]]
        if len(self._free) - len(idle) < fresh + spare:
            return None
        for block in idle:
            del self._free[block]
        taken = [self._free.popitem(last=False)[0] for _ in range(fresh)]
        for block in taken:
            self._forget(block)
        blocks = [*shared, *taken]
        for block in blocks:
            self._users[block] += 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """One user less for each: last block first, so that the start of a prefix stays longest."""
        for block in reversed(blocks):
            assert self._users[block] > 0, f"block {block} is released, but nobody uses it"
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
                self._free.move_to_end(block, last=block in self._entries)

    def publish(self, block: int, key: Key, parent: Key) -> None:
        """Let `find` see a full block; where the same content is known already, that copy stays."""
        assert self._users[block] > 0, f"block {block} is published, but nobody uses it"
        assert block not in self._entries, f"block {block} is published twice"
        if key not in self._index:
            self._index[key] = block
            self._entries[block] = (key, parent)

    def unpublish(self, keys: Iterable[Key]) -> None:
        """Hide these blocks and every block that was computed on top of them."""
        children: dict[Key, list[Key]] = {}
        for key, parent in self._entries.values():
            children.setdefault(parent, []).append(key)
        doomed = list(keys)
        while doomed:
            key = doomed.pop()
            doomed += children.pop(key, ())
            block = self._index.get(key)
            if block is not None:
                self._forget(block)
                if block in self._free:
                    self._free.move_to_end(block, last=False)

    def _forget(self, block: int) -> None:
        entry = self._entries.pop(block, None)
        if entry is not None:
            del self._index[entry[0]]

    def check(self, tables: Iterable[Sequence[int]] | None = None) -> None:
        """Raise AssertionError if the books do not balance.

        `tables` are the block tables of all sequences; without them only the pool's own equations
        are held.
        """
        free, used = len(self._free), self.total - self._users.count(0)
        _require(free + used == self.total, f"free {free} + used {used} != total {self.total}")
        stray = [block for block in self._free if self._users[block]]
        _require(not stray, f"free blocks with users: {stray}")
        index = {block: key for key, block in self._index.items()}
        entries = {block: key for block, (key, _) in self._entries.items()}
        _require(index == entries, f"index {index} != entries {entries}")
        if tables is None:
            return
        standing = Counter(chain.from_iterable(tables))
        wrong = [
            f"block {block}: users {users} != tables {standing[block]}"
            for block, users in enumerate(self._users)
            if users != standing[block]
        ]
        _require(not wrong, "; ".join(wrong))


def _require(holds: bool, equation: str) -> None:
    if not holds:
        raise AssertionError(f"BlockPool: {equation}.")
