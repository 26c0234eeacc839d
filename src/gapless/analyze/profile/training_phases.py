"""Divide steps into phases: loading, transfer, forward, backward, optimizer, and other."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans, busy_spans, covered_time, lies_within, sum_by_group
from gapless.model.profile import PhaseTime
from gapless.trace.names import LOADING
from gapless.trace.timeline import HostKind, Ints, Timeline, WorkKind, distinct


class Phase(IntEnum):
    """Phases by priority: where spans of two phases overlap, the first one gets the time."""

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
"""Names of autograd's nodes: the first since torch 1.12, the others before."""
_COPIES = re.compile(r"aten::(?:to|copy_|_to_copy)\Z")
_TO_DEVICE = re.compile(r"Memcpy HtoD|CopyHostToDevice", re.IGNORECASE)


def find_phases(timeline: Timeline, steps: StepSpans, device: int) -> tuple[PhaseTime, ...]:
    """Return the time of the steps by phase (ns); host times add up to the steps, idle ones to all idleness.

    `host` is wall-clock time of the training loop (or of autograd for it) in the phase, `device` the time of
    operations launched from it, `idle` how long the device neither computed nor copied meanwhile.
    """
    loop = _find_loop_threads(timeline)
    start, label = _segments(timeline, steps, device, loop)
    end = np.append(start[1:], start[-1])
    host = sum_by_group(label, len(Phase), covered_time(steps.start, steps.end, start, end))
    idle = host - sum_by_group(label, len(Phase), _busy_time(timeline, steps, device, start, end))
    on_device = _device_time_by_phase(timeline, steps, device, loop, start, label)
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


def _busy_time(timeline: Timeline, steps: StepSpans, device: int, start: Ints, end: Ints) -> Ints:
    """Return how long the device is busy in each segment; no segment crosses the bounds of a step."""
    inside = covered_time(steps.start, steps.end, start, end) > 0
    return np.where(inside, covered_time(*busy_spans(timeline, device), start, end), 0)


def _device_time_by_phase(
    timeline: Timeline, steps: StepSpans, device: int, loop: Ints, start: Ints, label: Ints
) -> Ints:
    """Return the time in the steps of the operations launched in each phase."""
    work = timeline.work
    rows = np.flatnonzero(work.device == device)
    call = timeline.launchers[rows]
    linked = np.flatnonzero(call >= 0)
    call = call[linked]
    phase_of = np.full(len(rows), Phase.OTHER, np.int64)
    at = np.searchsorted(start, timeline.host.start[call], side="right") - 1
    phase_of[linked] = np.where(at >= 0, label[at], Phase.OTHER)
    # What another thread (a prefetcher) sends to the device is a transfer, whatever the loop is doing.
    foreign = linked[~np.isin(timeline.host.thread[call], loop)]
    sent = timeline.names_where(_TO_DEVICE.search)[work.name[rows[foreign]]]
    phase_of[foreign[sent & (work.kind[rows[foreign]] == WorkKind.MEMCPY)]] = Phase.TRANSFER
    return sum_by_group(
        phase_of, len(Phase), covered_time(steps.start, steps.end, work.start[rows], work.end[rows])
    )


# Segments ---------------------------------------------------------------------------------------------------


def _segments(timeline: Timeline, steps: StepSpans, device: int, loop: Ints) -> tuple[Ints, Ints]:
    """Return where each segment of the trace begins (and the previous one ends), and its phase.

    Between two spans of one phase the phase continues (Python between operators); between different phases
    the time is OTHER. Bounds of steps are bounds of segments.
    """
    start, end, label = _phase_runs(timeline, device, loop)
    time = distinct(np.concatenate([start, end, steps.start, steps.end]))
    if not len(time):
        return np.zeros(1, np.int64), np.full(1, Phase.OTHER, np.int64)
    label_ = np.full(len(time), -1, np.int64)
    for phase in reversed(Phase):
        rows = label == phase
        change = np.zeros(len(time) + 1, np.int64)
        np.add.at(change, np.searchsorted(time, start[rows]), 1)
        np.add.at(change, np.searchsorted(time, end[rows]), -1)
        label_[np.cumsum(change[:-1]) > 0] = phase
    return time, _relabel_clipping(_fill_gaps(label_))


