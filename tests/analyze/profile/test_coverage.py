"""Coverage comes first: what should be in a profile is compared with what is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tracing import Trace, training

from gapless.analyze.profile.coverage import coverage
from gapless.analyze.profile.profile import profile
from gapless.analyze.profile.report import report
from gapless.analyze.profile.steps import find_steps, main_device
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


def told(trace: Trace, keep: Callable[[Event], bool] = lambda event: True) -> Profile:
    """The profile of `trace` without the events that `keep` does not."""
    document = trace.document()
    document["traceEvents"] = [event for event in document["traceEvents"] if keep(event)]
    return profile(read_bytes(json.dumps(document).encode()))


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
    found = told(launches()).coverage
    assert found.complete
    assert (found.launches, found.records, found.missing) == (40, 40, ())


@pytest.mark.parametrize("lost", [1, 2, 3, 30])
def test_below_95_percent_of_the_records_nothing_is_told(lost: int) -> None:
    numbers = iter(range(1000))
    found = told(launches(), lambda event: category(event) != "kernel" or next(numbers) % 40 >= lost)
    missing = {one.kind: (one.seen, one.of) for one in found.coverage.missing}
    assert missing["launch"] == (40 - lost, 40)
    # Two of 40 are 95 %; what they hide is more than 5 % of the time from the second on.
    assert found.coverage.complete is (lost < 2)
    verdict = report([found]).verdict
    assert verdict.sentence.startswith("Cannot tell: ") is (lost >= 2)
    if lost == 30:
        assert verdict.sentence == "Cannot tell: 30 of 40 launches have no GPU work in this file"
        assert verdict.do_first == ()
        assert "at most" in verdict.why[0] or "between" in verdict.why[0]


def test_the_bounds_hold_what_the_whole_profile_says() -> None:
    whole = told(launches())
    numbers = iter(range(1000))
    found = told(launches(), lambda event: category(event) != "kernel" or next(numbers) % 3 != 1)
    assert found.idle - found.coverage.hidden <= whole.idle <= found.idle


def test_graph_launches_without_their_kernels() -> None:
    trace = launches(10, graphs=True)
    kept = sorted({event["args"]["correlation"] for event in trace.events if category(event) == "kernel"})[:2]
    found = told(trace, lambda event: category(event) != "kernel" or event["args"]["correlation"] in kept)
    assert report([found]).verdict.sentence.startswith(
        "Cannot tell: 8 of 10 graph launches have no kernels in this file"
    )


def test_a_graph_that_lost_some_of_its_kernels() -> None:
    """The arrows to them are there."""
    found = told(launches(10, graphs=True), lambda event: event["name"] != "relu")
    assert found.coverage.reason == "10 of 20 kernels and copies are not in this file"


def test_launches_into_a_graph_that_is_captured_have_no_work() -> None:
    trace = launches()
    trace.call("cudaStreamBeginCapture", 4100, 2)
    for number in range(30):
        trace.call("cudaLaunchKernel", 4110 + 5 * number, 2)
    trace.call("cudaStreamEndCapture", 4300, 2)
    assert told(trace).coverage.complete


def test_memsets_of_nothing_and_callbacks_have_no_work() -> None:
    trace = launches()
    for number in range(30):
        trace.call("cudaMemsetAsync", 4110 + 5 * number, 2)
        trace.call("cudaLaunchHostFunc", 4112 + 5 * number, 2)
    assert told(trace).coverage.complete


def test_work_queued_before_the_recording_began() -> None:
    trace = Trace()
    for number in range(20):
        trace.kernel("earlier", 60.0 * number, 58, correlation=10 + number)
    for number in range(20):
        trace.launch("gemm", 100 + 10.0 * number, 5, kernel=(1200 + 60.0 * number, 58))
    trace.call("cudaDeviceSynchronize", 400, 2100)
    found = told(trace)
    assert found.coverage.complete
    gone = [call for call in found.coverage.missing if call.kind == "call"]
    assert gone == []


def test_work_whose_launches_were_lost() -> None:
    numbers = iter(range(1000))
    found = told(launches(), lambda event: category(event) != "cuda_runtime" or next(numbers) % 2 == 0)
    assert "have no launch in this file" in found.coverage.reason
    assert found.coverage.idle_known
    assert report([found]).verdict.why[0].startswith("The GPU idles")


def test_operators_that_the_profiler_numbered() -> None:
    numbers = iter(range(1000))
    found = told(launches(), lambda event: category(event) != "cpu_op" or next(numbers) % 4 != 2)
    assert found.coverage.reason == "10 of 40 CPU events are not in this file"


def test_operators_that_only_their_calls_still_name() -> None:
    """The last ones leave no gap in the numbers."""
    numbers = iter(range(1000))
    found = told(launches(), lambda event: category(event) != "cpu_op" or next(numbers) < 30)
    assert found.coverage.reason == "10 of 40 CPU events are not in this file"


@pytest.mark.parametrize("shift", [-5000.0, -300.0, 1000.0, 80_000.0])
def test_times_of_the_device_that_cannot_be_right(shift: float) -> None:
    document = launches().document()
    for event in document["traceEvents"]:
        if category(event) == "kernel":
            event["ts"] += shift
    found = profile(read_bytes(json.dumps(document).encode()))
    assert found.coverage.contradictory
    assert not found.coverage.idle_known


def test_a_file_that_is_cut_off() -> None:
    data = training(steps=4).text()
    found = profile(read_bytes(data[: -len(data) // 4]))
    verdict = report([found]).verdict
    assert verdict.sentence.startswith("Cannot tell: ")
    assert "the file is cut off" in verdict.sentence
    assert found.prices is None or found.prices.refused


def test_two_profiles_in_one_file() -> None:
    data = launches().text()
    found = profile(read_bytes(data + b"\n" + data))
    told = report([found]).verdict.sentence
    assert told.startswith("Cannot tell: the file holds 2 profiles, one after the other")


def test_two_processes_in_one_file() -> None:
    document = launches().document()
    more = Trace(pid=5000, main=5000, device=1, correlation=5000)
    for number in range(40):
        more.launch("gemm", 100.0 * number, 10, kernel=(100.0 * number + 20, 60))
    document["traceEvents"] += more.document()["traceEvents"]
    found = profile(read_bytes(json.dumps(document).encode()))
    assert found.coverage.processes == 2
    assert "the launches of 2 processes" in report([found]).verdict.sentence


def test_a_piece_that_was_written_twice_changes_nothing() -> None:
    document = training(steps=4).document()
    events = document["traceEvents"]
    whole = profile(read_bytes(json.dumps(document).encode()))
    document["traceEvents"] = [*events, *events[10:60]]
    twice = profile(read_bytes(json.dumps(document).encode()))
    assert twice.coverage.complete
    assert [(c.cause, c.calls, c.idle) for c in twice.costs] == [
        (c.cause, c.calls, c.idle) for c in whole.costs
    ]
    assert any("there twice" in note for note in twice.notes)


def test_launches_without_any_work_are_told_from_a_profile_of_the_cpu() -> None:
    with pytest.raises(UnreadableInput, match="has no GPU work and 40 launches"):
        told(launches(), lambda event: category(event) != "kernel")
    only = Trace()
    only.operator("aten::mm", 0, 10)
    with pytest.raises(UnreadableInput, match="has no GPU work: record it"):
        told(only)


def test_nothing_that_needs_all_records_is_found_where_they_are_missing() -> None:
    numbers = iter(range(1000))
    found = report([told(launches(), lambda e: category(e) != "kernel" or next(numbers) % 3 == 0)])
    assert {one.code for one in found.findings} >= {"GAP707"}
    assert all(one.code.startswith("GAP7") or (one.loss and one.loss.unknown) for one in found.findings)


@pytest.mark.parametrize("name", SMALL)
def test_no_public_profile_is_called_incomplete(name: str, public_trace: Callable[[str], Timeline]) -> None:
    timeline = public_trace(name)
    device = main_device(timeline)
    if device < 0:
        pytest.skip("a profile of the CPU alone")
    found = coverage(timeline, device, find_steps(timeline, device))
    assert found.complete is not any(one in name for one in THINNED), found
