"""The allocator's rules, one by one, on cases worked by hand."""

from __future__ import annotations

import pytest

from gapless.memory.sizes import MIB


def test_a_small_request_takes_part_of_two_mib(make_allocator):
    allocator = make_allocator()
    block = allocator.malloc(1000)
    assert (block.size, block.requested) == (1024, 1000)
    assert (allocator.reserved, allocator.allocated, allocator.mallocs) == (2 * MIB, 1024, 1)
    assert allocator.malloc(MIB).address == block.address + 1024
    assert allocator.mallocs == 1


def test_small_and_large_requests_share_nothing(make_allocator):
    allocator = make_allocator()
    allocator.malloc(MIB)
    allocator.malloc(MIB + 1)
    assert (allocator.mallocs, allocator.reserved) == (2, 22 * MIB)


def test_between_one_and_ten_mib_twenty_are_split(make_allocator):
    allocator = make_allocator()
    first, second = allocator.malloc(5 * MIB), allocator.malloc(9 * MIB)
    assert (allocator.mallocs, allocator.reserved) == (1, 20 * MIB)
    assert second.address == first.address + 5 * MIB
    assert allocator.malloc(7 * MIB).address != second.address + 9 * MIB  # 6 MiB are left there
    assert allocator.mallocs == 2


def test_from_ten_mib_on_each_has_its_own(make_allocator):
    allocator = make_allocator()
    allocator.malloc(10 * MIB)
    allocator.malloc(11 * MIB)
    assert (allocator.mallocs, allocator.reserved) == (2, 22 * MIB)


def test_a_remainder_of_one_mib_is_kept_as_slack(make_allocator):
    allocator = make_allocator()
    assert allocator.malloc(19 * MIB).size == 20 * MIB  # 1 MiB over: not worth a block
    allocator = make_allocator()
    allocator.free(allocator.malloc(40 * MIB))
    assert allocator.malloc(39 * MIB).size == 40 * MIB
    allocator = make_allocator()
    allocator.free(allocator.malloc(40 * MIB))
    assert allocator.malloc(39 * MIB - 512).size == 39 * MIB - 512


def test_a_small_remainder_is_split_off_from_512_bytes_on(make_allocator):
    allocator = make_allocator()
    allocator.malloc(MIB)
    block = allocator.malloc(MIB - 512)
    assert block.size == MIB - 512
    assert allocator.malloc(512).address == block.address + block.size
    assert allocator.mallocs == 1


def test_the_best_fit_is_the_smallest_then_the_lowest(make_allocator):
    allocator = make_allocator()
    blocks = [allocator.malloc(size * MIB) for size in (40, 12, 12, 30)]
    at = [block.address for block in blocks]
    for block in reversed(blocks):
        allocator.free(block)
    assert [allocator.malloc(11 * MIB).address for _ in range(3)] == [at[1], at[2], at[3]]
    assert allocator.mallocs == 4


def test_neighbours_join_and_strangers_do_not(make_allocator):
    allocator = make_allocator()
    a, b, c = (allocator.malloc(4 * MIB) for _ in range(3))
    allocator.free(a)
    allocator.free(c)  # with the 8 MiB behind it
    assert [block.size for block in allocator.large.blocks()] == [4 * MIB, 12 * MIB]
    allocator.free(b)
    assert [block.size for block in allocator.large.blocks()] == [20 * MIB]
    assert allocator.large.blocks()[0].whole


def test_streams_have_their_own_blocks(make_allocator):
    allocator = make_allocator()
    block = allocator.malloc(16 * MIB, stream=7)
    allocator.free(block)
    assert allocator.malloc(16 * MIB, stream=8).address != block.address
    assert allocator.malloc(16 * MIB, stream=7).address == block.address
    assert allocator.mallocs == 2


def test_nothing_is_left_of_an_allocation(make_allocator):
    allocator = make_allocator()
    allocator.free(allocator.malloc(3000))
    assert (allocator.allocated, allocator.requested, allocator.peak_allocated, allocator.reserved) == (
        0,
        0,
        3072,
        2 * MIB,
    )


# Other streams ------------------------------------------------------------------------------------


