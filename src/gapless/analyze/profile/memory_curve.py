"""Memory of the device over time."""

from __future__ import annotations

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans
from gapless.model.profile import MemoryUse
from gapless.trace.timeline import Bools, Ints, Memory, Timeline, distinct

POINTS = 400
"""How many points a thinned curve has at most."""
_HOST = 0
_EXTREMES = 4
"""Points kept of each stretch: the highest and lowest of both curves."""


def memory_use(timeline: Timeline, steps: StepSpans, device: int) -> MemoryUse:
    """What was allocated and reserved, where the totals were recorded (torch 1.12 and later)."""
    rows = _of_device(timeline.memory, device)
    rows &= (timeline.memory.allocated >= 0) & (timeline.memory.reserved >= 0)
    if not rows.any():
        return MemoryUse()
    memory = timeline.memory.take(rows)
    kept = _thinned(memory)
    drops, given, taken = _saw(memory, steps)
    return MemoryUse(
        peak_allocated=int(memory.allocated.max()),
        peak_reserved=int(memory.reserved.max()),
        drops=drops,
        given_back=given,
        taken_again=taken,
        time=tuple(memory.time[kept].tolist()),
        allocated=tuple(memory.allocated[kept].tolist()),
        reserved=tuple(memory.reserved[kept].tolist()),
    )


def _of_device(memory: Memory, device: int) -> Bools:
    """The rows of this device.

    Memory goes by the process's numbers and device work by the machine's: where only one device has
    memory, it is the one.
    """
    foreign: Bools = (memory.device_type > _HOST) & (memory.device >= 0)
    numbers = distinct(memory.device[foreign])
    if len(numbers) == 1:
        return foreign
    here: Bools = foreign & (memory.device == device)
    return here


def _thinned(memory: Memory) -> Ints:
    """Rows that keep the shape: the first, the last, and of each stretch of time the extremes."""
    count = len(memory)
    if count <= POINTS:
        return np.arange(count)
    stretches = POINTS // _EXTREMES - 1
    edges = np.linspace(int(memory.time[0]), int(memory.time[-1]) + 1, stretches + 1)
    cuts = np.searchsorted(memory.time, edges)
    kept = {0, count - 1}
    for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        if low < high:
            for curve in (memory.allocated[low:high], memory.reserved[low:high]):
                kept |= {low + int(curve.argmax()), low + int(curve.argmin())}
    return np.array(sorted(kept), np.int64)


def _saw(memory: Memory, steps: StepSpans) -> tuple[int, int, int]:
    """How often reserved memory fell in the steps, by how many bytes in all, and how many were taken again.

    What is taken counts as taken again as long as less was taken since than had been given back.
    """
    at = np.searchsorted(steps.start, memory.time[1:], side="right") - 1
    inside = (at >= 0) & (memory.time[1:] <= steps.end[at])
    fall = np.where(inside, -np.diff(memory.reserved), 0)
    drops = fall > 0
    given = int(fall[drops].sum())
    missing = np.cumsum(fall)
    lowest = np.minimum(np.minimum.accumulate(missing), 0)
    owed = int(missing[-1] - lowest[-1]) if len(missing) else 0
    return int(drops.sum()), given, given - owed
