"""Build a `Profile` from a `Timeline`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gapless.analyze.profile.communication import find_collectives
from gapless.analyze.profile.copies import copy_times
from gapless.analyze.profile.costs import find_costs
from gapless.analyze.profile.coverage import explain_no_device_work, judge_coverage
from gapless.analyze.profile.efficiency import measure_efficiency
from gapless.analyze.profile.hotlines import hot_lines
from gapless.analyze.profile.idle import attribute_idleness
from gapless.analyze.profile.kernels import longest_kernels
from gapless.analyze.profile.launches import count_launches
from gapless.analyze.profile.lines import PlaceIndex
from gapless.analyze.profile.memory_curve import memory_use
from gapless.analyze.profile.recording import find_recording
from gapless.analyze.profile.split import mean_occupancy, sm_efficiency, split_time, utilization
from gapless.analyze.profile.trace_steps import StepSpans, busy_spans, covered_time, find_steps, main_device
from gapless.analyze.profile.training_phases import find_phases
from gapless.analyze.profile.waits import find_waits
from gapless.errors import UnreadableInput
from gapless.model.coverage import Coverage
from gapless.model.lanes import Lanes
from gapless.model.profile import Cost, Prices, Profile, Steps
from gapless.trace.read import read
from gapless.trace.timeline import Ints, Timeline


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
    return Profile(
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
