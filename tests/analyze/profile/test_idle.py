"""Why the device was idle: each cause where it is known, and all of them adding up."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import Trace, training

from gapless.analyze.profile.idle import IdleStretch, attribute_idleness
from gapless.analyze.profile.trace_steps import busy_spans, covered_time, find_steps, main_device
from gapless.analyze.profile.waits import find_waits

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def totals(stretches: list[IdleStretch]) -> dict[str, int]:
    """Idle nanoseconds by cause."""
    counter: Counter[str] = Counter()
    for stretch in stretches:
        counter[stretch.cause] += int(stretch.spans.length.sum())
    return dict(counter)


def causes(trace: Trace) -> dict[str, int]:
    """Idle microseconds by cause."""
    timeline = trace.timeline()
    device = main_device(timeline)
    steps = find_steps(timeline, device)
    total, stretches = attribute_idleness(timeline, device, steps, find_waits(timeline))
    idle_by_cause = totals(stretches)
    assert sum(idle_by_cause.values()) == total
    return {cause: idle // 1000 for cause, idle in idle_by_cause.items()}


def step(trace: Trace, length: float) -> None:
    trace.step(1, 0, length)
    trace.launch("first", 1, 4, kernel=(6, 100))


def test_a_wait_owes_the_idleness_that_follows_it():
    trace = Trace()
    step(trace, 1000)
    trace.wait(10, 100)  # ends at 110, the kernel at 106
    trace.launch("next", 150, 5, kernel=(160, 840))
    idle_by_cause = causes(trace)
    # 4 µs at the end of the wait, then 50 of the 96 that the device worked while the host stood.
    assert idle_by_cause.pop("wait") == 54
    assert sum(idle_by_cause.values()) == 6  # from the step's begin to the first kernel


def test_a_wait_owes_no_more_than_it_lasted():
    trace = Trace()
    step(trace, 2000)
    trace.wait(90, 20)
    trace.launch("next", 1500, 5, kernel=(1510, 490))
    idle_by_cause = causes(trace)
    assert idle_by_cause["wait"] == 20
    assert idle_by_cause["host"] > 1300


def test_a_long_wait_behind_a_full_queue_costs_nothing():
    trace = Trace()
    trace.step(1, 0, 1000)
    trace.launch("one", 0, 4, kernel=(0, 500))
    trace.launch("two", 5, 4, kernel=(500, 500))
    trace.wait(10, 480)
    trace.launch("three", 495, 4, kernel=(1000, 1))
    assert causes(trace).get("wait", 0) == 0


def test_a_later_step_owes_nothing_to_an_old_wait():
    trace = Trace()
    for number in range(4):
        now = 1000 * number
        trace.step(number, now, 1000)
        trace.launch("one", now + 100, 4, kernel=(now + 106, 200))
        if number == 0:
            trace.wait(now + 110, 196)
        trace.launch("two", now + 500, 4, kernel=(now + 505, 495))
    timeline = trace.timeline()
    steps = find_steps(timeline, 0)
    _, stretches = attribute_idleness(timeline, 0, steps, find_waits(timeline))
    owed = [stretch.spans for stretch in stretches if stretch.cause == "wait"]
    assert max(int(spans.end.max()) for spans in owed) <= 2_000_000


def test_the_next_batch_was_not_there():
    trace = Trace()
    step(trace, 1000)
    trace.annotation(LOADER, 120, 600)
    trace.launch("next", 730, 5, kernel=(740, 260))
    assert causes(trace)["input"] == 600


def test_memory_was_taken_from_the_driver():
    trace = Trace()
    step(trace, 1000)
    trace.call("cudaMalloc", 120, 400)
    trace.launch("next", 530, 5, kernel=(540, 460))
    assert causes(trace)["allocator"] == 400


@pytest.mark.parametrize("name", ["hipFree", "cuMemCreate", "cudaHostAlloc"])
def test_all_makers_and_ways_of_memory(name):
    trace = Trace(vendor="amd" if name.startswith("hip") else "nvidia")
    step(trace, 1000)
    trace.call(name, 120, 400, driver=name.startswith("cu") and not name.startswith("cuda"))
    trace.launch("next", 530, 5, kernel=(540, 460))
    assert causes(trace)["allocator"] == 400


def test_kernels_shorter_than_their_launches():
    trace = Trace()
    trace.step(1, 0, 1000)
    for number in range(50):
        trace.launch("tiny", 20 * number, 10, kernel=(20 * number + 12, 2))
    idle_by_cause = causes(trace)
    assert idle_by_cause["launch"] > 800
    assert "host" not in idle_by_cause


def test_the_host_does_something_else():
    trace = Trace()
    step(trace, 2000)
    trace.operator("aten::sort", 200, 1200)
    trace.launch("next", 1500, 5, kernel=(1510, 490))
    idle_by_cause = causes(trace)
    assert idle_by_cause["host"] > 1300
    assert "wait" not in idle_by_cause


def test_whether_the_host_works_or_waits_is_unknown_of_a_runtime_of_unknown_names():
    trace = Trace()
    step(trace, 2000)
    trace.raw(ph="X", cat="xpu_runtime", name="urQueueFinish", pid=1, tid=1, ts=trace.time(200), dur=1200)
    trace.launch("next", 1500, 5, kernel=(1510, 490))
    idle_by_cause = causes(trace)
    assert idle_by_cause["unknown"] > 1300
    assert "host" not in idle_by_cause


def test_only_collectives_run():
    trace = Trace()
    step(trace, 1000)
    trace.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 5, kernel=(106, 500), stream=20)
    trace.launch("next", 40, 5, kernel=(606, 394))
    assert causes(trace)["communication"] == 500


def test_a_collective_beside_computation_is_not_exposed():
    trace = Trace()
    trace.step(1, 0, 1000)
    trace.launch("compute", 0, 4, kernel=(4, 996))
    trace.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 5, kernel=(106, 500), stream=20)
    assert "communication" not in causes(trace)


def test_a_graph_launch_and_a_long_call():
    trace = Trace()
    step(trace, 6000)
    trace.call("cudaGraphLaunch", 120, 400)
    trace.call("cudaModuleLoadData", 600, 3000)
    trace.launch("next", 4000, 5, kernel=(4010, 1990))
    assert causes(trace)["graph"] == 3400


def test_the_device_takes_a_moment_between_queued_kernels():
    trace = Trace()
    step(trace, 300)
    trace.launch("next", 20, 5, kernel=(108, 192))
    assert causes(trace)["graph"] == 2


def test_the_profiler_itself():
    trace = Trace()
    step(trace, 1000)
    trace.overhead("Activity Buffer Request", 150, 300)
    trace.launch("next", 730, 5, kernel=(740, 260))
    assert causes(trace)["profiler"] == 300


def test_idleness_without_a_cause_is_unknown():
    trace = Trace()
    step(trace, 1000)
    trace.kernel("from before the profile", 500, 500)  # no call launched it
    idle_by_cause = causes(trace)
    assert idle_by_cause["unknown"] == 394


def test_a_launch_that_is_not_there_may_have_taken_the_time_itself():
    trace = Trace()
    step(trace, 2000)
    trace.operator("aten::mm", 200, 1500)
    trace.kernel("gemm", 1500, 500)  # its call was lost, and with it that it loaded a library
    idle_by_cause = causes(trace)
    assert idle_by_cause["unknown"] == 1394
    assert "host" not in idle_by_cause


def test_waits_of_threads_that_launch_nothing_hold_nothing_up():
    trace = Trace()
    step(trace, 2000)
    trace.call("cudaEventSynchronize", 90, 1390, thread=5000)  # a watchdog
    trace.launch("next", 1500, 5, kernel=(1510, 490))
    assert "wait" not in causes(trace)


def test_a_wait_for_what_came_before_the_recording():
    trace = Trace()
    trace.step(1, 0, 1000)
    trace.operator("aten::copy_", 5, 500)
    trace.copy("DtoH (Device -> Pageable)", 10, 480, copy=(485, 3))
    trace.launch("next", 520, 5, kernel=(530, 470))
    idle_by_cause = causes(trace)
    assert idle_by_cause["unknown"] == 477  # all of the call but the 3 µs of the copy
    assert "wait" not in idle_by_cause


def test_the_first_copy_to_the_device_waits_for_itself():
    trace = Trace()
    trace.step(1, 0, 1000)
    trace.operator("aten::copy_", 5, 500)
    trace.copy("HtoD (Pageable -> Device)", 10, 480, copy=(430, 58), bytes=1 << 20)
    trace.launch("next", 520, 5, kernel=(530, 470))
    assert causes(trace)["wait"] >= 420


def test_the_last_synchronization_is_the_profilers_own():
    trace = Trace()
    step(trace, 1000)
    trace.wait(10, 900, stream=False)
    assert "wait" not in causes(trace)


@pytest.mark.parametrize("dialect", ["new", "middle", "old"])
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_all_dialects_agree(dialect, vendor):
    assert causes(training(dialect, vendor=vendor)) == causes(training("new", vendor=vendor))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["launch", "wait", "copy", "malloc", "loader", "host", "unlinked", "nccl"]),
            st.integers(0, 400),
            st.integers(1, 300),
            st.booleans(),
        ),
        min_size=1,
        max_size=25,
    ),
    st.booleans(),
)
def test_the_parts_always_add_up(script, stepped):
    trace = Trace()
    now = device = 1.0
    trace.launch("first", 0, 1, kernel=(1, 1))
    for kind, gap, length, other in script:
        now += gap
        thread = 4077 if other else None
        if kind in ("launch", "nccl"):
            device = max(device, now + 3) + 1
            name = "ncclDevKernel_AllReduce_Sum" if kind == "nccl" else "kernel"
            trace.launch(name, now, 3, kernel=(device, length), thread=thread)
            device += length
        elif kind == "wait":
            trace.wait(now, length, thread=thread)
        elif kind == "copy":
            device = max(device, now)
            trace.copy("HtoD (Pageable -> Device)", now, length, copy=(device, length), thread=thread)
            device += length
        elif kind == "malloc":
            trace.call("cudaMalloc", now, length, thread=thread)
        elif kind == "loader":
            trace.annotation(LOADER, now, length, thread=thread)
        elif kind == "unlinked":
            device = max(device, now)
            trace.kernel("alone", device, length)
            device += length
        else:
            trace.operator("aten::sort", now, length, thread=thread)
        now += length
    if stepped:
        trace.step(1, 0, now / 2)
        trace.step(2, now / 2, now / 2 + 5)
    timeline = trace.timeline()
    number = main_device(timeline)
    steps = find_steps(timeline, number)
    waits = find_waits(timeline)
    total, stretches = attribute_idleness(timeline, number, steps, waits)
    start, end = busy_spans(timeline, number)
    busy = int(covered_time(start, end, steps.start, steps.end).sum())
    assert total == steps.total - busy
    assert sum(totals(stretches).values()) == total
    for stretch in stretches:
        assert (stretch.spans.end > stretch.spans.start).all()
    blocked = int((timeline.host.end - timeline.host.start)[waits.rows].sum())
    assert totals(stretches).get("wait", 0) <= blocked


def test_the_parts_add_up_on_every_real_trace(real_profile):
    profile = real_profile
    assert sum(cost.idle for cost in profile.costs) == profile.idle
    assert profile.idle == profile.steps.total - sum(profile.steps.busy)
    waited = [cost for cost in profile.costs if cost.cause == "wait"]
    assert all(cost.idle <= cost.blocked + 1 for cost in waited if profile.steps.source == "span")
