"""Old and new files of the same training say the same."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest
from timeline_checks import assert_sound, columns, host_rows, work_rows
from trace_builder import Dialect, Trace, training

from gapless.analyze.profile.lines import is_launching
from gapless.trace.read import read_bytes
from gapless.trace.timeline import HostKind

DIALECTS = get_args(Dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_written_is_the_document(dialect: Dialect) -> None:
    trace = training(dialect)
    assert json.loads(trace.text()) == trace.document()


@pytest.mark.parametrize("dialect", ["middle", "old"])
def test_dialects_agree(dialect: Dialect) -> None:
    new, other = training("new").timeline(), training(dialect).timeline()
    frames = new.host.kind == HostKind.FRAME
    expected = [row for row, frame in zip(host_rows(new), frames, strict=True) if not frame]
    rows = [row for row in host_rows(other) if row[0] != HostKind.FRAME]
    shift = expected[0][3] - rows[0][3]  # type: ignore[operator]  # without frames it begins later
    assert expected == [(*row[:3], row[3] + shift, row[4] + shift) for row in rows]  # type: ignore[operator]
    assert [(*row[:4], row[6]) for row in work_rows(new)] == [(*row[:4], row[6]) for row in work_rows(other)]
    assert (new.work.start == other.work.start + shift).all()
    for name in ("bytes", "external", "blocks_per_sm", "occupancy"):
        assert columns(new.work)[name] == columns(other.work)[name]
    assert [t.tid for t in new.threads] == [t.tid for t in other.threads]
    assert [t.name for t in new.threads] == [t.name for t in other.threads]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_forward_of_backward_is_found(dialect: Dialect) -> None:
    """Through the flows of newer files and through autograd's numbers in the old."""
    timeline = training(dialect, steps=3).timeline()
    names = [timeline.names[number] for number in timeline.host.name]
    pairs = zip(timeline.links.forward.tolist(), timeline.links.backward.tolist(), strict=True)
    linked = [(names[a], names[b]) for a, b in pairs]
    assert set(linked) == {("aten::addmm", "autograd::engine::evaluate_function: AddmmBackward0")}
    assert len(set(timeline.links.backward.tolist())) == 3


@pytest.mark.parametrize("dialect", DIALECTS)
def test_sound(dialect: Dialect) -> None:
    timeline = training(dialect).timeline()
    assert_sound(timeline)
    assert timeline.notes == ()
    assert not timeline.facts.truncated
    assert timeline.facts.vendor == "nvidia"
    assert [gpu.name for gpu in timeline.facts.gpus] == ["NVIDIA A100-SXM4-40GB"]
    assert timeline.facts.gpus[0].multiprocessors == 108


def test_rank_and_vendor() -> None:
    facts = training(rank=1, vendor="amd").timeline().facts
    assert (facts.rank, facts.world_size, facts.backend, facts.vendor) == (1, 2, "nccl", "amd")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_marks_are_annotations(dialect: Dialect) -> None:
    trace = Trace(dialect)
    for name in ("ProfilerStep#3", "Optimizer.step#SGD.step", "enumerate(DataLoader)#It.__next__"):
        trace.annotation(name, 1, 2)
    assert set(trace.timeline().host.kind.tolist()) == {HostKind.ANNOTATION}


def test_memory_belongs_to_the_thread_of_its_operator() -> None:
    """The oldest files write the thread of operators as text and that of memory as a number."""
    timeline = training("old").timeline()
    assert set(timeline.memory.thread.tolist()) <= set(timeline.host.thread.tolist())
    assert len(timeline.threads) == 2


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_external_id_that_only_repeats_the_correlation_is_none(dialect: Dialect) -> None:
    trace = Trace(dialect)
    op = trace.operator("aten::mm", 0, 50)
    trace.launch("linked", 5, kernel=(20, 5), external=op)
    trace.launch("unlinked", 15, kernel=(30, 5))
    timeline = trace.timeline()
    calls = timeline.host.kind == HostKind.CALL
    assert timeline.host.external[calls].tolist() == [op, -1]
    assert timeline.work.external.tolist() == [op, -1]


