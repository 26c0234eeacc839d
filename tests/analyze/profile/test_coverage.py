"""Coverage comes first: what should be in a profile is compared with what is there."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from trace_builder import Trace, training

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.coverage import judge_coverage
from gapless.analyze.profile.profile_report import report_run
from gapless.analyze.profile.trace_steps import find_steps, main_device
from gapless.errors import UnreadableInput
from gapless.model import Profile
from gapless.trace.read import read_bytes
from gapless.trace.timeline import Timeline

Event = dict[str, Any]
FOLDER = Path(__file__).resolve().parents[4] / "shared" / "traces"
SMALL = sorted(
    path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz") if path.stat().st_size < 300_000
)
"""`benchmarks/damaged.py` looks at larger ones."""
THINNED = ("call_stack-backward_thread-0ee1", "trace_compare-base-base-867d", "trace_compare-test-test-2cb0")
"""Public profiles that were thinned by hand, down to a dozen events each."""


def profile_of(trace: Trace, keep: Callable[[Event], bool] = lambda event: True) -> Profile:
    """The profile of `trace` without the events that `keep` does not."""
    document = trace.document()
    document["traceEvents"] = [event for event in document["traceEvents"] if keep(event)]
    return build_profile(read_bytes(json.dumps(document).encode()))


def category(event: Event) -> str:
    return str(event.get("cat", ""))


def launches(count: int = 40, graphs: bool = False) -> Trace:
    """One launch every 100 µs, with 60 µs of a kernel each (two of a graph), and a synchronization."""
    trace = Trace()
    for number in range(count):
        begin = 100.0 * number
        around = trace.operator("aten::mm", begin, 20)
        call = "cudaGraphLaunch" if graphs else ""
        tied = trace.launch("gemm", begin + 2, 10, kernel=(begin + 20, 60), call=call, external=around)
        if graphs:
            trace.kernel("relu", begin + 80, 5, correlation=tied)
            place = {"pid": trace.device, "tid": 7, "ts": trace.time(begin + 80)}
            trace.raw(ph="f", id=tied, cat="ac2g", name="ac2g", bp="e", **place)
    trace.call("cudaDeviceSynchronize", 100.0 * count, 10)
    return trace


def test_a_whole_profile_is_complete() -> None:
    coverage = profile_of(launches()).coverage
    assert coverage.complete
    assert (coverage.launches, coverage.records, coverage.missing) == (40, 40, ())


@pytest.mark.parametrize("lost", [1, 2, 3, 30])
def test_below_95_percent_of_the_records_no_verdict_is_given(lost: int) -> None:
    numbers = iter(range(1000))
    profile = profile_of(launches(), lambda event: category(event) != "kernel" or next(numbers) % 40 >= lost)
    missing = {gap.kind: (gap.seen, gap.of) for gap in profile.coverage.missing}
    assert missing["launch"] == (40 - lost, 40)
    # Two of 40 are 95 %; what they hide is more than 5 % of the time from the second on.
    assert profile.coverage.complete is (lost < 2)
    verdict = report_run([profile]).verdict
    assert verdict.sentence.startswith("Cannot tell: ") is (lost >= 2)
    if lost == 30:
        assert verdict.sentence == "Cannot tell: 30 of 40 launches have no GPU work in this file"
        assert verdict.do_first == ()
        assert "at most" in verdict.why[0] or "between" in verdict.why[0]


def test_the_bounds_hold_what_the_whole_profile_says() -> None:
    whole = profile_of(launches())
    numbers = iter(range(1000))
    profile = profile_of(launches(), lambda event: category(event) != "kernel" or next(numbers) % 3 != 1)
    assert profile.idle - profile.coverage.hidden <= whole.idle <= profile.idle


def test_graph_launches_without_their_kernels() -> None:
    trace = launches(10, graphs=True)
    kept = sorted({event["args"]["correlation"] for event in trace.events if category(event) == "kernel"})[:2]
    profile = profile_of(
        trace, lambda event: category(event) != "kernel" or event["args"]["correlation"] in kept
    )
    assert report_run([profile]).verdict.sentence.startswith(
        "Cannot tell: 8 of 10 graph launches have no kernels in this file"
    )


def test_a_graph_that_lost_some_of_its_kernels() -> None:
    """The arrows to them are there."""
    profile = profile_of(launches(10, graphs=True), lambda event: event["name"] != "relu")
    assert profile.coverage.reason == "10 of 20 kernels and copies are not in this file"


def test_launches_into_a_graph_that_is_captured_have_no_work() -> None:
    trace = launches()
    trace.call("cudaStreamBeginCapture", 4100, 2)
    for number in range(30):
        trace.call("cudaLaunchKernel", 4110 + 5 * number, 2)
    trace.call("cudaStreamEndCapture", 4300, 2)
    assert profile_of(trace).coverage.complete


def test_memsets_of_nothing_and_callbacks_have_no_work() -> None:
    trace = launches()
    for number in range(30):
        trace.call("cudaMemsetAsync", 4110 + 5 * number, 2)
        trace.call("cudaLaunchHostFunc", 4112 + 5 * number, 2)
    assert profile_of(trace).coverage.complete


def test_work_queued_before_the_recording_began() -> None:
    trace = Trace()
    for number in range(20):
        trace.kernel("earlier", 60.0 * number, 58, correlation=10 + number)
    for number in range(20):
        trace.launch("gemm", 100 + 10.0 * number, 5, kernel=(1200 + 60.0 * number, 58))
    trace.call("cudaDeviceSynchronize", 400, 2100)
    profile = profile_of(trace)
    assert profile.coverage.complete
    gone = [call for call in profile.coverage.missing if call.kind == "call"]
    assert gone == []


def test_work_whose_launches_were_lost() -> None:
    numbers = iter(range(1000))
    profile = profile_of(
        launches(), lambda event: category(event) != "cuda_runtime" or next(numbers) % 2 == 0
    )
    assert "have no launch in this file" in profile.coverage.reason
    assert profile.coverage.idle_known
    assert report_run([profile]).verdict.why[0].startswith("The GPU idles")


def test_operators_that_the_profiler_numbered() -> None:
    numbers = iter(range(1000))
    profile = profile_of(launches(), lambda event: category(event) != "cpu_op" or next(numbers) % 4 != 2)
    assert profile.coverage.reason == "10 of 40 CPU events are not in this file"


def test_operators_that_only_their_calls_still_name() -> None:
    """The last ones leave no gap in the numbers."""
    numbers = iter(range(1000))
    profile = profile_of(launches(), lambda event: category(event) != "cpu_op" or next(numbers) < 30)
    assert profile.coverage.reason == "10 of 40 CPU events are not in this file"


@pytest.mark.parametrize("shift", [-5000.0, -300.0, 1000.0, 80_000.0])
def test_times_of_the_device_that_cannot_be_right(shift: float) -> None:
    document = launches().document()
    for event in document["traceEvents"]:
        if category(event) == "kernel":
            event["ts"] += shift
    profile = build_profile(read_bytes(json.dumps(document).encode()))
    assert profile.coverage.contradictory
    assert not profile.coverage.idle_known


def test_a_file_that_is_cut_off() -> None:
    data = training(steps=4).text()
    profile = build_profile(read_bytes(data[: -len(data) // 4]))
    verdict = report_run([profile]).verdict
    assert verdict.sentence.startswith("Cannot tell: ")
    assert "the file is cut off" in verdict.sentence
    assert profile.prices is None or profile.prices.refused


def test_two_profiles_in_one_file() -> None:
    data = launches().text()
    profile = build_profile(read_bytes(data + b"\n" + data))
    sentence = report_run([profile]).verdict.sentence
    assert sentence.startswith("Cannot tell: the file contains 2 profiles, one after the other")


def test_two_processes_in_one_file() -> None:
    document = launches().document()
    more = Trace(pid=5000, main=5000, device=1, correlation=5000)
    for number in range(40):
        more.launch("gemm", 100.0 * number, 10, kernel=(100.0 * number + 20, 60))
    document["traceEvents"] += more.document()["traceEvents"]
    profile = build_profile(read_bytes(json.dumps(document).encode()))
    assert profile.coverage.processes == 2
    assert "the launches of 2 processes" in report_run([profile]).verdict.sentence


def test_a_piece_that_was_written_twice_changes_nothing() -> None:
    document = training(steps=4).document()
    events = document["traceEvents"]
    whole = build_profile(read_bytes(json.dumps(document).encode()))
    document["traceEvents"] = [*events, *events[10:60]]
    twice = build_profile(read_bytes(json.dumps(document).encode()))
    assert twice.coverage.complete
    assert [(c.cause, c.calls, c.idle) for c in twice.costs] == [
        (c.cause, c.calls, c.idle) for c in whole.costs
    ]
    assert any("there twice" in note for note in twice.notes)


def test_launches_without_work_are_distinguished_from_a_cpu_profile() -> None:
    with pytest.raises(UnreadableInput, match="has no GPU work but 40 launches"):
        profile_of(launches(), lambda event: category(event) != "kernel")
    document = launches().document()
    for event in document["traceEvents"]:
        if category(event) == "kernel":
            event["ts"] *= 1000
    with pytest.raises(UnreadableInput, match="days away from the others"):
        build_profile(read_bytes(json.dumps(document).encode()))
    only = Trace()
    only.operator("aten::mm", 0, 10)
    with pytest.raises(UnreadableInput, match="has no GPU work: record it while a GPU works"):
        profile_of(only)
    on_a_gpu = Trace(gpu="NVIDIA H100")
    on_a_gpu.operator("aten::mm", 0, 10)
    with pytest.raises(UnreadableInput, match=r"record it while a GPU works.*Activity.CUDA.*\(NVIDIA H100\)"):
        profile_of(on_a_gpu)
    on_xpu = Trace(gpu="Intel(R) Arc(TM) A770")
    on_xpu.operator("aten::mm", 0, 10)
    with pytest.raises(UnreadableInput, match=r"Activity.CPU, ProfilerActivity.XPU"):
        profile_of(on_xpu)
    only.raw(ph="X", cat="mtia_ccp_events", name="MatMul", pid=1, tid=1, ts=only.time(5), dur=3)
    with pytest.raises(UnreadableInput, match=r"no work of an NVIDIA or AMD GPU.*'mtia_ccp_events'"):
        profile_of(only)
    other = Trace()
    other.raw(ph="X", cat="compute", name="Linear", pid=1, tid=1, ts=other.time(5), dur=3)
    with pytest.raises(UnreadableInput, match=r"not a PyTorch profiler trace.*'compute'"):
        profile_of(other)


def test_nothing_that_needs_all_records_is_found_where_they_are_missing() -> None:
    numbers = iter(range(1000))
    report = report_run([profile_of(launches(), lambda e: category(e) != "kernel" or next(numbers) % 3 == 0)])
    assert {finding.code for finding in report.findings} >= {"GAP707"}
    assert all(
        finding.code.startswith("GAP7") or (finding.loss and finding.loss.unknown)
        for finding in report.findings
    )


NAMES = ("mm", "relu", "add", "mul", "sum", "cat")


def varied(count: int = 120, trace: Trace | None = None) -> Trace:
    """Operators of six names that launch in turn; the driver numbers six calls for one that is recorded."""
    trace = trace or Trace()
    for number in range(count):
        begin, name = 100.0 * number, NAMES[number % len(NAMES)]
        trace.correlation += 5
        around = trace.operator(f"aten::{name}", begin, 20)
        trace.launch(name, begin + 2, 10, kernel=(begin + 20, 60), external=around)
    trace.call("cudaDeviceSynchronize", 100.0 * count, 10)
    return trace


def without_launches(trace: Trace, gone: Callable[[int], bool], operators: bool = False) -> Profile:
    """The profile without these launches, by position, their work and arrows; with `operators` theirs too."""
    calls = [event for event in trace.events if event["name"] == "cudaLaunchKernel"]
    lost = {event["args"]["correlation"] for at, event in enumerate(calls) if gone(at)}
    around = {event["args"]["External id"] for at, event in enumerate(calls) if gone(at)}

    def keep(event: Event) -> bool:
        args = event.get("args", {})
        if category(event) == "cpu_op":
            return not operators or args["External id"] not in around
        return args.get("correlation") not in lost and not (category(event) == "ac2g" and event["id"] in lost)

    return profile_of(trace, keep)


def kinds(profile: Profile) -> dict[str, int]:
    """How many of each kind are missing."""
    return {missing.kind: missing.of - missing.seen for missing in profile.coverage.missing}


@pytest.mark.parametrize("begin", [0, 40, 90])
def test_a_stretch_of_launches_that_nothing_leads_to(begin: int) -> None:
    profile = without_launches(varied(), lambda at: begin <= at < begin + 30)
    assert abs(kinds(profile)["stretch"] - 30) <= 5
    assert profile.coverage.reason.startswith("a stretch with about 3")
    assert not profile.coverage.idle_known
    # All of what may have run in it is idleness that is not known to be.
    assert profile.idle - profile.coverage.hidden <= 30 * 100_000 + 90 * 40_000 <= profile.idle + 30 * 60_000


def test_a_short_stretch_shows_in_the_numbers_of_the_driver() -> None:
    profile = without_launches(varied(), lambda at: 50 <= at < 60)
    assert abs(kinds(profile)["stretch"] - 10) <= 2


def test_operators_on_the_cpu_are_no_stretch() -> None:
    trace = varied()
    for number in range(300):
        trace.operator(f"aten::{NAMES[number % 6]}", 12_100 + number, 1)
    trace.correlation += 5
    trace.call("cudaDeviceSynchronize", 12_500, 10)  # with which the profiler ends
    assert profile_of(trace).coverage.missing == ()


def test_loading_a_library_is_no_stretch() -> None:
    trace = varied(60)
    trace.correlation += 1200
    for number in range(60):
        begin = 100.0 * (60 + number)
        around = trace.operator("aten::mm", begin, 20)
        trace.launch("mm", begin + 2, 10, kernel=(begin + 20, 60), external=around)
    assert profile_of(trace).coverage.missing == ()


def test_a_graph_that_is_captured_is_no_stretch() -> None:
    trace = varied()
    trace.call("cudaStreamBeginCapture", 12_100, 2)
    for number in range(120):
        begin = 12_200 + 100.0 * number
        around = trace.operator(f"aten::{NAMES[number % len(NAMES)]}", begin, 20)
        trace.correlation += 5
        trace.call("cudaLaunchKernel", begin + 2, 10, external=around)
    trace.call("cudaStreamEndCapture", 24_300, 2)
    assert profile_of(trace).coverage.missing == ()


def test_threads_that_poll_are_no_stretch() -> None:
    """Their calls take numbers of the driver's while operators run on tensors of the CPU."""
    trace = varied()
    for number in range(120):
        trace.operator(f"aten::{NAMES[number % len(NAMES)]}", 12_100 + 10.0 * number, 5)
        trace.correlation += 5
        trace.call("cudaEventQuery", 12_100 + 10.0 * number, 2, thread=99)
    around = trace.operator("aten::mm", 13_400, 20)
    trace.launch("mm", 13_402, 10, kernel=(13_420, 60), external=around)
    assert profile_of(trace).coverage.missing == ()