def _fill_gaps(label: Ints) -> Ints:
    """Give gaps (-1) the phase on both their sides if it is the same, else OTHER."""
    is_labelled = label >= 0
    position = np.arange(len(label))
    before = np.maximum.accumulate(np.where(is_labelled, position, -1))
    after = np.minimum.accumulate(np.where(is_labelled, position, len(label))[::-1])[::-1]
    padded = np.append(label, -1)
    same = (before >= 0) & (after < len(label)) & (padded[before] == padded[after])
    return np.where(is_labelled, label, np.where(same, padded[before], Phase.OTHER))


def _relabel_clipping(label: Ints) -> Ints:
    """Label forward spans between backward and optimizer (clipping, unscaling, logging) as OTHER."""
    heads = np.flatnonzero(np.append(True, label[1:] != label[:-1]))
    runs = label[heads]
    labelled = np.flatnonzero(runs != Phase.OTHER)
    core = runs[labelled]
    is_clipping = np.zeros(len(runs), bool)
    middle = (core[1:-1] == Phase.FORWARD) & (core[:-2] == Phase.BACKWARD) & (core[2:] == Phase.OPTIMIZER)
    is_clipping[labelled[1:-1][middle]] = True
    result: Ints = np.where(np.repeat(is_clipping, np.diff(np.append(heads, len(label)))), Phase.OTHER, label)
    return result


def _phase_runs(timeline: Timeline, device: int, loop: Ints) -> tuple[Ints, Ints, Ints]:
    """Return start, end and phase of stretches in which the loop's threads begin spans of one phase only."""
    rows, label = _labelled_spans(timeline, loop)
    if not len(rows):
        return rows, rows, rows
    label[_transfer_positions(timeline, device, rows, label)] = Phase.TRANSFER
    order = np.argsort(timeline.host.start[rows], kind="stable")
    rows, label = rows[order], label[order]
    heads = np.flatnonzero(np.append(True, label[1:] != label[:-1]))
    end = np.maximum.reduceat(timeline.host.end[rows], heads)
    return timeline.host.start[rows[heads]], end, label[heads]


def _labelled_spans(timeline: Timeline, loop: Ints) -> tuple[Ints, Ints]:
    """Return the outermost operators of the loop's threads and the phase marks, with the phase of each."""
    host = timeline.host
    phase_of_name = np.full(len(timeline.names), Phase.FORWARD, np.int64)
    for phase, pattern in {**_MARKS, Phase.BACKWARD: _BACKWARD}.items():
        phase_of_name[timeline.names_where(pattern.match)] = phase
    marks = np.isin(phase_of_name, [*_MARKS])
    main = loop[0] if len(loop) else -1
    operator = host.kind == HostKind.OPERATOR
    mark = marks[host.name] & (operator | (host.kind == HostKind.ANNOTATION))
    plain = operator & ~mark
    rows = np.flatnonzero((plain | mark) & np.isin(host.thread, loop))
    label = phase_of_name[host.name[rows]]
    label[(host.thread[rows] != main) & (label == Phase.FORWARD)] = Phase.BACKWARD
    is_mark = mark[rows]
    # A mark hides everything inside it, an operator the operators inside it.
    hidden = lies_within(timeline, rows, is_mark) | (~is_mark & lies_within(timeline, rows, ~is_mark))
    inner = ~is_mark & (label == Phase.BACKWARD) & (host.thread[rows] == main)
    keep = ~hidden | inner  # autograd run by the calling thread, inside its caller
    return rows[keep], label[keep]


def _transfer_positions(timeline: Timeline, device: int, rows: Ints, label: Ints) -> Ints:
    """Return which rows are copying operators that send to the device, outside of other phases."""
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
    positions: Ints = at[copies & (label[at] == Phase.FORWARD)]
    return positions


def _find_loop_threads(timeline: Timeline) -> Ints:
    """Return the thread of the training loop, then those on which autograd works for it.

    The loop's thread steps the profiler and the optimizer; on a tie it is the one that runs less of autograd,
    then the one that launches more. (Batches may be requested by a thread that works ahead.)
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
    return np.array(
        [main, *(thread for thread in np.flatnonzero(nodes).tolist() if thread != main)], np.int64
    )
