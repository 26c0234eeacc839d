"""PyTorch's caching allocator: which request is served by which block, and when the driver is asked.

Written from the behaviour of c10/cuda/CUDACachingAllocator.cpp (torch 2.13). Not modelled: callbacks that
free memory on a miss (CUDA IPC), pools that lend on a shortage or never split, and allocators of users.
"""

from __future__ import annotations

from bisect import bisect_left

from gapless.memory.blocks import Block, Pool
from gapless.memory.expandable import least_growing
from gapless.memory.release import Releasing
from gapless.memory.sizes import MIN_BLOCK, SMALL, round_size, segment_size
from gapless.model.memory_calls import class_of


class Allocator(Releasing):
    """The allocator of one device: what a program may ask of it, and how that is served."""

    __slots__ = ()

    def malloc(self, requested: int, stream: int = 0, pool: int = 0) -> Block | None:
        """A block for `requested` bytes, or None where there is no memory for it.

        `pool` other than 0 names a private pool, as a graph that is captured has it.
        """
        if self.events:
            self.process_events()
        size = self._rounded.get(requested)
        if size is None:
            size = self._rounded[requested] = round_size(requested, self.settings.divisions)
        chosen = self.pool_for(size, pool)
        block = self._search(chosen, size, stream) or self._miss(chosen, size, stream)
        if block is None:
            self.ooms += 1
            return None
        rest = block.size - size
        if rest and self._divides(chosen, size, rest):
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
        """Give `block` back; where streams are recorded on it, it waits for them."""
        block.allocated = False
        self.allocated -= block.size
        self.requested -= block.requested
        if block.uses:
            self._insert_events(block)
        else:
            self.recycle(block)

    def defer(self, block: Block) -> int:
        """Give `block` back, to be used again after :meth:`done`, which is told the number given here."""
        block.allocated = False
        self.allocated -= block.size
        self.requested -= block.requested
        block.waits = 1
        # A queue of its own, under no stream's number: nothing is known of what it stands behind.
        self._deferred -= 1
        self.events[self._deferred] = [(block, [False])]
        return self._deferred

    def done(self, deferred: int) -> None:
        """The other streams have passed what was deferred: the next request finds it free."""
        self.pass_stream(deferred)

    def record_stream(self, block: Block, stream: int) -> None:
        """`stream` uses `block` too; its own stream needs no mention."""
        if stream != block.stream:
            block.uses = (block.uses or set()) | {stream}

    def empty_cache(self) -> None:
        """Give all cached memory back to the driver."""
        self.release_cached()

    def retire(self, pool: int) -> None:
        """The last graph of a private pool is gone."""
        if pool in self.private:
            self.private[pool].retired = True

    # Inside ---------------------------------------------------------------------------------------

    def pool_for(self, size: int, pool: int) -> Pool:
        """The pool that serves a block of `size` bytes."""
        if not pool:
            return self.small if size <= SMALL else self.large
        private = self.private_pool(pool)
        private.retired = False  # whatever was thought of it, it is in use
        return private.small if size <= SMALL else private.large

    def _search(self, pool: Pool, size: int, stream: int) -> Block | None:
        """The smallest free block that fits, the lowest of those; taken out of the pool."""
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
            at = least_growing(pool, keys, at, self._expandable)
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

    def _miss(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Ask the driver, and make room for it step by step where it has no more."""
        if self.collects:
            self.collect_garbage()
        asked = segment_size(size, self.settings.large_segment_size)
        block = self._ask(pool, size, asked, stream)
        if block is None and self.settings.rejects and self._beyond(asked):
            return None
        if block is None and self.release_available(pool, size, stream):
            block = self._ask(pool, size, asked, stream)
        if block is None:
            self.release_cached()
            self.retries += 1
            block = self._ask(pool, size, asked, stream)
        return block

    def _ask(self, pool: Pool, size: int, asked: int, stream: int) -> Block | None:
        if self._beyond(asked):
            return None
        if self._expandable:
            block = self.extend(pool, size, stream)
            if block is not None and pool.private is not None:
                pool.private.segments += 1
            return block
        address = self.driver.malloc(asked)
        if address is None:
            return None
        self.mallocs += 1
        self.classes[class_of(asked)] += 1
        self.grow(asked)
        if pool.private is not None:
            pool.private.segments += 1
        if self.log is not None:
            self.log("segment_alloc", address, asked, stream)
        return Block(address, asked, stream, pool)

    def _beyond(self, asked: int) -> bool:
        """Whether the process would have more than its part of the device."""
        return self.allowed is not None and self.reserved + asked > self.allowed

    def _divides(self, pool: Pool, size: int, rest: int) -> bool:
        if pool.small or self._expandable:
            return rest >= MIN_BLOCK
        return rest > SMALL and size < self._max_split

    def _split(self, rest: Block, size: int) -> Block:
        """The first `size` bytes of the block; what is left of it goes back into the pool."""
        block = Block(rest.address, size, rest.stream, rest.pool)
        block.expandable = rest.expandable
        block.splice(rest.prev, rest)
        rest.address += size
        rest.size -= size
        rest.pool.add(rest)
        return block
