"""A `Timeline` as `Lanes`: what a page draws."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gapless.analyze.profile.idle import Stretch
from gapless.analyze.profile.lines import library
from gapless.analyze.profile.thin import Bars, bars, by_what, thinned, within
from gapless.analyze.profile.trace_steps import StepSpans, compute_busy, covered, is_communication
from gapless.model import Cost
from gapless.model.lanes import Boxes, Lane, LaneKind, Lanes, Window
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, WorkKind, concatenate, distinct

BUDGET = 16_000
"""Boxes in all, waits not counted."""
THREADS, STREAMS, DEEP = 6, 12, 10
"""So many threads and streams are drawn at most, and so many rows of spans within spans."""
_WAITS = 4_000
_PARTS = 800
"""The parts of the profile whose utilization is told."""
_PLACES = 16
_NAME = 200
_LEAST_WINDOW = 100_000
_PIXELS = 4_000
_FRAME = re.compile(r"(?P<file>.+?)\(\d+\): ")
_KINDS = {HostKind.OPERATOR: "operator", HostKind.CALL: "call", HostKind.FRAME: "frame"}


@dataclass(frozen=True)
class _Launches:
    """The work of one stream by its `start`: when the call `began` that launched it, and on which thread."""

    start: Ints
    began: Ints
    thread: Ints


@dataclass
class _Drawing:
    """What is gathered: lanes, the number of each one's first line, spans by line, launches by line of a
    stream, and the lane of each thread."""

    lanes: list[Lane] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    parts: list[Bars] = field(default_factory=list)
    waits: list[Bars] = field(default_factory=list)
    kinds: dict[tuple[str, int], int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    launches: dict[int, _Launches] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)
    lines: int = 0

    def lane(self, kind: LaneKind, name: str, rows: int = 1) -> int:
        """The number of the first line of a new lane."""
        self.lanes.append(Lane(kind=kind, name=name[:_NAME], rows=rows))
        self.first.append(self.lines)
        self.lines += rows
        return self.first[-1]

    def what(self, kind: str, names: Ints) -> Ints:
        """For each of these names of one kind its number here."""
        known, back = np.unique(names, return_inverse=True)
        numbers = [self.kinds.setdefault((kind, one), len(self.kinds)) for one in known.tolist()]
        return np.array(numbers, np.int64)[back.reshape(-1)]


def lanes(
    timeline: Timeline,
    device: int,
    steps: StepSpans,
    stretches: Sequence[Stretch],
    costs: Sequence[Cost],
    rows: Sequence[Ints],
    budget: int = BUDGET,
) -> Lanes:
    """The timeline in about `budget` boxes and all its waits.

    `costs` and, for each of them, the host `rows` of its calls are those of the profile.
    """
    drawing = _Drawing()
    _idle(drawing, stretches)
    _streams(drawing, timeline, device)
    _threads(drawing, timeline, _waiting(timeline, costs, rows))
    empty = bars(*[np.empty(0, np.int64)] * 4)
    everything = concatenate([empty, *drawing.parts])
    waits = by_what(concatenate([empty, *drawing.waits]), _WAITS)
    low, high = timeline.span
    coarse, finest = thinned(everything, budget // 2, (high - low) // _PIXELS)
    whole = concatenate([coarse, waits])
    windows = [_window(drawing, whole, low, high, finest)]
    left = budget - len(coarse)
    places = _places(costs, steps, low, high) if finest else []
    for number, (start, end) in enumerate(places):
        inside = within(everything, start, end)
        fine, finest = thinned(inside, left // (len(places) - number), (end - start) // _PIXELS)
        left -= len(fine)
        told = concatenate([fine, within(waits, start, end)])
        windows.append(_window(drawing, told, start, end, finest))
    windows.sort(key=lambda one: one.start - one.end)
    named = [(kind, timeline.names[name] if name >= 0 else kind) for kind, name in drawing.kinds]
    return Lanes(
        lanes=tuple(drawing.lanes),
        names=tuple(name[:_NAME] for _, name in named),
        kinds=tuple(kind for kind, _ in named),
        windows=tuple(windows),
        busy=_utilization(timeline, device, low, high),
        left_out=tuple(drawing.left_out),
    )


def _idle(drawing: _Drawing, stretches: Sequence[Stretch]) -> None:
    line = drawing.lane("idle", "GPU idle")
    for one in stretches:
        spans = one.spans
        if len(spans.start):
            what = drawing.what(one.cause, np.full(len(spans.start), -1))
            drawing.parts.append(bars(np.full(len(what), line), spans.start, spans.end, what))


def _streams(drawing: _Drawing, timeline: Timeline, device: int) -> None:
    """The device's streams, the busiest first."""
    work = timeline.work
    here = np.flatnonzero(work.device == device)
    streams, back = np.unique(work.stream[here], return_inverse=True)
    back = back.reshape(-1)
    busy = np.bincount(back, weights=(work.end - work.start)[here], minlength=len(streams))
    order = np.argsort(-busy, kind="stable")
    if len(order) > STREAMS:
        drawing.left_out.append(f"{len(order) - STREAMS} of {len(order)} streams")
    line = np.full(len(streams), -1, np.int64)
    launcher = timeline.launchers[here]
    for position in order[:STREAMS].tolist():
        line[position] = drawing.lane("stream", f"stream {int(streams[position])}")
        rows = np.flatnonzero((back == position) & (launcher >= 0))
        calls = launcher[rows]
        host = timeline.host
        drawing.launches[int(line[position])] = _Launches(
            work.start[here[rows]], host.start[calls], host.thread[calls].astype(np.int64)
        )
    communication = is_communication(timeline)[here]
    kind = np.where(communication, 1, np.where(work.kind[here] == WorkKind.KERNEL, 0, 2))
    for number, name in enumerate(("kernel", "communication", "copy")):
        chosen = np.flatnonzero((kind == number) & (line[back] >= 0))
        rows = here[chosen]
        if len(rows):
            what = drawing.what(name, work.name[rows].astype(np.int64))
            drawing.parts.append(bars(line[back[chosen]], work.start[rows], work.end[rows], what))


