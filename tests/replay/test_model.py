"""What depends on what: streams, threads, graphs, input, collectives."""

from __future__ import annotations

import pytest
from trace_builder import Trace

from gapless.replay.change import NO_CHANGE, ReplayChange, halve_work, remove_waits
from gapless.replay.fidelity import measure_fidelity
from gapless.replay.model import ReplayModel, ReplayRefusal, build
from gapless.replay.path import busy_share, find_limiter


def model(trace: Trace) -> ReplayModel:
    result = build(trace.timeline())
    assert isinstance(result, ReplayModel)
    return result


def micro(nanoseconds: int) -> float:
    return nanoseconds / 1000


def test_refusals_say_why() -> None:
    trace = Trace()
    trace.operator("aten::mm", 0, 100)
    assert build(trace.timeline()) == ReplayRefusal("the profile shows no work on a GPU")
    trace.kernel("gemm", 10, 20)
    assert isinstance(build(trace.timeline()), ReplayRefusal)


def test_a_stream_waits_for_another() -> None:
    """A copy's stream is waited for by the kernels' stream: halving the copy moves the kernel."""
    trace = Trace()
    trace.copy("HtoD (Pinned -> Device)", 0, 5, copy=(6, 1000), bytes=1 << 24, stream=20)
    trace.call("cudaEventRecord", 10, 1)
    trace.call("cudaStreamWaitEvent", 15, 1)
    trace.launch("gemm", 20, kernel=(1008, 100), stream=7)
    trace.wait(30, 1083, stream=False)
    replay_model = model(trace)
    assert replay_model.graph.crossings.work.tolist() == [1]
    assert replay_model.replay().work_start.tolist() == [6_000, 1_008_000]
    assert replay_model.replay(halve_work([0])).work_start[1] == 508_000
    assert micro(replay_model.replay(halve_work([0])).span) == pytest.approx(613, abs=1)


def test_work_on_another_stream_does_not_hold_up_what_does_not_wait_for_it() -> None:
    trace = Trace()
    trace.copy("HtoD (Pinned -> Device)", 0, 5, copy=(6, 1000), bytes=1 << 24, stream=20)
    trace.launch("gemm", 20, kernel=(26, 2000), stream=7)
    trace.wait(30, 2001, stream=False)
    replay_model = model(trace)
    assert len(replay_model.graph.crossings.work) == 0
    assert replay_model.replay(halve_work([0])).span == replay_model.replay().span


def backward(trace: Trace, begin: float, read: bool) -> float:
    """A step: forward on the main thread, backward on its own; returns when the main thread goes on."""
    now = begin
    trace.operator("aten::mm", now, 20)
    trace.launch("forward", now + 5, kernel=(now + 11, 10))
    length = 400 if read else 5
    if read:
        trace.launch("busy", now + 12, kernel=(now + 22, 385))
        trace.wait(now + 18, length)
    now += 18 + length
    trace.operator("aten::ones_like", now, 20)
    now += 20 + 100
    trace.operator("autograd::engine::evaluate_function: MmBackward0", now, 300, thread=77)
    trace.launch("grad", now + 290, kernel=(now + 296, 50), thread=77)
    return now + 300 + 200


def test_threads_hand_over() -> None:
    trace = Trace()
    now = 0.0
    for _ in range(3):
        now = backward(trace, now, read=True)
    trace.operator("aten::add", now, 10)
    trace.wait(now + 20, 20, stream=False)
    replay_model = model(trace)
    waits = replay_model.waits.host[replay_model.removable].tolist()
    now_span, after = replay_model.replay(), replay_model.replay(remove_waits(waits))
    assert micro(now_span.span) == pytest.approx(replay_model.recorded / 1000, abs=5)
    # The main thread, and so backward on its own thread, begin earlier by all that was waited.
    assert micro(now_span.span - after.span) == pytest.approx(3 * 400, abs=30)


def test_threads_that_run_at_once_do_not_wait_for_each_other() -> None:
    trace = Trace()
    for n in range(20):
        trace.launch("a", 100 * n, 90, kernel=(100 * n + 91, 10))
        trace.launch("b", 100 * n + 50, 90, kernel=(100 * n + 141, 10), thread=77, stream=9)
    replay_model = model(trace)
    assert not (replay_model.graph.anchors.kind == 1).any()


