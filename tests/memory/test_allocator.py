"""The allocator's rules, one by one, on cases worked by hand."""

from __future__ import annotations

import pytest

from gapless.memory.sizes import MIB


def test_a_small_request_takes_part_of_two_mib(allocator):
    one = allocator()
    block = one.malloc(1000)
    assert (block.size, block.requested) == (1024, 1000)
    assert (one.reserved, one.allocated, one.mallocs) == (2 * MIB, 1024, 1)
    assert one.malloc(MIB).address == block.address + 1024
    assert one.mallocs == 1


def test_small_and_large_requests_share_nothing(allocator):
    one = allocator()
    one.malloc(MIB)
    one.malloc(MIB + 1)
    assert (one.mallocs, one.reserved) == (2, 22 * MIB)


def test_between_one_and_ten_mib_twenty_are_split(allocator):
    one = allocator()
    first, second = one.malloc(5 * MIB), one.malloc(9 * MIB)
    assert (one.mallocs, one.reserved) == (1, 20 * MIB)
    assert second.address == first.address + 5 * MIB
    assert one.malloc(7 * MIB).address != second.address + 9 * MIB  # 6 MiB are left there
    assert one.mallocs == 2


def test_from_ten_mib_on_each_has_its_own(allocator):
    one = allocator()
    one.malloc(10 * MIB)
    one.malloc(11 * MIB)
    assert (one.mallocs, one.reserved) == (2, 22 * MIB)


def test_a_remainder_of_one_mib_is_kept_as_slack(allocator):
    one = allocator()
    assert one.malloc(19 * MIB).size == 20 * MIB  # 1 MiB over: not worth a block
    one = allocator()
    one.free(one.malloc(40 * MIB))
    assert one.malloc(39 * MIB).size == 40 * MIB
    one = allocator()
    one.free(one.malloc(40 * MIB))
    assert one.malloc(39 * MIB - 512).size == 39 * MIB - 512


def test_a_small_remainder_is_split_off_from_512_bytes_on(allocator):
    one = allocator()
    one.malloc(MIB)
    block = one.malloc(MIB - 512)
    assert block.size == MIB - 512
    assert one.malloc(512).address == block.address + block.size
    assert one.mallocs == 1


def test_the_best_fit_is_the_smallest_then_the_lowest(allocator):
    one = allocator()
    blocks = [one.malloc(size * MIB) for size in (40, 12, 12, 30)]
    at = [block.address for block in blocks]
    for block in reversed(blocks):
        one.free(block)
    assert [one.malloc(11 * MIB).address for _ in range(3)] == [at[1], at[2], at[3]]
    assert one.mallocs == 4


def test_neighbours_join_and_strangers_do_not(allocator):
    one = allocator()
    a, b, c = (one.malloc(4 * MIB) for _ in range(3))
    one.free(a)
    one.free(c)  # with the 8 MiB behind it
    assert [block.size for block in one.large.blocks()] == [4 * MIB, 12 * MIB]
    one.free(b)
    assert [block.size for block in one.large.blocks()] == [20 * MIB]
    assert one.large.blocks()[0].whole


def test_streams_have_their_own_blocks(allocator):
    one = allocator()
    block = one.malloc(16 * MIB, stream=7)
    one.free(block)
    assert one.malloc(16 * MIB, stream=8).address != block.address
    assert one.malloc(16 * MIB, stream=7).address == block.address
    assert one.mallocs == 2


def test_nothing_is_left_of_an_allocation(allocator):
    one = allocator()
    one.free(one.malloc(3000))
    assert (one.allocated, one.requested, one.peak_allocated, one.reserved) == (0, 0, 3072, 2 * MIB)


# Other streams ------------------------------------------------------------------------------------


def test_a_recorded_stream_holds_a_block_back(allocator):
    one = allocator()
    block = one.malloc(16 * MIB)
    one.record_stream(block, 5)
    one.free(block)
    assert one.allocated == 0
    assert one.malloc(16 * MIB).address != block.address
    one.pass_stream(5)
    assert one.malloc(16 * MIB).address == block.address


def test_its_own_stream_holds_nothing_back(allocator):
    one = allocator()
    block = one.malloc(16 * MIB, stream=5)
    one.record_stream(block, 5)
    one.free(block)
    assert one.malloc(16 * MIB, stream=5).address == block.address


def test_two_streams_must_both_pass(allocator):
    one = allocator()
    block = one.malloc(16 * MIB)
    one.record_stream(block, 5)
    one.record_stream(block, 6)
    one.free(block)
    one.pass_stream(6)
    assert one.malloc(16 * MIB).address != block.address
    one.pass_stream(5)
    assert one.malloc(16 * MIB).address == block.address


def test_a_block_that_waits_joins_no_neighbour(allocator):
    one = allocator()
    a, b = one.malloc(4 * MIB), one.malloc(4 * MIB)
    one.record_stream(a, 5)
    one.free(a)
    one.free(b)
    assert [block.size for block in one.large.blocks()] == [16 * MIB]
    one.pass_stream(5)
    one.malloc(512)  # any request looks at the events
    assert [block.size for block in one.large.blocks()] == [20 * MIB]


