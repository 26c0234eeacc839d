"""Return memory to the driver: garbage collection, oversize blocks, everything cached."""

from __future__ import annotations

from bisect import bisect_left

from gapless.memory.blocks import Block, Pool
from gapless.memory.expandable import ExpandableSegments
from gapless.memory.settings import NO_LIMIT


class ReleasingAllocator(ExpandableSegments):
    """Releases cached memory, all of it or as much as a request needs."""

    __slots__ = ()

    def collect_garbage(self) -> None:
        """Free whole large segments that are older than average (in searches of the pool), until below the
        threshold.
        """
        assert self.allowed is not None
        threshold = int(self.settings.garbage_collection_threshold * self.allowed)
        if self.reserved <= threshold:
            return
        target = self.reserved - threshold
        pool = self.large
        ages = [pool.searches - block.born for block in pool.blocks() if block.whole]
        age, count, reclaimed, freed = sum(ages), len(ages), 0, True
        began = self.frees
        while reclaimed < target and freed and count > 0:
            bound = age / count
            freed = False
            for block in pool.blocks():
                if block.whole and block.expandable is None and pool.searches - block.born >= bound:
                    freed = True
                    reclaimed += block.size
                    age -= pool.searches - block.born
                    count -= 1
                    self._release(block)
        self.collections += self.frees > began

    def release_available(self, pool: Pool, size: int, stream: int) -> bool:
        """Free oversize blocks until `size` bytes are free; whether they are. Only with a maximum split size.

        Segments that were split before recording began are kept.
        """
        limit = self.settings.max_split_size
        if limit == NO_LIMIT:
            return False
        wanted = max(size, limit)
        keys = pool.free.get(stream, [])
        at = bisect_left(keys, wanted << 64)
        for key in keys[at:]:
            block = pool.block(key)
            if block.expandable is None and block.whole:
                self._release(block)
                return True
        released = 0
        for key in reversed(keys[:at]):
            block = pool.block(key)
            if released >= wanted or block.size < limit:
                break
            if block.expandable is None and block.whole:
                released += block.size
                self._release(block)
        return released >= wanted

    def release_cached(self) -> None:
        """Wait for all streams, then free each whole segment and unmap each free page.

        Includes private pools whose last graph is gone.
        """
        self.synchronize()
        self._release_all(self.large)
        self._release_all(self.small)
        for number, private in list(self.private.items()):
            if private.retired:
                self._release_all(private.small)
                self._release_all(private.large)
                if not private.segments:
                    del self.private[number]

    def _release_all(self, pool: Pool) -> None:
        mapped: list[Block] = []
        for block in pool.blocks():
            if block.expandable is not None:
                mapped.append(block)
            elif block.prev is None and block.next is None:
                self._release(block)
        for block in mapped:
            self.shrink(block)

    def _release(self, block: Block) -> None:
        """Free a whole segment with ``cudaFree``."""
        self.driver.free(block.address)
        self.frees += 1
        self.reserved -= block.size
        if block.pool.private is not None:
            block.pool.private.segments -= 1
        block.pool.remove(block)
        if self.log is not None:
            self.log("segment_free", block.address, block.size, block.stream)