def _waiting(timeline: Timeline, costs: Sequence[Cost], rows: Sequence[Ints]) -> Bars:
    """The calls that are waits, on their thread's number instead of a line; `what` is the cost's position."""
    chosen = [number for number, one in enumerate(costs) if one.cause == "wait" and len(rows[number])]
    empty = np.empty(0, np.int64)
    calls = np.concatenate([empty, *(rows[number] for number in chosen)])
    what = np.concatenate([empty, *(np.full(len(rows[number]), number) for number in chosen)])
    host = timeline.host
    return bars(host.thread[calls], host.start[calls], host.end[calls], what)


def _threads(drawing: _Drawing, timeline: Timeline, waits: Bars) -> None:
    """The threads that wait or do most, each with its waits above what it runs."""
    host = timeline.host
    kept = _telling(timeline)
    depth = _depths(timeline.parents, kept)
    top = kept & (depth == 0)
    size = len(timeline.threads)
    weight = np.bincount(host.thread[top], weights=(host.end - host.start)[top], minlength=size)
    waiting = np.bincount(waits.line, weights=waits.busy, minlength=size)
    order = np.lexsort((-weight, -waiting))
    order = order[(weight[order] > 0) | (waiting[order] > 0)]
    if len(order) > THREADS:
        drawing.left_out.append(f"{len(order) - THREADS} of {len(order)} threads")
    deepest = 0
    for thread in order[:THREADS].tolist():
        low, high = timeline.thread_rows[thread]
        rows = low + np.flatnonzero(kept[low:high])
        deep = depth[rows]
        deepest = max(deepest, int(deep.max(initial=0)) + 1)
        rows, deep = rows[deep < DEEP], deep[deep < DEEP]
        name = timeline.threads[thread].name or f"thread {timeline.threads[thread].tid}"
        mine = waits.take(np.flatnonzero(waits.line == thread))
        if len(mine):
            line = drawing.lane("waits", name)
            drawing.waits.append(Bars(np.full(len(mine), line), *_columns(mine)))
        if len(rows):
            drawing.threads[thread] = len(drawing.lanes)
            line = drawing.lane("thread", name, int(deep.max()) + 1)
            what = _host_names(drawing, timeline, rows)
            drawing.parts.append(bars(line + deep, host.start[rows], host.end[rows], what))
    if deepest > DEEP:
        drawing.left_out.append(f"spans nested deeper than {DEEP - 1} levels")


def _columns(table: Bars) -> tuple[Ints, ...]:
    return table.start, table.end, table.what, table.count, table.busy


def _telling(timeline: Timeline) -> Bools:
    """Which host spans are drawn: no libraries' Python frames, and nothing of the profiler's own."""
    host, names = timeline.host, timeline.names
    frames = host.kind == HostKind.FRAME
    kept: Bools = host.kind != HostKind.OVERHEAD
    if frames.any():
        used = distinct(host.name[frames])
        telling = np.zeros(len(names), bool)
        libraries: dict[str, bool] = {}
        for number in used.tolist():
            telling[number] = _is_telling(names[number], libraries)
        kept &= ~frames | telling[host.name]
    return kept


