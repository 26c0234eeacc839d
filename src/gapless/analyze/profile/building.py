"""Build a `Profile` from a `Timeline`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from gapless.analyze.profile.communication import find_collectives
from gapless.analyze.profile.copies import copy_times
from gapless.analyze.profile.costs import find_costs
from gapless.analyze.profile.coverage import explain_no_device_work, judge_coverage
from gapless.analyze.profile.efficiency import measure_efficiency
from gapless.analyze.profile.idle import attribute_idleness
from gapless.analyze.profile.kernels import longest_kernels
from gapless.analyze.profile.launches import count_launches
from gapless.analyze.profile.lines import PlaceIndex
from gapless.analyze.profile.memory_curve import memory_use
from gapless.analyze.profile.split import mean_occupancy, sm_efficiency, split_time, utilization
from gapless.analyze.profile.trace_steps import StepSpans, busy_spans, covered_time, find_steps, main_device
from gapless.analyze.profile.training_phases import find_phases
from gapless.analyze.profile.unrecorded import without_recording
from gapless.analyze.profile.waits import find_waits
from gapless.errors import UnreadableInput
from gapless.model import Site
from gapless.model.coverage import Coverage
from gapless.model.lanes import Lanes
from gapless.model.profile import Cost, LineTime, Prices, Profile, Recording, Steps
from gapless.trace.read import read
from gapless.trace.timeline import HostKind, Ints, Timeline, distinct, union


def build_profile(
    timeline: Timeline, priced: bool = False, requested: Sequence[str] = (), max_boxes: int = 0
) -> Profile:
    """Profile the busiest device of `timeline`.

    With `priced` its waits are priced by a replay without them; `requested` adds waits to price (see
    `gapless.analyze.profile.pricing`). With `max_boxes` the profile holds about so many boxes to draw.

    Raises:
        UnreadableInput: the profile has no work of a device.
    """
    facts = timeline.facts
    device = main_device(timeline)
    if device < 0:
        raise UnreadableInput(f"{facts.path or 'this profile'} {explain_no_device_work(timeline)}")
    gpu = next((candidate for candidate in facts.gpus if candidate.number == device), None)
    steps = find_steps(timeline, device)
    coverage_ = judge_coverage(timeline, device, steps)
    waits = find_waits(timeline)
    places = PlaceIndex(timeline)
    idle, stretches = attribute_idleness(timeline, device, steps, waits)
    costs_, rows = find_costs(timeline, device, steps, stretches, waits, places)
    low, high = timeline.span
    profile = Profile(
        path=facts.path,
        origin=facts.origin,
        span=high - low,
        rank=facts.rank,
        world_size=facts.world_size,
        vendor=facts.vendor,
        device=device,
        gpu=gpu.name if gpu else "",
        gpu_memory=gpu.memory if gpu else 0,
        devices=len(facts.gpus),
        streams=len(set(timeline.work.stream[timeline.work.device == device].tolist())),
        steps=_steps(timeline, device, steps),
        split=split_time(timeline, steps, device),
        idle=idle,
        utilization=utilization(timeline, steps, device),
        sm_efficiency=sm_efficiency(timeline, steps, device),
        occupancy=mean_occupancy(timeline, steps, device),
        phases=find_phases(timeline, steps, device),
        kernels=longest_kernels(timeline, steps, device),
        lines=hot_lines(timeline, steps, device, places),
        launches=count_launches(timeline, steps, device),
        copies=copy_times(timeline, steps, device),
        memory=memory_use(timeline, steps, device),
        costs=costs_,
        collectives=find_collectives(timeline, device),
        recording=find_recording(timeline, steps),
        efficiency=measure_efficiency(timeline, steps, device),
        coverage=coverage_,
        prices=_prices(timeline, coverage_, costs_, rows, requested, steps.total)
        if priced or requested
        else None,
        lanes=_lanes(timeline, device, steps, stretches, costs_, rows, max_boxes) if max_boxes else None,
        notes=timeline.notes + steps.notes,
    )
    return without_recording(profile)


def _lanes(timeline: Timeline, *arguments: Any) -> Lanes:
    from gapless.analyze.profile.lanes import draw_lanes  # only pages draw

    return draw_lanes(timeline, *arguments)


def _prices(
    timeline: Timeline,
    coverage: Coverage,
    costs: Sequence[Cost],
    rows: Sequence[Ints],
    requested: Sequence[str],
    total: int,
) -> Prices:
    if not coverage.complete:
        return Prices(refused=coverage.reason)
    from gapless.analyze.profile.pricing import price_waits  # the replay is loaded only when needed

    return price_waits(timeline, costs, rows, requested, total)


def profile_file(
    path: str,
    progress: Callable[[int], None] | None = None,
    priced: bool = False,
    requested: Sequence[str] = (),
    max_boxes: int = 0,
) -> Profile:
    """Profile the trace in `path`; `progress` is called with the number of bytes read.

    Raises:
        UnreadableInput: the file cannot be read, is no trace or has no work of a device.
    """
    return build_profile(read(path, progress), priced, requested, max_boxes)


def _steps(timeline: Timeline, device: int, steps: StepSpans) -> Steps:
    start, end = busy_spans(timeline, device)
    return Steps(
        source=steps.source,
        names=steps.names,
        start=tuple(steps.start.tolist()),
        end=tuple(steps.end.tolist()),
        busy=tuple(covered_time(start, end, steps.start, steps.end).tolist()),
    )


MAX_LINES_KEPT = 40
"""Lines a profile keeps: more than reports show, few enough to keep its file small."""
_MAX_CHAINS = 400
"""Distinct chains of callers that are examined, longest device time first; the rest takes little time."""


def hot_lines(timeline: Timeline, steps: StepSpans, device: int, places: PlaceIndex) -> tuple[LineTime, ...]:
    """Return the device time of the steps by the line that launched it, longest first."""
    work = timeline.work
    launch = timeline.launchers
    rows = np.flatnonzero((work.device == device) & (launch >= 0) & (steps.at(work.start) >= 0))
    if not len(rows):
        return ()
    launched, back = np.unique(launch[rows], return_inverse=True)
    length = np.bincount(back.reshape(-1), weights=work.end[rows] - work.start[rows])
    kernels = np.bincount(back.reshape(-1))
    keys = places.keys(launched)
    _, first, codes = np.unique(keys, return_index=True, return_inverse=True)
    codes = codes.reshape(-1)
    total = np.bincount(codes, weights=length)
    count = np.bincount(codes, weights=kernels)
    sums: dict[Site, tuple[int, int]] = {}
    for code in np.argsort(-total, kind="stable")[:_MAX_CHAINS].tolist():
        place = places.place(int(launched[first[code]]))
        site = place.site
        previous = sums.get(site, (0, 0))
        sums[site] = (previous[0] + int(total[code]), previous[1] + int(count[code]))
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])[:MAX_LINES_KEPT]
    return tuple(LineTime(site=site, total=totals[0], kernels=totals[1]) for site, totals in ordered)


def find_recording(timeline: Timeline, steps: StepSpans) -> Recording:
    """Return the profiler's options as far as the trace shows them, and its overhead in the steps (ns)."""
    host, facts = timeline.host, timeline.facts
    rows = np.flatnonzero(host.kind == HostKind.OVERHEAD)
    return Recording(
        stacks=_stacks(timeline),
        with_stack=facts.with_stack,
        with_memory=facts.with_memory,
        with_shapes=facts.with_shapes,
        overhead=_covered_time(timeline, steps, rows),
        overheads=_overhead_by_name(timeline, steps, rows),
        events_per_step=_events_per_step(timeline, steps),
        truncated=facts.truncated,
        by_gapless=facts.by_gapless,
        unrecorded=facts.unrecorded_step,
    )


