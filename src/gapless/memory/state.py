"""What an allocator holds: its pools, what it counts, and the events that its blocks wait for."""

from __future__ import annotations

from collections.abc import Callable

from gapless.memory.blocks import AddressSpace, Block, Pool, PrivatePool
from gapless.memory.driver import Driver
from gapless.memory.settings import NO_LIMIT, Settings
from gapless.model.memory_calls import CLASSES


class AllocatorState:
    """The memory of one device under `settings`; `total` is the device's memory in bytes (-1: unknown).

    Numbers as ``torch.cuda.memory_stats`` counts them: `mallocs` and `maps` are together its
    ``num_device_alloc``, `frees` and `unmaps` its ``num_device_free``, `retries` its ``num_alloc_retries``.
    `classes` are the `mallocs` by their size.
    Whoever calls may set `now`; `peak_at` and `height_at` are what it was when most was allocated and
    reserved.
    `log`, where it is set, is called with each action of the allocator's own (by its name in a snapshot), the
    address, the size and the stream.
    """

    # Beyond thirty attributes, objects with a dictionary are slow.
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
        self.classes = [0] * (len(CLASSES) + 1)
        self.mapped_bytes = self.unmapped_bytes = 0
        self.retries = self.collections = self.ooms = 0
        self.now = self.peak_at = self.height_at = -1
        self._expandable = settings.expandable_segments
        self._max_split = settings.max_split_size
        self._splits = settings.max_split_size == NO_LIMIT
        self._rounded: dict[int, int] = {}
        self._deferred = 0

    def private_pool(self, pool: int) -> PrivatePool:
        """The private pool of that number, made when it is first asked for."""
        return self.private.setdefault(pool, PrivatePool())

    def grow(self, size: int) -> None:
        """`size` bytes more are reserved."""
        self.reserved += size
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved
            self.height_at = self.now

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