def test_emptying_the_cache_waits_for_all_streams(allocator):
    one = allocator()
    block = one.malloc(16 * MIB)
    one.record_stream(block, 5)
    one.free(block)
    one.empty_cache()
    assert (one.frees, one.reserved) == (1, 0)


def test_deferred_until_done(allocator):
    one = allocator()
    block = one.malloc(16 * MIB)
    number = one.defer(block)
    assert one.malloc(16 * MIB).address != block.address
    one.done(number)
    assert one.malloc(16 * MIB).address == block.address


# Giving memory back -------------------------------------------------------------------------------


def test_emptying_keeps_segments_in_use(allocator):
    one = allocator()
    kept, _ = one.malloc(4 * MIB), one.free(one.malloc(30 * MIB))
    one.empty_cache()
    assert (one.frees, one.reserved) == (1, 20 * MIB)
    one.free(kept)
    one.empty_cache()
    assert (one.frees, one.reserved) == (2, 0)
    assert one.driver.used == 0


def test_a_full_device_is_emptied_and_asked_again(allocator):
    one = allocator(capacity=50 * MIB)
    one.free(one.malloc(30 * MIB))
    assert one.malloc(40 * MIB) is not None
    assert (one.retries, one.mallocs, one.frees, one.reserved, one.ooms) == (1, 2, 1, 40 * MIB, 0)


def test_no_memory_left(allocator):
    one = allocator(capacity=50 * MIB)
    held = one.malloc(30 * MIB)
    assert one.malloc(40 * MIB) is None
    assert (one.retries, one.ooms, one.allocated) == (1, 1, 30 * MIB)
    one.free(held)
    assert one.malloc(40 * MIB) is not None


def test_a_waiting_block_is_waited_for_before_memory_runs_out(allocator):
    one = allocator(capacity=50 * MIB)
    block = one.malloc(30 * MIB)
    one.record_stream(block, 5)
    one.free(block)
    assert one.malloc(40 * MIB) is not None
    assert one.retries == 1


def test_after_waiting_the_cache_is_not_searched_again(allocator):
    # 30 MiB wait for a stream. Asked for the same size, the device is full; the wait frees the block,
    # which goes back to the driver and is asked for anew, although it would have fitted.
    one = allocator(capacity=40 * MIB)
    block = one.malloc(30 * MIB)
    one.record_stream(block, 5)
    one.free(block)
    assert one.malloc(30 * MIB) is not None
    assert (one.mallocs, one.frees, one.retries) == (2, 1, 1)


def test_a_fraction_of_the_device(allocator):
    one = allocator("per_process_memory_fraction:0.5", total=100 * MIB)
    assert one.malloc(60 * MIB) is None
    assert one.malloc(50 * MIB) is not None


# Blocks that are never split ----------------------------------------------------------------------


def test_large_blocks_are_not_split(allocator):
    one = allocator("max_split_size_mb:32")
    one.free(one.malloc(64 * MIB))
    assert one.malloc(31 * MIB) is not None
    assert one.mallocs == 2  # the large one is not for a small request
    assert one.malloc(45 * MIB).size == 64 * MIB  # but for one that is up to 20 MiB smaller
    assert one.mallocs == 2


def test_too_large_a_block_is_passed_over(allocator):
    one = allocator("max_split_size_mb:32")
    one.free(one.malloc(64 * MIB))
    one.malloc(44 * MIB)  # 20 MiB smaller: no longer within the limit
    assert one.mallocs == 2
    one = allocator("max_split_size_mb:32,max_non_split_rounding_mb:40")
    one.free(one.malloc(64 * MIB))
    one.malloc(44 * MIB)
    assert one.mallocs == 1


def test_below_the_size_blocks_are_split_as_ever(allocator):
    one = allocator("max_split_size_mb:64")
    one.free(one.malloc(40 * MIB))
    assert one.malloc(30 * MIB).size == 30 * MIB


def test_one_oversize_block_makes_room(allocator):
    one = allocator("max_split_size_mb:32", capacity=200 * MIB)
    held = [one.malloc(size * MIB) for size in (20, 60, 100)]
    for block in held:
        one.free(block)
    # 50 MiB: 60 is within the limit and 100 is not.
    first = one.malloc(75 * MIB)
    assert first is not None
    assert (one.frees, one.retries) == (1, 0)  # the 100 alone
    assert one.reserved == (20 + 60 + 76) * MIB


def test_several_oversize_blocks_make_room(allocator):
    one = allocator("max_split_size_mb:32", capacity=200 * MIB)
    for block in [one.malloc(size * MIB) for size in (20, 40, 50, 60)]:
        one.free(block)
    assert one.malloc(90 * MIB) is not None
    assert (one.frees, one.retries) == (2, 0)  # 60, then 50
    assert one.reserved == (20 + 40 + 90) * MIB


