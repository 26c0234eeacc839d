"""Whole profiles, from the file to the report, in which a rule must not fire."""

from __future__ import annotations

import pytest
from trace_builder import Dialect, Trace

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.profile_report import report_run
from gapless.model import Report

STEPS = 6
STEP = 1000.0


def reported(trace: Trace) -> Report:
    return report_run([build_profile(trace.timeline())])


def waits(report: Report) -> list[str]:
    return [finding.code for finding in report.findings if finding.code.startswith("GAP1")]


def gpu_bound(dialect: Dialect = "new", *, read: bool = False, pinned: bool = False) -> Trace:
    """Steps in which the host is far ahead of a GPU that is never idle.

    `read`: near the end of each step, with half a step of work queued on another stream, the host reads what
    was computed long ago. `pinned`: each batch is copied out of pinned memory, on a stream of its own.
    """
    trace = Trace(dialect=dialect)
    for number in range(STEPS):
        at = number * STEP
        trace.step(number, at, STEP)
        trace.frame("train.py(3): train", at + 1, STEP - 2)
        if pinned:
            trace.operator("aten::copy_", at + 5, 10)
            trace.copy("HtoD (Pinned -> Device)", at + 7, 5, copy=(at + 20, 300), bytes=1 << 20, stream=20)
        for kernel in range(10):
            trace.operator("aten::mm", at + 20 + 20 * kernel, 15)
            trace.launch("gemm", at + 25 + 20 * kernel, 5, kernel=(at + 400 + 100 * kernel, 100))
        if read:
            trace.operator("aten::item", at + 300, 650)
            trace.operator("aten::_local_scalar_dense", at + 302, 646)
            # Its stream has nothing else to do, and the other one has work far beyond the wait's end.
            trace.copy("DtoH (Device -> Pageable)", at + 305, 5, copy=(at + 936, 2), bytes=4, stream=30)
            trace.wait(at + 312, 630)
    return trace


@pytest.mark.parametrize("dialect", ["new", "middle", "old"])
def test_a_loop_that_never_waits(dialect: Dialect) -> None:
    report = reported(gpu_bound(dialect))
    assert waits(report) == []
    assert not any(finding.code[:4] in ("GAP3", "GAP4", "GAP6") for finding in report.findings)
    assert "GAP501" not in {finding.code for finding in report.findings}


def test_copies_out_of_pinned_memory_are_no_waits() -> None:
    report = reported(gpu_bound(pinned=True))
    assert waits(report) == []
    assert "GAP302" not in {finding.code for finding in report.findings}


def test_long_waits_for_a_busy_gpu_are_called_free() -> None:
    report = reported(gpu_bound(read=True))
    (finding,) = (finding for finding in report.findings if finding.code.startswith("GAP1"))
    assert finding.code == "GAP101"
    assert finding.loss is not None
    assert finding.loss.blocked > 0.5 * STEPS * STEP * 1000
    assert finding.loss.idle == 0
    assert finding.loss.share == 0
    assert "while the GPU works" in " ".join(finding.evidence)


def test_the_same_wait_when_the_gpu_has_nothing_else_is_not_free() -> None:
    """The control of the control: what the test above calls free must cost where the work is missing."""
    trace = Trace()
    for number in range(STEPS):
        at = number * STEP
        trace.step(number, at, STEP)
        trace.frame("train.py(3): train", at + 1, STEP - 2)
        trace.operator("aten::mm", at + 20, 15)
        trace.launch("gemm", at + 25, 5, kernel=(at + 35, 300))
        trace.operator("aten::item", at + 50, 800)
        trace.operator("aten::_local_scalar_dense", at + 52, 796)
        trace.copy("DtoH (Device -> Pageable)", at + 55, 5, copy=(at + 340, 2), bytes=4)
        trace.wait(at + 62, 780)
    report = reported(trace)
    (finding,) = (finding for finding in report.findings if finding.code == "GAP101")
    assert finding.loss is not None
    assert finding.loss.idle > 0.3 * STEPS * STEP * 1000
