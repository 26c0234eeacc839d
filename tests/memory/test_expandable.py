"""Expandable segments on cases worked by hand."""

from __future__ import annotations

from gapless.memory.sizes import MIB

ON = "expandable_segments:True"


def test_memory_is_mapped_in_pages(allocator):
    one = allocator(ON)
    small, large = one.malloc(1000), one.malloc(3 * MIB)
    assert (one.mallocs, one.maps, one.reserved) == (0, 2, 22 * MIB)
    assert one.malloc(30 * MIB).address == large.address + 3 * MIB
    assert (one.maps, one.reserved) == (3, 42 * MIB)  # 17 MiB were there, one page more
    assert small.expandable is not large.expandable


def test_every_block_is_split(allocator):
    one = allocator(ON)
    assert one.malloc(19 * MIB + 512).size == 19 * MIB + 512
    assert one.malloc(MIB - 512).size == MIB - 512


def test_each_stream_has_its_own_addresses(allocator):
    one = allocator(ON)
    assert one.malloc(MIB, stream=1).expandable is not one.malloc(MIB, stream=2).expandable
    assert len(one.spaces) == 2


def test_whole_free_pages_are_unmapped(allocator):
    one = allocator(ON)
    a, b, c = one.malloc(30 * MIB), one.malloc(30 * MIB), one.malloc(30 * MIB)
    assert one.reserved == 100 * MIB
    one.free(b)  # from 30 to 60 MiB: of these the page from 40 to 60 is whole
    one.empty_cache()
    assert (one.unmaps, one.reserved) == (1, 80 * MIB)
    one.free(a)
    one.free(c)
    one.empty_cache()
    assert one.reserved == 0
    assert one.spaces == []


def test_the_lowest_gap_is_filled_first(allocator):
    one = allocator(ON)
    a, b, c = one.malloc(40 * MIB), one.malloc(40 * MIB), one.malloc(40 * MIB)
    gap = b.address
    one.free(b)
    one.empty_cache()
    assert one.reserved == 80 * MIB
    again = one.malloc(40 * MIB)
    assert again.address == gap
    assert again.prev is a
    assert again.next is c


def test_what_is_free_before_a_gap_is_used_with_it(allocator):
    one = allocator(ON)
    one.malloc(30 * MIB)
    assert one.reserved == 40 * MIB
    block = one.malloc(50 * MIB)  # 10 MiB lie free at the end
    assert block.address == one.spaces[0].address + 30 * MIB
    assert one.reserved == 80 * MIB


def test_a_full_device_unmaps_what_is_free_and_is_asked_again(allocator):
    one = allocator(ON, capacity=100 * MIB)
    one.free(one.malloc(60 * MIB, stream=1))
    assert one.malloc(80 * MIB, stream=2) is not None
    assert (one.retries, one.unmaps, one.reserved) == (1, 1, 80 * MIB)


def test_no_memory_left_keeps_what_could_be_mapped(allocator):
    one = allocator(ON, capacity=50 * MIB)
    held = one.malloc(30 * MIB)
    assert one.malloc(30 * MIB) is None
    assert one.ooms == 1
    assert one.reserved == one.driver.used <= 50 * MIB
    assert held.allocated


def test_the_block_that_can_grow_least_is_taken(allocator):
    one = allocator(ON)
    a, wall, c = one.malloc(20 * MIB), one.malloc(30 * MIB), one.malloc(2 * MIB)
    first = a.address
    one.free(a)
    one.free(c)  # 10 MiB with what lies behind it, and all the unmapped addresses after that
    # 10 MiB fit exactly there; but it could grow, and the 20 MiB at the beginning could not.
    assert one.malloc(10 * MIB).address == first
    assert wall.allocated


def test_older_segments_are_used_up_too(allocator):
    one = allocator()
    old = one.malloc(40 * MIB)
    address = old.address
    one.free(old)
    one._expandable = True  # as when the setting is changed while the program runs
    assert one.malloc(30 * MIB).address == address
    assert one.maps == 0


def test_a_segment_of_another_page(allocator):
    one = allocator("expandable_segments:True,large_segment_size_mb:64")
    one.malloc(3 * MIB)
    assert one.reserved == 64 * MIB


def test_a_request_for_more_than_there_are_addresses_fails(allocator):
    assert allocator("expandable_segments:True").malloc((1 << 60) - 1, 0) is None