def _is_telling(frame: str, libraries: dict[str, bool]) -> bool:
    """A module's call, or a function of the user's own; `libraries` remembers files."""
    if frame.startswith("nn.Module: "):
        return True
    found = _FRAME.match(frame)
    if found is None or frame.startswith("<"):
        return False
    file = found["file"]
    if file not in libraries:
        libraries[file] = bool(library(file))
    return not libraries[file]


def _depths(parents: Ints, kept: Bools) -> Ints:
    """How many kept spans are around each, by doubling the distance that is looked up."""
    above = np.where(parents >= 0, kept[parents], False).astype(np.int64)
    up = parents.copy()
    while True:
        inside = np.flatnonzero(up >= 0)
        if not len(inside):
            return above
        further = up[inside]
        above[inside] += above[further]
        up[inside] = up[further]


def _host_names(drawing: _Drawing, timeline: Timeline, rows: Ints) -> Ints:
    what = np.zeros(len(rows), np.int64)
    kind = timeline.host.kind[rows]
    for number in distinct(kind).tolist():
        chosen = np.flatnonzero(kind == number)
        name = _KINDS.get(HostKind(number), "annotation")
        what[chosen] = drawing.what(name, timeline.host.name[rows[chosen]].astype(np.int64))
    return what


def _places(costs: Sequence[Cost], steps: StepSpans, low: int, high: int) -> list[tuple[int, int]]:
    """Where to look closely: a usual step, and around the longest stretch of what costs most."""
    wanted: list[tuple[int, int]] = []
    length = steps.end - steps.start
    if len(length) > 1:
        usual = int(np.argsort(length, kind="stable")[len(length) // 2])
        wanted.append((int(steps.start[usual]), int(steps.end[usual])))
    for cost in costs[:_PLACES]:
        around = max(cost.end - cost.start, _LEAST_WINDOW)
        wanted.append((cost.start - around, cost.end + around))
    kept: list[tuple[int, int]] = []
    for start, end in sorted(wanted, key=lambda one: one[1] - one[0]):
        start, end = max(start, low), min(end, high)
        seen = any(a <= start and end <= b for a, b in kept)
        if start < end and 2 * (end - start) <= high - low and not seen:
            kept.append((start, end))
    return kept


def _window(drawing: _Drawing, shown: Bars, start: int, end: int, finest: int) -> Window:
    order = np.lexsort((shown.start, shown.line))
    shown = shown.take(order)
    first = np.array(drawing.first, np.int64)
    lines, cuts = np.unique(shown.line, return_index=True)
    found = []
    for line, rows in zip(lines.tolist(), np.split(np.arange(len(shown)), cuts[1:]), strict=False):
        lane = int(np.searchsorted(first, line, side="right")) - 1
        row = shown.take(rows)
        since = np.diff(row.start, prepend=start)
        columns = (since, row.end - row.start, row.what, row.count, row.busy)
        told = (tuple(column.tolist()) for column in columns)
        found.append(Boxes(lane, line - int(first[lane]), *told, *_launched(drawing, line, row)))
    return Window(start=start, end=end, finest=finest, boxes=tuple(found))


def _launched(drawing: _Drawing, line: int, row: Bars) -> tuple[tuple[int, ...], ...]:
    """How long before each single box of a stream it was launched, and the lane of that call."""
    known = drawing.launches.get(line)
    if known is None or not len(known.start):
        return ()
    at = np.minimum(np.searchsorted(known.start, row.start), len(known.start) - 1)
    lane = np.array([drawing.threads.get(int(one), -1) for one in known.thread[at].tolist()], np.int64)
    lane[(row.count > 1) | (known.start[at] != row.start)] = -1
    if not (lane >= 0).any():
        return ()
    before = np.where(lane >= 0, row.start - known.began[at], 0)
    return tuple(before.tolist()), tuple(lane.tolist())


def _utilization(timeline: Timeline, device: int, low: int, high: int) -> tuple[int, ...]:
    if high <= low:
        return ()
    edges = np.linspace(low, high, _PARTS + 1).astype(np.int64)
    busy = covered(*compute_busy(timeline, device), edges[:-1], edges[1:])
    return tuple(np.rint(100 * busy / np.maximum(np.diff(edges), 1)).astype(np.int64).tolist())
