"""Device time by the line that launched it."""

from __future__ import annotations

from trace_builder import Trace

from gapless.analyze.profile.building import build_profile
from gapless.model import SourceLine

US = 1_000


def hot_lines(trace: Trace) -> list[tuple[tuple[SourceLine, ...], int, int]]:
    """(stack, nanoseconds, kernels) of each place, the longest first."""
    return [(line.site.stack, line.total, line.kernels) for line in build_profile(trace.timeline()).lines]


def called(trace: Trace, line: int, start: float, *kernels: tuple[float, float], stream: int = 7) -> None:
    """A function of ``train.py`` that begins at `line` and launches `kernels` (start, duration)."""
    trace.frame(f"train.py({line}): part{line}", start, 10)
    trace.operator("aten::mm", start + 1, 8)
    for number, kernel in enumerate(kernels):
        trace.launch("gemm", start + 2 + number, 1, kernel=kernel, stream=stream)


def test_kernels_belong_to_the_line_that_launched_them():
    trace = Trace()
    trace.step(1, 0, 400)
    called(trace, 10, 0, (20, 30), (50, 50))
    called(trace, 20, 20, (100, 200))
    called(trace, 10, 40, (300, 7))
    rows = [(stack[0].line, total, kernels) for stack, total, kernels in hot_lines(trace)]
    assert rows == [(20, 200 * US, 1), (10, 87 * US, 3)]


def test_kernels_launched_outside_the_steps_do_not_count():
    trace = Trace()
    called(trace, 10, 0, (20, 30))
    trace.step(1, 100, 100)
    called(trace, 20, 110, (120, 40))
    assert [(stack[0].line, total) for stack, total, _ in hot_lines(trace)] == [(20, 40 * US)]


def test_streams_add_up_and_another_device_does_not():
    trace = Trace()
    trace.step(1, 0, 200)
    called(trace, 10, 0, (20, 30))
    called(trace, 10, 20, (40, 30), stream=9)
    trace.frame("train.py(30): other", 40, 10)
    trace.launch("gemm", 42, 1, kernel=(60, 10), device=1)
    assert [(stack[0].line, total, kernels) for stack, total, kernels in hot_lines(trace)] == [
        (10, 60 * US, 2)
    ]


def test_work_that_nobody_was_seen_to_launch_is_left_out():
    trace = Trace()
    trace.step(1, 0, 200)
    called(trace, 10, 0, (20, 30))
    trace.kernel("orphan", 60, 100)
    assert [total for _, total, _ in hot_lines(trace)] == [30 * US]
