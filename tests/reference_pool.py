"""KV blocks one by one: what the prefix cache, which counts runs of them, is compared with.

A block is a number. Those that nobody uses stand in one list; a full block has the name of its content,
which is the name of the block before it and its own tokens.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Row


class Pool:
    """The engine's pool: one list of free blocks, and by name the blocks with that content, oldest first."""

    def __init__(self, blocks: int, block_size: int, caching: bool = True) -> None:
        self.block_size = block_size
        self.caching = caching
        self.free = list(range(1, blocks + 1))  # taken from the front
        self.users = [0] * (blocks + 1)
        self.name_of: dict[int, int] = {}
        self.blocks_of: dict[int, dict[int, None]] = {}
        self.evicted = 0
        self._names: dict[Hashable, int] = {}

    def names(self, tokens: Row[Hashable], known: list[int]) -> list[int]:
        """The names of the full blocks of *tokens*, of which *known* are the first."""
        names, size = known, self.block_size
        for first in range(len(known) * size, len(tokens) - size + 1, size):
            content = (names[-1] if names else None, tuple(tokens[first : first + size]))
            names.append(self._names.setdefault(content, len(self._names)))
        return names

    def find(self, names: list[int], tokens: int) -> list[int]:
        """The blocks with the longest beginning of *names*, not with the last of so many *tokens*."""
        found: list[int] = []
        for name in names[: (tokens - 1) // self.block_size] if self.caching else ():
            copies = self.blocks_of.get(name)
            if not copies:
                break
            found.append(next(iter(copies)))
        return found

    def idle(self, blocks: list[int]) -> int:
        """How many of *blocks* stand in the free list."""
        return sum(not self.users[block] for block in blocks)

    def touch(self, blocks: list[int]) -> None:
        """One user more for each of *blocks*."""
        for block in blocks:
            if not self.users[block]:
                self.free.remove(block)
            self.users[block] += 1

    def take(self, count: int) -> list[int]:
        """*count* blocks from the front of the list; what was in them is lost."""
        taken = [self.free.pop(0) for _ in range(count)]
        for block in taken:
            self.users[block] = 1
            if block in self.name_of:
                self.evicted += 1
                name = self.name_of.pop(block)
                del self.blocks_of[name][block]
        return taken

    def fill(self, blocks: list[int], names: list[int], first: int, end: int) -> None:
        """The content of *blocks* from *first* to *end* can be found from now on."""
        for block, name in zip(blocks[first:end], names[first:end], strict=True) if self.caching else ():
            self.name_of[block] = name
            self.blocks_of.setdefault(name, {})[block] = None

    def give_back(self, blocks: list[int]) -> None:
        """One user less, the last block first: named ones to the end of the list, others to its front."""
        front, end = [], []
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                (end if block in self.name_of else front).append(block)
        self.free = front + self.free + end
