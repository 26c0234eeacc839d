"""Kernels by time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_profiles import traces
from trace_builder import Trace

from gapless.analyze.profile.kernels import MAX_KERNELS_KEPT, longest_kernels
from gapless.analyze.profile.trace_steps import covered_time, find_steps, main_device
from gapless.model.profile import KernelTime
from gapless.trace.timeline import Timeline

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def kernels_of(trace: Trace) -> tuple[KernelTime, ...]:
    timeline = trace.timeline()
    return longest_kernels(timeline, find_steps(timeline, 0), 0)


def test_the_longest_first_with_means_by_time() -> None:
    trace = Trace()
    trace.step(1, 0, 100)
    trace.operator("aten::mm", 0, 30)
    trace.launch("gemm", 2, kernel=(10, 10), **{"blocks per SM": 2.0, "est. achieved occupancy %": 10})
    trace.launch("relu", 10, kernel=(20, 25), **{"blocks per SM": "inf", "est. achieved occupancy %": 50})
    trace.launch("gemm", 20, kernel=(50, 30), **{"blocks per SM": 4.0, "est. achieved occupancy %": 50})
    trace.launch(NCCL, 40, kernel=(80, 5))
    trace.copy("HtoD", 60, 5, copy=(90, 5))
    assert kernels_of(trace) == (
        KernelTime(
            name="gemm", calls=2, total=40_000, operator="aten::mm", blocks_per_sm=3.5, occupancy=40.0
        ),
        KernelTime(name="relu", calls=1, total=25_000, operator="aten::mm", occupancy=50.0),
        KernelTime(name=NCCL, calls=1, total=5_000, communication=True, blocks_per_sm=1.5, occupancy=38.0),
    )


def test_calls_without_a_value_are_left_out_of_the_mean() -> None:
    trace = Trace()
    trace.step(1, 0, 100)
    trace.launch("gemm", 2, kernel=(10, 10), **{"blocks per SM": 2.0, "est. achieved occupancy %": 10})
    trace.launch("gemm", 20, kernel=(50, 30), **{"blocks per SM": "inf", "est. achieved occupancy %": -1})
    assert [(kernel.blocks_per_sm, kernel.occupancy) for kernel in kernels_of(trace)] == [(2.0, 10.0)]


@pytest.mark.parametrize("dialect", ["new", "old"])
def test_the_operator_is_the_innermost_of_most_calls(dialect: str) -> None:
    trace = Trace(dialect=dialect)  # type: ignore[arg-type]
    trace.step(1, 0, 300)
    for place, name in enumerate(["aten::add", "aten::mul", "aten::mul"]):
        start = 10 + place * 40
        trace.operator("aten::linear", start, 30)
        trace.operator(name, start + 2, 20)
        if dialect == "new":  # old files hold it as an operator
            trace.annotation("my block", start + 4, 12)
        trace.launch("elementwise", start + 6, kernel=(start + 20, 3))
    trace.launch("bare", 200, kernel=(210, 1))
    assert [(kernel.name, kernel.operator) for kernel in kernels_of(trace)] == [
        ("elementwise", "aten::mul"),
        ("bare", ""),
    ]


def test_a_kernel_counts_with_its_part_in_the_steps() -> None:
    trace = Trace()
    trace.step(1, 20, 50)
    trace.launch("gemm", 30, kernel=(30, 15))
    trace.kernel("late", 60, 35)
    trace.kernel("outside", 80, 15)
    assert [(kernel_time.name, kernel_time.total) for kernel_time in kernels_of(trace)] == [
        ("gemm", 15_000),
        ("late", 10_000),
    ]


def test_other_devices_are_left_out() -> None:
    trace = Trace()
    trace.step(1, 0, 50)
    trace.launch("gemm", 0, kernel=(10, 10), device=1)
    assert kernels_of(trace) == ()


def test_no_more_than_a_profile_keeps() -> None:
    trace = Trace()
    for number in range(MAX_KERNELS_KEPT + 5):
        trace.launch(f"kernel_{number}", number * 20, kernel=(number * 20 + 6, 1 + number % 7))
    kept = kernels_of(trace)
    assert len(kept) == MAX_KERNELS_KEPT
    assert kept[-1].total <= kept[0].total == 7_000


@settings(max_examples=60, deadline=None)
@given(st.booleans().flatmap(traces))
def test_totals_are_those_of_the_timeline(trace: Trace) -> None:
    timeline = trace.timeline()
    steps = find_steps(timeline, 0)
    kernels = longest_kernels(timeline, steps, 0)
    rows = timeline.work.kind == 0
    length = covered_time(steps.start, steps.end, timeline.work.start[rows], timeline.work.end[rows])
    assert sum(kernel.total for kernel in kernels) == int(length.sum())
    assert sum(kernel.calls for kernel in kernels) == int((length > 0).sum())
    assert [kernel.total for kernel in kernels] == sorted((kernel.total for kernel in kernels), reverse=True)


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        (
            "kineto-resnet50_num_workers_0-worker0.1623143089861-9b36",
            ["aten::cudnn_convolution_backward_input", "aten::cudnn_convolution_backward_weight"],
        ),
        ("TraceLens-h100-google_owlv2-large-patch14-ensemble-1016001-d242", ["aten::_softmax", "aten::bmm"]),
    ],
)
def test_public_traces(public_trace: Callable[[str], Timeline], name: str, operators: list[str]) -> None:
    timeline = public_trace(name)
    device = main_device(timeline)
    kernels = longest_kernels(timeline, find_steps(timeline, device), device)
    assert [kernel.operator for kernel in kernels[:2]] == operators
