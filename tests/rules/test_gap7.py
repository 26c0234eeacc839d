"""Rules of measuring itself: what makes them speak, what they say, and what must leave them silent."""

from __future__ import annotations

import pytest
from rules.profiles import (
    MS,
    SINGLE,
    STACKS,
    cost,
    find_hits,
    only,
    profile,
    said,
    site,
    steps,
)

from gapless.model import Cost, Profile
from gapless.model.profile import Recording, Steps


class TestProfilerOverhead:
    def test_time_it_took(self) -> None:
        kinds = {"Activity Buffer Request": 30 * MS, "Lazy Function Loading": 12 * MS, "CUPTI enable": 1}
        slow = cost("profiler", 36, site("Activity Buffer Request"), stretches=6, steps=6)
        hit = only("GAP701", profile(slow, recording=Recording(overhead=42 * MS, overheads=kinds)))
        assert hit.evidence == (
            "the profiler itself took 7 ms of each 100 ms step, 7.0 %",
            "most of it: Activity Buffer Request 5 ms, Lazy Function Loading 2 ms per step",
            "the GPU idles 6 ms of each 100 ms step, 6.0 %",
        )
        assert (hit.idle, hit.site) == (36 * MS, None)

    def test_overhead_behind_which_the_gpu_worked(self) -> None:
        hit = only("GAP701", profile(recording=Recording(overhead=60 * MS)))
        assert hit.evidence == ("the profiler itself took 10 ms of each 100 ms step, 10 %",)
        assert hit.idle == 0

    @pytest.mark.parametrize("ms", [0, 1, 29])
    def test_little(self, ms: int) -> None:
        assert not find_hits("GAP701", profile(recording=Recording(overhead=ms * MS)))


class TestRecordingSlowsTheHost:
    def test_stacks_in_a_launch_bound_step(self) -> None:
        slow = [cost("launch", 120, site("aten::mul", 3)), cost("host", 60, site("", 4))]
        hit = only("GAP702", profile(*slow, recording=STACKS))
        assert hit.evidence == (
            "recorded with `with_stack=True`, 21,000 events per step",
            "the GPU waits for the CPU for 30 ms of each 100 ms step, 30 %, and would wait less without this",
        )
        assert hit.idle == 0  # it says nothing new of where the time went

    def test_memory(self) -> None:
        slow = cost("launch", 120, site("aten::mul", 3))
        hit = only("GAP702", profile(slow, recording=Recording(with_memory=True)))
        assert hit.evidence[0] == "recorded with `profile_memory=True`"

    def test_both(self) -> None:
        both = Recording(stacks="call-stack", with_memory=True)
        hit = only("GAP702", profile(cost("launch", 120, site("aten::mul", 3)), recording=both))
        assert "`with_stack=True` and `profile_memory=True`" in said(hit)

    @pytest.mark.parametrize(
        ("costs", "recording"),
        [
            ((cost("launch", 120, site("aten::mul", 3)),), Recording(with_shapes=True)),
            ((cost("launch", 30, site("aten::mul", 3)),), STACKS),
            ((cost("launch", 90, site("aten::mul", 3)), cost("input", 200, site(SINGLE))), STACKS),
            ((), STACKS),
        ],
    )
    def test_where_it_does_not_matter(self, costs: tuple[Cost, ...], recording: Recording) -> None:
        assert not find_hits("GAP702", profile(*costs, recording=recording))


