"""Blocks of the KV caches, of a fixed number of tokens, allocated on demand; a prefix cache finds full blocks by key.

The rules are those of vLLM's KVCacheManager and BlockPool (v1): the free queue is in the order of release, blocks of a
request are released from its last to its first, a cache hit removes a block from the queue, and a block that is
allocated for new tokens loses its key.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

Key = Hashable
"""Key of the content of a full block and all blocks before it."""


class BlockPool:
    """Pool of `count` blocks of `size` tokens."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._high_water = 0
        """Number of blocks that were allocated at least once: all others precede `_free` in the free queue."""
        self._free = OrderedDict[int, None]()  # a dict's first key takes linear time after deletions at its front
        self._users: dict[int, int] = {}
        self._named: dict[Key, int] = {}
        self._key: dict[int, Key] = {}
        self.allocated = 0
        """Number of allocations so far, shared blocks included."""
        self.released = 0

    @property
    def free(self) -> int:
        return self.count - self._high_water + len(self._free)

    @property
    def occupancy(self) -> int:
        return self._high_water - len(self._free)

    def needed(self, tokens: int) -> int:
        """Return the number of blocks for `tokens`."""
        return -(-tokens // self.size)

    def take(self, count: int) -> list[int]:
        """Allocate blocks for new tokens; `count` must be free."""
        first = self._high_water
        self._high_water = min(self.count, first + count)
        blocks = list(range(first, self._high_water))
        free, keys = self._free, self._key
        for _ in range(count - len(blocks)):
            block, _ = free.popitem(last=False)
            if block in keys:
                del self._named[keys.pop(block)]
            blocks.append(block)
        self._users.update(dict.fromkeys(blocks, 1))
        self.allocated += count
        return blocks

    def cached_prefix(self, keys: Sequence[Key]) -> list[int]:
        """Return the cached blocks of the longest prefix of `keys`, without allocating them."""
        blocks = []
        for key in keys:
            block = self._named.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def idle(self, blocks: Sequence[int]) -> int:
        """Return the number of these blocks in the free queue."""
        return sum(not self._users[block] for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Allocate blocks of a cached prefix."""
        for block in blocks:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1
        self.allocated += len(blocks)

    def name(self, block: int, key: Key) -> None:
        """Add a full block to the prefix cache, unless another block has its key."""
        if block not in self._key and key not in self._named:
            self._named[key] = block
            self._key[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Release blocks, the last block first."""
        users, free = self._users, self._free
        for block in reversed(blocks):
            users[block] = count = users[block] - 1
            if not count:
                free[block] = None
        self.released += len(blocks)