def test_python_frames_that_are_missing() -> None:
    trace = varied()
    for number in range(100):
        trace.frame(f"train.py({number}): f", 100.0 * number, 90)
    assert profile_of(trace).coverage.missing == ()
    numbers = iter(range(1000))
    profile = profile_of(trace, lambda event: category(event) != "python_function" or next(numbers) % 4)
    assert profile.coverage.reason == "25 of 220 CPU events are not in this file"


def test_python_frames_that_are_missing_from_some_time_on() -> None:
    def calls(trace: Trace) -> Trace:
        trace.frame("train.py(1): <module>", 0.0, 20_000)
        for number in range(100):
            trace.frame(f"<built-in method {NAMES[number % len(NAMES)]}>", 100.0 * number - 1, 22)
        return trace

    assert profile_of(calls(varied(100))).coverage.missing == ()
    numbers = iter(range(1000))
    profile = profile_of(calls(varied(100)), lambda e: category(e) != "python_function" or next(numbers) < 71)
    assert kinds(profile) == {"operator": 30}
    # The engine's thread has frames only where gradients of Python's own functions are computed.
    engine = calls(varied(100))
    engine.operator("autograd::engine::evaluate_function: MmBackward0", 50, 20, thread=7)
    for number in range(1, 100):
        engine.operator("aten::mm", 100.0 * number + 50, 20, thread=7)
    engine.frame("ops.py(9): backward", 151.0, 10, thread=7)
    assert profile_of(engine).coverage.missing == ()


