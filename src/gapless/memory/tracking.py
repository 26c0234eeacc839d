"""Compute the `Track` of a `MemoryRun`: the data a page draws."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gapless.memory.kinds import resolve_kinds
from gapless.memory.simulate import Simulation
from gapless.memory.trials import TrialConditions
from gapless.model.memory import ALLOC, DEFER, FREE, STEP, MemoryRun
from gapless.model.memory_report import Curve, MemoryReport, Moment
from gapless.model.source import SourceLine
from gapless.model.track import Call, Calls, Course, Layer, Points, Track

MAX_CELLS = 65_536
"""Stretches that a run is cut into at most; shorter runs are drawn event by event."""
OVERVIEW_POINTS = 4_000
"""Points of the whole run, if there are too many cells to show all."""
MAX_CELLS_WITHOUT_THINNING = 16_000
"""Up to this many cells are all drawn."""
WINDOW_CELLS = 500
"""Cells on each side of the event that a window shows."""
MAX_WINDOWS = 16
"""Windows with full detail."""
MAX_MARKS = 6_000
"""Driver calls drawn one by one at most; above it, neighbours are merged."""
MAX_LAYERS = 6
"""Lines with layers of their own if kinds are unknown; also other settings drawn."""
_MAX_STEPS_DRAWN = 4_000
"""Steps marked; with more, every nth."""
_CALL_OF_ACTION: dict[str, Call] = {
    "segment_alloc": "malloc",
    "segment_free": "free",
    "segment_map": "map",
    "segment_unmap": "unmap",
}
Ints = NDArray[np.int64]


def build_track(run: MemoryRun, report: MemoryReport, where: TrialConditions | None = None) -> Track:
    """Return what a page draws of `run` and its `report`; replays the run once, and once per setting
    drawn.
    """
    where = where or TrialConditions()
    run = resolve_kinds(run)
    layers, group = _layers(run, report.peak)
    as_recorded = run.allocated and not (report.replayed and (report.trials or where.capacity >= 0))
    curves = _ProfiledCurve(run) if as_recorded else _ReplayedCurve(run, where)
    cells = _cells(run, curves.curve, group, len(layers))
    calls = _merge_calls(curves.rows)
    end = curves.curve.event[-1] + 1
    steps = [at for at, action in enumerate(run.action[:end]) if action == STEP]
    return Track(
        windows=tuple(_windows(cells, calls, _places_of_interest(report, calls))),
        finest=max(1, -(-len(run) // MAX_CELLS)),
        layers=layers,
        calls=calls,
        places=curves.places(),
        steps=tuple(steps[:: max(1, -(-len(steps) // _MAX_STEPS_DRAWN))]),
        others=tuple(_other_settings(run, report, where)),
    )


class _CurveAndCalls:
    """The run's curve, event by event if possible, and its driver calls."""

    def __init__(self, run: MemoryRun) -> None:
        self.run = run
        self.curve = Curve()
        self.rows: list[tuple[int, Call, int, int]] = []
        self._number_of_line: dict[SourceLine, int] = {}

    def row(self, at: int, call: Call, size: int) -> None:
        place = self.run.place[at] if 0 <= at < len(self.run) else -1
        line = self.run.line(place)
        number = -1 if line is None else self._number_of_line.setdefault(line, len(self._number_of_line))
        self.rows.append((at, call, size, number))

    def places(self) -> tuple[SourceLine, ...]:
        return tuple(self._number_of_line)


class _ReplayedCurve(_CurveAndCalls):
    """Curve and driver calls of a replay."""

    def __init__(self, run: MemoryRun, where: TrialConditions) -> None:
        super().__init__(run)
        self._low = -1
        self._counts = [0, 0, 0]
        replay = Simulation(run, **where._asdict())
        self._allocator = replay.allocator
        replay.allocator.log = self._log
        self.curve = replay.go(self._record_driver_calls, points=MAX_CELLS).curve

    def _log(self, action: str, address: int, size: int, stream: int) -> None:
        call = _CALL_OF_ACTION.get(action)
        if call is not None:
            self.row(max(self._allocator.now, self._low), call, size)

    def _record_driver_calls(self, low: int, stop: int) -> None:
        """Record, after each stretch, the calls that the allocator only counts."""
        allocator = self._allocator
        now = [allocator.retries, allocator.collections, allocator.ooms]
        calls: tuple[Call, ...] = ("retry", "collect", "failed")
        for call, before, after in zip(calls, self._counts, now, strict=True):
            for _ in range(after - before):
                self.row(max(allocator.now, self._low), call, 0)
        self._counts = now
        self._low = low


