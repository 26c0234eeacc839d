"""Where the time of the steps goes, and how much of the device is used."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_profiles import traces
from trace_builder import Trace

from gapless.analyze.profile.split import mean_occupancy, sm_efficiency, split_time, utilization
from gapless.analyze.profile.trace_steps import find_steps, is_communication
from gapless.model.profile import Split
from gapless.trace.timeline import Timeline

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
BATCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
KINDS = Split.__struct_fields__


def parts(trace: Trace) -> dict[str, int]:
    """The parts in microseconds, those that are not 0."""
    timeline = trace.timeline()
    split = split_time(timeline, find_steps(timeline, 0), 0)
    return {kind: getattr(split, kind) // 1000 for kind in KINDS if getattr(split, kind)}


def step() -> Trace:
    trace = Trace()
    trace.step(1, 0, 100)
    return trace


@pytest.mark.parametrize("dialect", ["new", "middle", "old"])
def test_each_moment_goes_to_the_first_kind_that_applies(dialect: str) -> None:
    trace = Trace(dialect=dialect)  # type: ignore[arg-type]
    trace.step(1, 0, 100)
    trace.annotation(BATCH, 0, 20)
    trace.operator("aten::stack", 2, 10)
    trace.operator("aten::mm", 25, 30)
    trace.launch("gemm", 30, 5, kernel=(33, 20))
    trace.copy("HtoD (Pageable -> Device)", 50, 20, copy=(52, 10))
    trace.memset(60, 5)
    trace.kernel(NCCL, 61, 15, stream=9)
    trace.kernel("gemm", 90, 4, device=1)
    assert parts(trace) == {
        "kernel": 20,  # 33 to 53
        "memcpy": 9,  # 53 to 62
        "memset": 3,  # 62 to 65
        "communication": 11,  # 65 to 76
        "runtime": 3,  # 30 to 33; the copy's call lies under what it did
        "loading": 20,
        "host": 5,  # 25 to 30
        "other": 29,
    }


def test_a_kernel_between_steps_belongs_to_none() -> None:
    trace = step()
    trace.launch("gemm", 10, 5, kernel=(20, 10))
    trace.step(2, 200, 100)
    trace.launch("gemm", 150, 5, kernel=(160, 10))
    trace.launch("gemm", 210, 5, kernel=(220, 10))
    assert parts(trace) == {"kernel": 20, "runtime": 10, "other": 170}


def test_the_host_communicates_through_gloo_and_only_launches_for_nccl() -> None:
    trace = step()
    trace.launch("gemm", 0, 2, kernel=(2, 3))
    trace.annotation("gloo:all_reduce", 10, 20)
    trace.annotation("nccl:all_reduce", 40, 20)
    assert parts(trace) == {"kernel": 3, "communication": 20, "runtime": 2, "other": 75}


def test_several_threads_count_once() -> None:
    trace = step()
    trace.operator("aten::mm", 10, 30)
    trace.operator("aten::mm", 20, 30, thread=4001)
    assert parts(trace) == {"host": 40, "other": 60}


# Use of the device ------------------------------------------------------------------------------------------


def use(trace: Trace) -> tuple[float, float, float]:
    timeline = trace.timeline()
    steps = find_steps(timeline, 0)
    return tuple(f(timeline, steps, 0) for f in (utilization, sm_efficiency, mean_occupancy))  # type: ignore[return-value]


def blocks(per_sm: object, percent: object) -> dict[str, object]:
    return {"blocks per SM": per_sm, "est. achieved occupancy %": percent}


def test_use_of_the_device() -> None:
    trace = step()
    trace.launch("a", 0, kernel=(10, 20), **blocks(0.5, 10))
    trace.launch("b", 1, kernel=(40, 10), **blocks(8.0, 40))
    assert use(trace) == pytest.approx((0.3, (20 * 0.5 + 10 * 1) / 100, (20 * 10 + 10 * 40) / 30))


def test_blocks_of_kernels_that_run_together_add_up_to_no_more_than_all() -> None:
    trace = step()
    trace.launch("a", 0, kernel=(10, 20), **blocks(0.4, 10))
    trace.launch("b", 1, kernel=(20, 20), stream=9, **blocks(0.4, 10))
    trace.launch("c", 2, kernel=(25, 5), stream=11, **blocks(0.4, 10))
    assert use(trace)[:2] == pytest.approx((0.3, (20 * 0.4 + 5 * 0.8 + 5 * 1) / 100))


def test_communication_is_use_and_copies_are_none() -> None:
    trace = step()
    trace.launch(NCCL, 0, kernel=(10, 50), **blocks(0.1, 3))
    trace.copy("DtoH (Device -> Pinned)", 70, 2, copy=(75, 10))
    assert use(trace) == pytest.approx((0.5, 0.05, 3.0))


def test_unrecorded_time_is_unknown() -> None:
    trace = step()
    trace.launch("a", 0, kernel=(10, 20), **blocks("inf", -1))
    assert use(trace) == (pytest.approx(0.2), -1.0, -1.0)


def test_kernels_of_unknown_occupancy_are_left_out_of_the_mean() -> None:
    trace = step()
    trace.launch("a", 0, kernel=(10, 20), **blocks(1.0, 30))
    trace.launch("b", 1, kernel=(40, 60), **{"est. achieved occupancy %": -1})
    assert use(trace)[2] == 30.0


def test_a_device_without_kernels_has_no_use() -> None:
    trace = step()
    trace.copy("HtoD", 70, 2, copy=(75, 10))
    assert use(trace) == (-1.0, -1.0, -1.0)


# Laws -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.booleans().flatmap(traces))
def test_the_parts_add_up_to_the_steps(trace: Trace) -> None:
    timeline = trace.timeline()
    steps = find_steps(timeline, 0)
    values = [getattr(split_time(timeline, steps, 0), kind) for kind in KINDS]
    assert sum(values) == steps.total
    assert min(values) >= 0
    assert utilization(timeline, steps, 0) <= 1
    assert sm_efficiency(timeline, steps, 0) <= max(utilization(timeline, steps, 0), -1) + 1e-9
    assert mean_occupancy(timeline, steps, 0) in (-1, pytest.approx(38))


@settings(max_examples=60, deadline=None)
@given(traces())
def test_each_part_is_what_counting_moments_gives(trace: Trace) -> None:
    timeline = trace.timeline()
    steps = find_steps(timeline, 0)
    kind = np.full(500, len(KINDS) - 1)

    def paint(number: int, start: object, end: object) -> None:
        for a, b in zip(start, end, strict=True):  # type: ignore[call-overload]
            kind[int(a) // 1000 : int(b) // 1000] = number

    host, work, names = timeline.host, timeline.work, np.array(timeline.names, object)
    texts = [str(names[number]) for number in host.name]
    special = ("enumerate", "gloo", "ProfilerStep")
    plain = [k != 1 and not t.startswith(special) for k, t in zip(host.kind, texts, strict=True)]
    loading = [t.startswith("enumerate") for t in texts]
    gloo = [t.startswith("gloo") for t in texts]
    talk = is_communication(timeline)
    for number, table, rows in (
        (6, host, plain),
        (5, host, loading),
        (4, host, host.kind == 1),
        (3, host, gloo),
        (3, work, talk),
        (2, work, work.kind == 2),
        (1, work, work.kind == 1),
        (0, work, (work.kind == 0) & ~talk),
    ):
        chosen = np.array(rows, bool)
        paint(number, table.start[chosen], table.end[chosen])
    inside = np.zeros(500, bool)
    for a, b in zip(steps.start, steps.end, strict=True):
        inside[int(a) // 1000 : int(b) // 1000] = True
    split = split_time(timeline, steps, 0)
    counted = np.bincount(kind[inside], minlength=len(KINDS)).tolist()
    assert [getattr(split, name) // 1000 for name in KINDS] == counted


@settings(max_examples=60, deadline=None)
@given(traces(), st.integers(0, 300), st.integers(1, 100))
def test_what_another_thread_does_changes_nothing_on_the_device(trace: Trace, start: int, dur: int) -> None:
    more = copy.deepcopy(trace)
    more.operator("aten::sort", start, dur, thread=9999)
    before, after = trace.timeline(), more.timeline()
    steps, other = (find_steps(timeline, 0) for timeline in (before, after))
    assert steps.total == other.total
    a, b = split_time(before, steps, 0), split_time(after, other, 0)
    for kind in ("kernel", "memcpy", "memset", "communication", "runtime", "loading"):
        assert getattr(a, kind) == getattr(b, kind)
    assert a.host + a.other == b.host + b.other
    assert utilization(before, steps, 0) == utilization(after, other, 0)


# Public traces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "loading", "used"),
    [
        ("kineto-resnet50_num_workers_0-worker0.1623143089861-9b36", 0.334, 0.555),
        ("kineto-resnet50_num_workers_4-worker0.1623212756351-288e", 0.008, 0.703),
    ],
)
def test_published_values(
    public_trace: Callable[[str], Timeline], name: str, loading: float, used: float
) -> None:
    """What the plugin's own documentation shows of its samples."""
    timeline = public_trace(name)
    steps = find_steps(timeline, 0)
    assert split_time(timeline, steps, 0).loading / steps.total == pytest.approx(loading, abs=0.0005)
    assert utilization(timeline, steps, 0) == pytest.approx(used, abs=0.0005)


