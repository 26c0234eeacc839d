"""Start an allocator with the memory a run had when its recording began."""

from __future__ import annotations

from collections.abc import Callable

from gapless.memory.allocator import Allocator
from gapless.memory.blocks import AddressSpace, Block, Pool
from gapless.model.memory import MemoryRun, StartBlock, StartSegment

Malloc = Callable[[int, int, int], Block | None]


class LiveBlocks:
    """The blocks in use, by allocation number; and, in `waiting`, those still used by another stream."""

    __slots__ = ("blocks", "waiting")

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self.waiting: dict[int, int] = {}


def adopt(allocator: Allocator, run: MemoryRun) -> LiveBlocks:
    """Reserve the segments of `run.start` at their recorded addresses; they don't count as driver calls."""
    live = LiveBlocks()
    spaces: dict[tuple[int, bool, int], list[StartSegment]] = {}
    for segment in run.start:
        if segment.expandable:
            spaces.setdefault((segment.stream, segment.small, segment.pool), []).append(segment)
            continue
        pool = _pool(allocator, segment)
        allocator.driver.adopt(segment.address, segment.size)
        allocator.grow(segment.size)
        _lay(allocator, pool, segment, live, None)
        if pool.private is not None:
            pool.private.segments += 1
    for ranges in spaces.values():
        _adopt_space(allocator, ranges, live)
    return live


def begin_fresh(allocator: Allocator, run: MemoryRun, malloc: Malloc | None = None) -> LiveBlocks:
    """Request all memory of `run.start` in address order from an empty allocator.

    Returns the blocks; those that do not fit are missing. `malloc` replaces the allocator's own.
    """
    live, malloc = LiveBlocks(), malloc or allocator.malloc
    for segment in run.start:
        for start in segment.blocks:
            if start.ident < 0:
                continue
            block = malloc(max(start.requested, 1), segment.stream, segment.pool)
            if block is not None:
                _keep(allocator, block, start, live)
    return live


def _pool(allocator: Allocator, segment: StartSegment) -> Pool:
    if not segment.pool:
        return allocator.small if segment.small else allocator.large
    private = allocator.private_pool(segment.pool)
    return private.small if segment.small else private.large


def _lay(
    allocator: Allocator, pool: Pool, segment: StartSegment, live: LiveBlocks, space: AddressSpace | None
) -> tuple[Block | None, Block | None]:
    """Create the chain of blocks of a segment; return its first and last."""
    address, before, first = segment.address, None, None
    for start in segment.blocks:
        block = Block(address, start.size, segment.stream, pool)
        block.expandable = space
        block.splice(before, None)
        _place_block(allocator, block, start, live)
        address += start.size
        before = block
        first = first or block
    return first, before


def _place_block(allocator: Allocator, block: Block, start: StartBlock, live: LiveBlocks) -> None:
    if start.ident < 0:
        block.pool.add(block)
        return
    block.allocated = True
    block.requested = start.requested
    allocator.requested += start.requested
    allocator.allocated += block.size
    allocator.peak_allocated = max(allocator.peak_allocated, allocator.allocated)
    _keep(allocator, block, start, live)


def _keep(allocator: Allocator, block: Block, start: StartBlock, live: LiveBlocks) -> None:
    if start.deferred:
        live.waiting[start.ident] = allocator.defer(block)
    else:
        live.blocks[start.ident] = block


def _adopt_space(allocator: Allocator, ranges: list[StartSegment], live: LiveBlocks) -> None:
    """Adopt the mapped ranges of one stream and pool as one address space, unmapped in between."""
    ranges = sorted(ranges, key=lambda mapped: mapped.address)
    pool = _pool(allocator, ranges[0])
    rest = allocator.open_space(pool, ranges[0].stream, ranges[0].address)
    space = rest.expandable
    assert space is not None
    for mapped in ranges:
        if mapped.address + mapped.size > rest.address + rest.size:
            _outgrow(rest, space, mapped.address + mapped.size)
            allocator.driver.occupy(space.address, space.size)
        allocator.driver.map(mapped.size)
        allocator.grow(mapped.size)
        rest = _insert(allocator, pool, rest, mapped, space, live)


def _outgrow(rest: Block, space: AddressSpace, end: int) -> None:
    """Make the address space longer: it was reserved for a larger device than the simulated one."""
    more = -(-(end - rest.address - rest.size) // space.page) * space.page + space.page
    space.size += more
    rest.size += more


def _insert(
    allocator: Allocator, pool: Pool, rest: Block, mapped: StartSegment, space: AddressSpace, live: LiveBlocks
) -> Block:
    """Put a mapped range into the unmapped block `rest`; return the unmapped block that remains behind it."""
    pool.remove_unmapped(rest)
    end = rest.address + rest.size
    first, last = _lay(allocator, pool, mapped, live, space)
    assert first is not None
    assert last is not None
    before: Block | None = rest.prev
    if mapped.address > rest.address:
        rest.size = mapped.address - rest.address
        pool.add_unmapped(rest)
        before = rest
    first.prev = before
    if before is not None:
        before.next = first
    behind = Block(mapped.address + mapped.size, end - mapped.address - mapped.size, mapped.stream, pool)
    behind.mapped = False
    behind.expandable = space
    behind.splice(last, None)
    pool.add_unmapped(behind)
    return behind
