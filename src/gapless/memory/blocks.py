"""Blocks, the pools that hold free ones, and the address space of expandable segments."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

_ADDRESS_MASK = (1 << 64) - 1
"""The lower 64 bits of a key of `Pool.free`."""


class Block:
    """A piece of a segment; `prev` and `next` are its neighbours.

    `mapped` is False for address space without memory (expandable segments). `waits` counts the events that
    must pass before the block can be used again; `uses` are the streams recorded on it. `born` is the number
    of searches in its pool when it was freed: its age for garbage collection.
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
        """Whether the block is a whole segment."""
        return self.prev is None and self.next is None

    @property
    def idle(self) -> bool:
        """Whether the block is free and no stream or event delays its use."""
        return not self.allocated and not self.waits and not self.uses

    def splice(self, before: Block | None, after: Block | None) -> None:
        """Link the block between two neighbours."""
        self.prev, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.prev = self


class AddressSpace:
    """The addresses of one expandable segment, mapped page by page."""

    __slots__ = ("address", "page", "pool", "size", "stream")

    def __init__(self, address: int, size: int, page: int, stream: int, pool: Pool) -> None:
        self.address = address
        self.page = page
        self.size = -(-size // page) * page
        self.stream = stream
        self.pool = pool

    def page_below(self, address: int) -> int:
        """Return the page boundary at or below `address`."""
        return address - (address - self.address) % self.page

    def page_above(self, address: int) -> int:
        """Return the page boundary at or above `address`."""
        return address + (self.address - address) % self.page


class Pool:
    """Free blocks by stream, size and address; unmapped ones by stream and address.

    A block's key is one number, its size above its address: numbers compare faster than pairs. `private` is
    the private pool that this pool is the small or large half of, or None.
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
        return self._at[key & _ADDRESS_MASK]

    def forget(self, block: Block) -> None:
        """Remove a block whose key was already taken out of `free`."""
        del self._at[block.address]

    def add_unmapped(self, block: Block) -> None:
        self._at[block.address] = block
        insort(self.unmapped.setdefault(block.stream, []), block.address)

    def remove_unmapped(self, block: Block) -> None:
        addresses = self.unmapped[block.stream]
        del addresses[bisect_left(addresses, block.address)]
        del self._at[block.address]

    def blocks(self) -> list[Block]:
        """Return all free blocks by stream, then size, then address."""
        return [self._at[key & _ADDRESS_MASK] for stream in sorted(self.free) for key in self.free[stream]]

    def unmapped_blocks(self, stream: int) -> Iterator[Block]:
        for address in list(self.unmapped.get(stream, ())):
            yield self._at[address]

    def largest(self, stream: int) -> int:
        """Return the size of the largest free block of `stream`; 0 if there is none."""
        keys = self.free.get(stream)
        return keys[-1] >> 64 if keys else 0


class PrivatePool:
    """The memory of CUDA graphs: kept apart, and not released while a graph may be replayed.

    `segments` counts its segments from the driver; `retired` means that its last graph is gone.
    """

    __slots__ = ("large", "retired", "segments", "small")

    def __init__(self) -> None:
        self.small = Pool(True, self)
        self.large = Pool(False, self)
        self.segments = 0
        self.retired = False