def test_launches_that_are_missing_here_and_there() -> None:
    gone = set(random.Random(1).sample(range(600), 180))
    profile = without_launches(varied(600), gone.__contains__)
    assert 100 <= kinds(profile)["scattered"] <= 180  # the operators that lost least tell
    assert "launches are not in this file" in profile.coverage.reason


def test_the_same_operators_on_cpu_and_gpu_are_not_missing_launches() -> None:
    """A model that also runs on the CPU: its operators launch half of the time, in long runs."""
    trace = varied(300)
    for number in range(300):
        trace.operator(f"aten::{NAMES[number % len(NAMES)]}", 30_100 + 100.0 * number, 20)
    for number in range(300):
        begin = 60_200 + 100.0 * number
        around = trace.operator(f"aten::{NAMES[number % len(NAMES)]}", begin, 20)
        trace.launch("again", begin + 2, 10, kernel=(begin + 20, 60), external=around)
    assert "scattered" not in kinds(profile_of(trace))


def reserving(count: int = 60, vendor: Literal["nvidia", "amd"] = "nvidia") -> Trace:
    """Operators of one name that reserve memory and launch, between ones that only reserve."""
    trace = Trace(vendor=vendor)
    for number in range(count):
        begin = 100.0 * number
        trace.operator("aten::empty", begin - 20, 10)
        trace.memory(begin - 15, 512)
        around = trace.operator("aten::mm", begin, 20)
        trace.memory(begin + 1, 512)
        trace.launch("mm", begin + 2, 10, kernel=(begin + 20, 60), external=around)
    trace.wait(100.0 * count, 10, stream=False)
    return trace


