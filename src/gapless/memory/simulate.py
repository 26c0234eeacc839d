"""Replay a `MemoryRun` through the allocator, under its own or other settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gapless.errors import UsageError
from gapless.memory.adopt import LiveBlocks, adopt, begin_fresh
from gapless.memory.allocator import Allocator
from gapless.memory.blocks import Block
from gapless.memory.driver import UNLIMITED, Driver
from gapless.memory.settings import Settings, parse
from gapless.memory.sizes import round_size
from gapless.model.memory import ALLOC, DEFER, DONE, EMPTY, FAILED, FREE, RETIRE, STEP, MemoryRun
from gapless.model.memory_calls import CallTimes
from gapless.model.memory_report import Curve, Outcome, Shortage, StepEnd

Begin = Literal["recorded", "fresh"]
"""How to begin a run recorded from its middle: with the recorded layout, or with its tensors laid out anew.
"""
POINTS = 400
"""Points of a curve: more than a chart shows."""
Progress = Callable[[int, int], None]


class Simulation:
    """One replay and its results.

    `capacity` is the device memory of this process in bytes; -1 for what the recorded run could get, or no
    limit if it never met one. `total` is all memory of the device, which ``per_process_memory_fraction``
    refers to. A run that began with more than `capacity` reserved begins fresh. `stop` ends the replay before
    that event (-1: never). With `grows` the process gets more memory whenever a request would fail; `needs`
    is the most it got. `passed` is the least memory in use at a request that failed in the recorded run but
    not here (-1: none).
    """

    def __init__(
        self,
        run: MemoryRun,
        settings: Settings | str | None = None,
        *,
        capacity: int = -1,
        total: int = -1,
        begin: Begin = "recorded",
        stop: int = -1,
        grows: bool = False,
    ) -> None:
        self.run = run
        self.text = settings if isinstance(settings, str) else run.settings
        self.settings = _settings(run, settings)
        self.capacity = capacity if capacity >= 0 else run.limit if run.limit >= 0 else UNLIMITED
        limits = [size for size in (total, run.total_memory, capacity, run.limit) if size >= 0]
        if self.settings.fraction < 1 and not limits:
            raise UsageError("a fraction of the device's memory needs the device: give --gpu or --limit")
        recorded = run.recorded
        driver = Driver(
            self.capacity, recorded.segments if recorded else (), recorded.spaces if recorded else ()
        )
        self.allocator = Allocator(self.settings, driver, limits[0] if limits else -1)
        if grows:
            self.allocator.total = -1  # reserves address space for any size
        held = sum(segment.size for segment in run.start)
        self.begin: Begin = begin if held <= self.capacity else "fresh"
        self.stop = len(run) if stop < 0 else min(stop, len(run))
        self.live = LiveBlocks()
        self.placed = 0
        self.needs = self.passed = -1
        self._grows = grows
        self.peak_event = self.height_event = -1
        self.shortage: Shortage | None = None
        self.failure: Shortage | None = None
        self.failures = 0
        self.end = 0
        self.curve = Curve()
        self.ends: list[StepEnd] = []

    def go(self, progress: Progress | None = None, points: int = POINTS) -> Simulation:
        """Replay the run, or until memory runs out; ``progress(done, of)`` is called now and then."""
        allocator = self.allocator
        self._begin()
        event, allocated, reserved = [-1], [allocator.allocated], [allocator.reserved]
        top_allocated, top_reserved = allocator.peak_allocated, allocator.peak_reserved
        step = max(1, -(-self.stop // max(points, 1)))
        low = 0
        while low < self.stop and self.shortage is None:
            high = min(low + step, self.stop)
            # Peaks restart in each stretch, so that the curve has each stretch's own.
            allocator.peak_allocated, allocator.peak_reserved = allocator.allocated, allocator.reserved
            self.end = self._replay_rows(low, high)
            event.append(self.end - 1)
            allocated.append(allocator.peak_allocated)
            reserved.append(allocator.peak_reserved)
            if allocator.peak_allocated > top_allocated:
                top_allocated, self.peak_event = allocator.peak_allocated, allocator.peak_at
            if allocator.peak_reserved > top_reserved:
                top_reserved, self.height_event = allocator.peak_reserved, allocator.height_at
            low = high
            if progress is not None:
                progress(low, self.stop)
        allocator.process_events()
        allocator.peak_allocated, allocator.peak_reserved = top_allocated, top_reserved
        self.curve = Curve(event=tuple(event), allocated=tuple(allocated), reserved=tuple(reserved))
        return self

    def _begin(self) -> None:
        if self.begin == "recorded":
            self.live = adopt(self.allocator, self.run)
            return
        self.live = begin_fresh(self.allocator, self.run, self._malloc)
        wanted = [block for segment in self.run.start for block in segment.blocks if block.ident >= 0]
        present = self.live.blocks.keys() | self.live.waiting.keys()
        missing = [block for block in wanted if block.ident not in present]
        if missing:
            self._end_with_shortage(-1, missing[0].requested, missing[0].place, self.run.start[0].stream, 0)

    def _replay_rows(self, low: int, high: int) -> int:
        """Replay the events from `low` to `high`; return the row reached."""
        run, allocator, live = self.run, self.allocator, self.live.blocks
        malloc, free = allocator.malloc, allocator.free
        addresses = run.address[low:high] or (0,) * (high - low)
        pools = run.pool[low:high] or (0,) * (high - low)
        placed = 0
        at = low
        columns = zip(
            run.action[low:high],
            run.ident[low:high],
            run.size[low:high],
            run.stream[low:high],
            addresses,
            pools,
            strict=True,
        )
        for action, ident, size, stream, address, pool in columns:
            if action == ALLOC:
                allocator.now = at
                block = malloc(size, stream, pool)
                if block is None and self._grows:
                    block = self._malloc_growing(size, stream, pool)
                if block is None:
                    self._end_with_shortage(at, size, run.place[at], stream, pool)
                    break
                live[ident] = block
                placed += block.address == address
            elif action == FREE:
                free(live.pop(ident))
            else:
                self._replay_rare(at, action, ident)
                if self.shortage is not None:
                    break
            at += 1
        self.placed += placed
        return at

    def _replay_rare(self, at: int, action: int, ident: int) -> None:
        run, allocator = self.run, self.allocator
        if action == DEFER:
            self.live.waiting[ident] = allocator.defer(self.live.blocks.pop(ident))
        elif action == DONE:
            allocator.done(self.live.waiting.pop(ident, 0))
        elif action == EMPTY:
            allocator.empty_cache()
        elif action == STEP:
            self.ends.append(_end(at, allocator))
        elif action == RETIRE:
            allocator.retire(ident)
        elif action == FAILED:
            pool = run.pool[at] if run.pool else 0
            block = self._malloc(run.size[at], run.stream[at], pool)
            if block is not None:
                used = allocator.driver.used
                self.passed = min(used, self.passed) if self.passed >= 0 else used
                allocator.free(block)  # the recorded run continued without it
            else:
                self.failures += 1
                self.failure = self._shortage(at, run.size[at], run.place[at], run.stream[at], pool)

    def _malloc(self, size: int, stream: int, pool: int) -> Block | None:
        block = self.allocator.malloc(size, stream, pool)
        return self._malloc_growing(size, stream, pool) if block is None and self._grows else block

    def _malloc_growing(self, size: int, stream: int, pool: int) -> Block | None:
        """Allocate the block, giving the process as much memory as that takes."""
        allocator, driver = self.allocator, self.allocator.driver
        allowed, allocator.allowed, driver.capacity = allocator.allowed, None, UNLIMITED
        block = allocator.malloc(size, stream, pool)
        self.needs = max(self.needs, driver.used)
        driver.capacity = self.capacity = max(self.capacity, driver.used)
        allocator.allowed = None if allowed is None else max(allowed, allocator.reserved)
        return block

    @property
    def room(self) -> int:
        """The bytes the process may use: the device's, or its fraction."""
        allowed = self.allocator.allowed
        return self.capacity if allowed is None else min(self.capacity, allowed)

    def _end_with_shortage(self, at: int, size: int, place: int, stream: int, pool: int) -> None:
        """End the replay at this request."""
        self.shortage = self._shortage(at, size, place, stream, pool)

    def short_of(self, at: int) -> Shortage:
        """Return the memory situation at the current state for the request of row `at`."""
        run = self.run
        return self._shortage(
            at, run.size[at], run.place[at], run.stream[at], run.pool[at] if run.pool else 0
        )

    def _shortage(self, at: int, size: int, place: int, stream: int, pool: int) -> Shortage:
        """Return the memory situation of a request that cannot be served."""
        allocator = self.allocator
        rounded = round_size(size, self.settings.divisions)
        chosen = allocator.pool_for(rounded, pool)
        allowed = UNLIMITED if allocator.allowed is None else allocator.allowed - allocator.reserved
        room = min(self.capacity - allocator.driver.used, allowed)
        return Shortage(
            event=at,
            size=size,
            line=self.run.line(place),
            allocated=allocator.allocated,
            reserved=allocator.reserved,
            cached=allocator.reserved - allocator.allocated,
            largest=chosen.largest(stream),
            unreserved=max(room, 0),
        )

    def outcome(self, times: CallTimes | None = None) -> Outcome:
        """Return the outcome; driver calls are priced with `times` (default: those of the run)."""
        allocator = self.allocator
        times = times or self.run.times
        return Outcome(
            peak_allocated=allocator.peak_allocated,
            peak_reserved=allocator.peak_reserved,
            final_allocated=allocator.allocated,
            final_reserved=allocator.reserved,
            mallocs=allocator.mallocs,
            frees=allocator.frees,
            maps=allocator.maps,
            unmaps=allocator.unmaps,
            retries=allocator.retries,
            collections=allocator.collections,
            price=_price(allocator, times),
            shortage=self.shortage,
            done=self.end / self.stop if self.stop else 1.0,
            failures=self.failures,
            failure=self.failure,
        )