def test_when_they_do_not_suffice_all_goes(allocator):
    one = allocator("max_split_size_mb:32", capacity=100 * MIB)
    for block in [one.malloc(size * MIB) for size in (20, 40, 34)]:
        one.free(block)
    assert one.malloc(90 * MIB) is not None
    assert (one.frees, one.retries) == (3, 1)


# Garbage collection -------------------------------------------------------------------------------

COLLECT = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.99"


def test_the_older_half_is_collected(allocator):
    one = allocator(COLLECT, total=1000 * MIB)
    old, new = one.malloc(100 * MIB), one.malloc(120 * MIB)
    one.malloc(250 * MIB)
    one.free(old)
    for _ in range(3):
        one.free(one.malloc(200 * 1024))  # searches of the small pool do not age the large one
    for _ in range(4):
        one.free(one.malloc(30 * MIB, stream=1))  # found again and again
    one.free(new)
    one.malloc(300 * MIB)
    # 500 MiB are reserved and 495 allowed before garbage is collected: the oldest goes, the others stay.
    assert (one.collections, one.frees) == (1, 1)
    assert one.reserved == (120 + 250 + 30 + 300 + 2) * MIB  # 2 for the small ones


def test_nothing_is_collected_below_the_threshold(allocator):
    one = allocator(COLLECT, total=1000 * MIB)
    one.free(one.malloc(100 * MIB))
    one.malloc(200 * MIB)
    assert one.frees == 0


def test_collecting_goes_on_until_enough_is_free(allocator):
    one = allocator(COLLECT, total=400 * MIB)
    blocks = [one.malloc(size * MIB) for size in (60, 70, 80)]
    for block in blocks:
        one.free(block)
        one.free(one.malloc(12 * MIB))
    one.malloc(100 * MIB)
    assert one.frees >= 1
    assert one.reserved <= 0.99 * 400 * MIB


def test_without_a_fraction_nothing_is_collected(allocator):
    one = allocator("garbage_collection_threshold:0.1", total=1000 * MIB)
    one.free(one.malloc(600 * MIB))
    one.malloc(700 * MIB)
    assert (one.collections, one.frees) == (0, 0)


def test_split_segments_are_not_collected(allocator):
    one = allocator(COLLECT, total=100 * MIB)
    held = one.malloc(4 * MIB)
    one.malloc(40 * MIB)
    one.malloc(30 * MIB)
    assert one.frees == 0
    assert held.allocated


# Private pools ------------------------------------------------------------------------------------


def test_a_graph_keeps_its_memory_to_itself(allocator):
    one = allocator()
    block = one.malloc(16 * MIB, pool=1)
    one.free(block)
    assert one.malloc(16 * MIB).address != block.address
    assert one.malloc(16 * MIB, pool=1).address == block.address


def test_a_graphs_memory_stays_until_the_graph_is_gone(allocator):
    one = allocator()
    one.free(one.malloc(16 * MIB, pool=1))
    one.free(one.malloc(16 * MIB))
    one.empty_cache()
    assert (one.frees, one.reserved) == (1, 16 * MIB)
    one.retire(1)
    one.empty_cache()
    assert (one.frees, one.reserved) == (2, 0)
    assert one.private == {}


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:64"])
def test_the_driver_and_the_allocator_agree_on_what_is_reserved(allocator, settings):
    one = allocator(settings)
    blocks = [one.malloc(size) for size in (100, 3 * MIB, 30 * MIB, 700 * MIB, MIB)]
    assert one.reserved == one.driver.used
    for block in blocks:
        one.free(block)
    one.empty_cache()
    assert one.reserved == one.driver.used == 0


def test_a_request_beyond_the_fraction_fails_at_once_where_that_is_asked_for(allocator):
    settings = "per_process_memory_fraction:0.5"
    for more, kept, retries in (("", 0, 1), (",throw_on_cudamalloc_oom:True", 40 * MIB, 0)):
        one = allocator(settings + more, total=200 * MIB)
        one.free(one.malloc(40 * MIB))
        assert one.malloc(110 * MIB) is None
        assert (one.reserved, one.retries, one.ooms, one.frees) == (kept, retries, 1, retries)
        block = one.malloc(90 * MIB)  # fits, once what is cached is given back
        assert (block is None) == bool(kept)


def test_the_device_itself_is_asked_again_all_the_same(allocator):
    one = allocator(
        "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True", capacity=80 * MIB, total=400 * MIB
    )
    one.free(one.malloc(60 * MIB))
    assert one.malloc(70 * MIB) is not None
    assert (one.retries, one.frees) == (1, 1)


def test_no_two_address_spaces_share_an_address():
    """A stream of which no space was recorded gets one behind all that were."""
    from gapless.memory.driver import VIRTUAL, Driver

    recorded = 0x7000_0000_0000
    driver = Driver(spaces=[(0, 0, recorded), (1, 0, recorded + (1 << 30))])
    assert driver.recorded_space(0, False) == recorded
    assert driver.reserve(VIRTUAL) >= recorded + (1 << 30) + VIRTUAL