def test_a_recorded_stream_holds_a_block_back(make_allocator):
    allocator = make_allocator()
    block = allocator.malloc(16 * MIB)
    allocator.record_stream(block, 5)
    allocator.free(block)
    assert allocator.allocated == 0
    assert allocator.malloc(16 * MIB).address != block.address
    allocator.pass_stream(5)
    assert allocator.malloc(16 * MIB).address == block.address


def test_its_own_stream_holds_nothing_back(make_allocator):
    allocator = make_allocator()
    block = allocator.malloc(16 * MIB, stream=5)
    allocator.record_stream(block, 5)
    allocator.free(block)
    assert allocator.malloc(16 * MIB, stream=5).address == block.address


def test_two_streams_must_both_pass(make_allocator):
    allocator = make_allocator()
    block = allocator.malloc(16 * MIB)
    allocator.record_stream(block, 5)
    allocator.record_stream(block, 6)
    allocator.free(block)
    allocator.pass_stream(6)
    assert allocator.malloc(16 * MIB).address != block.address
    allocator.pass_stream(5)
    assert allocator.malloc(16 * MIB).address == block.address


def test_a_block_that_waits_joins_no_neighbour(make_allocator):
    allocator = make_allocator()
    a, b = allocator.malloc(4 * MIB), allocator.malloc(4 * MIB)
    allocator.record_stream(a, 5)
    allocator.free(a)
    allocator.free(b)
    assert [block.size for block in allocator.large.blocks()] == [16 * MIB]
    allocator.pass_stream(5)
    allocator.malloc(512)  # any request looks at the events
    assert [block.size for block in allocator.large.blocks()] == [20 * MIB]


def test_emptying_the_cache_waits_for_all_streams(make_allocator):
    allocator = make_allocator()
    block = allocator.malloc(16 * MIB)
    allocator.record_stream(block, 5)
    allocator.free(block)
    allocator.empty_cache()
    assert (allocator.frees, allocator.reserved) == (1, 0)


def test_deferred_until_done(make_allocator):
    allocator = make_allocator()
    block = allocator.malloc(16 * MIB)
    number = allocator.defer(block)
    assert allocator.malloc(16 * MIB).address != block.address
    allocator.done(number)
    assert allocator.malloc(16 * MIB).address == block.address


# Giving memory back -------------------------------------------------------------------------------


def test_emptying_keeps_segments_in_use(make_allocator):
    allocator = make_allocator()
    kept, _ = allocator.malloc(4 * MIB), allocator.free(allocator.malloc(30 * MIB))
    allocator.empty_cache()
    assert (allocator.frees, allocator.reserved) == (1, 20 * MIB)
    allocator.free(kept)
    allocator.empty_cache()
    assert (allocator.frees, allocator.reserved) == (2, 0)
    assert allocator.driver.used == 0


def test_a_full_device_is_emptied_and_asked_again(make_allocator):
    allocator = make_allocator(capacity=50 * MIB)
    allocator.free(allocator.malloc(30 * MIB))
    assert allocator.malloc(40 * MIB) is not None
    assert (allocator.retries, allocator.mallocs, allocator.frees, allocator.reserved, allocator.ooms) == (
        1,
        2,
        1,
        40 * MIB,
        0,
    )


def test_no_memory_left(make_allocator):
    allocator = make_allocator(capacity=50 * MIB)
    held = allocator.malloc(30 * MIB)
    assert allocator.malloc(40 * MIB) is None
    assert (allocator.retries, allocator.ooms, allocator.allocated) == (1, 1, 30 * MIB)
    allocator.free(held)
    assert allocator.malloc(40 * MIB) is not None


def test_a_waiting_block_is_waited_for_before_memory_runs_out(make_allocator):
    allocator = make_allocator(capacity=50 * MIB)
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 5)
    allocator.free(block)
    assert allocator.malloc(40 * MIB) is not None
    assert allocator.retries == 1


def test_after_waiting_the_cache_is_not_searched_again(make_allocator):
    # 30 MiB wait for a stream. Asked for the same size, the device is full; the wait frees the block,
    # which goes back to the driver and is asked for anew, although it would have fitted.
    allocator = make_allocator(capacity=40 * MIB)
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 5)
    allocator.free(block)
    assert allocator.malloc(30 * MIB) is not None
    assert (allocator.mallocs, allocator.frees, allocator.retries) == (2, 1, 1)


