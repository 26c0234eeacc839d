"""PyTorch's caching allocator: which block serves a request, and when the driver is called.

Reproduces the behaviour of c10/cuda/CUDACachingAllocator.cpp (torch 2.13). Not modelled: callbacks that free
memory on a miss (CUDA IPC), pools that lend on a shortage or never split, and custom allocators.
"""

from __future__ import annotations

from bisect import bisect_left

from gapless.memory.blocks import Block, Pool
from gapless.memory.expandable import pick_least_growing
from gapless.memory.release import ReleasingAllocator
from gapless.memory.sizes import MIN_BLOCK, SMALL, round_size, segment_size
from gapless.model.memory_calls import size_class


class Allocator(ReleasingAllocator):
    """The allocator of one device: the requests a program can make, and how they are served."""

    __slots__ = ()

    def malloc(self, requested: int, stream: int = 0, pool: int = 0) -> Block | None:
        """Allocate a block for `requested` bytes; None if out of memory.

        A nonzero `pool` names the private pool of a graph that is being captured.
        """
        if self.events:
            self.process_events()
        size = self._rounded.get(requested)
        if size is None:
            size = self._rounded[requested] = round_size(requested, self.settings.divisions)
        chosen = self.pool_for(size, pool)
        block = self._take_best_fit(chosen, size, stream) or self._allocate_segment(chosen, size, stream)
        if block is None:
            self.ooms += 1
            return None
        rest = block.size - size
        if rest and self._should_split(chosen, size, rest):
            block = self._split(block, size)
        block.allocated = True
        block.requested = requested
        self.requested += requested
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
            self.peak_at = self.now
        return block

    def free(self, block: Block) -> None:
        """Free `block`; if streams are recorded on it, it waits for them first."""
        block.allocated = False
        self.allocated -= block.size
        self.requested -= block.requested
        if block.uses:
            self._insert_events(block)
        else:
            self.recycle(block)

    def defer(self, block: Block) -> int:
        """Free `block` while another stream uses it; pass the returned number to :meth:`done` when it
        ends.
        """
        block.allocated = False
        self.allocated -= block.size
        self.requested -= block.requested
        block.waits = 1
        # A queue under a number that no stream has: the order relative to streams is unknown.
        self._deferred -= 1
        self.events[self._deferred] = [(block, [False])]
        return self._deferred

    def done(self, deferred: int) -> None:
        """Make a deferred block free at the next request: the other streams have passed it."""
        self.pass_stream(deferred)

    def record_stream(self, block: Block, stream: int) -> None:
        """Record that `stream` uses `block` too; the block's own stream is ignored."""
        if stream != block.stream:
            block.uses = (block.uses or set()) | {stream}

    def empty_cache(self) -> None:
        """Return all cached memory to the driver."""
        self.release_cached()

    def retire(self, pool: int) -> None:
        """Mark a private pool as unused: its last graph is gone."""
        if pool in self.private:
            self.private[pool].retired = True

    # Inside ---------------------------------------------------------------------------------------

    def pool_for(self, size: int, pool: int) -> Pool:
        """Return the pool that serves blocks of `size` bytes."""
        if not pool:
            return self.small if size <= SMALL else self.large
        private = self.private_pool(pool)
        private.retired = False  # a pool that was retired is in use again
        return private.small if size <= SMALL else private.large

    def _take_best_fit(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Take the smallest free block that fits, at the lowest address, out of the pool."""
        if self.collects:
            pool.searches += 1
        keys = pool.free.get(stream)
        if not keys:
            return None
        at = bisect_left(keys, size << 64)
        if at == len(keys):
            return None
        block = pool.block(keys[at])
        if block.expandable is not None:
            at = pick_least_growing(pool, keys, at, self._expandable)
            if at == len(keys):
                return None
            block = pool.block(keys[at])
        if not self._splits:
            if size < self._max_split <= block.size:
                return None
            if size >= self._max_split and block.size >= size + self.settings.max_non_split_rounding:
                return None
        del keys[at]
        pool.forget(block)
        return block

    def _allocate_segment(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Get memory from the driver, releasing more and more cached memory if it has none left."""
        if self.collects:
            self.collect_garbage()
        segment_bytes = segment_size(size, self.settings.large_segment_size)
        block = self._malloc_segment(pool, size, segment_bytes, stream)
        if block is None and self.settings.rejects and self._exceeds_fraction(segment_bytes):
            return None
        if block is None and self.release_available(pool, size, stream):
            block = self._malloc_segment(pool, size, segment_bytes, stream)
        if block is None:
            self.release_cached()
            self.retries += 1
            block = self._malloc_segment(pool, size, segment_bytes, stream)
        return block

    def _malloc_segment(self, pool: Pool, size: int, segment_bytes: int, stream: int) -> Block | None:
        if self._exceeds_fraction(segment_bytes):
            return None
        if self._expandable:
            block = self.extend(pool, size, stream)
            if block is not None and pool.private is not None:
                pool.private.segments += 1
            return block
        address = self.driver.malloc(segment_bytes)
        if address is None:
            return None
        self.mallocs += 1
        self.classes[size_class(segment_bytes)] += 1
        self.grow(segment_bytes)
        if pool.private is not None:
            pool.private.segments += 1
        if self.log is not None:
            self.log("segment_alloc", address, segment_bytes, stream)
        return Block(address, segment_bytes, stream, pool)

    def _exceeds_fraction(self, segment_bytes: int) -> bool:
        """Whether the process would exceed its allowed share of the device."""
        return self.allowed is not None and self.reserved + segment_bytes > self.allowed

    def _should_split(self, pool: Pool, size: int, rest: int) -> bool:
        if pool.small or self._expandable:
            return rest >= MIN_BLOCK
        return rest > SMALL and size < self._max_split

    def _split(self, rest: Block, size: int) -> Block:
        """Cut the first `size` bytes off a block; return the rest to the pool."""
        block = Block(rest.address, size, rest.stream, rest.pool)
        block.expandable = rest.expandable
        block.splice(rest.prev, rest)
        rest.address += size
        rest.size -= size
        rest.pool.add(rest)
        return block