def test_memory_totals() -> None:
    timeline = training("new").timeline()
    assert timeline.memory.bytes.tolist() == [4096, -4096] * 2
    assert timeline.memory.allocated.tolist() == [4096, 0] * 2
    assert timeline.memory.reserved.tolist() == [4096] * 4
    assert (np.diff(timeline.memory.time) > 0).all()


def test_syncs_and_their_rows() -> None:
    trace = Trace("middle")
    trace.operator("aten::mm", 0, 1)
    trace.sync("Stream Sync", 10, 5, correlation=9, stream=20, tid=1_000_020)
    trace.sync("Stream Wait Event", 20, 1, stream=7, on_stream=20, record=77)
    trace.raw(ph="X", cat="cuda_sync", name="Stream Sync", pid=0, tid=1_000_021, ts=trace.time(30), dur=1)
    syncs = trace.timeline().syncs
    assert syncs.stream.tolist() == [20, 7, 21]
    assert syncs.on_stream.tolist() == [-1, 20, -1]
    assert syncs.record.tolist() == [-1, 77, -1]
    assert syncs.correlation.tolist() == [9, 0, -1]


@pytest.mark.parametrize(
    ("stream", "number"),
    [(4294967295, -1), (-1, -1), ("7", 7), ("stream 13", 13), (18446744073709551615, -1)],
)
def test_streams(stream: int | str, number: int) -> None:
    trace = Trace()
    trace.kernel("k", 0, 1, stream=stream)
    timeline = trace.timeline()
    assert timeline.work.stream.tolist() == [number]


def test_work_without_arguments_is_placed_by_its_row() -> None:
    trace = Trace()
    trace.raw(ph="X", cat="kernel", name="k", pid=3, tid=13, ts=trace.time(0), dur=1)
    timeline = trace.timeline()
    assert (timeline.work.device.tolist(), timeline.work.stream.tolist()) == ([3], [13])


def test_processes_are_distinguished() -> None:
    trace = Trace()
    trace.operator("aten::mm", 0, 5)
    other = Trace(pid=5000, main=4000)
    other.operator("aten::mm", 1, 5)
    trace.events += other.events
    timeline = trace.timeline()
    assert [thread.pid for thread in timeline.threads] == ["4000", "5000"]
    assert timeline.notes == ("The file contains 2 processes; they were read as one",)


def test_one_row_for_everything() -> None:
    trace = Trace(pid=1, main=1, device=1)
    trace.operator("aten::mm", 0, 50)
    trace.launch("k", 10, kernel=(20, 5), stream=1)
    timeline = trace.timeline()
    assert len(timeline.host) == 2
    assert len(timeline.work) == 1


def test_collectives() -> None:
    trace = Trace()
    args = {"Collective name": "allreduce", "Process Group Name": "dp", "In msg nelems": 1024}
    trace.kernel("ncclDevKernel_AllReduce", 0, 5, **args)
    trace.kernel("gemm", 6, 5)
    timeline = trace.timeline()
    assert timeline.groups == ("dp",)
    assert timeline.work.group.tolist() == [0, -1]
    assert timeline.work.elements.tolist() == [1024, -1]


@pytest.mark.parametrize(("value", "expected"), [("inf", -1.0), (0.5, 0.5), ("N/A", -1.0)])
def test_blocks_per_sm(value: object, expected: float) -> None:
    trace = Trace()
    trace.kernel("k", 0, 1, **{"blocks per SM": value})
    assert trace.timeline().work.blocks_per_sm.tolist() == [expected]


def test_calls_of_another_runtime_launch_and_their_waits_are_not_known() -> None:
    document = training("new").document()
    for event in document["traceEvents"]:
        if event.get("cat") == "cuda_runtime":
            event |= {"cat": "xpu_runtime", "name": f"ur{event['name'].removeprefix('cuda')}"}
    timeline = read_bytes(json.dumps(document).encode())
    (note,) = timeline.notes
    assert "syncs are not found" in note
    assert (timeline.launchers >= 0).any()
    held = is_launching(timeline, timeline.launchers[timeline.launchers >= 0])
    assert held.any()