def test_operators_that_reserve_memory_of_the_device_launch() -> None:
    assert profile_of(reserving()).coverage.missing == ()
    profile = without_launches(reserving(), lambda at: at % 3 == 0)
    assert kinds(profile)["scattered"] == 20
    assert not profile.coverage.idle_known
    # Where those that compute on the CPU reserve memory there, nothing is missing.
    trace = reserving()
    for number in range(60):
        trace.operator("aten::mm", 6100.0 + 30 * number, 20)
        trace.memory(6101.0 + 30 * number, 512, device_type=0)
    trace.wait(8000, 10, stream=False)
    assert profile_of(trace).coverage.missing == ()


@pytest.mark.parametrize("call", ["cudaOccupancyMaxActiveBlocksPerMultiprocessor", "cudaPeekAtLastError"])
def test_operators_that_call_what_comes_with_a_launch_launch(call: str) -> None:
    trace = Trace()
    for number in range(60):
        begin = 100.0 * number
        around = trace.operator("aten::mm", begin, 20)
        trace.launch("mm", begin + 2, 10, kernel=(begin + 20, 60), external=around)
        trace.call(call, begin + 14, 2)
    trace.call("cudaDeviceSynchronize", 6000, 10)
    assert profile_of(trace).coverage.missing == ()
    assert kinds(without_launches(trace, lambda at: at % 3 == 0))["scattered"] == 20


