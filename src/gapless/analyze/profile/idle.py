"""Why the device had nothing to do: each nanosecond of idleness gets one cause and one row of the host.

docs/trace.md tells the reasoning in words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.analyze.profile.lines import enclosing
from gapless.analyze.profile.spans import EMPTY, Spans, complement, flat, intersect, subtract
from gapless.analyze.profile.trace_steps import StepSpans, compute_busy, is_communication
from gapless.analyze.profile.waits import HostWaits, allocator_calls
from gapless.model import Cause
from gapless.trace.names import LOADING
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline

BETWEEN_KERNELS = 20_000
"""Up to so many nanoseconds between two queued operations are the device's own doing."""

LONG_CALL = 1_000_000
"""A call of the driver that takes more nanoseconds than this does more than launch."""

HOST_BUSY = 250_000
"""Above so many nanoseconds without a launch the host does something else than launch."""


@dataclass(frozen=True)
class Stretch:
    """Parts of the idleness that have one cause: spans with the host row (-1: none) each is laid to."""

    cause: Cause
    spans: Spans


@dataclass(frozen=True)
class _Gaps:
    """Idleness within the steps, cut at their bounds; a row of `spans` is the position of its step.

    `launch` is the host row that launched what ended the gap (-1: unknown), `queued` says that it had been
    launched when the device became idle, `lost` that its launch is not there although others' are.
    """

    spans: Spans
    launch: Ints
    queued: Bools
    lost: Bools


def attribute(
    timeline: Timeline, device: int, steps: StepSpans, waits: HostWaits
) -> tuple[int, list[Stretch]]:
    """All idleness of `device` in the steps, in nanoseconds, and what it is laid to, adding up to it."""
    gaps = _gaps(timeline, device, steps)
    total = int(gaps.spans.length.sum())
    every = gaps.spans._replace(row=np.arange(len(gaps.spans.start)))
    found: list[Stretch] = []
    communication = _communication(timeline, device)
    found.append(Stretch("communication", intersect(every, communication)[0]))
    left = subtract(every, communication)
    if not len(timeline.host):
        nowhere = left._replace(row=np.full(len(left.start), -1, np.int64))
        return total, [one for one in (*found, Stretch("unknown", nowhere)) if len(one.spans.start)]

    held, late = _launched(timeline, gaps, left)
    found += _held_by_device(held)
    threads = _launching_threads(timeline, device)
    wait_spans = _calls(timeline, waits.rows, threads)
    direct = EMPTY
    for cause, spans in (
        ("profiler", _spans(timeline, np.flatnonzero(timeline.host.kind == HostKind.OVERHEAD))),
        ("allocator", _calls(timeline, allocator_calls(timeline), threads)),
        ("unknown", _calls(timeline, waits.earlier, threads)),
        ("wait", wait_spans),
        ("input", _spans(timeline, loading_rows(timeline))),
        ("graph", _long_calls(timeline, threads)),
    ):
        got, _, _ = intersect(late, spans)
        found.append(Stretch(cause, got))  # type: ignore[arg-type]  # a tuple of literals is one of str
        late = subtract(late, spans)
        if cause == "wait":
            direct = got
    found += _late(timeline, steps, gaps, late, wait_spans, direct)
    return total, [one for one in found if len(one.spans.start)]


def _gaps(timeline: Timeline, device: int, steps: StepSpans) -> _Gaps:
    """Where the device neither computes nor copies."""
    start, end = compute_busy(timeline, device)
    low = int(min([*steps.start[:1], *start[:1]], default=0)) - 1
    high = int(max([*steps.end[-1:], *end[-1:]], default=0)) + 1
    between = complement(Spans(start, end, np.arange(len(start))), low, high)
    inside, _, where = intersect(Spans(steps.start, steps.end, np.arange(len(steps.start))), between)
    step = np.searchsorted(steps.end, inside.start, side="right")
    follows = between.row[where]  # the busy span that ends the gap; one past the last where none does
    work = timeline.work
    rows = np.flatnonzero((work.device == device) & ~is_communication(timeline))
    at = np.minimum(np.searchsorted(work.start[rows], np.append(start, high)[follows]), max(len(rows) - 1, 0))
    launch = (
        np.where(follows < len(start), timeline.launchers[rows[at]], -1) if len(rows) else follows * 0 - 1
    )
    known = launch >= 0
    began = between.start[where]
    queued = known & (timeline.host.end[np.maximum(launch, 0)] <= began) if len(timeline.host) else known
    lost = ~known & (follows < len(start)) & (timeline.launchers[rows] >= 0).any()
    return _Gaps(Spans(inside.start, inside.end, step), launch, queued, lost)


