"""Turn a `Timeline` into the `Lanes` that a page draws."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gapless.analyze.profile.idle import IdleStretch
from gapless.analyze.profile.lines import library_of
from gapless.analyze.profile.thin import Bars, make_bars, thin_bars, thin_within_names, within
from gapless.analyze.profile.trace_steps import StepSpans, busy_spans, covered_time, is_communication
from gapless.model import Cost
from gapless.model.lanes import Boxes, Lane, LaneKind, Lanes, LaneWindow
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, WorkKind, concatenate, distinct

MAX_BOXES = 16_000
"""Boxes drawn in all, without waits: more make a page slow."""
MAX_THREADS, MAX_STREAMS, MAX_DEPTH = 6, 12, 10
"""How many threads, streams and levels of nested spans are drawn at most."""
_MAX_WAITS = 4_000
"""Waits drawn, in addition to the boxes."""
_UTILIZATION_PARTS = 800
"""How many parts of the profile show their utilization."""
_MAX_CLOSE_UPS = 16
"""Costs that get a close-up; the others are small, and each one takes boxes from the rest."""
_MAX_NAME_LENGTH = 200
"""Characters kept of a name: kernels made from templates have thousands."""
_MIN_MARGIN = 100_000
"""Nanoseconds shown on each side of a cost at least: some launches fit into them."""
_MAX_PIXELS = 4_000
"""Widest screen, in pixels: boxes narrower than one are merged."""
_FRAME = re.compile(r"(?P<file>.+?)\(\d+\): ")
_KINDS = {HostKind.OPERATOR: "operator", HostKind.CALL: "call", HostKind.FRAME: "frame"}


@dataclass(frozen=True)
class _StreamLaunches:
    """Launches of one stream's work, by its `start`: when and on which thread the launching call `began`."""

    start: Ints
    began: Ints
    thread: Ints


@dataclass
class _Drawing:
    """The drawing so far: lanes, the number of each one's first line, spans by line, launches by line of a
    stream, and the lane of each thread."""

    lanes: list[Lane] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    parts: list[Bars] = field(default_factory=list)
    waits: list[Bars] = field(default_factory=list)
    kinds: dict[tuple[str, int], int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    launches: dict[int, _StreamLaunches] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)
    lines: int = 0

    def lane(self, kind: LaneKind, name: str, rows: int = 1) -> int:
        """Add a lane and return the number of its first line."""
        self.lanes.append(Lane(kind=kind, name=name[:_MAX_NAME_LENGTH], rows=rows))
        self.first.append(self.lines)
        self.lines += rows
        return self.first[-1]

    def number_names(self, kind: str, names: Ints) -> Ints:
        """Return a number in this drawing for each of these names of one kind."""
        names_, back = np.unique(names, return_inverse=True)
        numbers = [self.kinds.setdefault((kind, name), len(self.kinds)) for name in names_.tolist()]
        return np.array(numbers, np.int64)[back.reshape(-1)]


