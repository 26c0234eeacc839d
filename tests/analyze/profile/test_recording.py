"""How a trace was taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trace_builder import Trace

from gapless.analyze.profile.building import find_recording
from gapless.analyze.profile.trace_steps import find_steps, main_device
from gapless.model.profile import Recording
from gapless.trace.timeline import Timeline


def recording_of(trace: Trace) -> Recording:
    timeline = trace.timeline()
    return find_recording(timeline, find_steps(timeline, 0))


def step(trace: Trace) -> Trace:
    trace.step(1, 0, 100)
    trace.launch("gemm", 0, kernel=(10, 10))
    return trace


def test_frames() -> None:
    trace = step(Trace())
    trace.frame("train.py(3): main", 0, 100)
    result = recording_of(trace)
    assert (result.stacks, result.with_stack, result.events_per_step) == ("frames", True, 4)


def test_call_stacks() -> None:
    trace = step(Trace(dialect="old"))
    trace.operator("aten::mm", 0, 10, stack="train.py(3): main;train.py(9): <module>")
    result = recording_of(trace)
    assert (result.stacks, result.with_stack) == ("call-stack", True)


def test_stacks_asked_for_and_not_there() -> None:
    """The profiler says that it was to record stacks; none came."""
    trace = step(Trace(with_stack=True))
    trace.operator("aten::mm", 0, 10)
    result = recording_of(trace)
    assert (result.stacks, result.with_stack) == ("", True)


def test_nothing_asked_for() -> None:
    trace = step(Trace(with_stack=False, head={"profile_memory": 0}))
    assert recording_of(trace) == Recording(events_per_step=3)


def test_options() -> None:
    trace = step(Trace(with_stack=False, head={"record_shapes": 1, "profile_memory": 1}))
    result = recording_of(trace)
    assert (result.with_shapes, result.with_memory, result.with_stack) == (True, True, False)


def test_old_files_do_not_name_their_options() -> None:
    trace = step(Trace(dialect="old"))
    trace.memory(50, 100)
    assert recording_of(trace).with_memory


def test_overhead_in_the_steps() -> None:
    trace = step(Trace())
    trace.overhead("Activity Buffer Request", 10, 10)
    trace.overhead("Buffer Flush", 15, 20)
    trace.overhead("Buffer Flush", 95, 30)
    trace.overhead("Resource", 200, 30)
    result = recording_of(trace)
    assert result.overhead == 30_000
    assert list(result.overheads.items()) == [("Buffer Flush", 25_000), ("Activity Buffer Request", 10_000)]


@pytest.mark.parametrize(
    "name",
    ["Command Buffer Full", "Driver Compiler", "Lazy Function Loading", "Runtime Triggered Module Loading"],
)
def test_what_the_driver_does_is_no_overhead_of_the_profiler(name: str) -> None:
    """CUPTI reports it as overhead, too: the CPU that is far ahead and waits for room among the launches."""
    trace = step(Trace())
    plain = recording_of(step(Trace()))
    trace.overhead(name, 10, 80)
    assert recording_of(trace) == plain


def test_events_are_counted_per_step() -> None:
    trace = Trace()
    for number in range(2):
        trace.step(number, number * 100, 100)
        trace.launch("gemm", number * 100 + 1, kernel=(number * 100 + 10, 10))
        trace.memory(number * 100 + 5, 10)
    trace.operator("aten::mm", 300, 10)
    assert recording_of(trace).events_per_step == 4


@pytest.mark.parametrize(
    ("name", "stacks"),
    [
        ("kineto-resnet50_num_workers_0-worker0.1623143089861-9b36", "call-stack"),
        ("ao-trace-f42b", "frames"),
        ("param-linear_kineto-03b8", ""),
    ],
)
def test_public_traces(public_trace: Callable[[str], Timeline], name: str, stacks: str) -> None:
    timeline = public_trace(name)
    steps = find_steps(timeline, main_device(timeline))
    assert find_recording(timeline, steps).stacks == stacks


def test_overhead_of_a_public_trace(public_trace: Callable[[str], Timeline]) -> None:
    name = "TraceLens-semantic_purity_deepseek_r1-1782843274.7730265-TP-0-DECODE.trace-8d5b"
    timeline = public_trace(name)
    result = find_recording(timeline, find_steps(timeline, 0))
    assert result.overheads == {"Activity Buffer Request": result.overhead}
    assert result.overhead == 653_324