def test_a_fraction_of_the_device(make_allocator):
    allocator = make_allocator("per_process_memory_fraction:0.5", total=100 * MIB)
    assert allocator.malloc(60 * MIB) is None
    assert allocator.malloc(50 * MIB) is not None


# Blocks that are never split ----------------------------------------------------------------------


def test_large_blocks_are_not_split(make_allocator):
    allocator = make_allocator("max_split_size_mb:32")
    allocator.free(allocator.malloc(64 * MIB))
    assert allocator.malloc(31 * MIB) is not None
    assert allocator.mallocs == 2  # the large one is not for a small request
    assert allocator.malloc(45 * MIB).size == 64 * MIB  # but for one that is up to 20 MiB smaller
    assert allocator.mallocs == 2


def test_too_large_a_block_is_passed_over(make_allocator):
    allocator = make_allocator("max_split_size_mb:32")
    allocator.free(allocator.malloc(64 * MIB))
    allocator.malloc(44 * MIB)  # 20 MiB smaller: no longer within the limit
    assert allocator.mallocs == 2
    allocator = make_allocator("max_split_size_mb:32,max_non_split_rounding_mb:40")
    allocator.free(allocator.malloc(64 * MIB))
    allocator.malloc(44 * MIB)
    assert allocator.mallocs == 1


def test_below_the_size_blocks_are_split_as_ever(make_allocator):
    allocator = make_allocator("max_split_size_mb:64")
    allocator.free(allocator.malloc(40 * MIB))
    assert allocator.malloc(30 * MIB).size == 30 * MIB


def test_one_oversize_block_makes_room(make_allocator):
    allocator = make_allocator("max_split_size_mb:32", capacity=200 * MIB)
    held = [allocator.malloc(size * MIB) for size in (20, 60, 100)]
    for block in held:
        allocator.free(block)
    # 50 MiB: 60 is within the limit and 100 is not.
    first = allocator.malloc(75 * MIB)
    assert first is not None
    assert (allocator.frees, allocator.retries) == (1, 0)  # the 100 alone
    assert allocator.reserved == (20 + 60 + 76) * MIB


def test_several_oversize_blocks_make_room(make_allocator):
    allocator = make_allocator("max_split_size_mb:32", capacity=200 * MIB)
    for block in [allocator.malloc(size * MIB) for size in (20, 40, 50, 60)]:
        allocator.free(block)
    assert allocator.malloc(90 * MIB) is not None
    assert (allocator.frees, allocator.retries) == (2, 0)  # 60, then 50
    assert allocator.reserved == (20 + 40 + 90) * MIB


def test_when_they_do_not_suffice_all_goes(make_allocator):
    allocator = make_allocator("max_split_size_mb:32", capacity=100 * MIB)
    for block in [allocator.malloc(size * MIB) for size in (20, 40, 34)]:
        allocator.free(block)
    assert allocator.malloc(90 * MIB) is not None
    assert (allocator.frees, allocator.retries) == (3, 1)


# Garbage collection -------------------------------------------------------------------------------

COLLECT = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.99"


def test_the_older_half_is_collected(make_allocator):
    allocator = make_allocator(COLLECT, total=1000 * MIB)
    old, new = allocator.malloc(100 * MIB), allocator.malloc(120 * MIB)
    allocator.malloc(250 * MIB)
    allocator.free(old)
    for _ in range(3):
        allocator.free(allocator.malloc(200 * 1024))  # searches of the small pool do not age the large one
    for _ in range(4):
        allocator.free(allocator.malloc(30 * MIB, stream=1))  # found again and again
    allocator.free(new)
    allocator.malloc(300 * MIB)
    # 500 MiB are reserved and 495 allowed before garbage is collected: the oldest goes, the others stay.
    assert (allocator.collections, allocator.frees) == (1, 1)
    assert allocator.reserved == (120 + 250 + 30 + 300 + 2) * MIB  # 2 for the small ones