def test_a_graph_follows_its_head() -> None:
    trace = Trace()
    trace.launch("before", 0, kernel=(6, 500))
    number = trace.call("cudaGraphLaunch", 10, 20)
    for begin in (507, 560, 580):
        trace.kernel("node", begin, 10, correlation=number)
    trace.kernel("branch", 540, 30, correlation=number, stream=9)
    trace.wait(40, 560, stream=False)
    replay_model = model(trace)
    moved = replay_model.replay(halve_work([0]))
    assert replay_model.replay().work_start.tolist() == [6_000, 507_000, 540_000, 560_000, 580_000]
    assert (replay_model.replay().work_start[1:] - moved.work_start[1:]).tolist() == [250_000] * 4


def loader(name: str, length: float) -> Trace:
    trace = Trace()
    now = 0.0
    for _ in range(4):
        trace.annotation(f"enumerate(DataLoader)#{name}.__next__", now, length)
        now += length + 10
        trace.launch("gemm", now, kernel=(now + 6, 3000))
        trace.copy("DtoH (Device -> Pageable)", now + 10, 3002, copy=(now + 3007, 2), bytes=4)
        trace.wait(now + 3012, 4)
        now += 3020
    trace.wait(now, 20, stream=False)
    return trace


def test_late_batches_stay_late_and_can_be_made_free() -> None:
    replay_model = model(loader("_MultiProcessingDataLoaderIter", 5000))
    waits = replay_model.waits.host[replay_model.removable].tolist()
    now = replay_model.replay()
    assert micro(now.span) == pytest.approx(replay_model.recorded / 1000, abs=20)
    # The workers' batches come when they come: only the last wait is off the path.
    assert micro(now.span - replay_model.span(waits)) < 100
    free = replay_model.replay(ReplayChange(input_free=True))
    assert micro(now.span - free.span) == pytest.approx(4 * 5000, abs=100)
    assert find_limiter(now) == "input"
    assert find_limiter(free) == "device"


def test_loading_in_the_main_process_is_host_work() -> None:
    replay_model = model(loader("_SingleProcessDataLoaderIter", 5000))
    waits = replay_model.waits.host[replay_model.removable].tolist()
    now = replay_model.replay()
    assert micro(now.span - replay_model.span(waits)) == pytest.approx(3 * 3000 + 3000, abs=3200)
    assert micro(now.span - replay_model.replay(ReplayChange(input_free=True)).span) == pytest.approx(
        20_000, abs=50
    )


def collective(peers: str) -> int:
    trace = Trace()
    trace.launch("gemm", 0, kernel=(6, 1000))
    trace.copy("DtoH (Device -> Pageable)", 10, 1002, copy=(1007, 2), bytes=4)
    trace.wait(1013, 4)
    trace.launch("ncclDevKernel_AllReduce", 3000, kernel=(3006, 500))
    trace.launch("gemm", 3010, kernel=(3507, 1000))
    trace.launch("ncclDevKernel_AllReduce", 3020, kernel=(4508, 50))
    trace.wait(3030, 1533, stream=False)
    replay_model = model(trace)
    change = ReplayChange(collectives="end") if peers == "end" else NO_CHANGE
    return replay_model.replay(change).span - replay_model.replay(change | halve_work([0])).span


def test_peers_come_earlier_or_when_they_came() -> None:
    assert micro(collective("duration")) == pytest.approx(500, abs=1)
    assert collective("end") == 0


def test_launches_of_a_step_in_one_graph() -> None:
    trace = Trace()
    trace.step(1, 0, 1000)
    for n in range(100):
        trace.launch("small", 10 * n, kernel=(10 * n + 6, 2))
    trace.wait(1010, 20, stream=False)
    replay_model = model(trace)
    graphed = replay_model.replay(ReplayChange(graphed=True))
    assert micro(graphed.span) == pytest.approx(100 * 3 + 40, abs=60)
    assert len(replay_model.steps.start) == 1
    assert replay_model.replay().steps.tolist() == [1_000_000]
    assert graphed.steps[0] < 50_000


