"""The state of an allocator: pools, counters, and events that blocks wait for."""

from __future__ import annotations

from collections.abc import Callable

from gapless.memory.blocks import AddressSpace, Block, Pool, PrivatePool
from gapless.memory.driver import Driver
from gapless.memory.settings import NO_LIMIT, Settings
from gapless.model.memory_calls import SIZE_CLASSES


class AllocatorState:
    """The memory of one device under `settings`; `total` is the device's memory in bytes (-1: unknown).

    Counters follow ``torch.cuda.memory_stats``: `mallocs` and `maps` together are its ``num_device_alloc``,
    `frees` and `unmaps` its ``num_device_free``, `retries` its ``num_alloc_retries``. `classes` are the
    `mallocs` by size class. The caller may set `now`; `peak_at` and `height_at` are its values when most was
    allocated and reserved. `log`, if set, is called with each action (named as in a snapshot), address, size
    and stream.
    """

    # With more than thirty attributes, objects with a dictionary are slow.
    __slots__ = (
        "_deferred", "_expandable", "_max_split", "_rounded", "_splits", "allocated", "allowed", "classes",
        "collections", "collects", "driver", "events", "frees", "height_at", "large", "log", "mallocs",
        "mapped_bytes", "maps", "now", "ooms", "peak_allocated", "peak_at", "peak_reserved", "private",
        "requested", "reserved", "retries", "settings", "small", "spaces", "total", "unmapped_bytes",
        "unmaps",
    )  # fmt: skip

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
        self.classes = [0] * (len(SIZE_CLASSES) + 1)
        self.mapped_bytes = self.unmapped_bytes = 0
        self.retries = self.collections = self.ooms = 0
        self.now = self.peak_at = self.height_at = -1
        self._expandable = settings.expandable_segments
        self._max_split = settings.max_split_size
        self._splits = settings.max_split_size == NO_LIMIT
        self._rounded: dict[int, int] = {}
        self._deferred = 0

    def private_pool(self, pool: int) -> PrivatePool:
        """Return the private pool of that number; create it at first use."""
        return self.private.setdefault(pool, PrivatePool())

    def grow(self, size: int) -> None:
        """Add `size` reserved bytes."""
        self.reserved += size
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved
            self.height_at = self.now

    def recycle(self, block: Block) -> None:
        """Put `block` into its pool, merged with its free neighbours."""
        if self.log is not None:
            self.log("free_completed", block.address, block.requested, block.stream)
        for neighbour in (block.prev, block.next):
            if (
                neighbour is None
                or not neighbour.mapped
                or neighbour.allocated
                or neighbour.waits
                or neighbour.uses
            ):
                continue
            self.merge(block, neighbour)
        block.pool.add(block)

    def merge(self, block: Block, neighbour: Block) -> None:
        """Merge `other`, a free or unmapped neighbour, into `block`."""
        if neighbour.mapped:
            block.pool.remove(neighbour)
        else:
            block.pool.remove_unmapped(neighbour)
        if block.prev is neighbour:
            block.address = neighbour.address
            block.prev = neighbour.prev
            if block.prev is not None:
                block.prev.next = block
        else:
            block.next = neighbour.next
            if block.next is not None:
                block.next.prev = block
        block.size += neighbour.size

    # Other streams --------------------------------------------------------------------------------

    def _insert_events(self, block: Block) -> None:
        for stream in sorted(block.uses or ()):
            block.waits += 1
            self.events.setdefault(stream, []).append((block, [False]))
        block.uses = None

    def pass_stream(self, stream: int) -> None:
        """Mark everything recorded on `stream` so far as passed."""
        for _, passed in self.events.get(stream, ()):
            passed[0] = True

    def process_events(self) -> None:
        """Free blocks whose events have passed, in order: an event that has not holds up those behind it."""
        for stream in list(self.events):
            queue = self.events[stream]
            gone = 0
            for block, passed in queue:
                if not passed[0]:
                    break
                gone += 1
                self._pass_event(block)
            del queue[:gone]
            if not queue:
                del self.events[stream]

    def synchronize(self) -> None:
        """Wait for all events."""
        events, self.events = self.events, {}
        for queue in events.values():
            for block, _ in queue:
                self._pass_event(block)

    def _pass_event(self, block: Block) -> None:
        block.waits -= 1
        if not block.waits:
            self.recycle(block)
