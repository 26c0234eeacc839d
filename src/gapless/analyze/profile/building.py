"""A `Timeline` as a `Profile`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gapless.analyze.profile.communication import collectives
from gapless.analyze.profile.copies import copy_times
from gapless.analyze.profile.costs import costs
from gapless.analyze.profile.coverage import coverage, why_nothing
from gapless.analyze.profile.efficiency import efficiency
from gapless.analyze.profile.hotlines import hot_lines
from gapless.analyze.profile.idle import attribute
from gapless.analyze.profile.kernels import top_kernels
from gapless.analyze.profile.launches import launches
from gapless.analyze.profile.lines import Places
from gapless.analyze.profile.memory_curve import memory_use
from gapless.analyze.profile.recording import recording
from gapless.analyze.profile.split import occupancy, sm_efficiency, split, utilization
from gapless.analyze.profile.trace_steps import StepSpans, compute_busy, covered, find_steps, main_device
from gapless.analyze.profile.training_phases import phases
from gapless.analyze.profile.waits import find_waits
from gapless.errors import UnreadableInput
from gapless.model.coverage import Coverage
from gapless.model.lanes import Lanes
from gapless.model.profile import Cost, Prices, Profile, Steps
from gapless.trace.read import read
from gapless.trace.timeline import Ints, Timeline


def profile(timeline: Timeline, priced: bool = False, asked: Sequence[str] = (), drawn: int = 0) -> Profile:
    """What `timeline` says of the device that was busiest.

    With `priced` it is replayed without its waits, and without those that are `asked` for (see
    `gapless.analyze.profile.pricing`). With `drawn` it is thinned to about so many boxes, to be drawn.

    Raises:
        UnreadableInput: the profile has no work of a device.
    """
    facts = timeline.facts
    device = main_device(timeline)
    if device < 0:
        raise UnreadableInput(f"{facts.path or 'this profile'} {why_nothing(timeline)}")
    gpu = next((one for one in facts.gpus if one.number == device), None)
    steps = find_steps(timeline, device)
    held = coverage(timeline, device, steps)
    waits = find_waits(timeline)
    places = Places(timeline)
    idle, stretches = attribute(timeline, device, steps, waits)
    summed, rows = costs(timeline, device, steps, stretches, waits, places)
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
        split=split(timeline, steps, device),
        idle=idle,
        utilization=utilization(timeline, steps, device),
        sm_efficiency=sm_efficiency(timeline, steps, device),
        occupancy=occupancy(timeline, steps, device),
        phases=phases(timeline, steps, device),
        kernels=top_kernels(timeline, steps, device),
        lines=hot_lines(timeline, steps, device, places),
        launches=launches(timeline, steps, device),
        copies=copy_times(timeline, steps, device),
        memory=memory_use(timeline, steps, device),
        costs=summed,
        collectives=collectives(timeline, device),
        recording=recording(timeline, steps),
        efficiency=efficiency(timeline, steps, device),
        coverage=held,
        prices=_prices(timeline, held, summed, rows, asked, steps.total) if priced or asked else None,
        lanes=_drawn(timeline, device, steps, stretches, summed, rows, drawn) if drawn else None,
        notes=timeline.notes + steps.notes,
    )


def _drawn(timeline: Timeline, *more: Any) -> Lanes:
    from gapless.analyze.profile.lanes import lanes  # only pages draw

    return lanes(timeline, *more)


def _prices(
    timeline: Timeline,
    held: Coverage,
    summed: Sequence[Cost],
    rows: Sequence[Ints],
    asked: Sequence[str],
    total: int,
) -> Prices:
    if not held.complete:
        return Prices(refused=held.reason)
    from gapless.analyze.profile.pricing import price  # the replay is loaded when it is needed

    return price(timeline, summed, rows, asked, total)


def of_file(
    path: str,
    progress: Callable[[int], None] | None = None,
    priced: bool = False,
    asked: Sequence[str] = (),
    drawn: int = 0,
) -> Profile:
    """The profile of the trace in `path`; `progress` is told the bytes read.

    Raises:
        UnreadableInput: the file cannot be read, is no trace or has no work of a device.
    """
    return profile(read(path, progress), priced, asked, drawn)


def _steps(timeline: Timeline, device: int, steps: StepSpans) -> Steps:
    start, end = compute_busy(timeline, device)
    return Steps(
        source=steps.source,
        names=steps.names,
        start=tuple(steps.start.tolist()),
        end=tuple(steps.end.tolist()),
        busy=tuple(covered(start, end, steps.start, steps.end).tolist()),
    )
