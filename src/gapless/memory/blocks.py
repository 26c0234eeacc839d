"""Blocks, the pools they lie free in, and the address space of expandable segments."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

_ADDRESS = (1 << 64) - 1


class Block:
    """A piece of a segment. Its neighbours in the segment are `prev` and `next`.

    `mapped` is False where an expandable segment has address space and no memory. `waits` counts the events
    that must pass before the block can be used again, `uses` are the streams that were recorded on it.
    `born` is the number of searches its pool had seen when it was put there: its age for garbage collection.
    """

    __slots__ = (
        "address",
        "allocated",
        "born",
        "expandable",
        "mapped",
        "next",
        "pool",
        "prev",
        "requested",
        "size",
        "stream",
        "uses",
        "waits",
    )

    def __init__(self, address: int, size: int, stream: int, pool: Pool) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.requested = 0
        self.allocated = False
        self.mapped = True
        self.prev: Block | None = None
        self.next: Block | None = None
        self.waits = 0
        self.uses: set[int] | None = None
        self.born = 0
        self.expandable: AddressSpace | None = None

    @property
    def whole(self) -> bool:
        """Whether the block is a segment of its own."""
        return self.prev is None and self.next is None

    @property
    def idle(self) -> bool:
        """Whether nobody uses it and nothing is waited for."""
        return not self.allocated and not self.waits and not self.uses

    def splice(self, before: Block | None, after: Block | None) -> None:
        """Put the block between two neighbours."""
        self.prev, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.prev = self


class AddressSpace:
    """The addresses of one expandable segment: mapped page by page."""

    __slots__ = ("address", "page", "pool", "size", "stream")

    def __init__(self, address: int, size: int, page: int, stream: int, pool: Pool) -> None:
        self.address = address
        self.page = page
        self.size = -(-size // page) * page
        self.stream = stream
        self.pool = pool

    def below(self, address: int) -> int:
        """The page boundary at or below `address`."""
        return address - (address - self.address) % self.page

    def above(self, address: int) -> int:
        """The page boundary at or above `address`."""
        return address + (self.address - address) % self.page


class Pool:
    """Free blocks by stream, size and address; and unmapped ones by stream and address.

    A block's place in the order is one number, its size above its address: numbers compare faster than
    pairs. `private` is the pool of a graph that this is half of, or None.
    """

    __slots__ = ("_at", "free", "private", "searches", "small", "unmapped")

    def __init__(self, small: bool, private: PrivatePool | None = None) -> None:
        self.small = small
        self.private = private
        self.searches = 0
        self.free: dict[int, list[int]] = {}
        self.unmapped: dict[int, list[int]] = {}
        self._at: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        block.born = self.searches
        self._at[block.address] = block
        keys = self.free.get(block.stream)
        if keys is None:
            keys = self.free[block.stream] = []
        insort(keys, block.size << 64 | block.address)

    def remove(self, block: Block) -> None:
        keys = self.free[block.stream]
        del keys[bisect_left(keys, block.size << 64 | block.address)]
        del self._at[block.address]

    def block(self, key: int) -> Block:
        return self._at[key & _ADDRESS]

    def forget(self, block: Block) -> None:
        """`block` is out of `free` already."""
        del self._at[block.address]

    def add_unmapped(self, block: Block) -> None:
        self._at[block.address] = block
        insort(self.unmapped.setdefault(block.stream, []), block.address)

    def remove_unmapped(self, block: Block) -> None:
        addresses = self.unmapped[block.stream]
        del addresses[bisect_left(addresses, block.address)]
        del self._at[block.address]

    def blocks(self) -> list[Block]:
        """All free blocks: by stream, then by size, then by address."""
        return [self._at[key & _ADDRESS] for stream in sorted(self.free) for key in self.free[stream]]

    def unmapped_blocks(self, stream: int) -> Iterator[Block]:
        for address in list(self.unmapped.get(stream, ())):
            yield self._at[address]

    def largest(self, stream: int) -> int:
        """The size of the largest free block of `stream`."""
        keys = self.free.get(stream)
        return keys[-1] >> 64 if keys else 0


class PrivatePool:
    """The memory of CUDA graphs: kept apart, and not given back as long as a graph may be replayed.

    `segments` counts what it has of the driver, `retired` says that its last graph is gone.
    """

    __slots__ = ("large", "retired", "segments", "small")

    def __init__(self) -> None:
        self.small = Pool(True, self)
        self.large = Pool(False, self)
        self.segments = 0
        self.retired = False
