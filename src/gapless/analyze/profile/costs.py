"""Stretches of idleness and the host's waits, summed up by cause and place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gapless.analyze.profile import waits as waiting
from gapless.analyze.profile.idle import Stretch, loading_rows
from gapless.analyze.profile.lines import Place, Places
from gapless.analyze.profile.spans import Spans
from gapless.analyze.profile.steps import StepSpans, compute_busy, covered
from gapless.analyze.profile.waits import HostWaits, allocator_calls
from gapless.model import Cause, Cost, Site, Stack
from gapless.trace.timeline import Bools, Ints, Timeline

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
) -> tuple[Cost, ...]:
    """What each place costs, those that leave the device idle longest first; together all of its idleness."""
    parts = list(stretches)
    calls = _calls(timeline, steps, waits)
    copies = dict(zip(waits.rows.tolist(), waits.copy.tolist(), strict=True))
    rows = np.unique(
        np.concatenate([np.empty(0, np.int64), *(p.spans.row for p in parts), *(c.rows for c in calls)])
    )
    codes, found = places.of(rows)
    codes = _with_copies(timeline, rows, codes, copies)
    _, first = np.unique(codes, return_index=True)
    sites = _Sites(timeline, rows, first, codes, found, places, copies)
    sums: dict[tuple[Cause, Site, str], tuple[Cost, set[int]]] = {}
    for part in parts:
        for cost in _idle(part, codes[np.searchsorted(rows, part.spans.row)], steps, sites):
            _add(sums, *cost)
    for call in calls:
        for cost in _blocked(timeline, device, call, codes[np.searchsorted(rows, call.rows)], steps, sites):
            _add(sums, *cost)
    return _bounded(list(sums.values()))


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
        return (
            Site(
                operator=place.outermost,
                mechanism="none",
                call=place.call,
                stack=place.stack,
                node=place.node,
                forward=place.forward,
            ),
            place.described,
        )


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
        keep = _step(steps, timeline.host.start[one.rows]) >= 0
        inside.append(_Calls(one.cause, one.rows[keep], one.counts[keep], one.copy[keep]))
    return inside


def _step(steps: StepSpans, time: Ints) -> Ints:
    """The step each time falls into, or -1."""
    at = np.searchsorted(steps.start, time, side="right") - 1
    inside = (at >= 0) & (time < steps.end[np.maximum(at, 0)])
    return np.where(inside, at, -1)


def _idle(part: Stretch, codes: Ints, steps: StepSpans, sites: _Sites) -> Iterable[tuple[Cost, set[int]]]:
    spans: Spans = part.spans
    known, back = np.unique(codes, return_inverse=True)
    back = back.reshape(-1)
    total = np.bincount(back, weights=spans.length, minlength=len(known))
    count = np.bincount(back, minlength=len(known))
    in_steps = _distinct(back, _step(steps, spans.start), len(known))
    longest = _longest(back, spans.length, len(known))
    for position, code in enumerate(known.tolist()):
        site, place = sites.of(part.cause, code)
        at = longest[position]
        yield (
            Cost(
                cause=part.cause,
                site=site,
                place=place,
                idle=int(total[position]),
                stretches=int(count[position]),
                start=int(spans.start[at]),
                end=int(spans.end[at]),
            ),
            in_steps[position],
        )


def _blocked(
    timeline: Timeline, device: int, calls: _Calls, codes: Ints, steps: StepSpans, sites: _Sites
) -> Iterable[tuple[Cost, set[int]]]:
    start, end = timeline.host.start[calls.rows], timeline.host.end[calls.rows]
    known, back = np.unique(codes, return_inverse=True)
    back = back.reshape(-1)
    total = np.bincount(back, weights=end - start, minlength=len(known))
    count = np.bincount(back, weights=calls.counts, minlength=len(known))
    moved = (
        np.where(calls.copy >= 0, np.maximum(timeline.work.bytes[np.maximum(calls.copy, 0)], 0), 0)
        if len(timeline.work)
        else np.zeros(len(codes), np.int64)
    )
    working = np.bincount(back, weights=covered(*compute_busy(timeline, device), start, end))
    volume = np.bincount(back, weights=np.where(calls.counts, moved, 0), minlength=len(known))
    in_steps = _distinct(back, _step(steps, start), len(known))
    longest = _longest(back, end - start, len(known))
    for position, code in enumerate(known.tolist()):
        site, place = sites.of(calls.cause, code)
        at = longest[position]
        yield (
            Cost(
                cause=calls.cause,
                site=site,
                place=place,
                calls=int(count[position]),
                blocked=int(total[position]),
                working=int(working[position]),
                bytes=int(volume[position]),
                start=int(start[at]),
                end=int(end[at]),
            ),
            in_steps[position],
        )


def _distinct(groups: Ints, steps: Ints, count: int) -> list[set[int]]:
    """The steps in which each group occurs."""
    found: list[set[int]] = [set() for _ in range(count)]
    if len(groups):
        width = int(steps.max()) + 2
        for pair in np.unique(groups * width + steps + 1).tolist():
            found[pair // width].add(pair % width)
    return found


def _longest(groups: Ints, length: Ints, count: int) -> Ints:
    """For each group the position of its longest member."""
    order = np.lexsort((length, groups))
    ends = np.cumsum(np.bincount(groups, minlength=count)) - 1
    return order[ends] if len(order) else order


def _add(sums: dict[tuple[Cause, Site, str], tuple[Cost, set[int]]], cost: Cost, in_steps: set[int]) -> None:
    """Chains of names may differ and the site be the same; the calls of a wait join its idleness."""
    place = "" if cost.site.stack else cost.place
    key = (cost.cause, cost.site, place)
    if key not in sums:
        sums[key] = cost, in_steps
        return
    have, steps = sums[key]
    steps |= in_steps
    sums[key] = _together(have, cost, have if have.idle >= cost.idle else cost), steps


def _together(one: Cost, other: Cost, longest: Cost) -> Cost:
    return msgspec.structs.replace(
        one,
        idle=one.idle + other.idle,
        stretches=one.stretches + other.stretches,
        calls=one.calls + other.calls,
        blocked=one.blocked + other.blocked,
        working=one.working + other.working,
        bytes=one.bytes + other.bytes,
        start=longest.start,
        end=longest.end,
    )


def _bounded(found: list[tuple[Cost, set[int]]]) -> tuple[Cost, ...]:
    """The costs in order, the small ones of each cause as one."""
    kept: list[Cost] = []
    seen: dict[Cause, int] = {}
    small: dict[Cause, tuple[Cost, set[int]]] = {}
    for cost, in_steps in sorted(found, key=lambda one: (-one[0].idle, -one[0].blocked, one[0].start)):
        seen[cost.cause] = seen.get(cost.cause, 0) + 1
        if seen[cost.cause] <= MOST:
            kept.append(msgspec.structs.replace(cost, steps=len(in_steps)))
        elif cost.cause in small:
            have, steps = small[cost.cause]
            small[cost.cause] = _together(have, cost, have), steps | in_steps
        else:
            site = Site(operator="", mechanism=cost.site.mechanism)
            small[cost.cause] = msgspec.structs.replace(cost, site=site, place="elsewhere"), in_steps
    return (*kept, *(msgspec.structs.replace(cost, steps=len(steps)) for cost, steps in small.values()))
