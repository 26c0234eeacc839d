"""How the host feeds the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_profiles import traces
from trace_builder import Trace

from gapless.analyze.profile.launches import count_launches
from gapless.analyze.profile.trace_steps import find_steps, main_device
from gapless.model.profile import Launches
from gapless.trace.timeline import Timeline


def launches_of(trace: Trace) -> Launches:
    timeline = trace.timeline()
    return count_launches(timeline, find_steps(timeline, 0), 0)


def step(length: int = 100) -> Trace:
    trace = Trace()
    trace.step(1, 0, length)
    return trace


def test_a_host_that_is_ahead() -> None:
    trace = step()
    trace.launch("gemm", 0, 5, kernel=(10, 40))
    trace.launch("gemm", 10, 5, kernel=(50, 30))
    trace.launch("relu", 20, 5, kernel=(80, 2))
    assert launches_of(trace) == Launches(
        count=3,
        short=1,
        depth=(5 + 35 + 55) / 100,  # from the return of each call to the start of its kernel
        empty=round(1 - (5 + 65) / 100, 6),
        delay=40_000,
        call=5_000,
        kernel=30_000,
    )


def test_a_host_that_is_behind() -> None:
    trace = step()
    for number in range(5):
        trace.launch("relu", number * 20, 8, kernel=(number * 20 + 8, 2))
    assert launches_of(trace) == Launches(
        count=5, short=5, depth=0.0, empty=1.0, delay=8_000, call=8_000, kernel=2_000
    )


def test_a_copy_that_is_done_before_its_call_returns_was_never_pending() -> None:
    trace = step()
    trace.copy("HtoD (Pageable -> Device)", 0, 50, copy=(20, 30))
    result = launches_of(trace)
    assert (result.count, result.short, result.depth, result.empty) == (1, 0, 0.0, 1.0)


def test_a_graph_counts_kernel_by_kernel_and_shares_its_launch() -> None:
    trace = step()
    graph = trace.call("cudaGraphLaunch", 0, 10)
    for place, length in enumerate((1, 6, 6, 6)):
        trace.kernel("gemm", 20 + place * 10, length, correlation=graph)
    result = launches_of(trace)
    assert (result.count, result.graphs, result.call) == (4, 1, 10_000)
    assert result.short == 1  # 1 µs is less than a fourth of 10
    assert result.depth == (10 + 20 + 30 + 40) / 100


def test_graphs_of_amd_and_of_the_driver() -> None:
    trace = step()
    for place, name in enumerate(
        ("hipGraphLaunch", "cuGraphLaunch", "cudaGraphLaunch_v10000", "cudaGraphInstantiate")
    ):
        number = trace.call(name, place * 10, 5)
        trace.kernel("gemm", place * 10 + 6, 1, correlation=number)
    assert launches_of(trace).graphs == 3


def test_work_outside_the_steps_or_of_another_device_does_not_count() -> None:
    trace = step(50)
    trace.launch("gemm", 0, kernel=(10, 10))
    for start in (70, 170):
        trace.launch("gemm", start, 20, kernel=(start + 60, 30))
        trace.launch("gemm", start - 70, 20, kernel=(start - 10, 30), device=1)
    assert launches_of(trace) == Launches(
        count=1, depth=0.1, empty=0.9, delay=10_000, call=5_000, kernel=10_000
    )


def test_work_without_a_known_launch_counts_and_tells_no_more() -> None:
    trace = step()
    trace.kernel("gemm", 10, 5, correlation=999_999)
    assert launches_of(trace) == Launches(count=1, empty=1.0)


def test_no_device_work() -> None:
    assert launches_of(step()) == Launches(empty=1.0)


@settings(max_examples=60, deadline=None)
@given(st.booleans().flatmap(traces))
def test_bounds(trace: Trace) -> None:
    result = launches_of(trace)
    assert 0 <= result.empty <= 1
    assert 0 <= result.short <= result.count
    assert result.depth >= 1 - result.empty - 0.001
    assert min(result.delay, result.call, result.kernel) >= 0


def test_public_traces(public_trace: Callable[[str], Timeline]) -> None:
    """One profile whose host is far ahead, one whose host feeds kernel by kernel, one with a graph."""
    results = {}
    for short, name in {
        "ahead": "TraceLens-mi300-resnet_act_checkpoint-7ad4",
        "behind": "segment-anything-fast-amg_example-asdf_False-c51d",
        "graph": "TraceLens-inference-vllm_decode_full-graph_execution-21a8",
    }.items():
        timeline = public_trace(name)
        device = main_device(timeline)
        results[short] = count_launches(timeline, find_steps(timeline, device), device)
    assert results["ahead"].empty < 0.01
    assert results["behind"].empty > 0.5
    assert results["behind"].short / results["behind"].count == pytest.approx(0.57, abs=0.01)
    assert (results["graph"].graphs, results["graph"].count) == (1, 434)
