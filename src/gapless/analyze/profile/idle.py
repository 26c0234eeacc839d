"""Assign each nanosecond of device idleness one cause and one row of the host.

docs/trace.md gives the reasoning in words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.analyze.profile.lines import enclosing_rows
from gapless.analyze.profile.spans import EMPTY, Spans, complement, flatten_spans, intersect, subtract
from gapless.analyze.profile.trace_steps import StepSpans, busy_spans, is_communication
from gapless.analyze.profile.waits import HostWaits, allocator_calls
from gapless.model import Cause
from gapless.trace.names import LOADING
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline

MAX_GAP_IN_QUEUE = 20_000
"""Nanoseconds up to which a gap between two queued operations is the device's own doing."""

MIN_LONG_CALL = 1_000_000
"""Nanoseconds: a driver call that takes longer does more than launch."""

MIN_HOST_BUSY = 250_000
"""Nanoseconds without a launch from which on the host is doing something else than launching."""


@dataclass(frozen=True)
class IdleStretch:
    """Idleness with one cause: spans, each with the host row that caused it (-1: none)."""

    cause: Cause
    spans: Spans


@dataclass(frozen=True)
class _Gaps:
    """Idleness within the steps, cut at their bounds; a row of `spans` is the position of its step.

    `launch` is the host row that launched what ended the gap (-1: unknown). `queued`: it had been launched
    when the device became idle. `lost`: its launch is missing although others' were recorded.
    """

    spans: Spans
    launch: Ints
    queued: Bools
    lost: Bools


def attribute_idleness(
    timeline: Timeline, device: int, steps: StepSpans, waits: HostWaits
) -> tuple[int, list[IdleStretch]]:
    """Return all idleness of `device` in the steps, in nanoseconds, and its causes, which add up to it."""
    gaps = _find_gaps(timeline, device, steps)
    total = int(gaps.spans.length.sum())
    every = gaps.spans._replace(row=np.arange(len(gaps.spans.start)))
    stretches: list[IdleStretch] = []
    communication = _communication_spans(timeline, device)
    stretches.append(IdleStretch("communication", intersect(every, communication)[0]))
    left = subtract(every, communication)
    if not len(timeline.host):
        nowhere = left._replace(row=np.full(len(left.start), -1, np.int64))
        return total, [
            stretch for stretch in (*stretches, IdleStretch("unknown", nowhere)) if len(stretch.spans.start)
        ]

    held_by_device, late = _split_by_launch(timeline, gaps, left)
    stretches += _attribute_late_starts(held_by_device)
    threads = _feeding_threads(timeline, device)
    wait_spans = _call_spans(timeline, waits.rows, threads)
    direct = EMPTY
    for cause, spans in (
        ("profiler", _host_spans(timeline, np.flatnonzero(timeline.host.kind == HostKind.OVERHEAD))),
        ("allocator", _call_spans(timeline, allocator_calls(timeline), threads)),
        ("unknown", _call_spans(timeline, waits.earlier, threads)),
        ("wait", wait_spans),
        ("input", _host_spans(timeline, loading_rows(timeline))),
        ("graph", _long_call_spans(timeline, threads)),
    ):
        overlap, _, _ = intersect(late, spans)
        stretches.append(IdleStretch(cause, overlap))  # type: ignore[arg-type]  # a tuple of literals is one of str
        late = subtract(late, spans)
        if cause == "wait":
            direct = overlap
    stretches += _attribute_late(timeline, steps, gaps, late, wait_spans, direct)
    return total, [stretch for stretch in stretches if len(stretch.spans.start)]


def _find_gaps(timeline: Timeline, device: int, steps: StepSpans) -> _Gaps:
    """Find where the device neither computes nor copies in the steps."""
    start, end = busy_spans(timeline, device)
    low = int(min([*steps.start[:1], *start[:1]], default=0)) - 1
    high = int(max([*steps.end[-1:], *end[-1:]], default=0)) + 1
    between = complement(Spans(start, end, np.arange(len(start))), low, high)
    inside, _, where = intersect(Spans(steps.start, steps.end, np.arange(len(steps.start))), between)
    step = np.searchsorted(steps.end, inside.start, side="right")
    follows = between.row[where]  # the busy span that ends the gap; one past the last if none does
    work = timeline.work
    rows = np.flatnonzero((work.device == device) & ~is_communication(timeline))
    at = np.minimum(np.searchsorted(work.start[rows], np.append(start, high)[follows]), max(len(rows) - 1, 0))
    launch = (
        np.where(follows < len(start), timeline.launchers[rows[at]], -1) if len(rows) else follows * 0 - 1
    )
    has_launch = launch >= 0
    began = between.start[where]
    queued = (
        has_launch & (timeline.host.end[np.maximum(launch, 0)] <= began) if len(timeline.host) else has_launch
    )
    lost = ~has_launch & (follows < len(start)) & (timeline.launchers[rows] >= 0).any()
    return _Gaps(Spans(inside.start, inside.end, step), launch, queued, lost)