def test_what_the_allocator_asks_is_no_sign_of_a_launch() -> None:
    trace = varied(60)
    for number in range(60):
        trace.operator(f"aten::{NAMES[number % 6]}", 6100.0 + 30 * number, 20)
        trace.call("cudaEventQuery", 6102.0 + 30 * number, 2)
    assert profile_of(trace).coverage.missing == ()


def test_launches_that_an_operator_within_makes() -> None:
    """It reserves, and another one launches for it."""
    trace = Trace()
    for number in range(60):
        begin = 100.0 * number
        around = trace.operator("aten::mm", begin, 40)
        trace.memory(begin + 1, 512)
        if number % 2:
            around = trace.operator("aten::fill_", begin + 5, 30)
        trace.launch("mm", begin + 12, 10, kernel=(begin + 35, 60), external=around)
    trace.call("cudaDeviceSynchronize", 6000, 10)
    assert profile_of(trace).coverage.missing == ()


def test_numbers_that_hip_leaves_out() -> None:
    def calls(numbers: Callable[[int], int]) -> Trace:
        trace = Trace(vendor="amd")
        for number in range(80):
            begin = 100.0 * number
            trace.correlation = numbers(number)
            around = trace.operator("aten::mm", begin, 20)
            trace.launch("mm", begin + 2, 10, kernel=(begin + 20, 60), external=around)
        return trace

    assert profile_of(calls(lambda number: number)).coverage.missing == ()
    lost = profile_of(calls(lambda number: number + 30 * (number >= 40)))
    assert kinds(lost) == {"scattered": 30}
    assert not lost.coverage.idle_known
    # Another row, as another library may number them, and one that is wrong.
    assert profile_of(calls(lambda number: 3 * number)).coverage.missing == ()
    assert profile_of(calls(lambda number: number if number < 79 else 10**6)).coverage.missing == ()