def test_nothing_is_collected_below_the_threshold(make_allocator):
    allocator = make_allocator(COLLECT, total=1000 * MIB)
    allocator.free(allocator.malloc(100 * MIB))
    allocator.malloc(200 * MIB)
    assert allocator.frees == 0


def test_collecting_goes_on_until_enough_is_free(make_allocator):
    allocator = make_allocator(COLLECT, total=400 * MIB)
    blocks = [allocator.malloc(size * MIB) for size in (60, 70, 80)]
    for block in blocks:
        allocator.free(block)
        allocator.free(allocator.malloc(12 * MIB))
    allocator.malloc(100 * MIB)
    assert allocator.frees >= 1
    assert allocator.reserved <= 0.99 * 400 * MIB


def test_without_a_fraction_nothing_is_collected(make_allocator):
    allocator = make_allocator("garbage_collection_threshold:0.1", total=1000 * MIB)
    allocator.free(allocator.malloc(600 * MIB))
    allocator.malloc(700 * MIB)
    assert (allocator.collections, allocator.frees) == (0, 0)


def test_split_segments_are_not_collected(make_allocator):
    allocator = make_allocator(COLLECT, total=100 * MIB)
    held = allocator.malloc(4 * MIB)
    allocator.malloc(40 * MIB)
    allocator.malloc(30 * MIB)
    assert allocator.frees == 0
    assert held.allocated


# Private pools ------------------------------------------------------------------------------------


def test_a_graph_keeps_its_memory_to_itself(make_allocator):
    allocator = make_allocator()
    block = allocator.malloc(16 * MIB, pool=1)
    allocator.free(block)
    assert allocator.malloc(16 * MIB).address != block.address
    assert allocator.malloc(16 * MIB, pool=1).address == block.address


def test_a_graphs_memory_stays_until_the_graph_is_gone(make_allocator):
    allocator = make_allocator()
    allocator.free(allocator.malloc(16 * MIB, pool=1))
    allocator.free(allocator.malloc(16 * MIB))
    allocator.empty_cache()
    assert (allocator.frees, allocator.reserved) == (1, 16 * MIB)
    allocator.retire(1)
    allocator.empty_cache()
    assert (allocator.frees, allocator.reserved) == (2, 0)
    assert allocator.private == {}


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:64"])
def test_the_driver_and_the_allocator_agree_on_what_is_reserved(make_allocator, settings):
    allocator = make_allocator(settings)
    blocks = [allocator.malloc(size) for size in (100, 3 * MIB, 30 * MIB, 700 * MIB, MIB)]
    assert allocator.reserved == allocator.driver.used
    for block in blocks:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved == allocator.driver.used == 0


def test_a_request_beyond_the_fraction_fails_at_once_where_that_is_asked_for(make_allocator):
    settings = "per_process_memory_fraction:0.5"
    for more, kept, retries in (("", 0, 1), (",throw_on_cudamalloc_oom:True", 40 * MIB, 0)):
        allocator = make_allocator(settings + more, total=200 * MIB)
        allocator.free(allocator.malloc(40 * MIB))
        assert allocator.malloc(110 * MIB) is None
        assert (allocator.reserved, allocator.retries, allocator.ooms, allocator.frees) == (
            kept,
            retries,
            1,
            retries,
        )
        block = allocator.malloc(90 * MIB)  # fits, once what is cached is given back
        assert (block is None) == bool(kept)


def test_the_device_itself_is_asked_again_all_the_same(make_allocator):
    allocator = make_allocator(
        "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True", capacity=80 * MIB, total=400 * MIB
    )
    allocator.free(allocator.malloc(60 * MIB))
    assert allocator.malloc(70 * MIB) is not None
    assert (allocator.retries, allocator.frees) == (1, 1)


def test_no_two_address_spaces_share_an_address():
    """A stream of which no space was recorded gets one behind all that were."""
    from gapless.memory.driver import VIRTUAL, Driver

    recorded = 0x7000_0000_0000
    driver = Driver(spaces=[(0, 0, recorded), (1, 0, recorded + (1 << 30))])
    assert driver.recorded_space(0, False) == recorded
    assert driver.reserve(VIRTUAL) >= recorded + (1 << 30) + VIRTUAL
