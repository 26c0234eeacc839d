"""Read a run's memory from a profile, and decide whether the profile is enough to replay it.

A profile records what was reserved after each event, but not the memory layout at its beginning. If a replay
of the shown requests, beside what was in use at the start, reserves as much as was recorded, other settings
can be tried.
"""

from __future__ import annotations

from gapless.memory.moment import MAX_OWNERS, holders, requesting_line
from gapless.memory.simulate import POINTS, Simulation
from gapless.model.memory import ALLOC, DEFER, FREE, STEP, MemoryRun
from gapless.model.memory_answer import OutOfMemory
from gapless.model.memory_report import Curve, Moment, Outcome, Shortage, StepEnd
from gapless.model.wording import binary_size

_MAX_PEAK_ERROR = 0.02
"""Largest relative difference between the replay's peak and the recorded one."""


def has_curve(run: MemoryRun) -> bool:
    """Whether `run` comes from a profile with total memory after each event."""
    return len(run.reserved) == len(run) > 0


def why_not(run: MemoryRun, replay: Simulation) -> str:
    """Return why `replay` cannot represent the run; "" if it can."""
    outcome, recorded_peak = replay.outcome(), max(run.reserved)
    if (
        outcome.shortage is None
        and abs(outcome.peak_reserved - recorded_peak) <= _MAX_PEAK_ERROR * recorded_peak
    ):
        return ""
    return (
        "other settings cannot be tried: replaying what the profile shows reserves "
        f"{binary_size(outcome.peak_reserved)} instead of the recorded {binary_size(recorded_peak)}, because "
        "a profile does not contain the memory layout and cache at its start (a snapshot from "
        "torch.cuda.memory._record_memory_history() does)"
    )


def describe_replay(run: MemoryRun, replay: Simulation) -> str:
    """Say that the numbers come from a replay, and how far its peak is from the recorded one."""
    return (
        "these numbers come from a replay of what the profile shows; with the run's own settings it "
        f"reserves {binary_size(replay.outcome().peak_reserved)} instead of the recorded "
        f"{binary_size(max(run.reserved))}"
    )


def outcome(run: MemoryRun, capacity: int = -1) -> Outcome:
    """Return the recorded outcome; with a shortage if more than `capacity` (-1: unlimited) was allocated."""
    counts = {call.name.replace("hip", "cuda"): call.count for call in run.calls}
    recorded = run.recorded
    assert recorded is not None
    return Outcome(
        peak_allocated=max(run.allocated),
        peak_reserved=max(run.reserved),
        final_allocated=run.allocated[-1],
        final_reserved=run.reserved[-1],
        mallocs=counts.get("cudaMalloc", recorded.mallocs),
        frees=counts.get("cudaFree", recorded.frees),
        maps=counts.get("cuMemMap", 0),
        unmaps=counts.get("cuMemUnmap", 0),
        price=_price(run),
        shortage=_shortage(run, capacity),
    )


def _price(run: MemoryRun) -> int:
    """Return nanoseconds of the recorded driver calls; estimated from counts if no calls were recorded."""
    if run.calls:
        return sum(call.time for call in run.calls)
    recorded = run.recorded
    assert recorded is not None
    return recorded.mallocs * run.times.malloc + recorded.frees * run.times.free


def _shortage(run: MemoryRun, capacity: int) -> Shortage | None:
    """Return the first request that takes the allocated memory above `capacity`; None if there is none."""
    if capacity < 0:
        return None
    for at, (action, held) in enumerate(zip(run.action, run.allocated, strict=True)):
        if action == ALLOC and held > capacity:
            before = held - run.size[at]
            return Shortage(
                event=at,
                size=run.size[at],
                line=run.line(run.place[at]),
                allocated=before,
                reserved=before,
                unreserved=max(capacity - before, 0),
            )
    return None


def lack(run: MemoryRun, outcome: Outcome, capacity: int) -> OutOfMemory | None:
    """Return how much is missing if not even the tensors fit; the lower bound is marked by `open`."""
    short = outcome.shortage
    if short is None:
        return None
    return OutOfMemory(
        event=short.event,
        asked=short.size,
        line=short.line,
        free=short.unreserved,
        allocated=short.allocated,
        reserved=short.reserved,
        has=capacity,
        needs=max(run.allocated),
        unlimited=max(run.reserved),
        open=True,
    )


def in_doubt(run: MemoryRun, capacity: int) -> str:
    """Say that the tensors fit in `capacity` but not the memory cached beside them; else ""."""
    if not 0 <= capacity < max(run.reserved) or max(run.allocated) > capacity:
        return ""
    return (
        f"its tensors fit in {binary_size(capacity)}; whether the run fits depends on the memory layout, "
        "which a profile does not contain"
    )


def curve(run: MemoryRun, points: int = POINTS) -> Curve:
    """Return the recorded totals as at most `points` maxima."""
    rows = len(run)
    step = max(1, -(-rows // max(points, 1)))
    cuts = range(0, rows, step)
    return Curve(
        event=tuple(min(low + step, rows) - 1 for low in cuts),
        allocated=tuple(max(run.allocated[low : low + step]) for low in cuts),
        reserved=tuple(max(run.reserved[low : low + step]) for low in cuts),
    )


def ends(run: MemoryRun) -> tuple[StepEnd, ...]:
    """Return memory at the end of each step, and how often reserved memory rose and fell until then."""
    step_ends: list[StepEnd] = []
    rises = falls = 0
    before = run.reserved[0]
    for at, (action, allocated, reserved) in enumerate(
        zip(run.action, run.allocated, run.reserved, strict=True)
    ):
        rises += reserved > before
        falls += reserved < before
        before = reserved
        if action == STEP:
            step_ends.append(
                StepEnd(event=at, allocated=allocated, reserved=reserved, taken=rises, given=falls)
            )
    return tuple(step_ends)


def peak(run: MemoryRun, column: tuple[int, ...], max_owners: int = MAX_OWNERS) -> Moment:
    """Return the moment when `column` (allocated or reserved) is highest, with the owners of memory."""
    event = column.index(max(column))
    live = _alive(run, event)
    line, operator = requesting_line(run, event)
    return Moment(
        event=event,
        line=line,
        operator=operator,
        time=run.time[event] if run.time else -1,
        step=sum(action == STEP for action in run.action[: event + 1]),
        allocated=run.allocated[event],
        reserved=run.reserved[event],
        free=run.reserved[event] - run.allocated[event],
        **holders(run, live, event, max_owners),
    )


def _alive(run: MemoryRun, event: int) -> dict[int, int]:
    """Return the allocations in use after `event` with their bytes."""
    alive = {block.ident: block.requested for part in run.start for block in part.blocks if block.ident >= 0}
    last = event + 1
    for action, ident, held in zip(run.action[:last], run.ident[:last], run.size[:last], strict=True):
        if action == ALLOC:
            alive[ident] = held
        elif action in (FREE, DEFER):
            alive.pop(ident, None)
    return alive