def ranged(trace: Trace, start: float, end: float) -> Trace:
    """With what the profiler writes of an annotation's work on the device."""
    place = {"pid": trace.device, "tid": 7, "ts": trace.time(start), "dur": end - start}
    trace.raw(ph="X", cat="gpu_user_annotation", name="step", args={"External id": 1}, **place)
    return trace


def test_work_that_the_span_of_an_annotation_ends_with() -> None:
    assert profile_of(ranged(varied(), 20, 11_980)).coverage.complete
    for bounds in ((-4000, 11_980), (20, 15_000)):
        document = ranged(varied(), *bounds).document()
        coverage = build_profile(read_bytes(json.dumps(document).encode())).coverage
        assert not coverage.contradictory
        # Only within the steps, which begin and end with what is there, it may hide work.
        assert coverage.hidden <= 4000 * 1000
    trace = varied()
    trace.step(1, -4000, 20_000)
    coverage = profile_of(ranged(trace, -4000, 11_980)).coverage
    assert coverage.hidden == pytest.approx(4_020_000, rel=0.01)
    assert coverage.reason.startswith("missing GPU work may fill 20 % of the time")


def test_work_that_runs_across_the_end_of_its_annotations_span() -> None:
    document = ranged(varied(), 20, 11_980).document()
    last = max((e for e in document["traceEvents"] if category(e) == "kernel"), key=lambda e: e["ts"])
    last["dur"] *= 10
    document["traceEvents"] = [e for e in document["traceEvents"] if e["name"] != "cudaDeviceSynchronize"]
    coverage = build_profile(read_bytes(json.dumps(document).encode())).coverage
    assert coverage.contradictory == 1
    last["dur"] = 60
    assert not build_profile(read_bytes(json.dumps(document).encode())).coverage.contradictory


def test_operators_within_a_call_of_the_driver() -> None:
    def calls(inside: bool) -> Profile:
        trace = varied()
        trace.operator("aten::empty", 12_100, 5000)
        trace.call("cudaMalloc", 12_110, 4900)
        trace.operator("aten::view", 13_000 if inside else 17_011, 50)
        return profile_of(trace)

    assert not calls(False).coverage.contradictory
    assert calls(True).coverage.contradictory == 1


def test_events_that_lie_days_away() -> None:
    document = varied().document()
    events = varied(60, Trace(pid=5000, main=5000, device=1, correlation=5000)).document()["traceEvents"]
    for event in events:
        event["ts"] += 20 * 86_400e6
    few = {**document, "traceEvents": [*document["traceEvents"], *events[:2]]}
    document["traceEvents"] += events
    assert build_profile(read_bytes(json.dumps(few).encode())).coverage.complete
    coverage = build_profile(read_bytes(json.dumps(document).encode())).coverage
    assert "are impossible" in coverage.reason


def test_work_to_which_only_an_arrow_leads() -> None:
    """The GPU idles until it begins, and the call that would say why is not there."""
    trace = varied(60)
    slow = trace.launch("slow", 6100, 4000, kernel=(10_110, 60))
    for number in range(60):
        begin = 10_300 + 100.0 * number
        around = trace.operator("aten::mm", begin, 20)
        trace.launch("mm", begin + 2, 10, kernel=(begin + 20, 60), external=around)
    assert profile_of(trace).coverage.complete

    def keep(event: Event) -> bool:
        own = event.get("args", {}).get("correlation") == slow
        return not own and not (event.get("id") == slow and event["ph"] == "s")

    coverage = profile_of(trace, keep).coverage
    assert coverage.unexplained == pytest.approx(4_000_000, rel=0.1)
    assert coverage.reason.startswith("missing CPU events may explain")
    gone = [e for e in trace.events if e["name"] == "slow"]
    assert not profile_of(trace, lambda event: event not in gone).coverage.unexplained  # its call tells