def _communication_spans(timeline: Timeline, device: int) -> Spans:
    """Return when collectives run on the device, with the rows that launched them."""
    work = timeline.work
    rows = np.flatnonzero((work.device == device) & is_communication(timeline))
    return flatten_spans(work.start[rows], work.end[rows], timeline.launchers[rows])


def _feeding_threads(timeline: Timeline, device: int) -> Bools:
    """Return the threads that feed the device: others (pollers, pinning) hold nothing up."""
    launchers = timeline.launchers[timeline.work.device == device]
    launchers = launchers[launchers >= 0]
    counts = np.bincount(timeline.host.thread[launchers], minlength=len(timeline.threads))
    return counts * 200 >= max(len(launchers), 1)


def _call_spans(timeline: Timeline, rows: Ints, threads: Bools) -> Spans:
    """Return the spans of these calls on the given `threads`."""
    if not len(rows):
        return EMPTY
    return _host_spans(timeline, rows[threads[timeline.host.thread[rows]]])


def _host_spans(timeline: Timeline, rows: Ints) -> Spans:
    return flatten_spans(timeline.host.start[rows], timeline.host.end[rows], rows)


def loading_rows(timeline: Timeline) -> Ints:
    """Return the rows in which the training process draws its next batch."""
    host = timeline.host
    is_loading = timeline.names_where(LOADING.match)
    if not is_loading.any():
        return np.empty(0, np.int64)
    return np.flatnonzero(is_loading[host.name] & (host.kind != HostKind.CALL))


def _long_call_spans(timeline: Timeline, threads: Bools) -> Spans:
    """Return launches of graphs, and driver calls that take far longer than a launch."""
    host = timeline.host
    graph = timeline.names_where(lambda name: "GraphLaunch" in name or "GraphInstantiate" in name)
    if not len(graph):
        return EMPTY
    long = host.end - host.start >= MIN_LONG_CALL
    return _call_spans(
        timeline, np.flatnonzero((host.kind == HostKind.CALL) & (long | graph[host.name])), threads
    )


def _split_by_launch(timeline: Timeline, gaps: _Gaps, left: Spans) -> tuple[Spans, Spans]:
    """Split idleness into what was launched before it or early in it, and what was launched late."""
    launch = gaps.launch[left.row]
    begun = np.where(launch >= 0, timeline.host.end[np.maximum(launch, 0)], left.end)
    held_since = np.where(gaps.queued[left.row], left.start, begun + MAX_GAP_IN_QUEUE)
    held_since = np.clip(held_since, left.start, left.end)
    queued = Spans(held_since, left.end, left.row)
    late = Spans(left.start, held_since, left.row)
    return queued.keep(queued.end > queued.start), late.keep(late.end > late.start)


def _attribute_late_starts(queued: Spans) -> list[IdleStretch]:
    """Attribute idleness before work that was launched in time and began late all the same."""
    nowhere = queued._replace(row=np.full(len(queued.start), -1, np.int64))
    short = queued.length <= MAX_GAP_IN_QUEUE
    return [IdleStretch("graph", nowhere.keep(short)), IdleStretch("unknown", nowhere.keep(~short))]


def _attribute_late(
    timeline: Timeline, steps: StepSpans, gaps: _Gaps, late: Spans, waits: Spans, direct: Spans
) -> list[IdleStretch]:
    """Attribute time in which the host launched late and nothing special was recorded.

    A late launch is owed to an earlier wait that used up the host's lead, for as long as that wait lasted;
    the rest to a host that launches slower than the device works, or does something else.
    """
    if not len(late.start):
        return []
    of_wait = np.searchsorted(steps.end, waits.end, side="right")
    owed, rest = _split_owed(late, gaps.spans.row, waits, of_wait, direct)
    # How long the host went without launching decides the cause.
    idle = np.bincount(rest.row, weights=rest.length, minlength=len(gaps.launch))
    busy = idle[rest.row] >= MIN_HOST_BUSY
    launch = gaps.launch[rest.row]
    unknown = launch < 0
    launching = rest._replace(row=launch)
    doing = rest._replace(row=_running_rows(timeline, rest, launch))
    is_recorded = (doing.row >= 0) & (timeline.host.kind[doing.row] != HostKind.ANNOTATION)
    is_recorded &= ~gaps.lost[rest.row]  # that launch may have taken all the time, as loading a library does
    working = busy & (is_recorded | ~unknown)
    working &= timeline.facts.waits_known  # else it may be waiting
    return [
        IdleStretch("wait", owed),
        IdleStretch("launch", launching.keep(~busy & ~unknown)),
        IdleStretch("host", doing.keep(working)),
        IdleStretch("unknown", doing.keep((unknown | busy) & ~working)),
    ]


