"""Expandable segments: a range of addresses for each stream and pool, to which pages are mapped."""

from __future__ import annotations

from gapless.memory.blocks import AddressSpace, Block, Pool
from gapless.memory.driver import VIRTUAL
from gapless.memory.sizes import SMALL_SEGMENT
from gapless.memory.state import AllocatorState


def least_growing(pool: Pool, keys: list[int], at: int, active: bool) -> int:
    """From the best fit at `at`, which is expandable, to the position of the one to take.

    A block counts with the free addresses behind it, so that the one which can grow least is taken. Where
    expandable segments have been turned off again, their blocks are passed over. Length of `keys`: none.
    """
    if not active:
        while at < len(keys) and pool.block(keys[at]).expandable is not None:
            at += 1
        return at
    while at + 1 < len(keys):
        here, there = pool.block(keys[at]), pool.block(keys[at + 1])
        if here.expandable is None or _room(there) >= _room(here):
            break
        at += 1
    return at


def _room(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)


def _cut(block: Block, first: int, last: int) -> None:
    """Leave of `block` what lies between `first` and `last`; what lies before and behind stays free."""
    pool, end = block.pool, block.address + block.size
    if first > block.address:
        before = Block(block.address, first - block.address, block.stream, pool)
        before.expandable = block.expandable
        before.splice(block.prev, block)
        pool.add(before)
    if end > last:
        after = Block(last, end - last, block.stream, pool)
        after.expandable = block.expandable
        after.splice(block, block.next)
        pool.add(after)
    block.address, block.size = first, last - first


class ExpandableSegments(AllocatorState):
    """Segments that grow and shrink, page by page."""

    __slots__ = ()

    def extend(self, pool: Pool, size: int, stream: int) -> Block | None:
        """A free block of at least `size` bytes, mapped and out of its pool; None where no memory is left."""
        candidate = self._find(pool, size, stream)
        if not candidate.mapped and not self._map(candidate, min(candidate.size, size)):
            return None
        while candidate.size < size:
            after = candidate.next
            if after is None or not self._map(after, min(size - candidate.size, after.size)):
                return None  # more than there are addresses, or than there is memory
            candidate = after
        pool.remove(candidate)
        return candidate

    def _find(self, pool: Pool, size: int, stream: int) -> Block:
        """The lowest free addresses, mapped or not, that `size` bytes fit into; else those of a new space."""
        for block in pool.unmapped_blocks(stream):
            first = block.prev if block.prev is not None and block.prev.idle else block
            room, at = 0, first
            while room < size and at is not None and at.idle:
                room += at.size
                at = at.next  # type: ignore[assignment]  # None ends it
            if room >= size:
                return first
        return self.open_space(pool, stream)

    def open_space(self, pool: Pool, stream: int, address: int = -1) -> Block:
        """A new range of addresses (from `address` on, where that is given), all of it unmapped."""
        page = SMALL_SEGMENT if pool.small else self.settings.large_segment_size
        size = self.total + self.total // 8 if self.total >= 0 else VIRTUAL
        known = [one for one in (address, self.driver.recorded_space(stream, pool.small) or -1) if one >= 0]
        address = min(known) if known else self.driver.reserve(size + page)
        if any(one.address < address + size and address < one.address + one.size for one in self.spaces):
            address = self.driver.reserve(size + page)  # the recording names addresses that are in use
        space = AddressSpace(address, size, page, stream, pool)
        self.spaces.append(space)
        block = Block(address, space.size, stream, pool)
        block.mapped = False
        block.expandable = space
        pool.add_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map pages to the first `size` bytes of an unmapped block, which joins its free neighbours."""
        space = block.expandable
        assert space is not None
        size = space.above(block.address + size) - block.address
        if not self.driver.map(size):
            return False
        self.place(block, size)
        self.maps += 1
        self.mapped_bytes += size
        self.grow(size)
        return True

    def place(self, block: Block, size: int) -> None:
        """The first `size` bytes of an unmapped block are mapped now, and free."""
        pool, space = block.pool, block.expandable
        assert space is not None
        address = block.address
        pool.remove_unmapped(block)
        block.mapped = True
        if size < block.size:
            rest = Block(block.address + size, block.size - size, block.stream, pool)
            rest.mapped = False
            rest.expandable = space
            rest.splice(block, block.next)
            block.size = size
            pool.add_unmapped(rest)
        for other in (block.prev, block.next):
            if other is not None and other.mapped and other.idle:
                self.merge(block, other)
        pool.add(block)
        if self.log is not None:
            self.log("segment_map", address, size, block.stream)

    def shrink(self, block: Block) -> None:
        """Unmap the whole pages of a free block; a space that is empty then is given up."""
        space, pool = block.expandable, block.pool
        assert space is not None
        first, last = space.above(block.address), space.below(block.address + block.size)
        if first < last:
            pool.remove(block)
            _cut(block, first, last)
            block.mapped = False
            for other in (block.prev, block.next):
                if other is not None and not other.mapped:
                    self.merge(block, other)
            pool.add_unmapped(block)
            self._given_back(space, first, last - first)
        if block.prev is None and block.next is None and not block.mapped:
            self.spaces.remove(space)
            pool.remove_unmapped(block)

    def _given_back(self, space: AddressSpace, address: int, size: int) -> None:
        self.driver.unmap(size)
        self.unmaps += 1
        self.unmapped_bytes += size
        self.reserved -= size
        if space.pool.private is not None:
            space.pool.private.segments -= 1
        if self.log is not None:
            self.log("segment_unmap", address, size, space.stream)
