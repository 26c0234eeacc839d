"""PyTorch's caching allocator: which request is served by which block, and when the driver is asked.

Written from the behaviour of c10/cuda/CUDACachingAllocator.cpp (torch 2.13). Not modelled: callbacks that
free memory on a miss (CUDA IPC), pools that lend on a shortage or never split, and allocators of users.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from gapless.memory import expandable, release
from gapless.memory.blocks import AddressSpace, Block, Pool, PrivatePool
from gapless.memory.driver import Driver
from gapless.memory.settings import NO_LIMIT, Settings
from gapless.memory.sizes import MIN_BLOCK, SMALL, round_size, segment_size
from gapless.model.memory_calls import CLASSES, class_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Allocator:
    """The allocator of one device under `settings`; `total` is the device's memory in bytes (-1: unknown).

    Numbers as ``torch.cuda.memory_stats`` counts them: `mallocs` and `maps` are together its
    ``num_device_alloc``, `frees` and `unmaps` its ``num_device_free``, `retries` its ``num_alloc_retries``.
    `classes` are the `mallocs` by their size.
    Whoever calls may set `now`; `peak_at` and `height_at` are what it was when most was allocated and
    reserved.
    `log`, where it is set, is called with each action of the allocator's own (by its name in a snapshot), the
    address, the size and the stream.
    """

    def __init__(self, settings: Settings, driver: Driver, total: int = -1) -> None:
        self.settings = settings
        self.driver = driver
        self.total = total
        self.small = Pool(True)
        self.large = Pool(False)
        self.private: dict[int, PrivatePool] = {}
        self.spaces: list[AddressSpace] = []
        self.events: dict[int, list[tuple[Block, list[bool]]]] = {}
        self.allowed = int(settings.fraction * total) if settings.fraction < 1 and total >= 0 else None
        self.collects = settings.collects and self.allowed is not None
        self.log: Callable[[str, int, int, int], None] | None = None
        self.allocated = self.reserved = self.requested = 0
        self.peak_allocated = self.peak_reserved = 0
        self.mallocs = self.frees = self.maps = self.unmaps = 0
        self.classes = [0] * (len(CLASSES) + 1)
        self.mapped_bytes = self.unmapped_bytes = 0
        self.retries = self.collections = self.ooms = 0
        self.now = self.peak_at = self.height_at = -1
        self._expandable = settings.expandable_segments
        self._max_split = settings.max_split_size
        self._splits = settings.max_split_size == NO_LIMIT
        self._rounded: dict[int, int] = {}
        self._deferred = 0

    # What a program asks for ---------------------------------------------------------------------

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
        release.release_cached(self)

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

    def private_pool(self, pool: int) -> PrivatePool:
        """The private pool of that number, made when it is first asked for."""
        return self.private.setdefault(pool, PrivatePool())

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
            at = expandable.step(pool, keys, at, self._expandable)
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
            release.collect_garbage(self)
        asked = segment_size(size, self.settings.large_segment_size)
        block = self._ask(pool, size, asked, stream)
        if block is None and self.settings.rejects and self._beyond(asked):
            return None
        if block is None and release.release_available(self, pool, size, stream):
            block = self._ask(pool, size, asked, stream)
        if block is None:
            release.release_cached(self)
            self.retries += 1
            block = self._ask(pool, size, asked, stream)
        return block

    def _ask(self, pool: Pool, size: int, asked: int, stream: int) -> Block | None:
        if self._beyond(asked):
            return None
        if self._expandable:
            block = expandable.extend(self, pool, size, stream)
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

    def grow(self, size: int) -> None:
        """`size` bytes more are reserved."""
        self.reserved += size
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved
            self.height_at = self.now

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

    def recycle(self, block: Block) -> None:
        """Put `block` into its pool, together with its free neighbours."""
        if self.log is not None:
            self.log("free_completed", block.address, block.requested, block.stream)
        for other in (block.prev, block.next):
            if other is None or not other.mapped or other.allocated or other.waits or other.uses:
                continue
            self.merge(block, other)
        block.pool.add(block)

    def merge(self, block: Block, other: Block) -> None:
        """Join `other`, a free (or unmapped) neighbour out of its pool, to `block`."""
        if other.mapped:
            block.pool.remove(other)
        else:
            block.pool.remove_unmapped(other)
        if block.prev is other:
            block.address = other.address
            block.prev = other.prev
            if block.prev is not None:
                block.prev.next = block
        else:
            block.next = other.next
            if block.next is not None:
                block.next.prev = block
        block.size += other.size

    # Other streams --------------------------------------------------------------------------------

    def _insert_events(self, block: Block) -> None:
        for stream in sorted(block.uses or ()):
            block.waits += 1
            self.events.setdefault(stream, []).append((block, [False]))
        block.uses = None

    def pass_stream(self, stream: int) -> None:
        """`stream` has passed everything that was recorded on it so far."""
        for _, passed in self.events.get(stream, ()):
            passed[0] = True

    def process_events(self) -> None:
        """Blocks whose events have passed become free; one that has not holds up those behind it."""
        for stream in list(self.events):
            queue = self.events[stream]
            gone = 0
            for block, passed in queue:
                if not passed[0]:
                    break
                gone += 1
                self._passed(block)
            del queue[:gone]
            if not queue:
                del self.events[stream]

    def synchronize(self) -> None:
        """Wait for all events."""
        events, self.events = self.events, {}
        for queue in events.values():
            for block, _ in queue:
                self._passed(block)

    def _passed(self, block: Block) -> None:
        block.waits -= 1
        if not block.waits:
            self.recycle(block)
