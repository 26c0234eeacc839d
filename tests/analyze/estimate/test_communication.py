"""How long collectives take: from bytes and from what joins the GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.analyze.estimate.communication import (
    LATENCY,
    NVLINK,
    PCIE,
    bandwidth,
    collective_time,
    communication,
)
from gapless.model.gpus import find
from gapless.model.programme import Entry, Programme, sheet

GB = 10**9
A100 = Programme(gpu=sheet(find("a100")), node=8)
L4 = Programme(gpu=sheet(find("l4")), node=8)


def entry(ranks: int, group: str, nbytes: int = GB, name: str = "all_reduce") -> Entry:
    return Entry(kind="collective", name=name, ranks=ranks, group=group, reads=nbytes, writes=nbytes)


@pytest.mark.parametrize(
    ("programme", "ranks", "group", "expected"),
    [
        (A100, 8, "all 8 ranks", 300 * NVLINK),
        (A100, 4, "tp: ranks 4-7", 300 * NVLINK),
        (A100, 4, "tp: ranks 6-9", 50 * NVLINK * 2),  # two of them in each machine
        (A100, 16, "dp: ranks 0, 8, ..., 120", 50 * NVLINK),  # one card of each machine
        (A100, 64, "dp: ranks 0, 2, ..., 126", 4 * 50 * NVLINK),
        (A100, 128, "all 128 ranks", 300 * NVLINK),  # eight cards carry more than NVLink does
        (L4, 8, "all 8 ranks", 32 * PCIE),
    ],
)
def test_a_ring_is_as_fast_as_its_slowest_part(programme, ranks, group, expected) -> None:
    assert bandwidth(entry(ranks, group), programme) == pytest.approx(expected)


def test_a_network_that_is_said_counts() -> None:
    slow = Programme(gpu=A100.gpu, node=8, network=12.5)
    assert bandwidth(entry(16, "dp: ranks 0, 8, ..., 120"), slow) == pytest.approx(12.5 * NVLINK)


def test_a_large_all_reduce_moves_its_bytes_nearly_twice() -> None:
    """7/8 of a gigabyte there and back, at 234 GB/s: 7.5 ms; a measured ring had 235."""
    time = collective_time(entry(8, "all 8 ranks"), A100)
    moving = 2 * 7 / 8 * GB / (300 * NVLINK)
    assert moving < time < 1.06 * moving


@given(st.integers(0, 1 << 36), st.integers(2, 1024))
def test_more_bytes_take_longer_and_nothing_is_free(nbytes: int, ranks: int) -> None:
    small, large = (
        collective_time(entry(ranks, f"all {ranks} ranks", size), A100) for size in (nbytes, 2 * nbytes + 1)
    )
    assert LATENCY <= small < large


def test_what_is_on_the_host_or_alone_takes_none_of_the_devices_time() -> None:
    host = Entry(kind="collective", name="all_reduce", ranks=8, group="all 8 ranks", reads=GB, detail="host")
    alone = entry(1, "rank 3")
    one = entry(8, "all 8 ranks")
    step = (host, alone, one, Entry(name="aten::mm"))
    assert communication([step, step], A100) == round(collective_time(one, A100))