def test_use_is_that_of_the_tensorboard_plugin(
    public_trace: Callable[[str], Timeline], tensorboard: list[dict[str, str]]
) -> None:
    compared = 0
    for row in tensorboard:
        timeline, device = public_trace(row["trace"]), int(row["device"])
        steps = find_steps(timeline, device)
        if steps.source.startswith("Optimizer") or "trace_compare-test" in row["trace"]:
            continue  # these are not the steps that the plugin saw
        # Without marked steps the plugin begins and ends with operators: the same kernels, another length.
        lengths = sum(float(length) for length in row["steps"].split()) * 1000
        scale = (steps.end[-1] - steps.start[0]) / lengths if steps.source == "span" else 1
        for value, key in ((utilization, "utilization"), (sm_efficiency, "sm_efficiency")):
            expected = float(row[key])
            share = value(timeline, steps, device)
            assert (share if share < 0 else share * scale) == pytest.approx(expected, abs=2e-6, rel=1e-4)
        assert mean_occupancy(timeline, steps, device) == pytest.approx(float(row["occupancy"]), abs=2e-4)
        compared += 1
    assert compared == 43


def test_parts_are_those_of_the_tensorboard_plugin(
    public_trace: Callable[[str], Timeline], tensorboard: list[dict[str, str]]
) -> None:
    compared = 0
    for row in tensorboard:
        timeline, device = public_trace(row["trace"]), int(row["device"])
        steps = find_steps(timeline, device)
        if steps.source != "ProfilerStep" or "trace_compare-test" in row["trace"]:
            continue
        split = split_time(timeline, steps, device)
        ours = {kind: getattr(split, kind) / len(steps.names) / 1000 for kind in KINDS}
        theirs = {kind: float(row[kind]) for kind in KINDS}
        if is_communication(timeline).any() or theirs["communication"]:
            # It takes collectives' kernels for computation and their launches for communication.
            ours = regrouped(ours, ours["communication"], 0)
            theirs = regrouped(theirs, 0, theirs["communication"])
        assert ours == pytest.approx(theirs, abs=0.6, rel=1e-5), row["trace"]
        compared += 1
    assert compared == 26


def regrouped(parts: dict[str, float], device: float, host: float) -> dict[str, float]:
    """Kinds that do not depend on what counts as communication."""
    working = parts["kernel"] + parts["memcpy"] + parts["memset"] + device
    rest = parts["runtime"] + parts["loading"] + parts["host"] + parts["other"] + host
    return {"device": working, "host": rest}