def _stacks(timeline: Timeline) -> Literal["frames", "call-stack", ""]:
    if (timeline.host.kind == HostKind.FRAME).any():
        return "frames"
    return "call-stack" if any(timeline.stacks) else ""


def _covered_time(timeline: Timeline, steps: StepSpans, rows: Ints) -> int:
    """Return how much of the steps these rows cover together."""
    spans = union(timeline.host.start[rows], timeline.host.end[rows])
    return int(covered_time(*spans, steps.start, steps.end).sum())


def _overhead_by_name(timeline: Timeline, steps: StepSpans, rows: Ints) -> dict[str, int]:
    """Return the time in the steps of each kind of overhead, largest first; kinds without any left out."""
    times = {
        timeline.names[number]: _covered_time(timeline, steps, rows[timeline.host.name[rows] == number])
        for number in distinct(timeline.host.name[rows]).tolist()
    }
    return {name: time for name, time in sorted(times.items(), key=lambda item: -item[1]) if time}


def _events_per_step(timeline: Timeline, steps: StepSpans) -> int:
    """Return the number of events that start in a step, on average."""
    if not len(steps.start):
        return 0
    columns = (timeline.host.start, timeline.work.start, timeline.memory.time)
    return round(sum(int(np.count_nonzero(steps.at(times) >= 0)) for times in columns) / len(steps.start))
