"""Memory of the device over time."""

from __future__ import annotations

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans
from gapless.model.profile import MemoryUse
from gapless.trace.timeline import Bools, Ints, Memory, Timeline, distinct

MAX_POINTS = 400
"""How many points a thinned curve has at most: more than a drawing can show."""
_HOST = 0
"""The CPU in ``c10::DeviceType``."""
_EXTREMES = 4
"""Points kept of each stretch: the highest and lowest of both curves."""


def memory_use(timeline: Timeline, steps: StepSpans, device: int) -> MemoryUse:
    """Return allocated and reserved memory, if totals were recorded (torch 1.12 and later)."""
    rows = _is_of_device(timeline.memory, device)
    rows &= (timeline.memory.allocated >= 0) & (timeline.memory.reserved >= 0)
    if not rows.any():
        return MemoryUse()
    memory = timeline.memory.take(rows)
    rows_kept = _thin(memory)
    drops, given_back, taken = _reserve_cycles(memory, steps)
    return MemoryUse(
        peak_allocated=int(memory.allocated.max()),
        peak_reserved=int(memory.reserved.max()),
        drops=drops,
        given_back=given_back,
        taken_again=taken,
        time=tuple(memory.time[rows_kept].tolist()),
        allocated=tuple(memory.allocated[rows_kept].tolist()),
        reserved=tuple(memory.reserved[rows_kept].tolist()),
    )


def _is_of_device(memory: Memory, device: int) -> Bools:
    """Return which rows are of this device.

    Memory events use the process's device numbers and device work the machine's: if only one device has
    memory, it is taken for this one.
    """
    on_gpu: Bools = (memory.device_type > _HOST) & (memory.device >= 0)
    numbers = distinct(memory.device[on_gpu])
    if len(numbers) == 1:
        return on_gpu
    on_device: Bools = on_gpu & (memory.device == device)
    return on_device


def _thin(memory: Memory) -> Ints:
    """Return rows that keep the curve's shape: the first, the last, and the extremes of each stretch."""
    count = len(memory)
    if count <= MAX_POINTS:
        return np.arange(count)
    stretches = MAX_POINTS // _EXTREMES - 1
    edges = np.linspace(int(memory.time[0]), int(memory.time[-1]) + 1, stretches + 1)
    cuts = np.searchsorted(memory.time, edges)
    kept = {0, count - 1}
    for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        if low < high:
            for curve in (memory.allocated[low:high], memory.reserved[low:high]):
                kept |= {low + int(curve.argmax()), low + int(curve.argmin())}
    return np.array(sorted(kept), np.int64)


def _reserve_cycles(memory: Memory, steps: StepSpans) -> tuple[int, int, int]:
    """Return how often reserved memory fell in the steps, the bytes freed, and the bytes reserved again.

    Memory counts as reserved again until as much was reserved as had been given back before.
    """
    at = np.searchsorted(steps.start, memory.time[1:], side="right") - 1
    inside = (at >= 0) & (memory.time[1:] <= steps.end[at])
    fall = np.where(inside, -np.diff(memory.reserved), 0)
    drops = fall > 0
    given_back = int(fall[drops].sum())
    missing = np.cumsum(fall)
    lowest = np.minimum(np.minimum.accumulate(missing), 0)
    owed = int(missing[-1] - lowest[-1]) if len(missing) else 0
    return int(drops.sum()), given_back, given_back - owed
