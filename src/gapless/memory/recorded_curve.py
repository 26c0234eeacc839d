"""What a profile saw of a run's memory, and whether that is enough to replay it.

A profile tells what was reserved after each event and not how memory lay when it began. Where what it shows,
asked for anew beside what was in use then, reserves as much as was recorded, other settings can be tried.
"""

from __future__ import annotations

from gapless.memory.moment import OWNERS, asking, holders
from gapless.memory.simulate import POINTS, Simulation
from gapless.model.memory import ALLOC, DEFER, FREE, STEP, MemoryRun
from gapless.model.memory_answer import OutOfMemory
from gapless.model.memory_report import Curve, Moment, Outcome, Shortage, StepEnd
from gapless.model.wording import binary_size

_CLOSE = 0.02
"""How far the replay's peak may be from the recorded one."""


def has_curve(run: MemoryRun) -> bool:
    """Whether `run` is of a profile that has the totals of the device's memory."""
    return len(run.reserved) == len(run) > 0


def why_not(run: MemoryRun, replay: Simulation) -> str:
    """Why `replay`, of what the profile shows, does not stand for the run; "" where it does."""
    outcome, most = replay.outcome(), max(run.reserved)
    if outcome.shortage is None and abs(outcome.peak_reserved - most) <= _CLOSE * most:
        return ""
    return (
        "other settings cannot be tried: replaying what the profile shows reserves "
        f"{binary_size(outcome.peak_reserved)} instead of the recorded {binary_size(most)}, because a "
        "profile does not contain the memory layout and cache at its start (a snapshot from "
        "torch.cuda.memory._record_memory_history() does)"
    )


def compared(run: MemoryRun, replay: Simulation) -> str:
    """What the numbers then are."""
    return (
        "these numbers come from a replay of what the profile shows; with the run's own settings it "
        f"reserves {binary_size(replay.outcome().peak_reserved)} instead of the recorded "
        f"{binary_size(max(run.reserved))}"
    )


def outcome(run: MemoryRun, capacity: int = -1) -> Outcome:
    """The run as it was recorded; a shortage where more was allocated at once than `capacity` (-1: any)."""
    counts = {one.name.replace("hip", "cuda"): one.count for one in run.calls}
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
    """Nanoseconds of the recorded calls; of steps of the reserved memory, where no calls were recorded."""
    if run.calls:
        return sum(one.time for one in run.calls)
    recorded = run.recorded
    assert recorded is not None
    return recorded.mallocs * run.times.malloc + recorded.frees * run.times.free


def _shortage(run: MemoryRun, capacity: int) -> Shortage | None:
    """The first request with which more is allocated than the device has, cached or not."""
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
    """What is missing where not even the tensors fit, which may be more."""
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
    """What cannot be said of `capacity`: the tensors fit, and what was cached beside them does not."""
    if not 0 <= capacity < max(run.reserved) or max(run.allocated) > capacity:
        return ""
    return (
        f"its tensors fit in {binary_size(capacity)}; whether the run fits depends on the memory layout, "
        "which a profile does not contain"
    )


def curve(run: MemoryRun, points: int = POINTS) -> Curve:
    """The recorded totals, the highest of each stretch."""
    rows = len(run)
    step = max(1, -(-rows // max(points, 1)))
    cuts = range(0, rows, step)
    return Curve(
        event=tuple(min(low + step, rows) - 1 for low in cuts),
        allocated=tuple(max(run.allocated[low : low + step]) for low in cuts),
        reserved=tuple(max(run.reserved[low : low + step]) for low in cuts),
    )


def ends(run: MemoryRun) -> tuple[StepEnd, ...]:
    """Where steps end: what was allocated and reserved, and how often the reserved memory rose and fell."""
    found: list[StepEnd] = []
    taken = given = 0
    before = run.reserved[0]
    for at, (action, allocated, reserved) in enumerate(
        zip(run.action, run.allocated, run.reserved, strict=True)
    ):
        taken += reserved > before
        given += reserved < before
        before = reserved
        if action == STEP:
            found.append(StepEnd(event=at, allocated=allocated, reserved=reserved, taken=taken, given=given))
    return tuple(found)


def peak(run: MemoryRun, column: tuple[int, ...], most: int = OWNERS) -> Moment:
    """The moment when `column` (allocated or reserved) is highest, and who holds memory then."""
    event = column.index(max(column))
    live = _alive(run, event)
    line, operator = asking(run, event)
    return Moment(
        event=event,
        line=line,
        operator=operator,
        time=run.time[event] if run.time else -1,
        step=sum(action == STEP for action in run.action[: event + 1]),
        allocated=run.allocated[event],
        reserved=run.reserved[event],
        free=run.reserved[event] - run.allocated[event],
        **holders(run, live, event, most),
    )


def _alive(run: MemoryRun, event: int) -> dict[int, int]:
    """The allocations that are in use after `event`, with their bytes."""
    alive = {one.ident: one.requested for part in run.start for one in part.blocks if one.ident >= 0}
    last = event + 1
    for action, ident, held in zip(run.action[:last], run.ident[:last], run.size[:last], strict=True):
        if action == ALLOC:
            alive[ident] = held
        elif action in (FREE, DEFER):
            alive.pop(ident, None)
    return alive
