"""The phases of training: loading, transfer, forward, backward, optimizer, and what is none of them."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans, below, compute_busy, covered, sums
from gapless.model.profile import PhaseTime
from gapless.trace.names import LOADING
from gapless.trace.timeline import HostKind, Ints, Timeline, WorkKind, distinct


class Phase(IntEnum):
    """Phases by priority: where spans of two overlap, the moment belongs to the first."""

    LOADING = 0
    BACKWARD = 1
    OPTIMIZER = 2
    TRANSFER = 3
    OTHER = 4
    FORWARD = 5


_ORDER = (Phase.LOADING, Phase.TRANSFER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER)
_MARKS = {
    Phase.LOADING: LOADING,
    Phase.OPTIMIZER: re.compile(r"Optimizer\.step#"),
    Phase.OTHER: re.compile(r"Optimizer\.zero_grad#|## zero_grad ##"),
}
_STEP = re.compile(r"ProfilerStep#\d")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|torch::autograd::|[A-Za-z_]\w*Backward\d*\Z")
"""What autograd calls its nodes: the first since torch 1.12, the others before it."""
_COPIES = re.compile(r"aten::(?:to|copy_|_to_copy)\Z")
_TO_DEVICE = re.compile(r"Memcpy HtoD|CopyHostToDevice", re.IGNORECASE)


def phases(timeline: Timeline, steps: StepSpans, device: int) -> tuple[PhaseTime, ...]:
    """The time of the steps by phase (ns). The host times add up to the steps, the idle ones to all idleness.

    `host` is wall-clock time in which the training loop (or autograd for it) was in the phase, `device` the
    time of the operations launched from it, `idle` how long the device neither computed nor copied meanwhile.
    """
    loop = _loop_threads(timeline)
    start, label = _segments(timeline, steps, device, loop)
    end = np.append(start[1:], start[-1])
    host = sums(label, len(Phase), covered(steps.start, steps.end, start, end))
    idle = host - sums(label, len(Phase), _busy(timeline, steps, device, start, end))
    on_device = _device_time(timeline, steps, device, loop, start, label)
    return tuple(
        PhaseTime(
            name=phase.name.lower(),  # type: ignore[arg-type]  # the enumeration has exactly these names
            host=int(host[phase]),
            device=int(on_device[phase]),
            idle=int(idle[phase]),
        )
        for phase in _ORDER
        if host[phase] or on_device[phase]
    )


def _busy(timeline: Timeline, steps: StepSpans, device: int, start: Ints, end: Ints) -> Ints:
    """How long the device computes or copies in each segment; no segment reaches across a step's bounds."""
    inside = covered(steps.start, steps.end, start, end) > 0
    return np.where(inside, covered(*compute_busy(timeline, device), start, end), 0)


def _device_time(
    timeline: Timeline, steps: StepSpans, device: int, loop: Ints, start: Ints, label: Ints
) -> Ints:
    """The time in the steps of the operations launched in each phase."""
    work = timeline.work
    rows = np.flatnonzero(work.device == device)
    call = timeline.launchers[rows]
    linked = np.flatnonzero(call >= 0)
    call = call[linked]
    found = np.full(len(rows), Phase.OTHER, np.int64)
    at = np.searchsorted(start, timeline.host.start[call], side="right") - 1
    found[linked] = np.where(at >= 0, label[at], Phase.OTHER)
    # What a thread of its own sends ahead (a prefetcher) is a transfer whatever the loop does meanwhile.
    foreign = linked[~np.isin(timeline.host.thread[call], loop)]
    sent = timeline.names_where(_TO_DEVICE.search)[work.name[rows[foreign]]]
    found[foreign[sent & (work.kind[rows[foreign]] == WorkKind.MEMCPY)]] = Phase.TRANSFER
    return sums(found, len(Phase), covered(steps.start, steps.end, work.start[rows], work.end[rows]))


# Segments ---------------------------------------------------------------------------------------------------


def _segments(timeline: Timeline, steps: StepSpans, device: int, loop: Ints) -> tuple[Ints, Ints]:
    """Where each segment of the trace begins (the next one's begin is its end), and its phase.

    Between two spans of one phase the phase goes on (Python between operators); between different phases
    is neither. Bounds of steps are bounds of segments.
    """
    start, end, label = _runs(timeline, device, loop)
    time = distinct(np.concatenate([start, end, steps.start, steps.end]))
    if not len(time):
        return np.zeros(1, np.int64), np.full(1, Phase.OTHER, np.int64)
    found = np.full(len(time), -1, np.int64)
    for phase in reversed(Phase):
        rows = label == phase
        change = np.zeros(len(time) + 1, np.int64)
        np.add.at(change, np.searchsorted(time, start[rows]), 1)
        np.add.at(change, np.searchsorted(time, end[rows]), -1)
        found[np.cumsum(change[:-1]) > 0] = phase
    return time, _clipping(_filled(found))


def _filled(label: Ints) -> Ints:
    """Gaps (-1) take the phase on both their sides, or are none."""
    known = label >= 0
    position = np.arange(len(label))
    before = np.maximum.accumulate(np.where(known, position, -1))
    after = np.minimum.accumulate(np.where(known, position, len(label))[::-1])[::-1]
    padded = np.append(label, -1)
    same = (before >= 0) & (after < len(label)) & (padded[before] == padded[after])
    return np.where(known, label, np.where(same, padded[before], Phase.OTHER))


