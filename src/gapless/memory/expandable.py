"""Expandable segments: an address range for each stream and pool, into which pages are mapped."""

from __future__ import annotations

from gapless.memory.blocks import AddressSpace, Block, Pool
from gapless.memory.driver import VIRTUAL
from gapless.memory.sizes import SMALL_SEGMENT
from gapless.memory.state import AllocatorState


def pick_least_growing(pool: Pool, keys: list[int], at: int, active: bool) -> int:
    """Return the position in `keys` of the expandable block to use, beginning at the best fit `at`.

    A block counts together with the unmapped addresses behind it, and the one that can grow least is used. If
    expandable segments are off again (`active` is False) their blocks are skipped. Returns ``len(keys)`` if
    no block is left.
    """
    if not active:
        while at < len(keys) and pool.block(keys[at]).expandable is not None:
            at += 1
        return at
    while at + 1 < len(keys):
        current, following = pool.block(keys[at]), pool.block(keys[at + 1])
        if current.expandable is None or _growable_size(following) >= _growable_size(current):
            break
        at += 1
    return at


def _growable_size(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)


def _trim(block: Block, first: int, last: int) -> None:
    """Reduce `block` to `first`–`last`; the parts before and behind become free blocks."""
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
    """Segments that grow and shrink by pages."""

    __slots__ = ()

    def extend(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Return a free mapped block of at least `size` bytes, out of its pool; None if out of memory."""
        candidate = self._find_addresses(pool, size, stream)
        if not candidate.mapped and not self._map(candidate, min(candidate.size, size)):
            return None
        while candidate.size < size:
            after = candidate.next
            if after is None or not self._map(after, min(size - candidate.size, after.size)):
                return None  # more than there are addresses, or than there is memory
            candidate = after
        pool.remove(candidate)
        return candidate

    def _find_addresses(self, pool: Pool, size: int, stream: int) -> Block:
        """Return the first block of the lowest free addresses, mapped or not, for `size` bytes; else of a new
        space.
        """
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
        """Reserve a new unmapped address range, at `address` if that is not negative."""
        page = SMALL_SEGMENT if pool.small else self.settings.large_segment_size
        size = max(VIRTUAL // page * page, page)
        if self.total >= 0:
            size = min(size, self.total + self.total // 8)
        candidates = [
            candidate
            for candidate in (address, self.driver.recorded_space(stream, pool.small) or -1)
            if candidate >= 0
        ]
        address = min(candidates) if candidates else self.driver.reserve(size + page)
        size = min(size, self.driver.room_at(address) // page * page) or size
        if any(
            space.address < address + size and address < space.address + space.size for space in self.spaces
        ):
            address = self.driver.reserve(size + page)  # the recording names addresses that are in use
        space = AddressSpace(address, size, page, stream, pool)
        self.driver.occupy(address, space.size)
        self.spaces.append(space)
        block = Block(address, space.size, stream, pool)
        block.mapped = False
        block.expandable = space
        pool.add_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map pages to the first `size` bytes of an unmapped block and merge it with free neighbours."""
        space = block.expandable
        assert space is not None
        size = space.page_above(block.address + size) - block.address
        if not self.driver.map(size):
            return False
        self.mark_mapped(block, size)
        self.maps += 1
        self.mapped_bytes += size
        self.grow(size)
        return True

    def mark_mapped(self, block: Block, size: int) -> None:
        """Mark the first `size` bytes of an unmapped block as mapped and free."""
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
        """Unmap the whole pages of a free block; drop its space if that is empty then."""
        space, pool = block.expandable, block.pool
        assert space is not None
        first, last = space.page_above(block.address), space.page_below(block.address + block.size)
        if first < last:
            pool.remove(block)
            _trim(block, first, last)
            block.mapped = False
            for other in (block.prev, block.next):
                if other is not None and not other.mapped:
                    self.merge(block, other)
            pool.add_unmapped(block)
            self._release_pages(space, first, last - first)
        if block.prev is None and block.next is None and not block.mapped:
            self.spaces.remove(space)
            pool.remove_unmapped(block)

    def _release_pages(self, space: AddressSpace, address: int, size: int) -> None:
        self.driver.unmap(size)
        self.unmaps += 1
        self.unmapped_bytes += size
        self.reserved -= size
        if space.pool.private is not None:
            space.pool.private.segments -= 1
        if self.log is not None:
            self.log("segment_unmap", address, size, space.stream)