def _communication(timeline: Timeline, device: int) -> Spans:
    """When collectives run on the device, with the rows that launched them."""
    work = timeline.work
    rows = np.flatnonzero((work.device == device) & is_communication(timeline))
    return flat(work.start[rows], work.end[rows], timeline.launchers[rows])


def _launching_threads(timeline: Timeline, device: int) -> Bools:
    """The threads that feed the device: what others do (pollers, pinning) holds nothing up."""
    made = timeline.launchers[timeline.work.device == device]
    made = made[made >= 0]
    counts = np.bincount(timeline.host.thread[made], minlength=len(timeline.threads))
    return counts * 200 >= max(len(made), 1)


def _calls(timeline: Timeline, rows: Ints, threads: Bools) -> Spans:
    """The spans of these calls, on the threads that count."""
    if not len(rows):
        return EMPTY
    return _spans(timeline, rows[threads[timeline.host.thread[rows]]])


def _spans(timeline: Timeline, rows: Ints) -> Spans:
    return flat(timeline.host.start[rows], timeline.host.end[rows], rows)


def loading_rows(timeline: Timeline) -> Ints:
    """The rows in which the training process draws its next batch."""
    host = timeline.host
    named = timeline.names_where(LOADING.match)
    if not named.any():
        return np.empty(0, np.int64)
    return np.flatnonzero(named[host.name] & (host.kind != HostKind.CALL))


def _long_calls(timeline: Timeline, threads: Bools) -> Spans:
    """Launches of graphs, and calls of the driver that take far longer than a launch does."""
    host = timeline.host
    graph = timeline.names_where(lambda name: "GraphLaunch" in name or "GraphInstantiate" in name)
    if not len(graph):
        return EMPTY
    long = host.end - host.start >= LONG_CALL
    return _calls(timeline, np.flatnonzero((host.kind == HostKind.CALL) & (long | graph[host.name])), threads)


def _launched(timeline: Timeline, gaps: _Gaps, left: Spans) -> tuple[Spans, Spans]:
    """What had been launched when the idleness began, or long ago within it, and what had not."""
    launch = gaps.launch[left.row]
    begun = np.where(launch >= 0, timeline.host.end[np.maximum(launch, 0)], left.end)
    held_from = np.where(gaps.queued[left.row], left.start, begun + BETWEEN_KERNELS)
    held_from = np.clip(held_from, left.start, left.end)
    held = Spans(held_from, left.end, left.row)
    late = Spans(left.start, held_from, left.row)
    return held.keep(held.end > held.start), late.keep(late.end > late.start)


def _held_by_device(queued: Spans) -> list[Stretch]:
    """What was launched in time and began late all the same."""
    nowhere = queued._replace(row=np.full(len(queued.start), -1, np.int64))
    short = queued.length <= BETWEEN_KERNELS
    return [Stretch("graph", nowhere.keep(short)), Stretch("unknown", nowhere.keep(~short))]


