"""Stretches of idleness and the host's waits, summed up by cause and place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from gapless.analyze.profile import waits as waiting
from gapless.analyze.profile.idle import Stretch, loading_rows
from gapless.analyze.profile.lines import Place, Places, launching
from gapless.analyze.profile.trace_steps import StepSpans, compute_busy, covered
from gapless.analyze.profile.waits import HostWaits, allocator_calls
from gapless.model import Cause, Cost, Site, Stack
from gapless.trace.timeline import Bools, Ints, Timeline, distinct

_LOADER_FILES = (
    "torch/_ops.py",
    "torch/autograd/profiler.py",
    "torch/utils/_device.py",
    "torch/utils/data/dataloader.py",
)

MOST = 60
"""So many places of each cause are told apart; those that idle least are summed up in one."""


@dataclass(frozen=True)
class _Calls:
    """Calls of the host that are counted for a cause, idle device or not."""

    cause: Cause
    rows: Ints
    counts: Bools
    copy: Ints


def costs(
    timeline: Timeline,
    device: int,
    steps: StepSpans,
    stretches: Iterable[Stretch],
    waits: HostWaits,
    places: Places,
) -> tuple[tuple[Cost, ...], tuple[Ints, ...]]:
    """What each place costs, those that leave the device idle longest first; together all of its idleness.

    The second part are the host rows of the calls of each cost (none for causes that are no calls).
    """
    parts = list(stretches)
    calls = _calls(timeline, steps, waits)
    copies = dict(zip(waits.rows.tolist(), waits.copy.tolist(), strict=True))
    rows = distinct(
        np.concatenate([np.empty(0, np.int64), *(p.spans.row for p in parts), *(c.rows for c in calls)])
    )
    codes, found = places.of(rows)
    codes = _with_copies(timeline, rows, codes, copies)
    _, first = np.unique(codes, return_index=True)
    sites = _Sites(timeline, rows, first, codes, found, places, copies)
    sums: dict[tuple[Cause, Site, str], _Sum] = {}
    for part in parts:
        for one in _idle(timeline, part, codes[np.searchsorted(rows, part.spans.row)], steps, sites):
            _add(sums, one)
    for call in calls:
        for one in _blocked(timeline, device, call, codes[np.searchsorted(rows, call.rows)], steps, sites):
            _add(sums, one)
    bounded = _bounded(list(sums.values()))
    made = tuple(msgspec.structs.replace(one.cost, steps=len(one.steps)) for one in bounded)
    return made, tuple(one.calls() for one in bounded)


@dataclass
class _Sum:
    """A cost that is still growing, the steps it occurs in and the host rows of its calls."""

    cost: Cost
    steps: set[int]
    rows: list[Ints] = field(default_factory=list)

    def add(self, other: _Sum) -> None:
        one, more = self.cost, other.cost
        longest = one if one.idle >= more.idle else more
        self.cost = msgspec.structs.replace(
            one,
            idle=one.idle + more.idle,
            launching=one.launching + more.launching,
            stretches=one.stretches + more.stretches,
            calls=one.calls + more.calls,
            blocked=one.blocked + more.blocked,
            working=one.working + more.working,
            bytes=one.bytes + more.bytes,
            start=longest.start,
            end=longest.end,
        )
        self.steps |= other.steps
        self.rows += other.rows

    def calls(self) -> Ints:
        return np.concatenate([np.empty(0, np.int64), *self.rows])


class _Sites:
    """The site and the place in words of each code, made when they are asked for."""

    def __init__(
        self,
        timeline: Timeline,
        rows: Ints,
        first: Ints,
        codes: Ints,
        found: list[Place],
        places: Places,
        copies: dict[int, int],
    ) -> None:
        self._timeline = timeline
        self._places = places
        self._copies = copies
        self._row = {int(codes[at]): int(rows[at]) for at in first}
        self._known: dict[tuple[Cause, int], tuple[Site, str]] = {}

    def of(self, cause: Cause, code: int) -> tuple[Site, str]:
        key = (cause, code)
        if key not in self._known:
            self._known[key] = self._make(cause, self._row[code])
        return self._known[key]

    def _make(self, cause: Cause, row: int) -> tuple[Site, str]:
        place = self._places.place(row)
        if cause in ("wait", "allocator"):
            copy = self._copies.get(row, -1)
            timeline = self._timeline
            name = timeline.names[timeline.work.name[copy]] if copy >= 0 else ""
            return waiting.site(place, name), place.described
        if cause == "input":
            place = replace(place, stack=_without_loader(place.stack), call="")
        return place.site, place.described


def _without_loader(stack: Stack) -> Stack:
    """The stack without what the loader itself runs: who asks for the batch is what is wanted."""
    for position, frame in enumerate(stack):
        path = frame.file.replace("\\", "/")
        if frame.library != "torch" or not path.endswith(_LOADER_FILES):
            return stack[position:]
    return stack


def _with_copies(timeline: Timeline, rows: Ints, codes: Ints, copies: dict[int, int]) -> Ints:
    """Codes that also tell apart what kind of copy is waited for."""
    if not copies:
        return codes
    copy = np.fromiter((copies.get(row, -1) for row in rows.tolist()), np.int64, len(rows))
    name = np.where(copy >= 0, timeline.work.name[np.maximum(copy, 0)] + 1, 0)
    return codes * (len(timeline.names) + 1) + name


def _calls(timeline: Timeline, steps: StepSpans, waits: HostWaits) -> list[_Calls]:
    """The calls within the steps that are costs whether the device idles or not."""
    loading, allocating = loading_rows(timeline), allocator_calls(timeline)
    every = [
        _Calls("wait", waits.rows, waits.counts, waits.copy),
        _Calls("input", loading, np.ones(len(loading), bool), np.full(len(loading), -1)),
        _Calls("allocator", allocating, np.ones(len(allocating), bool), np.full(len(allocating), -1)),
    ]
    inside = []
    for one in every:
        keep = steps.at(timeline.host.start[one.rows]) >= 0
        inside.append(_Calls(one.cause, one.rows[keep], one.counts[keep], one.copy[keep]))
    return inside


def _idle(timeline: Timeline, part: Stretch, codes: Ints, steps: StepSpans, sites: _Sites) -> Iterable[_Sum]:
    spans = part.spans
    amounts = {"idle": spans.length, "stretches": np.ones(len(codes))}
    if part.cause == "host":
        amounts["launching"] = np.where(launching(timeline, spans.row), spans.length, 0)
    return _by_code(part.cause, codes, spans.start, spans.end, amounts, steps, sites)


def _blocked(
    timeline: Timeline, device: int, calls: _Calls, codes: Ints, steps: StepSpans, sites: _Sites
) -> Iterable[_Sum]:
    start, end = timeline.host.start[calls.rows], timeline.host.end[calls.rows]
    copied = calls.counts & (calls.copy >= 0)
    moved = np.zeros(len(codes), np.int64)
    moved[copied] = np.maximum(timeline.work.bytes[calls.copy[copied]], 0)
    amounts = {
        "calls": calls.counts,
        "blocked": end - start,
        "working": covered(*compute_busy(timeline, device), start, end),
        "bytes": moved,
    }
    return _by_code(calls.cause, codes, start, end, amounts, steps, sites, calls.rows)


def _by_code(
    cause: Cause,
    codes: Ints,
    start: Ints,
    end: Ints,
    amounts: dict[str, Any],
    steps: StepSpans,
    sites: _Sites,
    rows: Ints | None = None,
) -> Iterator[_Sum]:
    """A cost for each code, with the sums of its `amounts` and the bounds of its longest span."""
    known, back = np.unique(codes, return_inverse=True)
    back = back.reshape(-1)
    sums = {name: np.bincount(back, weights=one, minlength=len(known)) for name, one in amounts.items()}
    in_steps = _distinct(back, steps.at(start), len(known))
    longest = _longest(back, end - start, len(known))
    calls = [[] for _ in known] if rows is None else _members(rows, back)
    for position, code in enumerate(known.tolist()):
        site, place = sites.of(cause, code)
        at = longest[position]
        told = {name: int(column[position]) for name, column in sums.items()}
        cost = Cost(cause=cause, site=site, place=place, start=int(start[at]), end=int(end[at]), **told)
        yield _Sum(cost, in_steps[position], calls[position])


def _members(rows: Ints, groups: Ints) -> list[list[Ints]]:
    """The rows of each group."""
    parts = np.split(rows[np.argsort(groups, kind="stable")], np.cumsum(np.bincount(groups))[:-1])
    return [[part] for part in parts]


def _distinct(groups: Ints, steps: Ints, count: int) -> list[set[int]]:
    """The steps in which each group occurs."""
    found: list[set[int]] = [set() for _ in range(count)]
    if len(groups):
        width = int(steps.max()) + 2
        for pair in distinct(groups * width + steps + 1).tolist():
            found[pair // width].add(pair % width)
    return found


def _longest(groups: Ints, length: Ints, count: int) -> Ints:
    """For each group the position of its longest member."""
    order = np.lexsort((length, groups))
    ends = np.cumsum(np.bincount(groups, minlength=count)) - 1
    return order[ends] if len(order) else order


def _add(sums: dict[tuple[Cause, Site, str], _Sum], one: _Sum) -> None:
    """Chains of names may differ and the site be the same; the calls of a wait join its idleness."""
    key = (one.cost.cause, one.cost.site, "" if one.cost.site.stack else one.cost.place)
    if key in sums:
        sums[key].add(one)
    else:
        sums[key] = one


def _bounded(found: list[_Sum]) -> list[_Sum]:
    """The costs in order, the small ones of each cause as one."""
    kept: list[_Sum] = []
    seen: dict[Cause, int] = {}
    small: dict[Cause, _Sum] = {}
    for one in sorted(found, key=lambda one: (-one.cost.idle, -one.cost.blocked, one.cost.start)):
        cause = one.cost.cause
        seen[cause] = seen.get(cause, 0) + 1
        if seen[cause] <= MOST:
            kept.append(one)
        elif cause in small:
            small[cause].add(one)
        else:
            site = Site(operator="", mechanism=one.cost.site.mechanism)
            one.cost = msgspec.structs.replace(one.cost, site=site, place="elsewhere")
            small[cause] = one
    return [*kept, *small.values()]
