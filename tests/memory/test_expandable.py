"""Expandable segments on cases worked by hand."""

from __future__ import annotations

from gapless.memory.allocator import Allocator
from gapless.memory.driver import Driver
from gapless.memory.settings import parse
from gapless.memory.sizes import MIB

ON = "expandable_segments:True"


def test_memory_is_mapped_in_pages(make_allocator):
    allocator = make_allocator(ON)
    small, large = allocator.malloc(1000), allocator.malloc(3 * MIB)
    assert (allocator.mallocs, allocator.maps, allocator.reserved) == (0, 2, 22 * MIB)
    assert allocator.malloc(30 * MIB).address == large.address + 3 * MIB
    assert (allocator.maps, allocator.reserved) == (3, 42 * MIB)  # 17 MiB were there, one page more
    assert small.expandable is not large.expandable


def test_every_block_is_split(make_allocator):
    allocator = make_allocator(ON)
    assert allocator.malloc(19 * MIB + 512).size == 19 * MIB + 512
    assert allocator.malloc(MIB - 512).size == MIB - 512


def test_each_stream_has_its_own_addresses(make_allocator):
    allocator = make_allocator(ON)
    assert allocator.malloc(MIB, stream=1).expandable is not allocator.malloc(MIB, stream=2).expandable
    assert len(allocator.spaces) == 2


def test_whole_free_pages_are_unmapped(make_allocator):
    allocator = make_allocator(ON)
    a, b, c = allocator.malloc(30 * MIB), allocator.malloc(30 * MIB), allocator.malloc(30 * MIB)
    assert allocator.reserved == 100 * MIB
    allocator.free(b)  # from 30 to 60 MiB: of these the page from 40 to 60 is whole
    allocator.empty_cache()
    assert (allocator.unmaps, allocator.reserved) == (1, 80 * MIB)
    allocator.free(a)
    allocator.free(c)
    allocator.empty_cache()
    assert allocator.reserved == 0
    assert allocator.spaces == []


def test_the_lowest_gap_is_filled_first(make_allocator):
    allocator = make_allocator(ON)
    a, b, c = allocator.malloc(40 * MIB), allocator.malloc(40 * MIB), allocator.malloc(40 * MIB)
    gap = b.address
    allocator.free(b)
    allocator.empty_cache()
    assert allocator.reserved == 80 * MIB
    again = allocator.malloc(40 * MIB)
    assert again.address == gap
    assert again.prev is a
    assert again.next is c


def test_what_is_free_before_a_gap_is_used_with_it(make_allocator):
    allocator = make_allocator(ON)
    allocator.malloc(30 * MIB)
    assert allocator.reserved == 40 * MIB
    block = allocator.malloc(50 * MIB)  # 10 MiB lie free at the end
    assert block.address == allocator.spaces[0].address + 30 * MIB
    assert allocator.reserved == 80 * MIB


def test_a_full_device_unmaps_what_is_free_and_is_asked_again(make_allocator):
    allocator = make_allocator(ON, capacity=100 * MIB)
    allocator.free(allocator.malloc(60 * MIB, stream=1))
    assert allocator.malloc(80 * MIB, stream=2) is not None
    assert (allocator.retries, allocator.unmaps, allocator.reserved) == (1, 1, 80 * MIB)


def test_no_memory_left_keeps_what_could_be_mapped(make_allocator):
    allocator = make_allocator(ON, capacity=50 * MIB)
    held = allocator.malloc(30 * MIB)
    assert allocator.malloc(30 * MIB) is None
    assert allocator.ooms == 1
    assert allocator.reserved == allocator.driver.used <= 50 * MIB
    assert held.allocated


def test_the_block_that_can_grow_least_is_taken(make_allocator):
    allocator = make_allocator(ON)
    a, wall, c = allocator.malloc(20 * MIB), allocator.malloc(30 * MIB), allocator.malloc(2 * MIB)
    first = a.address
    allocator.free(a)
    allocator.free(c)  # 10 MiB with what lies behind it, and all the unmapped addresses after that
    # 10 MiB fit exactly there; but it could grow, and the 20 MiB at the beginning could not.
    assert allocator.malloc(10 * MIB).address == first
    assert wall.allocated


def test_older_segments_are_used_up_too(make_allocator):
    allocator = make_allocator()
    old = allocator.malloc(40 * MIB)
    address = old.address
    allocator.free(old)
    allocator._expandable = True  # as when the setting is changed while the program runs
    assert allocator.malloc(30 * MIB).address == address
    assert allocator.maps == 0


def test_a_segment_of_another_page(make_allocator):
    allocator = make_allocator("expandable_segments:True,large_segment_size_mb:64")
    allocator.malloc(3 * MIB)
    assert allocator.reserved == 64 * MIB


def test_a_request_for_more_than_there_are_addresses_fails(make_allocator):
    assert make_allocator("expandable_segments:True").malloc((1 << 60) - 1, 0) is None


def test_recorded_spaces_are_used_though_their_sizes_are_unknown() -> None:
    """The space of large blocks may begin where that of small ones ends."""
    small, large = 0x302000000, 0x302000000 + 1024 * MIB
    driver = Driver(spaces=[(0, 1, small), (0, 0, large)])
    allocator = Allocator(parse(ON), driver)
    blocks = [allocator.malloc(size, 0, 0) for size in (1024, 20 * MIB)]
    assert [block and block.address for block in blocks] == [small, large]
