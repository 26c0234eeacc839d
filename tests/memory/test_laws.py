"""Laws that hold whatever a program asks for, and under whatever settings."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.memory.allocator import Allocator
from gapless.memory.blocks import Block
from gapless.memory.driver import UNLIMITED, VIRTUAL, Driver
from gapless.memory.settings import parse
from gapless.memory.sizes import MIB

SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "max_split_size_mb:32,max_non_split_rounding_mb:40,roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,4:8,>:16]",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9,expandable_segments:True",
    "large_segment_size_mb:32,expandable_segments:True",
)
sizes = st.one_of(
    st.integers(1, 4096),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB, 10 * MIB - 1, 20 * MIB, 33 * MIB]),
    st.integers(1, 64 * MIB),
)
moves = st.one_of(
    st.tuples(st.just("malloc"), sizes, st.integers(0, 2), st.sampled_from([0, 0, 0, 1])),
    st.tuples(st.just("free"), st.integers(0, 50)),
    st.tuples(st.just("free"), st.integers(0, 50)),
    st.tuples(st.just("record"), st.integers(0, 50), st.integers(0, 2)),
    st.tuples(st.just("pass"), st.integers(0, 2)),
    st.tuples(st.just("empty")),
    st.tuples(st.just("retire")),
)
programs = st.lists(moves, max_size=60)
cases = st.tuples(st.sampled_from(SETTINGS), st.sampled_from([UNLIMITED, 160 * MIB, 60 * MIB]), programs)


def play(text: str, capacity: int, program: list, look=lambda allocator, live: None) -> Allocator:
    """Run `program`, and `look` at the allocator after every move."""
    allocator = Allocator(parse(text), Driver(capacity), min(capacity, 400 * MIB))
    live: list[Block] = []
    for name, *values in program:
        if name == "malloc":
            block = allocator.malloc(*values)
            if block is not None:
                live.append(block)
        elif name == "free" and live:
            allocator.free(live.pop(values[0] % len(live)))
        elif name == "record" and live:
            allocator.record_stream(live[values[0] % len(live)], values[1])
        elif name == "pass":
            allocator.pass_stream(values[0])
        elif name == "empty":
            allocator.empty_cache()
        elif name == "retire" and not any(block.pool.private for block in live):
            allocator.retire(1)
        look(allocator, live)
    return allocator


def all_blocks(allocator: Allocator, live: list[Block]) -> list[Block]:
    """Every block of every segment, by walking from those that can be found."""
    pools = [allocator.small, allocator.large]
    for private in allocator.private.values():
        pools += [private.small, private.large]
    blocks = list(live) + [block for queue in allocator.events.values() for block, _ in queue]
    for pool in pools:
        blocks += pool.blocks()
        for stream in pool.unmapped:
            blocks += pool.unmapped_blocks(stream)
    heads = set()
    for block in blocks:
        while block.prev is not None:
            block = block.prev
        heads.add(block)
    walked = []
    for head in heads:
        block = head
        while block is not None:
            walked.append(block)
            block = block.next
    return walked


def check_books(allocator: Allocator, live: list[Block]) -> None:
    blocks = sorted(all_blocks(allocator, live), key=lambda block: block.address)
    mapped = [block for block in blocks if block.mapped]
    # Nothing lies over anything else.
    for before, other in pairwise(blocks):
        assert before.address + before.size <= other.address
    # No byte is lost: blocks, the allocator and the driver agree.
    assert sum(block.size for block in mapped) == allocator.reserved == allocator.driver.used
    assert sum(block.size for block in live) == allocator.allocated <= allocator.reserved
    assert sum(block.requested for block in live) == allocator.requested <= allocator.allocated
    assert allocator.peak_allocated >= allocator.allocated
    assert allocator.peak_reserved >= allocator.reserved
    assert allocator.driver.used <= allocator.driver.capacity
    # Neighbours know each other, and free ones have joined.
    for block in blocks:
        if block.next is not None:
            assert block.next.prev is block
            assert block.next.address == block.address + block.size
            assert not (block.idle and block.next.idle and block.mapped == block.next.mapped)
    # What is free is in its pool, and nothing else is.
    for block in blocks:
        stored = block.pool.blocks() if block.mapped else list(block.pool.unmapped_blocks(block.stream))
        assert (block in stored) == block.idle
        assert block.size % 512 == 0


@settings(max_examples=300, deadline=None)
@given(cases)
def test_the_allocator_keeps_its_books(case):
    play(*case, look=check_books)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_the_same_program_twice_is_the_same(case):
    logs = []
    for _ in range(2):
        log: list[tuple] = []

        def look(allocator: Allocator, live: list[Block], log: list[tuple] = log) -> None:
            log.append((allocator.reserved, allocator.allocated, [block.address for block in live]))

        play(*case, look=look)
        logs.append(log)
    assert logs[0] == logs[1]


@settings(max_examples=80, deadline=None)
@given(cases)
def test_when_all_is_freed_and_the_cache_emptied_nothing_is_left(case):
    left: list[Block] = []

    def look(allocator: Allocator, live: list[Block]) -> None:
        left[:] = live

    allocator = play(*case, look=look)
    for block in left:
        allocator.free(block)
    allocator.retire(1)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.requested, allocator.reserved) == (0, 0, 0)
    assert (allocator.driver.used, allocator.driver.taken) == (0, {})
    assert [block for block in all_blocks(allocator, []) if block.mapped] == []


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(sizes, st.integers(0, 2)), max_size=40))
def test_the_same_requests_again_need_nothing_new(wanted):
    allocator = Allocator(parse("expandable_segments:True"), Driver(), 4000 * MIB)
    for _ in range(2):
        calls = allocator.maps
        for block in [allocator.malloc(size, stream) for size, stream in wanted]:
            allocator.free(block)
    assert allocator.maps == calls


@settings(max_examples=80, deadline=None)
@given(cases, st.integers(0, 400))
def test_more_memory_never_fails_where_less_was_enough(case, more):
    text, _, program = case
    if "fraction" in text:
        return
    capacity = 60 * MIB
    less = play(text, capacity, program)
    if not less.ooms and not less.retries:
        enough = play(text, capacity + more * MIB, program)
        assert (enough.ooms, enough.retries) == (0, 0)
        assert (enough.mallocs, enough.frees, enough.peak_reserved) == (
            less.mallocs,
            less.frees,
            less.peak_reserved,
        )


ranges = st.tuples(
    st.one_of(st.integers(0, 0x100), st.integers(0x6F0, 0x800)).map(lambda terabytes: terabytes << 36),
    st.integers(1, 3 * MIB),
)
requests = st.lists(st.tuples(st.booleans(), st.integers(1, VIRTUAL)), min_size=1, max_size=70)


@given(st.lists(ranges, max_size=3), st.lists(ranges, max_size=3), st.lists(ranges, max_size=2), requests)
def test_new_addresses_overlap_nothing(segments, spaces, adopted, new):
    driver = Driver(
        recorded=[(size, address) for address, size in segments],
        spaces=[(stream, 0, address) for stream, (address, _) in enumerate(spaces)],
    )
    for address, size in adopted:
        driver.adopt(address, size)
    taken = [*segments, *((address, VIRTUAL) for address, _ in spaces), *adopted]
    for is_space, size in new:
        size += 3 * MIB  # as no recorded segment
        address = driver.reserve(size) if is_space else driver.malloc(size)
        assert all(address >= other + length or other >= address + size for other, length in taken)
        taken.append((address, size))