def test_changes_add_up_in_any_order() -> None:
    change, two = remove_waits([1, 2]) | halve_work([4]), ReplayChange(input_free=True) | halve_work([4, 5])
    assert change | two == two | change
    assert (change | two).scaled == {4: 0.25, 5: 0.5}
    assert NO_CHANGE | change == change
    assert remove_waits([1]).removes_only
    assert not change.removes_only


def test_work_from_before_the_window_is_kept() -> None:
    """The first kernel was behind work that the profile does not show; nothing makes it begin earlier."""
    trace = Trace()
    trace.launch("late", 0, kernel=(50_000, 10))
    trace.copy("DtoH (Device -> Pageable)", 10, 50_020, copy=(50_012, 2), bytes=4)
    trace.wait(50_032, 4)
    trace.launch("next", 50_050, kernel=(50_056, 10))
    trace.wait(50_060, 20, stream=False)
    replay_model = model(trace)
    waits = replay_model.waits.host[replay_model.removable].tolist()
    assert micro(replay_model.replay().span - replay_model.span(waits)) < 100


def test_short_profiles_are_not_trusted() -> None:
    trace = Trace()
    trace.launch("gemm", 0, kernel=(6, 100))
    trace.wait(10, 101, stream=False)
    fidelity = measure_fidelity(model(trace))
    assert not fidelity.trusted
    assert fidelity.reason == "the profile contains only 1 device operations"


def test_a_wait_that_its_work_does_not_explain_makes_prices_bounds() -> None:
    trace = Trace()
    for n in range(60):
        trace.launch("gemm", 1000 * n, kernel=(1000 * n + 6, 10))
        trace.wait(1000 * n + 100, 800)
    fidelity = measure_fidelity(model(trace))
    assert fidelity.explained < 0.1
    assert not fidelity.trusted
    assert "blocked time" in fidelity.reason


def test_a_wait_for_work_from_before_the_window_leaves_the_rest_to_be_priced() -> None:
    """Nothing before it could be left out: it ends when it did."""
    trace = Trace()
    trace.launch("gemm", 0, kernel=(6, 10))
    trace.wait(20, 20_000, stream=False)
    now = 20_100.0
    for _ in range(60):
        trace.launch("gemm", now, kernel=(now + 6, 300))
        trace.copy("DtoH (Device -> Pageable)", now + 10, 300, copy=(now + 307, 2), bytes=4)
        trace.wait(now + 312, 4)
        now += 400
    replay_model = model(trace)
    early = int(replay_model.waits.blocked.argmax())
    assert replay_model.waits.work[early] == -1
    assert not replay_model.removable[early]
    fidelity = measure_fidelity(replay_model)
    assert fidelity.trusted, fidelity.reason
    assert abs(fidelity.span_error) < 0.001
    every = replay_model.waits.host.tolist()
    assert 20_000_000 < replay_model.span(every) < replay_model.replay().span


@pytest.mark.parametrize(("length", "limits"), [(70, "host"), (90, "device"), (10, "host")])
def test_a_device_that_idles_a_fifth_of_the_time_is_not_what_limits(length: float, limits: str) -> None:
    """Every kernel is waited for, so that most of the time lies behind the device's work."""
    trace = Trace()
    for begin in range(0, 6000, 100):
        trace.launch("gemm", begin, kernel=(begin + 6, length))
        trace.wait(begin + 10, length - 2)
    now = model(trace).replay()
    assert busy_share(now) == pytest.approx(length / 100, abs=0.03)
    assert find_limiter(now) == limits


@pytest.mark.parametrize("gap", [1, 3, 6])
def test_a_full_queue_is_the_devices_limit_however_long_it_takes_between_kernels(gap: int) -> None:
    trace = Trace()
    for number in range(400):
        trace.launch("gemm", 5 * number, kernel=(10 + (20 + gap) * number, 20))
    trace.wait(2050, (20 + gap) * 400 - 2040)
    assert find_limiter(model(trace).replay()) == "device"


def test_a_device_between_two_kernels_that_are_queued_does_not_idle() -> None:
    trace = Trace()
    trace.launch("gemm", 0, kernel=(6, 400))
    for number in range(60):
        trace.launch("add", 10 + 5 * number, kernel=(407.5 + 4 * number, 2.5))
    trace.wait(320, 330)
    assert busy_share(model(trace).replay()) > 0.95
