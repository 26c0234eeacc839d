"""What makes two runs hard to compare: said, not hidden."""

from __future__ import annotations

from gapless.analyze.compare.both import Both
from gapless.model import Report
from gapless.model.comparison import Comparison, Side, percents
from gapless.model.wording import count

FEW = 3
"""Fewer steps than this have no mean worth the name."""

UNEVEN = 4
"""So many times as many steps on one side."""

_OVERHEAD = 0.03
"""Part of the step by which the profiler's own share may differ."""

_RECORDINGS = {
    "with_memory": "allocations were recorded",
    "with_shapes": "shapes were recorded",
}


def profile_notes(comparison: Comparison, pair: Both) -> tuple[str, ...]:
    """Sentences without a full stop, the gravest first."""
    return (
        *_one_capture(pair),
        *_devices(pair),
        *_ranks(comparison, pair),
        *_steps(comparison, pair),
        *_mean_and_median(comparison),
        *_recording(pair),
    )


def _one_capture(pair: Both) -> list[str]:
    before, after = pair.before, pair.after
    same = before.origin == after.origin and before.span == after.span and before.steps == after.steps
    if same and before.kernels == after.kernels and before.rank == after.rank:
        return ["both sides are the same capture"]
    return []


def _devices(pair: Both) -> list[str]:
    before, after = pair.before.gpu, pair.after.gpu
    if before and after and before != after:
        return [f"before ran on {before}, after on {after}: part of the difference is the hardware"]
    if pair.before.vendor and pair.after.vendor and pair.before.vendor != pair.after.vendor:
        return ["the two runs used GPUs of different vendors: part of the difference is the hardware"]
    return []


def _ranks(comparison: Comparison, pair: Both) -> list[str]:
    notes = []
    sizes = [one.world_size for one in (pair.before, pair.after)]
    if all(sizes) and sizes[0] != sizes[1]:
        notes.append(f"before ran on {count(sizes[0], 'rank')}, after on {sizes[1]}")
    elif comparison.before.files != comparison.after.files:
        notes.append(
            f"before is {count(comparison.before.files, 'trace')}, after is {comparison.after.files}"
        )
    return notes


def _steps(comparison: Comparison, pair: Both) -> list[str]:
    before, after = comparison.before, comparison.after
    if comparison.per == "trace":
        if not before.steps and not after.steps:
            return [
                "no steps are marked, so the whole traces are compared, which is only meaningful if both "
                "contain the same work (call profiler.step() after each step)"
            ]
        name, other, steps = ("before", "after", before) if before.steps else ("after", "before", after)
        return [
            f"{other} has no steps marked: all {count(steps.steps, 'step')} of {name} are compared with "
            f"the whole of {other}, which may contain a different amount of work"
        ]
    notes = []
    if before.marks.split("#")[0] != after.marks.split("#")[0]:
        notes.append(f"before marks steps with {before.marks}, after with {after.marks}")
    fewer, more = sorted((before.steps, after.steps))
    if fewer < FEW or more >= UNEVEN * fewer:
        notes.append(
            f"before has {count(before.steps, 'step')}, after has {after.steps}: too few for a reliable mean"
        )
    return notes


def _mean_and_median(comparison: Comparison) -> list[str]:
    """A few long steps can make a mean that no step has."""
    before, after, change = comparison.before.spread, comparison.after.spread, comparison.length.percent
    if before is None or after is None or change is None or not before.median:
        return []
    median = 100.0 * (after.median - before.median) / before.median
    if abs(median - change) < max(5.0, 0.5 * abs(change)):
        return []
    way = "less" if median < 0 else "more"
    told = "as long as before" if abs(median) < 0.5 else f"{percents(median)} {way}"
    return [f"a few long steps dominate the means: the median step takes {told}"]


def _recording(pair: Both) -> list[str]:
    before, after = pair.before.recording, pair.after.recording
    notes = []
    if bool(before.stacks or before.with_stack) != bool(after.stacks or after.with_stack):
        name = "before" if before.stacks or before.with_stack else "after"
        notes.append(f"only {name} was recorded with stacks, which slows the CPU down there")
    for field, words in _RECORDINGS.items():
        if getattr(before, field) != getattr(after, field):
            notes.append(f"{words} {'before' if getattr(before, field) else 'after'} only")
    shares = [one.recording.overhead / (one.steps.total or 1) for one in (pair.before, pair.after)]
    if abs(shares[0] - shares[1]) > _OVERHEAD:
        parts = [percents(100 * share) for share in shares]
        notes.append(f"the profiler itself takes {parts[0]} of the time before and {parts[1]} after")
    for name, one in (("before", before), ("after", after)):
        if one.truncated:
            notes.append(f"the trace of {name} is cut off")
    return notes


def session_notes(before: Report, after: Report, comparison: Comparison) -> tuple[str, ...]:
    """Sentences without a full stop, the gravest first."""
    notes = []
    for name, one in (("before", before), ("after", after)):
        if one.ending.how in ("error", "not-emulated", "interrupted"):
            notes.append(f"{name} ended early ({one.ending.message or one.ending.how})")
        if one.environment.unused:
            notes.append(f"{name} put nothing on the GPU")
    if before.script[:1] != after.script[:1]:
        notes.append("two different scripts are compared")
    old, new = before.environment, after.environment
    for field, words in (("device", "on"), ("torch", "with torch")):
        values = getattr(old, field), getattr(new, field)
        if all(values) and values[0] != values[1]:
            notes.append(f"before ran {words} {values[0]}, after {words} {values[1]}")
    if old.emulated != new.emulated:
        notes.append(f"only {'before' if old.emulated else 'after'} ran on an emulated device")
    if old.world_size != new.world_size:
        notes.append(f"before ran on {count(old.world_size, 'rank')}, after on {new.world_size}")
    unseen = sum(row.unseen for row in comparison.findings)
    if unseen:
        notes.append(
            f"before ended after {count(before.steps.seen, 'step')}: {count(unseen, 'finding')} of after "
            "came later and may not be new"
        )
    if comparison.per == "run":
        notes.append(_without_steps((comparison.before, comparison.after)))
    elif min(before.steps.steady, after.steps.steady) < FEW:
        notes.append(
            f"before has {count(before.steps.steady, 'steady step')}, after has {after.steps.steady}: too "
            "few to separate syncs in every step from those in the first steps"
        )
    return tuple(notes)


def _without_steps(sides: tuple[Side, Side]) -> str:
    if sides[0].steps or sides[1].steps:
        name = "after" if sides[0].steps else "before"
        return f"{name} took no training step: the syncs of the whole runs are compared"
    return "neither took a training step: the syncs of the whole runs are compared"