def test_numbers_that_end_before_those_of_memory_and_frames_begin() -> None:
    """The end is missing: of each kind the last ones."""
    document = reserving().document()
    events = document["traceEvents"]
    operators = [e for e in events if category(e) == "cpu_op"]
    memory = [e for e in events if e["name"] == "[memory]"]
    for number, event in enumerate(memory):
        event["args"]["Ev Idx"] = len(operators) + number
    assert build_profile(read_bytes(json.dumps(document).encode())).coverage.complete
    end = operators[-1]["ts"] - 3000
    document["traceEvents"] = [e for e in events if e["ts"] <= end or category(e) in ("Trace", "")]
    profile = build_profile(read_bytes(json.dumps(document).encode()))
    assert "CPU events are not in this file" in profile.coverage.reason


def test_launches_where_there_are_no_operators_any_more() -> None:
    document = varied().document()
    for event in document["traceEvents"]:  # nothing ties calls to operators, as in files up to torch 1.11
        if category(event) in ("cuda_runtime", "kernel"):
            event["args"].pop("External id", None)
    numbers = iter(range(1000))
    document["traceEvents"] = [
        event for event in document["traceEvents"] if category(event) != "cpu_op" or next(numbers) < 60
    ]
    profile = build_profile(read_bytes(json.dumps(document).encode()))
    assert kinds(profile) == {"around": 60}
    assert not profile.coverage.complete


def test_marks_of_steps_among_what_is_missing() -> None:
    trace = Trace()
    trace.step(1, 0, 12_000)
    trace = varied(trace=trace)
    assert profile_of(trace).coverage.complete
    profile = profile_of(trace, lambda event: not str(event["name"]).startswith("ProfilerStep"))
    assert profile.coverage.unmarked
    assert "including step marks" in report_run([profile]).verdict.sentence


def test_events_beyond_the_profilers_own_mark() -> None:
    document = varied().document()
    late = {e["args"]["correlation"] for e in document["traceEvents"] if category(e) == "kernel"}
    late = set(sorted(late)[60:])
    for event in document["traceEvents"]:
        if event.get("args", {}).get("correlation") in late or event.get("id") in late:
            event["ts"] += 20_000
    assert build_profile(read_bytes(json.dumps(document).encode())).coverage.contradictory


def test_the_clocks_of_cpu_and_gpu_differ_at_the_end_of_the_recording() -> None:
    trace = varied()
    trace.operator("aten::cut_off", 11_999, 2000)
    document = trace.document()
    last = max(event["ts"] + event["dur"] for event in document["traceEvents"] if category(event) == "kernel")
    (mark,) = (event for event in document["traceEvents"] if category(event) == "Trace")
    mark["dur"] = last - 0.001 - mark["ts"]
    assert build_profile(read_bytes(json.dumps(document).encode())).coverage.complete
    mark["dur"] -= 1000
    assert build_profile(read_bytes(json.dumps(document).encode())).coverage.contradictory


def test_a_watchdog_goes_on_polling_until_the_profiler_has_stopped() -> None:
    trace = varied()
    trace.wait(12_100, 10, stream=False)
    for number in range(100):
        trace.call("cudaEventQuery", 15_000 + 20 * number, 2, thread=99)
    document = trace.document()
    (mark,) = (event for event in document["traceEvents"] if category(event) == "Trace")
    (stop,) = (event for event in document["traceEvents"] if event["name"] == "Record Window End")
    mark["dur"] = trace.time(12_200) - mark["ts"]
    stop["ts"] = trace.time(17_500)
    assert build_profile(read_bytes(json.dumps(document).encode())).coverage.complete
    stop["ts"] = trace.time(12_200)
    assert build_profile(read_bytes(json.dumps(document).encode())).coverage.contradictory == 100


def test_a_pause_of_seconds_within_the_profilers_own_mark_is_none_in_the_evidence() -> None:
    """The script compiles or reads files meanwhile; without the mark a clock may have been reset."""
    trace = Trace()
    for number in range(60):
        begin = 100.0 * number + (20_000_000 if number >= 30 else 0)
        around = trace.operator("aten::mm", begin, 20)
        trace.launch("gemm", begin + 2, 10, kernel=(begin + 20, 60), external=around)
    assert profile_of(trace).coverage.complete
    assert profile_of(trace, lambda event: category(event) != "Trace").coverage.contradictory


