"""Profiles in which copies between host and device take the time: what is said, and what pinned memory gives.

The twin of each is the same loop with pinned memory, run on a machine of the test's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import Trace

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.profile_report import report_run
from gapless.model import Report
from gapless.render import text
from gapless.render._style import Style

V100, A100, H100 = "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"
PINNED_RATES = {V100: 12.3, A100: 24.8, H100: 53.0}  # GB/s, of bandwidth tests as users publish them


@dataclass
class Bench:
    """A loop of copies and kernels on one stream; microseconds, GB/s, bytes."""

    trace: Trace
    pinned: bool
    rates: tuple[float, float]
    now: float = 20.0
    free: float = 0.0

    def copy(self, to_device: bool, size: int) -> None:
        rate = self.rates[0 if to_device else 1]
        start = max(self.now + 8, self.free)
        length = 2 + size / rate / 1e3
        memory = "Pinned" if self.pinned else "Pageable"
        kind = f"HtoD ({memory} -> Device)" if to_device else f"DtoH (Device -> {memory})"
        # A read waits, whatever its memory: the loop looks at what has come.
        call = 6.0 if self.pinned else start + length + 4 - self.now
        end = self.now + call + 20
        waits = not to_device or not self.pinned
        done = start + length + 6
        outer = (max(end, done) + 10 if waits else end - 4) - self.now
        for depth, name in enumerate(("aten::to", "aten::_to_copy", "aten::copy_")):
            self.trace.operator(name, self.now + depth, outer - 2 * depth)
        self.trace.copy(kind, self.now + 4, call, copy=(start, length), bytes=size)
        self.now += 4 + call
        if waits:
            self.trace.wait(self.now + 1, max(done - self.now - 1, 3))
            self.now = max(done, self.now + 4)
        self.now += 15
        self.free = start + length

    def kernel(self, length: float) -> None:
        start = max(self.now + 6, self.free + 1)
        self.trace.operator("aten::mm", self.now, 10)
        self.trace.launch("gemm", self.now + 2, 5, kernel=(start, length))
        self.now += 12
        self.free = start + length


def bench(gpu, steps, sizes, rates, pinned, back=(), kernels=()):
    """The profile of such a loop, and its time from the first call to the last end."""
    bench_script = Bench(Trace(gpu=gpu), pinned, rates)
    for number in range(steps):
        begin = bench_script.now
        for size in sizes:
            bench_script.copy(True, size)
        for length in kernels:
            bench_script.kernel(length)
        for size in back:
            bench_script.copy(False, size)
        bench_script.trace.step(number + 1, begin, bench_script.now - begin)
    bench_script.trace.wait(bench_script.now + 2, max(bench_script.free - bench_script.now, 3), stream=False)
    return bench_script.trace


def report_of(trace: Trace, **more) -> Report:
    return report_run([build_profile(trace.timeline(), priced=True, **more)])


def step(report: Report) -> float:
    return report.profile.steps.mean


MB = 1_000_000
LOOPS = [
    # GPU, steps, sizes to the device, pageable rates, sizes back, kernels
    (V100, 51, [154 * MB], (2.3, 2.0), [], []),
    (V100, 11, [20 * MB] * 5, (2.3, 2.0), [], []),
    (A100, 26, [154 * MB, 2 * MB], (4.4, 3.0), [], []),
    (A100, 26, [], (4.4, 3.0), [80 * MB] * 2, []),
    (H100, 26, [50 * MB], (9.0, 6.0), [50 * MB], []),
    (A100, 26, [60 * MB], (3.0, 3.0), [], [3_000.0]),
    (V100, 26, [60 * MB], (3.0, 2.5), [30 * MB], [2_000.0, 1_000.0]),
]


@pytest.mark.parametrize("loop", LOOPS)
def test_what_pinned_memory_gives_is_what_the_pinned_twin_takes(loop):
    gpu, steps, sizes, rates, back, kernels = loop
    pageable = report_of(bench(gpu, steps, sizes, rates, False, back, kernels), requested=["@pinned"])
    link = PINNED_RATES[gpu]
    twin = report_of(bench(gpu, steps, sizes, (link, link), True, back, kernels))
    prices = pageable.profile.prices
    assert (prices.refused, prices.reasons) == ("", ())
    wanted = twin.profile.prices.span
    assert prices.span - prices.asked.saved == pytest.approx(wanted, rel=0.1)
    assert prices.pinned == prices.asked.saved
    pins = [change for change in pageable.verdict.do_first if "pin" in change.what]
    assert pins[-1].after == pytest.approx(step(twin), rel=0.1)


def test_the_headline_of_a_pageable_benchmark():
    report = report_of(bench(V100, 6, [154 * MB], (2.3, 2.0), False))
    assert report.verdict.level == "act"
    assert report.verdict.sentence == (
        "Copies to the GPU take 100 % of each 67 ms step, pageable, one after the other: 2.3 of 12 GB/s"
    )
    (first, *_) = report.verdict.do_first
    assert first.what == "pin it and copy with `non_blocking=True`"
    assert first.codes == ("GAP120",)
    assert "own work" not in text.render(report, Style())
    assert "To the GPU: 154 MB in 1 copy from pageable memory takes 67 ms per step" in report.verdict.why[0]


def test_the_headline_of_its_pinned_twin():
    report = report_of(bench(V100, 6, [154 * MB], (12.3, 12.3), True))
    assert report.verdict.level == "fine"
    assert report.verdict.sentence.startswith("Copies to the GPU take 100 %")
    assert "pinned, one after the other: 12 of 12 GB/s" in report.verdict.sentence
    assert report.verdict.do_first == ()
    assert report.profile.prices.pinned == 0
    assert report.profile.prices.remains == "copies"
    (copies,) = report.profile.copies
    assert copies.measured


def test_both_directions_are_reported():
    report = report_of(bench(H100, 5, [50 * MB], (9.0, 6.0), False, back=[50 * MB]))
    assert "to the CPU pageable, 6 of 50 GB/s; to the GPU pageable, 9 of 50 GB/s" in report.verdict.sentence
    assert [change.what for change in report.verdict.do_first][:2] == [
        "pin it and copy with `non_blocking=True`",
        "copy to the CPU into pinned memory, allocated once",
    ]


def test_pinned_copies_of_the_profile_itself_say_what_the_link_can_do():
    trace = bench(A100, 4, [100 * MB], (3.0, 3.0), False)
    trace.copy("HtoD (Pinned -> Device)", 500_000, 6, copy=(500_010, 40 * MB / 11.0 / 1e3), bytes=40 * MB)
    profile = build_profile(trace.timeline())
    pageable = next(copy_ for copy_ in profile.copies if copy_.memory == "pageable")
    assert pageable.measured
    assert pageable.reach == pytest.approx(11.0, rel=0.01)


def test_a_gpu_whose_link_is_unknown_gets_no_rate():
    report = report_of(bench("Some Accelerator", 4, [100 * MB], (3.0, 3.0), False))
    assert report.verdict.sentence.endswith("3 GB/s")
    assert "the bandwidth of this GPU's link is not known" in report.verdict.why[0]


def test_kernels_beside_small_copies_are_not_about_copies():
    report = report_of(bench(A100, 6, [2 * MB], (4.0, 4.0), False, kernels=[20_000.0]))
    assert not report.verdict.sentence.startswith("Copies")
    assert report.profile.copies[0].alone < 0.1 * report.profile.steps.total


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([V100, A100, H100]),
    st.lists(st.integers(1, 200), min_size=1, max_size=4),
    st.lists(st.integers(1, 200), max_size=3),
    st.lists(st.integers(10, 20_000), max_size=3),
    st.floats(1.5, 9.0),
)
def test_times_of_copies_add_up(gpu, sizes, back, kernels, rate):
    sent, here = [size * MB for size in sizes], [size * MB for size in back]
    trace = bench(gpu, 3, sent, (rate, rate), False, here, kernels)
    profile = build_profile(trace.timeline())
    alone = sum(copy_.alone for copy_ in profile.copies)
    assert 0 <= alone <= profile.split.memcpy <= profile.steps.total
    assert sum(copy_.bytes for copy_ in profile.copies) == 3 * MB * (sum(sizes) + sum(back))
    for copy_ in profile.copies:
        assert copy_.rate == pytest.approx(rate, rel=0.03)
        assert copy_.alone <= copy_.time
