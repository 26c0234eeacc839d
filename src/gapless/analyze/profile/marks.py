"""Find what marks the steps of a trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gapless.trace.names import LOADING
from gapless.trace.timeline import HostKind, Ints, Timeline

_ITERATION = re.compile(
    r"(?:train(?:ing)?|eval|validation|forward_backward)?[ _]?(?:step|iter(?:ation)?|batch)s?"
    r"(?:[ _#:=]*\d+|\[.*\])?|\[pl\]\[profile\]run_training_batch",
    re.IGNORECASE,
)
_MIN_MARKS = 3
"""Optimizer steps, batches or annotations that form a series; fewer may be coincidence."""


@dataclass(frozen=True)
class StepMarks:
    """Spans of the host that mark steps, in order; `source` says of what kind they are."""

    source: str
    names: tuple[str, ...]
    start: Ints
    end: Ints


def find_marks(timeline: Timeline, launched: Ints) -> StepMarks | None:
    """Return the best marks of the trace, if any; `launched` are the sorted launch times of device work."""
    for mark in (_profiler_steps, _optimizer_steps, _iterations, _batches):
        marks = mark(timeline, launched)
        if marks is not None:
            return marks
    return None


def _annotation_rows(timeline: Timeline, test: Callable[[str], object]) -> Ints:
    """Return annotations (operators in old files) whose names pass `test`, the outermost, by start."""
    wanted = timeline.names_where(test)
    host = timeline.host
    if not wanted.any():
        return np.empty(0, np.int64)
    kinds = (host.kind == HostKind.ANNOTATION) | (host.kind == HostKind.OPERATOR)
    rows = np.flatnonzero(wanted[host.name] & kinds)
    rows = rows[np.lexsort((-host.end[rows], host.start[rows]))]
    if not len(rows):
        return rows
    reach = np.maximum.accumulate(np.append(-1, host.end[rows][:-1]))
    outer: Ints = rows[host.end[rows] > reach]
    return outer


def _names_of(timeline: Timeline, rows: Ints) -> tuple[str, ...]:
    return tuple(timeline.names[number] for number in timeline.host.name[rows].tolist())


def _profiler_steps(timeline: Timeline, launched: Ints) -> StepMarks | None:
    rows = _annotation_rows(timeline, lambda name: name.startswith("ProfilerStep#"))
    if not len(rows):
        return None
    return StepMarks(
        "ProfilerStep", _names_of(timeline, rows), timeline.host.start[rows], timeline.host.end[rows]
    )


def _optimizer_steps(timeline: Timeline, launched: Ints) -> StepMarks | None:
    """Mark steps from the end of one optimizer step to the next; what precedes the first is incomplete.

    Optimizers that follow one another without device work in between are stepped together. If several take
    turns, an iteration is a turn of the one that occurs least often (a GAN's generator).
    """
    rows = _annotation_rows(timeline, lambda name: name.startswith("Optimizer.step#"))
    if len(rows) < _MIN_MARKS:
        return None
    start, end = timeline.host.start[rows], timeline.host.end[rows]
    before = np.searchsorted(launched, end[:-1]), np.searchsorted(launched, start[1:])
    rows = rows[np.append(before[1] > before[0], True)]
    names = timeline.host.name[rows]
    kinds, counts = np.unique(names, return_counts=True)
    often = counts >= max(_MIN_MARKS, int(counts.max()) // 8)
    if not often.any():
        return None
    least = kinds[often][counts[often] == counts[often].min()]
    rows = rows[names == names[np.isin(names, least)][-1]]
    end = timeline.host.end[rows]
    return _marks_if_plausible(
        timeline, launched, timeline.names[int(timeline.host.name[rows[0]])], end[:-1], end[1:]
    )


def _iterations(timeline: Timeline, launched: Ints) -> StepMarks | None:
    rows = _annotation_rows(timeline, _ITERATION.fullmatch)
    if len(rows) < _MIN_MARKS:
        return None
    names = _names_of(timeline, rows)
    return _marks_if_plausible(
        timeline, launched, names[0], timeline.host.start[rows], timeline.host.end[rows], names
    )


def _batches(timeline: Timeline, launched: Ints) -> StepMarks | None:
    """Mark steps from one request for a batch to the next; what follows the last may be incomplete."""
    rows = _annotation_rows(timeline, LOADING.match)
    if len(rows) < _MIN_MARKS + 1:
        return None
    start = timeline.host.start[rows]
    return _marks_if_plausible(timeline, launched, _names_of(timeline, rows[:1])[0], start[:-1], start[1:])


def _marks_if_plausible(
    timeline: Timeline,
    launched: Ints,
    source: str,
    start: Ints,
    end: Ints,
    names: tuple[str, ...] = (),
) -> StepMarks | None:
    """Return these marks if nearly all of them launch work and together most of it."""
    counts = np.searchsorted(launched, end) - np.searchsorted(launched, start)
    if np.count_nonzero(counts) < 0.8 * len(counts) or counts.sum() < 0.5 * len(launched):
        return None
    return StepMarks(source, names or tuple(str(number + 1) for number in range(len(start))), start, end)