def test_a_slow_profiler_start_is_accepted_if_its_first_event_is_recorded() -> None:
    document = varied().document()
    (mark,) = (event for event in document["traceEvents"] if category(event) == "Trace")
    mark["ts"] -= 8000
    mark["dur"] += 8000
    profile = build_profile(read_bytes(json.dumps(document).encode()))
    assert not profile.coverage.silent
    assert not any("Nothing was recorded" in note for note in report_run([profile]).verdict.not_seen)
    for event in document["traceEvents"]:  # as files are that do not number their events
        event.get("args", {}).pop("Ev Idx", None)
    profile = build_profile(read_bytes(json.dumps(document).encode()))
    assert profile.coverage.silent
    assert any("Nothing was recorded in the first" in note for note in report_run([profile]).verdict.not_seen)


def test_calls_out_of_the_order_of_their_numbers() -> None:
    document = varied().document()
    half = sorted(e["args"]["correlation"] for e in document["traceEvents"] if category(e) == "kernel")[60:]
    for event in document["traceEvents"]:  # from there on the clock is one that runs 2 ms behind
        late = event.get("args", {}).get("correlation") in half or event.get("id") in half
        if late or (category(event) == "cpu_op" and event["args"]["External id"] > 60):
            event["ts"] -= 2000
    assert build_profile(read_bytes(json.dumps(document).encode())).coverage.contradictory
    unmatched = varied().document()
    next(e for e in unmatched["traceEvents"] if category(e) == "cuda_runtime")["args"]["correlation"] = 10**6
    assert not build_profile(read_bytes(json.dumps(unmatched).encode())).coverage.contradictory


def test_calls_whose_clock_is_ahead_of_the_operators() -> None:
    trace = Trace()
    for number in range(60):
        begin = 100.0 * number
        around = trace.operator("aten::mm", begin, 50)
        trace.launch("gemm", begin - 1, 13, kernel=(begin + 20, 60), external=around)
    assert profile_of(trace).coverage.complete


def test_long_kernels_without_a_length_may_fill_the_time() -> None:
    document, numbers = launches().document(), iter(range(1000))
    for event in document["traceEvents"]:
        if category(event) == "kernel" and next(numbers) % 5 == 0:
            event["dur"] = 0
    coverage = build_profile(read_bytes(json.dumps(document).encode())).coverage
    assert coverage.hidden == pytest.approx(8 * 100_000, rel=0.15)
    assert "may fill 20 % of the time" in coverage.reason


def test_a_block_of_the_file_that_cannot_be_read() -> None:
    data = launches(200).text()
    at, length = len(data) // 2, len(data) // 25
    for block in (bytes(length), random.Random(1).randbytes(length)):
        coverage = build_profile(read_bytes(data[:at] + block + data[at + length :])).coverage
        assert re.search(r"(3\.\d|4\.0) % of the file cannot be read", coverage.reason)
    assert build_profile(read_bytes(data + bytes(length))).coverage.complete  # room that was reserved for it


def test_cpu_events_that_are_missing_where_the_gpu_idles() -> None:
    """Two operators of 120, and the longest idleness with them."""
    trace = Trace()
    for number in range(20):
        trace.operator("aten::mm", 10.0 * number, 5)
    for number in range(2):
        trace.operator("aten::item", 200 + 1000.0 * number, 990)
    for number in range(98):
        begin = 2200 + 100.0 * number
        around = trace.operator("aten::mm", begin, 20)
        trace.launch("gemm", begin + 2, 10, kernel=(begin + 20, 90), external=around)
    trace.step(1, 0, 12_000)
    assert profile_of(trace).coverage.complete
    coverage = profile_of(trace, lambda event: event["name"] != "aten::item").coverage
    assert coverage.reason.startswith("missing CPU events may explain 1")
    assert coverage.idle_known


def test_a_profile_of_the_gpu_alone() -> None:
    profile = profile_of(launches(), lambda event: category(event) not in ("cpu_op", "cuda_runtime"))
    assert [(cost.cause, cost.idle) for cost in profile.costs if cost.idle] == [("unknown", profile.idle)]
    assert "have no launch in this file" in profile.coverage.reason


@pytest.mark.parametrize("name", SMALL)
def test_no_public_profile_is_called_incomplete(name: str, public_trace: Callable[[str], Timeline]) -> None:
    timeline = public_trace(name)
    device = main_device(timeline)
    if device < 0:
        pytest.skip("a profile of the CPU alone")
    coverage = judge_coverage(timeline, device, find_steps(timeline, device))
    assert coverage.complete is not any(part in name for part in THINNED), coverage