def simulate(run: MemoryRun, settings: Settings | str | None = None, **options: object) -> Outcome:
    """Replay `run` under `settings` (default: its own); `options` as for `Simulation`."""
    return Simulation(run, settings, **options).go(points=1).outcome()  # type: ignore[arg-type]  # passed on


def _settings(run: MemoryRun, settings: Settings | str | None) -> Settings:
    if isinstance(settings, Settings):
        return settings
    return parse(run.settings if settings is None else settings)


def _end(at: int, allocator: Allocator) -> StepEnd:
    return StepEnd(
        event=at,
        allocated=allocator.allocated,
        reserved=allocator.reserved,
        taken=allocator.mallocs + allocator.maps,
        given=allocator.frees + allocator.unmaps,
        retries=allocator.retries,
    )


def _price(allocator: Allocator, times: CallTimes) -> int:
    """Return nanoseconds of all driver calls, and of draining the GPU before retries if that is known.

    ``cudaMalloc`` is priced by size class, mappings by their size: 20 MiB count as one.
    """
    large = allocator.settings.large_segment_size
    mapped = max(allocator.maps, allocator.mapped_bytes // large)
    unmapped = max(allocator.unmaps, allocator.unmapped_bytes // large)
    return (
        times.mallocs(tuple(allocator.classes))
        + allocator.retries * max(times.drain, 0)
        + allocator.frees * times.free
        + mapped * times.map
        + unmapped * times.unmap
    )
