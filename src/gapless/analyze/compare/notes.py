"""Describe what makes two runs hard to compare."""

from __future__ import annotations

from gapless.analyze.compare.both import ProfilePair
from gapless.model import Report
from gapless.model.comparison import Comparison, Side, percents
from gapless.model.wording import count

MIN_STEPS_FOR_MEAN = 3
"""Fewer steps than this have no reliable mean."""

MAX_STEP_RATIO = 4
"""At this ratio of step counts the side with fewer steps is too short to compare."""

_MAX_OVERHEAD_DIFFERENCE = 0.03
"""Share of the step by which the profiler's overhead may differ between the sides without a note."""

_RECORDINGS = {
    "with_memory": "allocations were recorded",
    "with_shapes": "shapes were recorded",
}


def profile_notes(comparison: Comparison, pair: ProfilePair) -> tuple[str, ...]:
    """Return notes on what limits a comparison of profiles, the gravest first, without full stops."""
    return (
        *_note_same_capture(pair),
        *_note_devices(pair),
        *_note_ranks(comparison, pair),
        *_note_steps(comparison, pair),
        *_note_outliers(comparison),
        *_note_recording_options(pair),
    )


def _note_same_capture(pair: ProfilePair) -> list[str]:
    before, after = pair.before, pair.after
    same = before.origin == after.origin and before.span == after.span and before.steps == after.steps
    if same and before.kernels == after.kernels and before.rank == after.rank:
        return ["both sides are the same capture"]
    return []


def _note_devices(pair: ProfilePair) -> list[str]:
    before, after = pair.before.gpu, pair.after.gpu
    if before and after and before != after:
        return [f"before ran on {before}, after on {after}: part of the difference is the hardware"]
    if pair.before.vendor and pair.after.vendor and pair.before.vendor != pair.after.vendor:
        return ["the two runs used GPUs of different vendors: part of the difference is the hardware"]
    return []


def _note_ranks(comparison: Comparison, pair: ProfilePair) -> list[str]:
    notes = []
    sizes = [profile.world_size for profile in (pair.before, pair.after)]
    if all(sizes) and sizes[0] != sizes[1]:
        notes.append(f"before ran on {count(sizes[0], 'rank')}, after on {sizes[1]}")
    elif comparison.before.files != comparison.after.files:
        notes.append(
            f"before is {count(comparison.before.files, 'trace')}, after is {comparison.after.files}"
        )
    return notes


def _note_steps(comparison: Comparison, pair: ProfilePair) -> list[str]:
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
    if fewer < MIN_STEPS_FOR_MEAN or more >= MAX_STEP_RATIO * fewer:
        notes.append(
            f"before has {count(before.steps, 'step')}, after has {after.steps}: too few for a reliable mean"
        )
    return notes


def _note_outliers(comparison: Comparison) -> list[str]:
    """Note when a few long steps make the mean change differently from the median."""
    before, after, change = comparison.before.spread, comparison.after.spread, comparison.length.percent
    if before is None or after is None or change is None or not before.median:
        return []
    median = 100.0 * (after.median - before.median) / before.median
    if abs(median - change) < max(5.0, 0.5 * abs(change)):
        return []
    way = "less" if median < 0 else "more"
    length = "as long as before" if abs(median) < 0.5 else f"{percents(median)} {way}"
    return [f"a few long steps dominate the means: the median step takes {length}"]


def _note_recording_options(pair: ProfilePair) -> list[str]:
    before, after = pair.before.recording, pair.after.recording
    notes = []
    if bool(before.stacks or before.with_stack) != bool(after.stacks or after.with_stack):
        name = "before" if before.stacks or before.with_stack else "after"
        notes.append(f"only {name} was recorded with stacks, which slows the CPU down there")
    for field, words in _RECORDINGS.items():
        if getattr(before, field) != getattr(after, field):
            notes.append(f"{words} {'before' if getattr(before, field) else 'after'} only")
    shares = [
        profile.recording.overhead / (profile.steps.total or 1) for profile in (pair.before, pair.after)
    ]
    if abs(shares[0] - shares[1]) > _MAX_OVERHEAD_DIFFERENCE:
        parts = [percents(100 * share) for share in shares]
        notes.append(f"the profiler itself takes {parts[0]} of the time before and {parts[1]} after")
    for name, recorded in (("before", before), ("after", after)):
        if recorded.truncated:
            notes.append(f"the trace of {name} is cut off")
    return notes


def session_notes(before: Report, after: Report, comparison: Comparison) -> tuple[str, ...]:
    """Return notes on what limits a comparison of sessions, the gravest first, without full stops."""
    notes = []
    for name, report in (("before", before), ("after", after)):
        if report.ending.how in ("error", "not-emulated", "interrupted"):
            notes.append(f"{name} ended early ({report.ending.message or report.ending.how})")
        if report.environment.unused:
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
        notes.append(_note_missing_steps((comparison.before, comparison.after)))
    elif min(before.steps.steady, after.steps.steady) < MIN_STEPS_FOR_MEAN:
        notes.append(
            f"before has {count(before.steps.steady, 'steady step')}, after has {after.steps.steady}: too "
            "few to separate syncs in every step from those in the first steps"
        )
    return tuple(notes)


def _note_missing_steps(sides: tuple[Side, Side]) -> str:
    if sides[0].steps or sides[1].steps:
        name = "after" if sides[0].steps else "before"
        return f"{name} took no training step: the syncs of the whole runs are compared"
    return "neither took a training step: the syncs of the whole runs are compared"