def _split_owed(late: Spans, step: Ints, waits: Spans, step_of_wait: Ints, direct: Spans) -> list[Spans]:
    """Split each late span into what is owed to a wait and the rest.

    While the host waits the device works off its queue: a wait of length B uses up at most B of lead.
    Lateness after it is owed to the last wait with some of its B left, in this step or the one before. A
    wait during which the device was idle all the time used up nothing.
    """
    lasted = waits.length.tolist()
    at = np.searchsorted(waits.start, direct.start, side="right") - 1
    for position, length in zip(at.tolist(), direct.length.tolist(), strict=True):
        lasted[position] -= length
    ends, steps = waits.end.tolist(), step_of_wait.tolist()
    open_debts: list[int] = []
    # A late span and how much of its beginning is owed to which wait; the remainder is the rest.
    owing: list[int] = []
    amounts: list[int] = []
    waiting: list[int] = []
    coming, count = 0, len(ends)
    columns = (late.start.tolist(), late.length.tolist(), step[late.row].tolist())
    for position, (start, left, now) in enumerate(zip(*columns, strict=True)):
        while coming < count and ends[coming] <= start:
            if lasted[coming] > 0:
                open_debts.append(coming)
            coming += 1
        while open_debts:
            last = open_debts[-1]
            if steps[last] < now - 1:
                open_debts.clear()  # and all before it are older still
                break
            debt = lasted[last]
            owing.append(position)
            waiting.append(last)
            if debt > left:
                amounts.append(left)
                lasted[last] = debt - left
                break
            amounts.append(debt)
            left -= debt
            open_debts.pop()
            if not left:
                break
    return _cut_owed(
        late, waits, np.array(owing, np.int64), np.array(amounts, np.int64), np.array(waiting, np.int64)
    )


def _cut_owed(late: Spans, waits: Spans, owing: Ints, amounts: Ints, waiting: Ints) -> list[Spans]:
    """Cut the owed parts, in order, from the beginning of each late span; return them and the remainder."""
    before = np.cumsum(amounts) - amounts
    fresh = np.append(True, owing[1:] != owing[:-1])[: len(owing)]
    base = np.maximum.accumulate(np.where(fresh, before, 0)) if len(owing) else before
    start = late.start[owing] + before - base
    owed = Spans(start, start + amounts, waits.row[waiting])
    taken = np.bincount(owing, weights=amounts, minlength=len(late.start)).astype(np.int64)
    rest = Spans(late.start + taken, late.end, late.row)
    return [owed, rest.keep(rest.end > rest.start)]


def _running_rows(timeline: Timeline, rest: Spans, launch: Ints) -> Ints:
    """Return what the host was running: on the thread of the launch, else on the one that feeds most."""
    if not len(rest.start):
        return np.empty(0, np.int64)
    host = timeline.host
    launchers = timeline.launchers
    launchers = launchers[launchers >= 0]
    main = int(np.bincount(host.thread[launchers]).argmax()) if len(launchers) else 0
    middle = (rest.start + rest.end) // 2
    threads = np.where(launch >= 0, host.thread[np.maximum(launch, 0)], main).astype(np.int64)
    rows = enclosing_rows(timeline, threads, middle)
    for other in _threads_by_operators(timeline):
        lost = rows < 0
        if not lost.any():
            break
        rows[lost] = enclosing_rows(timeline, np.full(int(lost.sum()), other, np.int64), middle[lost])
    return rows


def _threads_by_operators(timeline: Timeline) -> list[int]:
    """Return the threads that ran operators, the busiest first."""
    host = timeline.host
    counts = np.bincount(host.thread[host.kind == HostKind.OPERATOR], minlength=len(timeline.threads))
    return [int(thread) for thread in np.argsort(-counts, kind="stable") if counts[thread]]
