"""Giving memory back to the driver: garbage collection, oversize blocks, and everything that is cached."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from gapless.memory import expandable
from gapless.memory.blocks import Block, Pool
from gapless.memory.settings import NO_LIMIT

if TYPE_CHECKING:
    from gapless.memory.allocator import Allocator


def collect_garbage(allocator: Allocator) -> None:
    """Free whole segments of the large pool that were found unfit longer than the average, in rounds."""
    assert allocator.allowed is not None
    threshold = int(allocator.settings.garbage_collection_threshold * allocator.allowed)
    if allocator.reserved <= threshold:
        return
    target = allocator.reserved - threshold
    pool = allocator.large
    ages = [pool.searches - block.born for block in pool.blocks() if block.whole]
    age, count, reclaimed, freed = sum(ages), len(ages), 0, True
    began = allocator.frees
    while reclaimed < target and freed and count > 0:
        bound = age / count
        freed = False
        for block in pool.blocks():
            if block.whole and block.expandable is None and pool.searches - block.born >= bound:
                freed = True
                reclaimed += block.size
                age -= pool.searches - block.born
                count -= 1
                _release(allocator, block)
    allocator.collections += allocator.frees > began


def release_available(allocator: Allocator, pool: Pool, size: int, stream: int) -> bool:
    """Free oversize blocks until `size` bytes are: only where blocks over a size are never split.

    Memory that lay so when recording began may be split all the same; a part of a segment stays.
    """
    limit = allocator.settings.max_split_size
    if limit == NO_LIMIT:
        return False
    wanted = max(size, limit)
    keys = pool.free.get(stream, [])
    at = bisect_left(keys, wanted << 64)
    for key in keys[at:]:
        block = pool.block(key)
        if block.expandable is None and block.whole:
            _release(allocator, block)
            return True
    released = 0
    for key in reversed(keys[:at]):
        block = pool.block(key)
        if released >= wanted or block.size < limit:
            break
        if block.expandable is None and block.whole:
            released += block.size
            _release(allocator, block)
    return released >= wanted


def release_cached(allocator: Allocator) -> None:
    """Wait for all streams, then free every whole segment and unmap every free page.

    The memory of private pools goes along once their last graph is gone.
    """
    allocator.synchronize()
    _release_all(allocator, allocator.large)
    _release_all(allocator, allocator.small)
    for number, private in list(allocator.private.items()):
        if private.retired:
            _release_all(allocator, private.small)
            _release_all(allocator, private.large)
            if not private.segments:
                del allocator.private[number]


def _release_all(allocator: Allocator, pool: Pool) -> None:
    mapped: list[Block] = []
    for block in pool.blocks():
        if block.expandable is not None:
            mapped.append(block)
        elif block.prev is None and block.next is None:
            _release(allocator, block)
    for block in mapped:
        expandable.shrink(allocator, block)


def _release(allocator: Allocator, block: Block) -> None:
    """``cudaFree`` of a whole segment."""
    allocator.driver.free(block.address)
    allocator.frees += 1
    allocator.reserved -= block.size
    if block.pool.private is not None:
        block.pool.private.segments -= 1
    block.pool.remove(block)
    if allocator.log is not None:
        allocator.log("segment_free", block.address, block.size, block.stream)
