"""`MemoryRun` to `Track`: what a page draws of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gapless.memory.kinds import told_apart
from gapless.memory.simulate import Simulation
from gapless.memory.trials import Where
from gapless.model.memory import ALLOC, DEFER, FREE, STEP, MemoryRun
from gapless.model.memory_report import Curve, MemoryReport, Moment
from gapless.model.source import SourceLine
from gapless.model.track import Call, Calls, Course, Layer, Points, Track

CELLS = 65_536
"""Into so many stretches a run is cut at most; one of fewer events is told event by event."""
WHOLE = 4_000
"""Points of the whole run, where there are too many cells to show all."""
ALL = 16_000
"""So many cells need no thinning."""
NEAR = 500
"""Cells on each side of what a window is about."""
WINDOWS = 16
MARKS = 6_000
"""Calls to the driver that are marked one by one, at most; of more, neighbours are one mark."""
LINES = 6
"""Lines of the program that have layers of their own, where kinds are not known; other settings drawn."""
_STEPS = 4_000
_NAMES: dict[str, Call] = {
    "segment_alloc": "malloc",
    "segment_free": "free",
    "segment_map": "map",
    "segment_unmap": "unmap",
}
Ints = NDArray[np.int64]


def track(run: MemoryRun, report: MemoryReport, where: Where | None = None) -> Track:
    """What a page draws of `run`, of which `report` is the report: one more replay, and one for each setting
    that is drawn beside it."""
    where = where or Where()
    run = told_apart(run)
    layers, group = _layers(run, report.peak)
    as_recorded = run.allocated and not (report.replayed and (report.trials or where.capacity >= 0))
    seen = _Recorded(run) if as_recorded else _Watched(run, where)
    cells = _cells(run, seen.curve, group, len(layers))
    calls = _calls(seen.rows)
    end = seen.curve.event[-1] + 1
    steps = [at for at, action in enumerate(run.action[:end]) if action == STEP]
    return Track(
        windows=tuple(_windows(cells, calls, _places_of_interest(report, calls))),
        finest=max(1, -(-len(run) // CELLS)),
        layers=layers,
        calls=calls,
        places=seen.places(),
        steps=tuple(steps[:: max(1, -(-len(steps) // _STEPS))]),
        others=tuple(_others(run, report, where)),
    )


class _Seen:
    """The run's curve, event by event as far as that goes, and what was asked of the driver."""

    def __init__(self, run: MemoryRun) -> None:
        self.run = run
        self.curve = Curve()
        self.rows: list[tuple[int, Call, int, int]] = []
        self._known: dict[SourceLine, int] = {}

    def row(self, at: int, call: Call, size: int) -> None:
        place = self.run.place[at] if 0 <= at < len(self.run) else -1
        line = self.run.line(place)
        number = -1 if line is None else self._known.setdefault(line, len(self._known))
        self.rows.append((at, call, size, number))

    def places(self) -> tuple[SourceLine, ...]:
        return tuple(self._known)


class _Watched(_Seen):
    """A replay, with what it asks the driver for written down."""

    def __init__(self, run: MemoryRun, where: Where) -> None:
        super().__init__(run)
        self._low = -1
        self._counts = [0, 0, 0]
        replay = Simulation(run, **where._asdict())
        self._allocator = replay.allocator
        replay.allocator.log = self._log
        self.curve = replay.go(self._counted, points=CELLS).curve

    def _log(self, action: str, address: int, size: int, stream: int) -> None:
        call = _NAMES.get(action)
        if call is not None:
            self.row(max(self._allocator.now, self._low), call, size)

    def _counted(self, low: int, stop: int) -> None:
        """After each stretch: what the allocator itself only counts."""
        allocator = self._allocator
        now = [allocator.retries, allocator.collections, allocator.ooms]
        calls: tuple[Call, ...] = ("retry", "collect", "failed")
        for call, before, after in zip(calls, self._counts, now, strict=True):
            for _ in range(after - before):
                self.row(max(allocator.now, self._low), call, 0)
        self._counts = now
        self._low = low