class _ProfiledCurve(_CurveAndCalls):
    """Curve of a profile: growth of reserved memory counts as a malloc, shrinking as a free."""

    def __init__(self, run: MemoryRun) -> None:
        super().__init__(run)
        every = max(1, -(-len(run) // MAX_CELLS))
        starts = np.arange(0, len(run), every)
        allocated, reserved = np.array(run.allocated, np.int64), np.array(run.reserved, np.int64)
        self.curve = Curve(
            event=(-1, *_ints(np.minimum(starts + every, len(run)) - 1)),
            allocated=(run.allocated[0], *_ints(np.maximum.reduceat(allocated, starts))),
            reserved=(run.reserved[0], *_ints(np.maximum.reduceat(reserved, starts))),
        )
        change = np.diff(reserved)
        for at in np.flatnonzero(change).tolist():
            self.row(at + 1, "malloc" if change[at] > 0 else "free", abs(int(change[at])))


def _merge_calls(rows: list[tuple[int, Call, int, int]]) -> Calls:
    """Return the driver calls; if there are too many, close calls of one kind become one row."""
    reach = 0
    merged = _merge_within(rows, reach)
    while len(merged) > MAX_MARKS:
        reach = max(1, 2 * reach)
        merged = _merge_within(rows, reach)
    columns = [tuple(column) for column in zip(*merged, strict=True)] or [()] * 5
    return Calls(*columns)


def _merge_within(
    rows: list[tuple[int, Call, int, int]], reach: int
) -> list[tuple[int, Call, int, int, int]]:
    merged: list[tuple[int, Call, int, int, int]] = []
    last: dict[tuple[Call, int], int] = {}
    for at, call, size, place in sorted(rows, key=lambda row: row[0]):
        key = (call, -1 if reach else place)
        position = last.get(key, -1)
        if position >= 0 and at - merged[position][0] <= reach:
            first, _, count, before, where = merged[position]
            merged[position] = (first, call, count + 1, before + size, where if where == place else -1)
        else:
            last[key] = len(merged)
            merged.append((at, call, 1, size, place))
    return merged


# Who asked ----------------------------------------------------------------------------------------


def _layers(run: MemoryRun, peak: Moment) -> tuple[tuple[Layer, ...], list[int]]:
    """Return the layers, and the layer index of each of the run's places; the last is for the unknown.

    Layers are kinds if these are known, else the lines that hold most at the peak.
    """
    early = {block.place for segment in run.start for block in segment.blocks if not run.stack(block.place)}
    if {place.kind for place in run.places} - {"unknown"}:
        return _kind_layers(run, early)
    wanted: dict[tuple[SourceLine | None, str, bool], int] = {}
    for owner in peak.owners:
        if len(wanted) < MAX_LAYERS:
            wanted.setdefault((owner.line, owner.operator, owner.before), len(wanted))
    group = []
    for at, place in enumerate([*run.places, None]):
        line = run.line(at)
        operator = "" if place is None or (line and line.is_user) else place.operator
        before = line is None and not operator and (at if place is not None else -1) in early
        group.append(wanted.get((line, operator, before), len(wanted)))
    layers = [Layer(line=line, operator=operator, before=before) for line, operator, before in wanted]
    return (*layers, Layer()), group


_LAYER_ORDER = (
    "parameter",
    "optimizer",
    "gradient",
    "workspace",
    "communication",
    "checkpoint",
    "batch",
    "activation",
    "forward",
    "backward",
    "temporary",
)
"""Kinds from the bottom of the chart to its top: lasting memory below short-lived."""


def _kind_layers(run: MemoryRun, early: set[int]) -> tuple[tuple[Layer, ...], list[int]]:
    """Return a layer for memory older than the recording, one per kind, and one for the rest."""
    places = {*run.place, *(block.place for segment in run.start for block in segment.blocks)}
    kinds_present = {run.places[at].kind for at in places if 0 <= at < len(run.places)}
    kinds = [kind for kind in _LAYER_ORDER if kind in kinds_present]
    layers = [Layer(before=True), *(Layer(kind=kind) for kind in kinds), Layer(kind="unknown")]
    last = len(layers) - 1
    unknown = [0 if at in early else last for at in (*range(len(run.places)), -1)]
    group = [
        1 + kinds.index(place.kind) if place.kind in kinds else unknown[at]
        for at, place in enumerate(run.places)
    ]
    return tuple(layers), [*group, unknown[-1]]


class _Cells(NamedTuple):
    """The run in short stretches; columns as in `Points`."""

    event: Ints
    allocated: Ints
    reserved: Ints
    time: Ints
    layers: list[Ints]


def _cells(run: MemoryRun, curve: Curve, group: list[int], layers: int) -> _Cells:
    event = np.array(curve.event, np.int64)
    change, layer, begin = _changes(run, event[-1] + 1, group, layers)
    total = np.concatenate(([begin.sum()], begin.sum() + np.cumsum(change)))
    # The position in each stretch with most memory requested; position 0 is the beginning.
    ends = (event + 1).tolist()
    best = np.array([0, *(_highest_between(total, low, high) for low, high in pairwise(ends))], np.int64)
    levels = [
        np.concatenate(([0], np.cumsum(np.where(layer == number, change, 0))))[best] + begin[number]
        for number in range(layers)
    ]
    time = np.array([run.time[max(at, 0)] for at in curve.event] if run.time else [], np.int64)
    return _Cells(
        event, np.array(curve.allocated, np.int64), np.array(curve.reserved, np.int64), time, levels
    )


def _highest_between(total: Ints, low: int, high: int) -> int:
    """Return the position in ``(low, high]`` with most memory requested; `high` if the range is empty."""
    return low + 1 + int(np.argmax(total[low + 1 : high + 1])) if high > low else high


def _changes(run: MemoryRun, stop: int, group: list[int], layers: int) -> tuple[Ints, Ints, Ints]:
    """Return the change of requested bytes and its layer per event, and the bytes of each layer at first."""
    begin = np.zeros(layers, np.int64)
    alive: dict[int, tuple[int, int]] = {}
    for segment in run.start:
        for block in segment.blocks:
            if block.ident >= 0 and not block.deferred:
                alive[block.ident] = (group[block.place], block.requested)
                begin[group[block.place]] += block.requested
    change, layer = np.zeros(stop, np.int64), np.zeros(stop, np.int64)
    columns = zip(run.action, run.ident, run.size, run.place, strict=True)
    for at, (action, ident, size, place) in zip(range(stop), columns, strict=False):
        if action == ALLOC:
            alive[ident] = (group[place], size)
            layer[at], change[at] = alive[ident]
        elif action in (FREE, DEFER) and ident in alive:
            layer_of, was = alive.pop(ident)
            layer[at], change[at] = layer_of, -was
    return change, layer, begin


# Thinning -----------------------------------------------------------------------------------------


def _windows(cells: _Cells, calls: Calls, places: Sequence[int]) -> list[Points]:
    count = len(cells.event)
    if count <= MAX_CELLS_WITHOUT_THINNING:
        return [_points(cells, 0, count, 1)]
    windows = [_points(cells, 0, count, -(-count // OVERVIEW_POINTS))]
    taken: list[tuple[int, int]] = []
    for place in places:
        middle = int(np.searchsorted(cells.event, place))
        low, high = max(middle - WINDOW_CELLS, 0), min(middle + WINDOW_CELLS, count)
        if len(taken) < MAX_WINDOWS and not any(low < end and start < high for start, end in taken):
            taken.append((low, high))
    return windows + [_points(cells, low, high, 1) for low, high in sorted(taken)]


def _places_of_interest(report: MemoryReport, calls: Calls) -> list[int]:
    """Return the events worth a closer look, the most important first."""
    base = report.baseline
    shortages = [shortage.event for shortage in (base.shortage, base.failure) if shortage is not None]
    events = [*shortages, report.peak.event, report.height.event]
    rare = [at for at, call in zip(calls.event, calls.what, strict=True) if call not in ("malloc", "map")]
    events += rare[:: max(1, len(rare) // MAX_WINDOWS)]
    if len(report.ends) > 2:
        middle = len(report.ends) // 2
        events.append((report.ends[middle - 1].event + report.ends[middle].event) // 2)
    return events


def _points(cells: _Cells, low: int, high: int, every: int) -> Points:
    """Thin the cells from `low` to `high`: every `every` cells become one point, after the first cell."""
    starts = np.concatenate(([low], np.arange(low + 1, high, every)))
    ends = np.concatenate((starts[1:], [high])) - 1
    if every == 1:
        best = starts
    else:
        total = np.sum(cells.layers, axis=0) if cells.layers else cells.allocated
        best = np.array(
            [start + int(np.argmax(total[start : end + 1])) for start, end in zip(starts, ends, strict=True)],
            np.int64,
        )
    return Points(
        event=_ints(cells.event[ends]),
        allocated=_ints(np.maximum.reduceat(cells.allocated[:high], starts)),
        reserved=_ints(np.maximum.reduceat(cells.reserved[:high], starts)),
        time=_ints(cells.time[ends]) if len(cells.time) else (),
        layers=tuple(_ints(level[best]) for level in cells.layers),
    )


def _ints(values: Ints) -> tuple[int, ...]:
    return tuple(values.tolist())


# Other settings -----------------------------------------------------------------------------------


def _other_settings(run: MemoryRun, report: MemoryReport, where: TrialConditions) -> list[Course]:
    """Return the curves of the first settings that were tried, best first if they were searched."""
    courses = []
    tried = [trial for trial in report.trials if trial.outcome is not None]
    for trial in tried[:MAX_LAYERS]:
        curve = Simulation(run, trial.settings, **where._asdict()).go(points=OVERVIEW_POINTS // 4).curve
        courses.append(Course(name=trial.settings, event=curve.event, reserved=curve.reserved))
    return courses