def _late(
    timeline: Timeline, steps: StepSpans, gaps: _Gaps, late: Spans, waits: Spans, direct: Spans
) -> list[Stretch]:
    """Time in which the host came late with its launch and nothing special was recorded.

    The host is late because an earlier wait took its lead away, as far as that wait lasted; beyond that,
    because it launches slower than the device works, or does something else.
    """
    if not len(late.start):
        return []
    of_wait = np.searchsorted(steps.end, waits.end, side="right")
    owed, rest = _owed(late, gaps.spans.row, waits, of_wait, direct)
    # How long the host went without launching decides what to call it.
    idle = np.bincount(rest.row, weights=rest.length, minlength=len(gaps.launch))
    busy = idle[rest.row] >= HOST_BUSY
    launch = gaps.launch[rest.row]
    unknown = launch < 0
    launching = rest._replace(row=launch)
    doing = rest._replace(row=_doing(timeline, rest, launch))
    seen = (doing.row >= 0) & (timeline.host.kind[doing.row] != HostKind.ANNOTATION)
    seen &= ~gaps.lost[rest.row]  # that launch may have taken all the time, as loading a library does
    return [
        Stretch("wait", owed),
        Stretch("launch", launching.keep(~busy & ~unknown)),
        Stretch("host", doing.keep(busy & (seen | ~unknown))),
        Stretch("unknown", doing.keep(unknown & ~(busy & seen))),
    ]


def _owed(late: Spans, step: Ints, waits: Spans, step_of_wait: Ints, direct: Spans) -> list[Spans]:
    """The part of each late span that is owed to a wait, and the rest.

    While the host waits the device works off what was queued: a wait that lasts B takes at most B of lead.
    What comes late after it is owed to the last wait that still has some of its B left, in this step or the
    one before. A wait through which the device was idle all the time took nothing.
    """
    lasted = waits.length.tolist()
    at = np.searchsorted(waits.start, direct.start, side="right") - 1
    for position, length in zip(at.tolist(), direct.length.tolist(), strict=True):
        lasted[position] -= length
    ends, steps = waits.end.tolist(), step_of_wait.tolist()
    open_debts: list[int] = []
    # A late span and how much of its beginning is owed to which wait; what is not owed is the rest of it.
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
            have = lasted[last]
            owing.append(position)
            waiting.append(last)
            if have > left:
                amounts.append(left)
                lasted[last] = have - left
                break
            amounts.append(have)
            left -= have
            open_debts.pop()
            if not left:
                break
    return _parted(
        late, waits, np.array(owing, np.int64), np.array(amounts, np.int64), np.array(waiting, np.int64)
    )


def _parted(late: Spans, waits: Spans, owing: Ints, amounts: Ints, waiting: Ints) -> list[Spans]:
    """The owed parts, one behind the other from the beginning of each late span, and what is left of it."""
    before = np.cumsum(amounts) - amounts
    fresh = np.append(True, owing[1:] != owing[:-1])[: len(owing)]
    base = np.maximum.accumulate(np.where(fresh, before, 0)) if len(owing) else before
    start = late.start[owing] + before - base
    owed = Spans(start, start + amounts, waits.row[waiting])
    taken = np.bincount(owing, weights=amounts, minlength=len(late.start)).astype(np.int64)
    rest = Spans(late.start + taken, late.end, late.row)
    return [owed, rest.keep(rest.end > rest.start)]


def _doing(timeline: Timeline, rest: Spans, launch: Ints) -> Ints:
    """What the host was in: on the thread of the launch, else on the one that feeds the device most."""
    if not len(rest.start):
        return np.empty(0, np.int64)
    host = timeline.host
    made = timeline.launchers
    made = made[made >= 0]
    main = int(np.bincount(host.thread[made]).argmax()) if len(made) else 0
    middle = (rest.start + rest.end) // 2
    threads = np.where(launch >= 0, host.thread[np.maximum(launch, 0)], main).astype(np.int64)
    rows = enclosing(timeline, threads, middle)
    for other in _threads_by_use(timeline):
        lost = rows < 0
        if not lost.any():
            break
        rows[lost] = enclosing(timeline, np.full(int(lost.sum()), other, np.int64), middle[lost])
    return rows


def _threads_by_use(timeline: Timeline) -> list[int]:
    """Threads that ran operators, the busiest first."""
    host = timeline.host
    counts = np.bincount(host.thread[host.kind == HostKind.OPERATOR], minlength=len(timeline.threads))
    return [int(one) for one in np.argsort(-counts, kind="stable") if counts[one]]