def _clipping(label: Ints) -> Ints:
    """What runs between backward and the optimizer (clipping, unscaling, logging) is no forward pass."""
    heads = np.flatnonzero(np.append(True, label[1:] != label[:-1]))
    runs = label[heads]
    named = np.flatnonzero(runs != Phase.OTHER)
    core = runs[named]
    wrong = np.zeros(len(runs), bool)
    middle = (core[1:-1] == Phase.FORWARD) & (core[:-2] == Phase.BACKWARD) & (core[2:] == Phase.OPTIMIZER)
    wrong[named[1:-1][middle]] = True
    result: Ints = np.where(np.repeat(wrong, np.diff(np.append(heads, len(label)))), Phase.OTHER, label)
    return result


def _runs(timeline: Timeline, device: int, loop: Ints) -> tuple[Ints, Ints, Ints]:
    """Start, end and phase of stretches in which the loop's threads begin spans of one phase only."""
    rows, label = _spans(timeline, loop)
    if not len(rows):
        return rows, rows, rows
    label[_transfers(timeline, device, rows, label)] = Phase.TRANSFER
    order = np.argsort(timeline.host.start[rows], kind="stable")
    rows, label = rows[order], label[order]
    heads = np.flatnonzero(np.append(True, label[1:] != label[:-1]))
    end = np.maximum.reduceat(timeline.host.end[rows], heads)
    return timeline.host.start[rows[heads]], end, label[heads]


def _spans(timeline: Timeline, loop: Ints) -> tuple[Ints, Ints]:
    """The outermost operators of the loop's threads and the marks of phases, with the phase of each."""
    host = timeline.host
    named = np.full(len(timeline.names), Phase.FORWARD, np.int64)
    for phase, pattern in {**_MARKS, Phase.BACKWARD: _BACKWARD}.items():
        named[timeline.names_where(pattern.match)] = phase
    marks = np.isin(named, [*_MARKS])
    main = loop[0] if len(loop) else -1
    operator = host.kind == HostKind.OPERATOR
    mark = marks[host.name] & (operator | (host.kind == HostKind.ANNOTATION))
    plain = operator & ~mark
    rows = np.flatnonzero((plain | mark) & np.isin(host.thread, loop))
    label = named[host.name[rows]]
    label[(host.thread[rows] != main) & (label == Phase.FORWARD)] = Phase.BACKWARD
    is_mark = mark[rows]
    # A mark hides all below it, an operator the operators below it.
    hidden = below(timeline, rows, is_mark) | (~is_mark & below(timeline, rows, ~is_mark))
    inner = ~is_mark & (label == Phase.BACKWARD) & (host.thread[rows] == main)
    keep = ~hidden | inner  # autograd run by the calling thread, inside whatever called it
    return rows[keep], label[keep]


def _transfers(timeline: Timeline, device: int, rows: Ints, label: Ints) -> Ints:
    """Which of these rows are copies of operators that send something to the device, outside other phases."""
    work, host = timeline.work, timeline.host
    sent = timeline.names_where(_TO_DEVICE.search)[work.name] & (work.kind == WorkKind.MEMCPY)
    call = timeline.launchers[sent & (work.device == device)]
    call = call[call >= 0]
    span = int(host.end.max()) + 1
    key = host.thread[rows].astype(np.int64) * span + host.start[rows]
    at = np.searchsorted(key, host.thread[call].astype(np.int64) * span + host.start[call], side="right") - 1
    call, at = call[at >= 0], at[at >= 0]
    around = (host.thread[rows[at]] == host.thread[call]) & (host.end[rows[at]] >= host.end[call])
    at = distinct(at[around])
    copies = timeline.names_where(_COPIES.match)[host.name[rows[at]]]
    found: Ints = at[copies & (label[at] == Phase.FORWARD)]
    return found


def _loop_threads(timeline: Timeline) -> Ints:
    """The thread of the training loop, then those on which autograd works for it.

    The loop's is the thread that steps the profiler and the optimizer; of equals the one that runs less of
    autograd, then the one that launches more. (A batch may be asked for by a thread that works ahead.)
    """
    host, count = timeline.host, len(timeline.threads)
    if not count or not len(host):
        return np.empty(0, np.int64)
    optimizer = _MARKS[Phase.OPTIMIZER]
    loop = timeline.names_where(lambda name: _STEP.match(name) or optimizer.match(name))
    marked = np.bincount(host.thread[loop[host.name]], minlength=count)
    autograd = timeline.names_where(_BACKWARD.match)[host.name] & (host.kind == HostKind.OPERATOR)
    nodes = np.bincount(host.thread[autograd], minlength=count)
    calls = timeline.launchers
    launches = np.bincount(host.thread[calls[calls >= 0]], minlength=count)
    operators = np.bincount(host.thread[host.kind == HostKind.OPERATOR], minlength=count)
    main = int(np.lexsort((operators, launches, -nodes, marked))[-1])
    return np.array([main, *(one for one in np.flatnonzero(nodes).tolist() if one != main)], np.int64)