class TestWarmUpInTheTrace:
    def test_a_long_first_step(self) -> None:
        hit = only("GAP703", profile(marked=steps(812, 190, 188, 192)))
        assert hit.evidence == (
            "the first step takes 812 ms, the others 190 ms (median)",
            "the excess is 45 % of all 4 steps",
        )
        assert (hit.idle, hit.steps) == (0, 1)

    def test_calls_of_the_beginning(self) -> None:
        loads = cost("graph", 120, site("cudaLaunchKernel"), steps=1, start=5, end=9)
        allocates = cost("allocator", 60, site("cudaMalloc"), steps=1, start=20)
        hit = only("GAP703", profile(loads, allocates, marked=steps(600, source="span")))
        assert hit.evidence == (
            "the GPU idles 180 ms of the 600 ms trace, 30 %, at 2 places, in calls that a program makes at "
            "startup",
            "most of it at cudaLaunchKernel, cudaMalloc",
        )
        assert (hit.idle, hit.site) == (180 * MS, None)

    def test_in_the_first_of_several_steps(self) -> None:
        loads = cost("graph", 120, site("cudaLaunchKernel"), steps=1, start=5)
        assert only("GAP703", profile(loads)).idle == 120 * MS

    @pytest.mark.parametrize(
        "marked",
        [
            steps(100, 100, 100),
            steps(140, 100, 100, 100),
            steps(145, 100, 100),
            steps(900, 100),  # which of two is the usual one?
            steps(900),
            steps(100, 100, 900),
            steps(16, *[10] * 80),
            Steps(),
        ],
    )
    def test_even_steps_and_too_few(self, marked: Steps) -> None:
        assert not find_hits("GAP703", profile(marked=marked))

    @pytest.mark.parametrize(
        "other",
        [
            cost("graph", 120, site("cudaGraphLaunch"), steps=1),
            cost("graph", 120, site("cudaDeviceSynchronize"), steps=1),
            cost("graph", 120, site(""), stretches=9_000, steps=1),
            cost("graph", 20, site("cudaLaunchKernel"), steps=1),
            cost("wait", 120, site("cudaStreamSynchronize"), steps=1),
        ],
    )
    def test_what_is_no_beginning(self, other: Cost) -> None:
        assert not find_hits("GAP703", profile(other, marked=steps(600)))

    def test_what_comes_back_is_no_beginning(self) -> None:
        assert not find_hits("GAP703", profile(cost("graph", 120, site("cudaLaunchKernel"), steps=6)))


class TestNoStepsMarked:
    def test_idle_and_unmarked(self) -> None:
        idle = cost("host", 200, site("", 3))
        hit = only("GAP704", profile(idle, marked=steps(1000, source="span")))
        assert hit.evidence == ("all numbers cover the whole 1 s, including set-up",)
        assert "prof.step()" in hit.remedy
        assert hit.idle == 0

    def test_a_shorter_one(self) -> None:
        idle = cost("wait", 5, site("cudaStreamSynchronize", 3))
        marked = steps(12.5, source="span")
        assert "the whole 12.5 ms" in said(only("GAP704", profile(idle, marked=marked)))

    def test_steps_that_are_marked_and_devices_that_are_busy(self) -> None:
        idle = cost("host", 200, site("", 3))
        assert not find_hits("GAP704", profile(idle))
        assert not find_hits("GAP704", profile(idle, marked=steps(9000, source="span")))

    def test_a_trace_without_a_device(self) -> None:
        marked = steps(1000, source="span")
        assert not find_hits("GAP704", Profile(steps=marked, idle=1000 * MS))


class TestNoStacksRecorded:
    def test_operators_without_lines(self) -> None:
        lost = [cost("wait", 30, site("aten::nonzero")), cost("launch", 60, site("aten::mul"))]
        hit = only("GAP705", profile(*lost, recording=Recording()))
        assert hit.evidence == (
            "the GPU idles 15 ms of each 100 ms step, 15 %, at 2 places whose line is unknown",
        )
        assert "with_stack=True" in hit.remedy

    def test_one_place(self) -> None:
        hit = only("GAP705", profile(cost("wait", 30, site("aten::nonzero")), recording=Recording()))
        assert "at one place whose line is unknown" in said(hit)

    @pytest.mark.parametrize(
        ("lost", "recording"),
        [
            (cost("wait", 60, site("aten::nonzero")), Recording(stacks="frames")),
            (cost("wait", 60, site("aten::nonzero")), Recording(stacks="call-stack")),
            (cost("wait", 60, site("aten::nonzero", 3)), Recording()),
            (cost("wait", 20, site("aten::nonzero")), Recording()),
            (cost("input", 60, site(SINGLE)), Recording()),  # the loop over the loader is known
            (cost("communication", 60, site("nccl:all_reduce")), Recording()),
            (cost("graph", 60, site(""), stretches=42_000), Recording()),
        ],
    )
    def test_lines_that_are_known_or_would_not_help(self, lost: Cost, recording: Recording) -> None:
        assert not find_hits("GAP705", profile(lost, recording=recording))


class TestTraceCutOff:
    @pytest.mark.parametrize(
        ("marked", "held"),
        [(steps(100, 100), "2 steps"), (steps(100), "1 step"), (steps(100, source="span"), "no steps")],
    )
    def test_what_it_holds(self, marked: Steps, held: str) -> None:
        hit = only("GAP706", profile(marked=marked, recording=Recording(truncated=True)))
        assert hit.evidence == (f"the file is truncated: it contains {held}",)

    def test_a_whole_file(self) -> None:
        assert not find_hits("GAP706", profile(recording=Recording()))
