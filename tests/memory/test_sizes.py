"""Sizes by hand, from the rules of the allocator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.memory.settings import parse
from gapless.memory.sizes import LARGE_SEGMENT, MIB, round_size, segment_size

sizes = st.integers(1, 1 << 40)
divided = st.sampled_from([1, 2, 4, 8, 16, 32, 256]).map(lambda parts: (parts,) * 16)


@pytest.mark.parametrize(
    ("size", "block"),
    [(1, 512), (511, 512), (512, 512), (513, 1024), (1024, 1024), (MIB, MIB), (MIB + 1, MIB + 512)],
)
def test_plain_rounding(size, block):
    assert round_size(size) == block


@pytest.mark.parametrize(
    ("size", "parts", "block"),
    [
        (1200, 4, 1536),  # not over 512 × 4: plain
        (2048, 4, 2048),  # neither
        (2049, 4, 2560),  # between 2048 and 4096 in steps of 512
        (4096, 4, 4096),  # a power of two stays one
        (5000, 4, 5120),
        (5121, 4, 6144),
        (300 * MIB, 2, 384 * MIB),
        (385 * MIB, 2, 512 * MIB),
        (300 * MIB, 1, 300 * MIB),
        (3 * MIB + 1, 2, 4 * MIB),
    ],
)
def test_rounding_to_divisions(size, parts, block):
    assert round_size(size, (parts,) * 16) == block


def test_each_power_of_two_has_its_own_divisions():
    divisions = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").divisions
    assert round_size(300 * MIB, divisions) == 300 * MIB
    assert round_size(600 * MIB, divisions) == 768 * MIB
    assert round_size(1100 * MIB, divisions) == 1280 * MIB
    assert round_size(2100 * MIB, divisions) == 2304 * MIB
    assert round_size(100 * MIB + 1, divisions) == 100 * MIB + 512  # the first value holds below it


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_segments(size, segment):
    assert segment_size(size) == segment


def test_segments_of_another_size():
    assert segment_size(2 * MIB, 64 * MIB) == 64 * MIB
    assert segment_size(10 * MIB, 64 * MIB) == 10 * MIB


@given(sizes, divided)
def test_a_block_holds_its_request_and_not_much_more(size, divisions):
    block = round_size(size, divisions)
    assert block >= size
    assert block % 512 == 0
    if divisions[0] > 1 and size > 512 * divisions[0]:
        assert block - size < max(size / divisions[0] * 2, 512)
    else:
        assert block - size < 512


@given(sizes, sizes, divided)
def test_rounding_keeps_the_order(size, other, divisions):
    low, high = sorted((size, other))
    assert round_size(low, divisions) <= round_size(high, divisions)


@given(sizes, divided)
def test_rounding_twice_changes_nothing(size, divisions):
    block = round_size(size, divisions)
    assert round_size(block, divisions) == block


@given(st.integers(1, 1 << 30).map(lambda n: n * 512))
def test_a_segment_holds_its_block(block):
    segment = segment_size(block)
    assert segment >= block
    assert segment % (2 * MIB) == 0
    assert segment - block < max(LARGE_SEGMENT, 2 * MIB)
