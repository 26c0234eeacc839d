"""How long collectives take: from bytes and from what joins the GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.analyze.estimate.collective_times import (
    NETWORK_EFFICIENCY,
    bandwidth,
    collective_spread,
    collective_time,
    communication_time,
    latency,
)
from gapless.model.gpus import find
from gapless.model.programme import Entry, Programme, gpu_limits

GB = 10**9
A100 = Programme(gpu=gpu_limits(find("a100")), node=8)
L4 = Programme(gpu=gpu_limits(find("l4")), node=8)


def entry(ranks: int, group: str, nbytes: int = GB, name: str = "all_reduce") -> Entry:
    return Entry(kind="collective", name=name, ranks=ranks, group=group, reads=nbytes, writes=nbytes)


@pytest.mark.parametrize(
    ("programme", "ranks", "group", "expected"),
    [
        (A100, 8, "all 8 ranks", 300 * 0.81),
        (A100, 4, "tp: ranks 4-7", 300 * 0.78),
        (A100, 4, "tp: ranks 6-9", 50 * NETWORK_EFFICIENCY * 2),  # two of them in each machine
        (A100, 16, "dp: ranks 0, 8, ..., 120", 50 * NETWORK_EFFICIENCY),  # one card of each machine
        (A100, 64, "dp: ranks 0, 2, ..., 126", 4 * 50 * NETWORK_EFFICIENCY),
        (A100, 128, "all 128 ranks", 300 * 0.81),  # eight cards carry more than NVLink does
        (L4, 8, "all 8 ranks", 32 * 0.39),
    ],
)
def test_a_ring_is_as_fast_as_its_slowest_part(programme, ranks, group, expected) -> None:
    assert bandwidth(entry(ranks, group), programme) == pytest.approx(expected)


def test_a_network_that_is_said_counts() -> None:
    slow = Programme(gpu=A100.gpu, node=8, network=12.5)
    assert bandwidth(entry(16, "dp: ranks 0, 8, ..., 120"), slow) == pytest.approx(12.5 * NETWORK_EFFICIENCY)


def test_a_large_all_reduce_moves_its_bytes_nearly_twice() -> None:
    """7/8 of a gigabyte there and back, at 243 GB/s: 7.2 ms; a measured ring had 232."""
    time = collective_time(entry(8, "all 8 ranks"), A100)
    moving = 2 * 7 / 8 * GB / (300 * 0.81)
    assert moving < time < 1.1 * moving


@given(st.integers(0, 1 << 36), st.integers(2, 1024))
def test_more_bytes_take_longer_and_nothing_is_free(nbytes: int, ranks: int) -> None:
    small, large = (
        collective_time(entry(ranks, f"all {ranks} ranks", size), A100) for size in (nbytes, 2 * nbytes + 1)
    )
    assert latency(entry(ranks, f"all {ranks} ranks"), A100) <= small < large


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
@pytest.mark.parametrize("gpu", ["v100", "a100", "h100", "b200", "l40s", "rtx4090"])
def test_more_ranks_begin_later_and_none_is_certain(gpu: str, name: str) -> None:
    programme = Programme(gpu=gpu_limits(find(gpu)), node=8)
    groups = [entry(ranks, f"all {ranks} ranks", GB, name) for ranks in (2, 4, 8, 16, 256)]
    begins = [latency(group, programme) for group in groups]
    assert begins == sorted(begins)
    assert begins[0] > 1_000
    assert all(0 < collective_spread(group, programme) < 1 for group in groups)
    assert collective_spread(groups[-1], programme) > collective_spread(groups[0], programme)


@pytest.mark.parametrize(
    ("gpu", "name", "ranks", "nbytes", "measured"),
    [
        # nccl-tests in milliseconds, by aiconfigurator (Apache-2.0).
        ("a100", "all_gather", 2, 4194304, 0.0433),
        ("a100", "all_gather", 8, 1048576, 0.0268),
        ("a100", "all_gather", 8, 268435456, 1.2168),
        ("a100", "all_reduce", 2, 268435456, 1.4301),
        ("a100", "all_to_all", 2, 4194304, 0.0382),
        ("a100", "all_to_all", 8, 1048576, 0.0258),
        ("b200", "all_gather", 2, 16777216, 0.0374),
        ("b200", "all_gather", 8, 4194304, 0.0291),
        ("b200", "all_reduce", 2, 1048576, 0.0136),
        ("b200", "all_reduce", 8, 1048576, 0.029),
        ("b200", "all_to_all", 2, 16777216, 0.0493),
        ("b200", "all_to_all", 8, 67108864, 0.1356),
    ],
)
def test_what_was_measured(gpu: str, name: str, ranks: int, nbytes: int, measured: float) -> None:
    programme = Programme(gpu=gpu_limits(find(gpu)), node=8)
    time = collective_time(entry(ranks, f"all {ranks} ranks", nbytes, name), programme)
    assert time / 1e6 == pytest.approx(measured, rel=0.25)


def test_what_is_on_the_host_or_alone_takes_none_of_the_devices_time() -> None:
    host = Entry(kind="collective", name="all_reduce", ranks=8, group="all 8 ranks", reads=GB, detail="host")
    alone = entry(1, "rank 3")
    collective = entry(8, "all 8 ranks")
    step = (host, alone, collective, Entry(name="aten::mm"))
    time = round(collective_time(collective, A100))
    assert communication_time([step, step], A100) == (
        time,
        0,
        pytest.approx(collective_spread(collective, A100)),
    )


def test_what_the_stream_waits_for_at_once_is_not_hidden() -> None:
    collective, work = entry(8, "all 8 ranks"), Entry(name="aten::mm")
    waits = Entry(kind="await", number=-1)
    elsewhere, back = Entry(kind="stream", stream=1), Entry(kind="stream")
    time = round(collective_time(collective, A100))
    assert communication_time([(collective, waits, work)], A100).exposed == time
    assert communication_time([(collective, collective, waits, work)], A100).exposed == pytest.approx(
        2 * time, abs=1
    )
    assert communication_time([(collective, work, waits, work)], A100).exposed == 0
    assert communication_time([(elsewhere, collective, waits, back, work)], A100).exposed == 0
    first = Entry(kind="await", number=-2)
    assert communication_time([(collective, collective, first, work, waits)], A100).exposed == time
    assert communication_time([(collective, waits, waits, work)], A100).exposed == time
    assert (
        communication_time([(collective, Entry(kind="await", number=-3), work)], A100).exposed == 0
    )  # of a step before