class _Recorded(_Seen):
    """What a profile recorded: where reserved memory grows the driver gave it, where it shrinks it got it."""

    def __init__(self, run: MemoryRun) -> None:
        super().__init__(run)
        every = max(1, -(-len(run) // CELLS))
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


def _calls(rows: list[tuple[int, Call, int, int]]) -> Calls:
    """Calls to the driver; those of one kind that lie close together are one row, where there are many."""
    reach = 0
    found = _joined(rows, reach)
    while len(found) > MARKS:
        reach = max(1, 2 * reach)
        found = _joined(rows, reach)
    columns = [tuple(column) for column in zip(*found, strict=True)] or [()] * 5
    return Calls(*columns)


def _joined(rows: list[tuple[int, Call, int, int]], reach: int) -> list[tuple[int, Call, int, int, int]]:
    found: list[tuple[int, Call, int, int, int]] = []
    last: dict[tuple[Call, int], int] = {}
    for at, call, size, place in sorted(rows, key=lambda row: row[0]):
        key = (call, -1 if reach else place)
        position = last.get(key, -1)
        if position >= 0 and at - found[position][0] <= reach:
            first, _, count, before, where = found[position]
            found[position] = (first, call, count + 1, before + size, where if where == place else -1)
        else:
            last[key] = len(found)
            found.append((at, call, 1, size, place))
    return found


# Who asked ----------------------------------------------------------------------------------------


def _layers(run: MemoryRun, peak: Moment) -> tuple[tuple[Layer, ...], list[int]]:
    """The layers, and for each of the run's places its layer; the last of both is for what is unknown.

    By kind where kinds are known, else by the lines that hold most at the peak.
    """
    early = {block.place for segment in run.start for block in segment.blocks if not run.stack(block.place)}
    if {place.kind for place in run.places} - {"unknown"}:
        return _kinds(run, early)
    wanted: dict[tuple[SourceLine | None, str, bool], int] = {}
    for one in peak.owners:
        if len(wanted) < LINES:
            wanted.setdefault((one.line, one.operator, one.before), len(wanted))
    group = []
    for at, place in enumerate([*run.places, None]):
        line = run.line(at)
        operator = "" if place is None or (line and line.is_user) else place.operator
        before = line is None and not operator and (at if place is not None else -1) in early
        group.append(wanted.get((line, operator, before), len(wanted)))
    layers = [Layer(line=line, operator=operator, before=before) for line, operator, before in wanted]
    return (*layers, Layer()), group


_ORDER = (
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
"""Kinds from the bottom of the picture to its top: what stays before what comes and goes."""


def _kinds(run: MemoryRun, early: set[int]) -> tuple[tuple[Layer, ...], list[int]]:
    """One layer for what is older than the recording, one for each kind, one for the rest."""
    asked = {*run.place, *(block.place for segment in run.start for block in segment.blocks)}
    there = {run.places[at].kind for at in asked if 0 <= at < len(run.places)}
    kinds = [kind for kind in _ORDER if kind in there]
    layers = [Layer(before=True), *(Layer(kind=kind) for kind in kinds), Layer(kind="unknown")]
    last = len(layers) - 1
    unknown = [0 if at in early else last for at in (*range(len(run.places)), -1)]
    group = [
        1 + kinds.index(one.kind) if one.kind in kinds else unknown[at] for at, one in enumerate(run.places)
    ]
    return tuple(layers), [*group, unknown[-1]]


class _Cells(NamedTuple):
    """The run in short stretches: columns as those of `Points`."""

    event: Ints
    allocated: Ints
    reserved: Ints
    time: Ints
    layers: list[Ints]


def _cells(run: MemoryRun, curve: Curve, group: list[int], layers: int) -> _Cells:
    event = np.array(curve.event, np.int64)
    change, layer, begin = _changes(run, event[-1] + 1, group, layers)
    total = np.concatenate(([begin.sum()], begin.sum() + np.cumsum(change)))
    # Where in each stretch most is asked for; position 0 stands for the beginning.
    ends = (event + 1).tolist()
    best = np.array([0, *(_highest(total, low, high) for low, high in pairwise(ends))], np.int64)
    levels = [
        np.concatenate(([0], np.cumsum(np.where(layer == number, change, 0))))[best] + begin[number]
        for number in range(layers)
    ]
    time = np.array([run.time[max(at, 0)] for at in curve.event] if run.time else [], np.int64)
    return _Cells(
        event, np.array(curve.allocated, np.int64), np.array(curve.reserved, np.int64), time, levels
    )


def _highest(total: Ints, low: int, high: int) -> int:
    """Where behind `low`, up to `high`, most is asked for; a stretch before a shortage may be empty."""
    return low + 1 + int(np.argmax(total[low + 1 : high + 1])) if high > low else high


def _changes(run: MemoryRun, stop: int, group: list[int], layers: int) -> tuple[Ints, Ints, Ints]:
    """For each event the change of what is asked for and its layer; and what each layer has at first."""
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
            of, was = alive.pop(ident)
            layer[at], change[at] = of, -was
    return change, layer, begin


# Thinning -----------------------------------------------------------------------------------------


def _windows(cells: _Cells, calls: Calls, places: Sequence[int]) -> list[Points]:
    count = len(cells.event)
    if count <= ALL:
        return [_points(cells, 0, count, 1)]
    found = [_points(cells, 0, count, -(-count // WHOLE))]
    taken: list[tuple[int, int]] = []
    for place in places:
        middle = int(np.searchsorted(cells.event, place))
        low, high = max(middle - NEAR, 0), min(middle + NEAR, count)
        if len(taken) < WINDOWS and not any(low < end and start < high for start, end in taken):
            taken.append((low, high))
    return found + [_points(cells, low, high, 1) for low, high in sorted(taken)]


def _places_of_interest(report: MemoryReport, calls: Calls) -> list[int]:
    """Events worth a closer look, the most important first."""
    base = report.baseline
    shortages = [one.event for one in (base.shortage, base.failure) if one is not None]
    found = [*shortages, report.peak.event, report.height.event]
    rare = [at for at, what in zip(calls.event, calls.what, strict=True) if what not in ("malloc", "map")]
    found += rare[:: max(1, len(rare) // WINDOWS)]
    if len(report.ends) > 2:
        middle = len(report.ends) // 2
        found.append((report.ends[middle - 1].event + report.ends[middle].event) // 2)
    return found


def _points(cells: _Cells, low: int, high: int, every: int) -> Points:
    """The cells from `low` to `high`, each `every` of them one point; the first is one alone."""
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
        layers=tuple(_ints(one[best]) for one in cells.layers),
    )


def _ints(values: Ints) -> tuple[int, ...]:
    return tuple(values.tolist())


# Other settings -----------------------------------------------------------------------------------


def _others(run: MemoryRun, report: MemoryReport, where: Where) -> list[Course]:
    """The first of the settings that were tried: the best ones, where they were searched."""
    found = []
    for one in [trial for trial in report.trials if trial.outcome is not None][:LINES]:
        curve = Simulation(run, one.settings, **where._asdict()).go(points=WHOLE // 4).curve
        found.append(Course(name=one.settings, event=curve.event, reserved=curve.reserved))
    return found
