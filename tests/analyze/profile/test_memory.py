"""Memory of the device over time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import Trace

from gapless.analyze.profile.memory_curve import MAX_POINTS, memory_use
from gapless.analyze.profile.trace_steps import find_steps
from gapless.model.profile import MemoryUse
from gapless.trace.timeline import Timeline


def memory_of(trace: Trace, device: int = 0) -> MemoryUse:
    timeline = trace.timeline()
    return memory_use(timeline, find_steps(timeline, device), device)


def step(device: int = 0) -> Trace:
    trace = Trace(device=device)
    trace.step(1, 0, 10_000)
    trace.launch("gemm", 0, kernel=(10, 10), device=device)
    return trace


def test_peaks_and_the_curve() -> None:
    trace = step()
    trace.memory(100, 50, allocated=50, reserved=200)
    trace.memory(200, 90, allocated=140, reserved=200)
    trace.memory(300, -60, allocated=80, reserved=200)
    assert memory_of(trace) == MemoryUse(
        peak_allocated=140,
        peak_reserved=200,
        time=(100_000, 200_000, 300_000),
        allocated=(50, 140, 80),
        reserved=(200, 200, 200),
    )


def test_memory_given_back_and_taken_again() -> None:
    trace = step()
    for time, reserved in enumerate((100, 160, 40, 70, 70, 50, 500)):
        trace.memory(100 + time, 1, allocated=time + 1, reserved=reserved)
    result = memory_of(trace)
    assert (result.drops, result.given_back) == (2, 140)
    assert result.taken_again == 140  # 30, then what was still missing of 110, whatever was taken besides


def test_reused_memory_is_counted_apart_from_freed() -> None:
    trace = step()
    for time, reserved in enumerate((100, 160, 40, 70)):
        trace.memory(100 + time, 1, allocated=1, reserved=reserved)
    result = memory_of(trace)
    assert (result.drops, result.given_back, result.taken_again) == (1, 120, 30)


def test_growth_alone_is_no_saw() -> None:
    trace = step()
    for time, reserved in enumerate((100, 200, 300)):
        trace.memory(100 + time, 1, allocated=1, reserved=reserved)
    result = memory_of(trace)
    assert (result.drops, result.given_back, result.taken_again) == (0, 0, 0)


def test_what_falls_outside_the_steps_does_not_count() -> None:
    trace = step()
    trace.memory(9_000, 1, allocated=1, reserved=500)
    trace.memory(11_000, 1, allocated=1, reserved=100)
    assert memory_of(trace).drops == 0


def test_memory_of_the_host_is_left_out() -> None:
    trace = step()
    trace.memory(100, 50, allocated=50, reserved=200)
    trace.memory(200, 90, allocated=9_000, reserved=9_000, device_type=0)
    assert memory_of(trace).peak_allocated == 50


@pytest.mark.parametrize("device_type", [1, 6])
def test_one_process_counts_its_devices_from_nought(device_type: int) -> None:
    """The device's work bears the number it has in the machine, its memory the one it has in the process."""
    trace = step(device=3)
    trace.device = 0
    trace.memory(100, 50, allocated=50, reserved=200, device_type=device_type)
    assert memory_of(trace, 3).peak_reserved == 200


def test_of_several_devices_its_own() -> None:
    trace = step()
    for device, allocated in ((0, 50), (1, 900)):
        trace.device = device
        trace.memory(100 + device, 1, allocated=allocated, reserved=1_000)
    assert memory_of(trace, 0).peak_allocated == 50


def test_profiles_without_totals() -> None:
    trace = Trace(dialect="old")
    trace.step(1, 0, 10_000)
    trace.memory(100, 50)
    assert memory_of(trace) == MemoryUse()


def test_no_memory_recorded() -> None:
    assert memory_of(step()) == MemoryUse()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=30), st.integers(1, 60)
)
def test_a_thinned_curve_keeps_the_peaks(values: list[tuple[int, int]], times: int) -> None:
    trace = step()
    series = [(a, a + b) for a, b in values] * times
    for place, (allocated, reserved) in enumerate(series):
        trace.memory(100 + place, 1, allocated=allocated, reserved=reserved)
    result = memory_of(trace)
    assert len(result.time) == len(result.allocated) == len(result.reserved) <= MAX_POINTS
    assert list(result.time) == sorted(set(result.time))
    assert max(result.allocated) == result.peak_allocated == max(a for a, _ in series)
    assert max(result.reserved) == result.peak_reserved == max(r for _, r in series)
    assert min(result.allocated) == min(a for a, _ in series)
    assert (result.allocated[0], result.allocated[-1]) == (series[0][0], series[-1][0])
    points = {(100 + place) * 1000: pair for place, pair in enumerate(series)}
    assert [points[t] for t in result.time] == list(zip(result.allocated, result.reserved, strict=True))


@pytest.mark.parametrize("place", [1, 777, 998])
def test_one_short_peak_and_one_short_trough_among_many(place: int) -> None:
    trace = step()
    for time in range(1_000):
        value = {place: 900, 1_000 - place - 1: 100}.get(time, 500)
        trace.memory(100 + time, 1, allocated=value, reserved=value + 50)
    result = memory_of(trace)
    assert len(result.time) <= MAX_POINTS
    for curve, base in ((result.allocated, 0), (result.reserved, 50)):
        assert {100 + base, 500 + base, 900 + base} == set(curve)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_reused_memory_was_freed(reserved: list[int]) -> None:
    trace = step()
    owed = given_back = taken = drops = 0
    for place, now in enumerate(reserved):
        trace.memory(100 + place, 1, allocated=0, reserved=now)
        change = now - reserved[place - 1] if place else 0
        again = min(max(change, 0), owed)
        drops, given_back, taken = drops + (change < 0), given_back + max(-change, 0), taken + again
        owed += max(-change, 0) - again
    result = memory_of(trace)
    assert (result.drops, result.given_back, result.taken_again) == (drops, given_back, taken)


def test_public_traces(public_trace: Callable[[str], Timeline]) -> None:
    name = "TraceLens-mi300-google_owlv2-large-patch14-ensemble-1016001-faff"
    timeline = public_trace(name)
    result = memory_use(timeline, find_steps(timeline, 2), 2)
    assert (result.peak_allocated, result.peak_reserved) == (2_808_510_976, 2_973_761_536)
    assert max(result.allocated) == result.peak_allocated
