"""Which calls wait, and for what."""

from __future__ import annotations

import pytest
from trace_builder import Trace

from gapless.replay.waits import WaitKind, WaitTable, find_waits
from gapless.trace.timeline import Timeline


def waits_of(trace: Trace) -> tuple[Timeline, WaitTable]:
    timeline = trace.timeline()
    return timeline, find_waits(timeline)


def call_names(timeline: Timeline, table: WaitTable) -> list[str]:
    return [timeline.names[timeline.host.name[row]] for row in table.host]


@pytest.mark.parametrize("dialect", ["new", "middle", "old"])
def test_a_pageable_copy_and_the_synchronize_after_it_are_one_wait(dialect: str) -> None:
    trace = Trace(dialect=dialect)  # type: ignore[arg-type]
    trace.launch("gemm", 0, kernel=(10, 100))
    trace.copy("DtoH (Device -> Pageable)", 20, 100, copy=(111, 2), bytes=4)
    trace.wait(122, 4)
    timeline, table = waits_of(trace)
    assert len(table) == 1
    assert table.kind[0] == WaitKind.COPY
    assert call_names(timeline, table) == ["cudaMemcpyAsync"]
    assert timeline.names[timeline.host.name[table.sync[0]]] == "cudaStreamSynchronize"
    assert table.blocked[0] == 104_000
    assert timeline.work.start[table.copy[0]] == 111_000
    assert table.work[0] == table.copy[0]


def test_a_small_copy_to_the_device_leaves_waiting_to_its_synchronize() -> None:
    trace = Trace()
    trace.launch("gemm", 0, kernel=(10, 100))
    trace.copy("HtoD (Pageable -> Device)", 20, 6, copy=(111, 2), bytes=64)
    trace.wait(28, 90)
    _, table = waits_of(trace)
    assert table.blocked.tolist() == [90_000]
    assert table.blocks.tolist() == [False]


def test_a_large_copy_blocks_by_itself() -> None:
    trace = Trace()
    trace.copy("HtoD (Pageable -> Device)", 0, 900, copy=(10, 900), bytes=1 << 20)
    _, table = waits_of(trace)
    assert table.kind.tolist() == [WaitKind.COPY]
    assert table.sync.tolist() == [-1]
    assert table.blocked.tolist() == [900_000]


def test_a_pinned_copy_does_not_wait() -> None:
    trace = Trace()
    trace.copy("DtoH (Device -> Pinned)", 0, 6, copy=(10, 900), bytes=1 << 20)
    assert len(waits_of(trace)[1]) == 0


def test_amd_copies_with_the_stream_wait() -> None:
    trace = Trace(vendor="amd")
    trace.launch("gemm", 0, kernel=(10, 100))
    trace.copy("DtoH (Device -> Host)", 20, 110, copy=(112, 4), bytes=4)
    timeline, table = waits_of(trace)
    assert call_names(timeline, table) == ["hipMemcpyWithStream"]
    assert table.work.tolist() == [1]


def test_a_synchronize_waits_for_the_last_work_of_its_stream() -> None:
    trace = Trace()
    trace.launch("short", 0, kernel=(10, 100), stream=7)
    trace.launch("long", 10, kernel=(20, 500), stream=9)
    trace.copy("DtoH (Device -> Pinned)", 20, 5, copy=(111, 2), stream=7)
    trace.launch("more", 200, kernel=(520, 50), stream=9)
    trace.wait(300, 4)
    trace.wait(310, 270, stream=False)
    timeline, table = waits_of(trace)
    assert [timeline.names[timeline.work.name[row]] for row in table.work] == [
        "Memcpy DtoH (Device -> Pinned)",
        "more",
    ]
    assert table.final.tolist() == [False, True]


def test_an_event_waits_for_what_was_recorded() -> None:
    trace = Trace()
    trace.launch("first", 0, kernel=(10, 100))
    record = trace.call("cudaEventRecord", 20, 2)
    trace.launch("second", 30, kernel=(111, 400))
    number = trace.call("cudaEventSynchronize", 40, 75)
    trace.sync("Event Sync", 40, 75, correlation=number, on_stream=7, record=record)
    timeline, table = waits_of(trace)
    assert table.kind.tolist() == [WaitKind.EVENT]
    assert timeline.names[timeline.work.name[table.work[0]]] == "first"


def test_freeing_waits_only_where_it_is_seen_to() -> None:
    trace = Trace()
    trace.launch("gemm", 0, kernel=(10, 1000))
    trace.call("cudaFree", 20, 1000)
    trace.launch("gemm", 2000, kernel=(2010, 1000))
    trace.call("cudaMalloc", 2020, 400)
    timeline, table = waits_of(trace)
    assert call_names(timeline, table) == ["cudaFree"]
    assert table.kind.tolist() == [WaitKind.MEMORY]


def test_without_device_work_nothing_is_known_of_what_is_waited_for() -> None:
    trace = Trace()
    trace.wait(0, 10)
    _, table = waits_of(trace)
    assert table.work.tolist() == [-1]


def test_a_second_synchronize_is_a_wait_of_its_own() -> None:
    trace = Trace()
    trace.copy("DtoH (Device -> Pageable)", 20, 100, copy=(111, 2), bytes=4)
    trace.wait(122, 4)
    trace.wait(128, 4)
    _, table = waits_of(trace)
    assert table.kind.tolist() == [WaitKind.COPY, WaitKind.STREAM]
