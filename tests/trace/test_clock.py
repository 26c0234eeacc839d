"""Times: whole nanoseconds, whatever clock the file is on."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builder import BASE, Trace

from gapless.trace.read import read_bytes


@given(
    origin=st.integers(0, 8_000_000_000_000),
    offsets=st.lists(st.integers(0, 10**9), min_size=2, max_size=5),
    length=st.integers(0, 10**9),
)
def test_thousandths_of_a_microsecond_are_exact(origin: int, offsets: list[int], length: int) -> None:
    """Up to the clock's usual values (1.4e12 microseconds and five times that)."""
    times = [origin * 1000 + 1 + offset for offset in sorted(offsets)]
    events = [
        '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, '
        f'"ts": {time // 1000}.{time % 1000:03}, "dur": {length // 1000}.{length % 1000:03}}}'
        for time in times
    ]
    text = '{"traceEvents": [' + ",".join(events) + '], "baseTimeNanoseconds": 5}'
    timeline = read_bytes(text.encode())
    assert timeline.host.start.tolist() == [time - times[0] for time in times]
    assert (timeline.host.end - timeline.host.start).tolist() == [length] * len(times)
    assert timeline.facts.origin == times[0] + 5


@given(offsets=st.lists(st.integers(0, 10**10), min_size=2, max_size=5))
def test_fractions_since_1970_are_exact(offsets: list[int]) -> None:
    """A float holds these to a quarter of a microsecond."""
    times = [1_723_456_789_012_345_678 + offset for offset in sorted(offsets)]
    events = [
        '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, '
        f'"ts": {Decimal(time) / 1000}, "dur": 1}}'
        for time in times
    ]
    first = '{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 1723456789012345.678}'
    timeline = read_bytes(('{"traceEvents": [' + ",".join([first, *events]) + "]}").encode())
    assert timeline.host.start.tolist() == [time - times[0] for time in times]


def test_origin() -> None:
    trace = Trace()
    trace.operator("aten::mm", 5.25, 1)
    assert trace.timeline().facts.origin == BASE + trace.origin * 1_000_000 + 5_250


@pytest.mark.parametrize("base", [0, None])
def test_no_base(base: int | None) -> None:
    trace = Trace("middle")
    trace.operator("aten::mm", 5, 1)
    if base is not None:
        trace.head["baseTimeNanoseconds"] = base
    assert trace.timeline().facts.origin == trace.origin * 1_000_000 + 5_000


def test_time_that_goes_backwards_is_put_in_order() -> None:
    trace = Trace()
    for start in (30, 10, 20):
        trace.operator(f"op{start}", start, 5)
        trace.kernel(f"k{start}", start, 5)
    timeline = trace.timeline()
    assert timeline.host.start.tolist() == timeline.work.start.tolist() == [0, 10_000, 20_000]
    assert [timeline.names[number] for number in timeline.host.name] == ["op10", "op20", "op30"]


def test_rows_at_time_zero_are_left_out() -> None:
    trace = Trace("middle")
    trace.operator("aten::mm", 0, 5)
    for cat in ("cpu_op", "kernel"):
        trace.raw(ph="X", cat=cat, name="lost", pid=1, tid=1, ts=0, dur=0)
    timeline = trace.timeline()
    assert len(timeline.host) == 1
    assert len(timeline.work) == 0
    assert timeline.notes == ("2 events with impossible times were skipped",)


def test_a_profile_may_begin_at_zero() -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "dur": 5}
    events = [event | {"ts": 0}, event | {"ts": 7}]
    timeline = read_bytes(json.dumps({"traceEvents": events}).encode())
    assert timeline.host.start.tolist() == [0, 7000]
    assert timeline.notes == ()


def test_spans_longer_than_any_profile_are_left_out() -> None:
    trace = Trace()
    trace.operator("aten::mm", 0, 5)
    trace.operator("never ended", 1, 8e15)
    timeline = trace.timeline()
    assert len(timeline.host) == 1
    assert timeline.notes == ("1 event with impossible times was skipped",)


@pytest.mark.parametrize("dur", [-1, -0.5])
def test_negative_lengths(dur: float) -> None:
    trace = Trace()
    trace.operator("aten::mm", 0, 5)
    trace.operator("bad", 1, dur)
    assert trace.timeline().notes == ("1 event without a duration was skipped",)


def test_missing_times() -> None:
    trace = Trace()
    trace.operator("aten::mm", 0, 5)
    trace.raw(ph="X", cat="cpu_op", name="a", pid=1, tid=1, dur=5)
    trace.raw(ph="X", cat="cpu_op", name="a", pid=1, tid=1, ts=trace.time(1))
    assert trace.timeline().notes == (
        "1 event without a duration was skipped",
        "1 event without a time was skipped",
    )