def draw_lanes(
    timeline: Timeline,
    device: int,
    steps: StepSpans,
    stretches: Sequence[IdleStretch],
    costs: Sequence[Cost],
    rows: Sequence[Ints],
    budget: int = MAX_BOXES,
) -> Lanes:
    """Draw the timeline with about `budget` boxes and all its waits.

    `costs` are the profile's, and `rows` the host rows of the calls of each.
    """
    drawing = _Drawing()
    _draw_idle(drawing, stretches)
    _draw_streams(drawing, timeline, device)
    _draw_threads(drawing, timeline, _waiting_calls(timeline, costs, rows))
    empty = make_bars(*[np.empty(0, np.int64)] * 4)
    everything = concatenate([empty, *drawing.parts])
    waits = thin_within_names(concatenate([empty, *drawing.waits]), _MAX_WAITS)
    low, high = timeline.span
    coarse, finest = thin_bars(everything, budget // 2, (high - low) // _MAX_PIXELS)
    whole = concatenate([coarse, waits])
    windows = [_window(drawing, whole, low, high, finest)]
    left = budget - len(coarse)
    places = _close_ups(costs, steps, low, high) if finest else []
    for number, (start, end) in enumerate(places):
        inside = within(everything, start, end)
        fine, finest = thin_bars(inside, left // (len(places) - number), (end - start) // _MAX_PIXELS)
        left -= len(fine)
        shown = concatenate([fine, within(waits, start, end)])
        windows.append(_window(drawing, shown, start, end, finest))
    windows.sort(key=lambda window: window.start - window.end)
    kinds_and_names = [(kind, timeline.names[name] if name >= 0 else kind) for kind, name in drawing.kinds]
    return Lanes(
        lanes=tuple(drawing.lanes),
        names=tuple(name[:_MAX_NAME_LENGTH] for _, name in kinds_and_names),
        kinds=tuple(kind for kind, _ in kinds_and_names),
        windows=tuple(windows),
        busy=_utilization(timeline, device, low, high),
        left_out=tuple(drawing.left_out),
    )


def _draw_idle(drawing: _Drawing, stretches: Sequence[IdleStretch]) -> None:
    line = drawing.lane("idle", "GPU idle")
    for stretch in stretches:
        spans = stretch.spans
        if len(spans.start):
            names = drawing.number_names(stretch.cause, np.full(len(spans.start), -1))
            drawing.parts.append(make_bars(np.full(len(names), line), spans.start, spans.end, names))


def _draw_streams(drawing: _Drawing, timeline: Timeline, device: int) -> None:
    """Draw the device's streams, the busiest first."""
    work = timeline.work
    rows_of_device = np.flatnonzero(work.device == device)
    streams, back = np.unique(work.stream[rows_of_device], return_inverse=True)
    back = back.reshape(-1)
    busy = np.bincount(back, weights=(work.end - work.start)[rows_of_device], minlength=len(streams))
    order = np.argsort(-busy, kind="stable")
    if len(order) > MAX_STREAMS:
        drawing.left_out.append(f"{len(order) - MAX_STREAMS} of {len(order)} streams")
    line = np.full(len(streams), -1, np.int64)
    launcher = timeline.launchers[rows_of_device]
    for position in order[:MAX_STREAMS].tolist():
        line[position] = drawing.lane("stream", f"stream {int(streams[position])}")
        rows = np.flatnonzero((back == position) & (launcher >= 0))
        calls = launcher[rows]
        host = timeline.host
        drawing.launches[int(line[position])] = _StreamLaunches(
            work.start[rows_of_device[rows]], host.start[calls], host.thread[calls].astype(np.int64)
        )
    communication = is_communication(timeline)[rows_of_device]
    kind = np.where(communication, 1, np.where(work.kind[rows_of_device] == WorkKind.KERNEL, 0, 2))
    for number, name in enumerate(("kernel", "communication", "copy")):
        positions = np.flatnonzero((kind == number) & (line[back] >= 0))
        rows = rows_of_device[positions]
        if len(rows):
            names = drawing.number_names(name, work.name[rows].astype(np.int64))
            drawing.parts.append(make_bars(line[back[positions]], work.start[rows], work.end[rows], names))


def _waiting_calls(timeline: Timeline, costs: Sequence[Cost], rows: Sequence[Ints]) -> Bars:
    """Return the waiting calls, with their thread for `line` and their cost's position for `name`."""
    chosen = [number for number, cost in enumerate(costs) if cost.cause == "wait" and len(rows[number])]
    empty = np.empty(0, np.int64)
    calls = np.concatenate([empty, *(rows[number] for number in chosen)])
    cost_positions = np.concatenate([empty, *(np.full(len(rows[number]), number) for number in chosen)])
    host = timeline.host
    return make_bars(host.thread[calls], host.start[calls], host.end[calls], cost_positions)


def _draw_threads(drawing: _Drawing, timeline: Timeline, waits: Bars) -> None:
    """Draw the threads that wait or do most, each with its waits above its spans."""
    host = timeline.host
    is_drawn = _are_drawn(timeline)
    depth = _depths_of(timeline.parents, is_drawn)
    top = is_drawn & (depth == 0)
    size = len(timeline.threads)
    weight = np.bincount(host.thread[top], weights=(host.end - host.start)[top], minlength=size)
    waiting = np.bincount(waits.line, weights=waits.busy, minlength=size)
    order = np.lexsort((-weight, -waiting))
    order = order[(weight[order] > 0) | (waiting[order] > 0)]
    if len(order) > MAX_THREADS:
        drawing.left_out.append(f"{len(order) - MAX_THREADS} of {len(order)} threads")
    deepest = 0
    for thread in order[:MAX_THREADS].tolist():
        low, high = timeline.thread_rows[thread]
        rows = low + np.flatnonzero(is_drawn[low:high])
        deep = depth[rows]
        deepest = max(deepest, int(deep.max(initial=0)) + 1)
        rows, deep = rows[deep < MAX_DEPTH], deep[deep < MAX_DEPTH]
        name = timeline.threads[thread].name or f"thread {timeline.threads[thread].tid}"
        mine = waits.take(np.flatnonzero(waits.line == thread))
        if len(mine):
            line = drawing.lane("waits", name)
            drawing.waits.append(Bars(np.full(len(mine), line), *_columns(mine)))
        if len(rows):
            drawing.threads[thread] = len(drawing.lanes)
            line = drawing.lane("thread", name, int(deep.max()) + 1)
            names = _number_host_names(drawing, timeline, rows)
            drawing.parts.append(make_bars(line + deep, host.start[rows], host.end[rows], names))
    if deepest > MAX_DEPTH:
        drawing.left_out.append(f"spans nested deeper than {MAX_DEPTH - 1} levels")


def _columns(table: Bars) -> tuple[Ints, ...]:
    return table.start, table.end, table.name, table.count, table.busy


def _are_drawn(timeline: Timeline) -> Bools:
    """Return which host spans are drawn: no Python frames of libraries, none of the profiler's own spans."""
    host, names = timeline.host, timeline.names
    frames = host.kind == HostKind.FRAME
    is_drawn: Bools = host.kind != HostKind.OVERHEAD
    if frames.any():
        used = distinct(host.name[frames])
        is_shown = np.zeros(len(names), bool)
        libraries: dict[str, bool] = {}
        for number in used.tolist():
            is_shown[number] = _is_shown_frame(names[number], libraries)
        is_drawn &= ~frames | is_shown[host.name]
    return is_drawn


def _is_shown_frame(frame: str, libraries: dict[str, bool]) -> bool:
    """Whether a frame is a module's call or a function of the user's; `libraries` caches files."""
    if frame.startswith("nn.Module: "):
        return True
    match = _FRAME.match(frame)
    if match is None or frame.startswith("<"):
        return False
    file = match["file"]
    if file not in libraries:
        libraries[file] = bool(library_of(file))
    return not libraries[file]


def _depths_of(parents: Ints, kept: Bools) -> Ints:
    """Return how many kept spans are around each row, doubling the distance in each round."""
    above = np.where(parents >= 0, kept[parents], False).astype(np.int64)
    up = parents.copy()
    while True:
        inside = np.flatnonzero(up >= 0)
        if not len(inside):
            return above
        further = up[inside]
        above[inside] += above[further]
        up[inside] = up[further]


def _number_host_names(drawing: _Drawing, timeline: Timeline, rows: Ints) -> Ints:
    numbers = np.zeros(len(rows), np.int64)
    kind = timeline.host.kind[rows]
    for number in distinct(kind).tolist():
        chosen = np.flatnonzero(kind == number)
        name = _KINDS.get(HostKind(number), "annotation")
        numbers[chosen] = drawing.number_names(name, timeline.host.name[rows[chosen]].astype(np.int64))
    return numbers


def _close_ups(costs: Sequence[Cost], steps: StepSpans, low: int, high: int) -> list[tuple[int, int]]:
    """Choose where to zoom in: a typical step, and around the longest stretch of the largest costs."""
    wanted: list[tuple[int, int]] = []
    length = steps.end - steps.start
    if len(length) > 1:
        typical = int(np.argsort(length, kind="stable")[len(length) // 2])
        wanted.append((int(steps.start[typical]), int(steps.end[typical])))
    for cost in costs[:_MAX_CLOSE_UPS]:
        around = max(cost.end - cost.start, _MIN_MARGIN)
        wanted.append((cost.start - around, cost.end + around))
    chosen: list[tuple[int, int]] = []
    for start, end in sorted(wanted, key=lambda bounds: bounds[1] - bounds[0]):
        start, end = max(start, low), min(end, high)
        is_covered = any(a <= start and end <= b for a, b in chosen)
        if start < end and 2 * (end - start) <= high - low and not is_covered:
            chosen.append((start, end))
    return chosen


def _window(drawing: _Drawing, shown: Bars, start: int, end: int, finest: int) -> LaneWindow:
    order = np.lexsort((shown.start, shown.line))
    shown = shown.take(order)
    first = np.array(drawing.first, np.int64)
    lines, cuts = np.unique(shown.line, return_index=True)
    boxes = []
    for line, rows in zip(lines.tolist(), np.split(np.arange(len(shown)), cuts[1:]), strict=False):
        lane = int(np.searchsorted(first, line, side="right")) - 1
        row = shown.take(rows)
        since = np.diff(row.start, prepend=start)
        columns = (since, row.end - row.start, row.name, row.count, row.busy)
        values = (tuple(column.tolist()) for column in columns)
        boxes.append(Boxes(lane, line - int(first[lane]), *values, *_launch_columns(drawing, line, row)))
    return LaneWindow(start=start, end=end, finest=finest, boxes=tuple(boxes))


def _launch_columns(drawing: _Drawing, line: int, row: Bars) -> tuple[tuple[int, ...], ...]:
    """Return how long before each single box of a stream it was launched, and the lane of that call."""
    launches = drawing.launches.get(line)
    if launches is None or not len(launches.start):
        return ()
    at = np.minimum(np.searchsorted(launches.start, row.start), len(launches.start) - 1)
    lane = np.array(
        [drawing.threads.get(int(thread), -1) for thread in launches.thread[at].tolist()], np.int64
    )
    lane[(row.count > 1) | (launches.start[at] != row.start)] = -1
    if not (lane >= 0).any():
        return ()
    ahead = np.where(lane >= 0, row.start - launches.began[at], 0)
    return tuple(ahead.tolist()), tuple(lane.tolist())


def _utilization(timeline: Timeline, device: int, low: int, high: int) -> tuple[int, ...]:
    if high <= low:
        return ()
    edges = np.linspace(low, high, _UTILIZATION_PARTS + 1).astype(np.int64)
    busy = covered_time(*busy_spans(timeline, device), edges[:-1], edges[1:])
    return tuple(np.rint(100 * busy / np.maximum(np.diff(edges), 1)).astype(np.int64).tolist())
