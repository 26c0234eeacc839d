"""Sum up idle stretches and the host's waits by cause and place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from gapless.analyze.profile import waits as waiting
from gapless.analyze.profile.idle import IdleStretch, loading_rows
from gapless.analyze.profile.lines import HostPlace, PlaceIndex, is_launching
from gapless.analyze.profile.trace_steps import StepSpans, busy_spans, covered_time
from gapless.analyze.profile.waits import HostWaits, allocator_calls
from gapless.model import Cause, Cost, Site, Stack
from gapless.trace.timeline import Bools, Ints, Timeline, distinct

_LOADER_FILES = (
    "torch/_ops.py",
    "torch/autograd/profiler.py",
    "torch/utils/_device.py",
    "torch/utils/data/dataloader.py",
)

MAX_PLACES_PER_CAUSE = 60
"""Further places of a cause, those with the least idleness, are summed up in one, to keep reports small."""


@dataclass(frozen=True)
class _CountedCalls:
    """Calls of the host that are counted for a cause, whether the device is idle or not."""

    cause: Cause
    rows: Ints
    counts: Bools
    copy: Ints


def find_costs(
    timeline: Timeline,
    device: int,
    steps: StepSpans,
    stretches: Iterable[IdleStretch],
    waits: HostWaits,
    places: PlaceIndex,
) -> tuple[tuple[Cost, ...], tuple[Ints, ...]]:
    """Return what each place costs, longest idleness first; together they are all of the idleness.

    The second part holds the host rows of the calls of each cost (none for causes that are not calls).
    """
    parts = list(stretches)
    calls = _counted_calls(timeline, steps, waits)
    copies = dict(zip(waits.rows.tolist(), waits.copy.tolist(), strict=True))
    rows = distinct(
        np.concatenate([np.empty(0, np.int64), *(p.spans.row for p in parts), *(c.rows for c in calls)])
    )
    codes, places_of_codes = places.of(rows)
    codes = _separate_copies(timeline, rows, codes, copies)
    _, first = np.unique(codes, return_index=True)
    sites = _Sites(timeline, rows, first, codes, places_of_codes, places, copies)
    sums: dict[tuple[Cause, Site, str], _CostSum] = {}
    for part in parts:
        for partial in _idle_sums(timeline, part, codes[np.searchsorted(rows, part.spans.row)], steps, sites):
            _add_cost(sums, partial)
    for call in calls:
        for partial in _blocked_sums(
            timeline, device, call, codes[np.searchsorted(rows, call.rows)], steps, sites
        ):
            _add_cost(sums, partial)
    merged = _merge_small_costs(list(sums.values()))
    summed = tuple(msgspec.structs.replace(sum_.cost, steps=len(sum_.steps)) for sum_ in merged)
    return summed, tuple(sum_.calls() for sum_ in merged)


@dataclass
class _CostSum:
    """A cost being summed up, with the steps it occurs in and the host rows of its calls."""

    cost: Cost
    steps: set[int]
    rows: list[Ints] = field(default_factory=list)

    def add(self, other: _CostSum) -> None:
        mine, more = self.cost, other.cost
        longest = mine if mine.idle >= more.idle else more
        self.cost = msgspec.structs.replace(
            mine,
            idle=mine.idle + more.idle,
            launching=mine.launching + more.launching,
            stretches=mine.stretches + more.stretches,
            calls=mine.calls + more.calls,
            blocked=mine.blocked + more.blocked,
            working=mine.working + more.working,
            bytes=mine.bytes + more.bytes,
            start=longest.start,
            end=longest.end,
        )
        self.steps |= other.steps
        self.rows += other.rows

    def calls(self) -> Ints:
        return np.concatenate([np.empty(0, np.int64), *self.rows])


class _Sites:
    """The site and the described place of each code, built on first use."""

    def __init__(
        self,
        timeline: Timeline,
        rows: Ints,
        first: Ints,
        codes: Ints,
        places_of_codes: list[HostPlace],
        places: PlaceIndex,
        copies: dict[int, int],
    ) -> None:
        self._timeline = timeline
        self._places = places
        self._copies = copies
        self._row = {int(codes[at]): int(rows[at]) for at in first}
        self._known: dict[tuple[Cause, int], tuple[Site, str]] = {}

    def of(self, cause: Cause, code: int) -> tuple[Site, str]:
        """Return the site and the described place of the calls with `code`, as a cause of idle time."""
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
            kind = waiting.copied_kind(timeline, row, copy)
            return waiting.site_of_wait(place, name, kind), place.description
        if cause == "input":
            place = replace(place, stack=_strip_loader(place.stack), call="")
        return place.site, place.description


def _strip_loader(stack: Stack) -> Stack:
    """Drop the loader's own frames: the caller that asks for the batch is wanted."""
    for position, frame in enumerate(stack):
        path = frame.file.replace("\\", "/")
        if frame.library != "torch" or not path.endswith(_LOADER_FILES):
            return stack[position:]
    return stack


def _separate_copies(timeline: Timeline, rows: Ints, codes: Ints, copies: dict[int, int]) -> Ints:
    """Extend the codes so that waits for different kinds of copies differ."""
    if not copies:
        return codes
    copy = np.fromiter((copies.get(row, -1) for row in rows.tolist()), np.int64, len(rows))
    name = np.where(copy >= 0, timeline.work.name[np.maximum(copy, 0)] + 1, 0)
    codes = codes * (len(timeline.names) + 1) + name
    kinds = [
        waiting.COPIED_KINDS.index(waiting.copied_kind(timeline, row, at))
        for row, at in zip(rows.tolist(), copy.tolist(), strict=True)
    ]
    return codes * len(waiting.COPIED_KINDS) + np.array(kinds, np.int64)


def _counted_calls(timeline: Timeline, steps: StepSpans, waits: HostWaits) -> list[_CountedCalls]:
    """Return the calls within the steps that cost time whether the device idles or not."""
    loading, allocating = loading_rows(timeline), allocator_calls(timeline)
    every = [
        _CountedCalls("wait", waits.rows, waits.counts, waits.copy),
        _CountedCalls("input", loading, np.ones(len(loading), bool), np.full(len(loading), -1)),
        _CountedCalls("allocator", allocating, np.ones(len(allocating), bool), np.full(len(allocating), -1)),
    ]
    inside = []
    for calls in every:
        keep = steps.at(timeline.host.start[calls.rows]) >= 0
        inside.append(_CountedCalls(calls.cause, calls.rows[keep], calls.counts[keep], calls.copy[keep]))
    return inside


def _idle_sums(
    timeline: Timeline, part: IdleStretch, codes: Ints, steps: StepSpans, sites: _Sites
) -> Iterable[_CostSum]:
    spans = part.spans
    amounts = {"idle": spans.length, "stretches": np.ones(len(codes))}
    if part.cause == "host":
        amounts["launching"] = np.where(is_launching(timeline, spans.row), spans.length, 0)
    return _sums_by_code(part.cause, codes, spans.start, spans.end, amounts, steps, sites)


def _blocked_sums(
    timeline: Timeline, device: int, calls: _CountedCalls, codes: Ints, steps: StepSpans, sites: _Sites
) -> Iterable[_CostSum]:
    start, end = timeline.host.start[calls.rows], timeline.host.end[calls.rows]
    copied = calls.counts & (calls.copy >= 0)
    moved = np.zeros(len(codes), np.int64)
    moved[copied] = np.maximum(timeline.work.bytes[calls.copy[copied]], 0)
    amounts = {
        "calls": calls.counts,
        "blocked": end - start,
        "working": covered_time(*busy_spans(timeline, device), start, end),
        "bytes": moved,
    }
    return _sums_by_code(calls.cause, codes, start, end, amounts, steps, sites, calls.rows)


def _sums_by_code(
    cause: Cause,
    codes: Ints,
    start: Ints,
    end: Ints,
    amounts: dict[str, Any],
    steps: StepSpans,
    sites: _Sites,
    rows: Ints | None = None,
) -> Iterator[_CostSum]:
    """Yield a cost for each code, with the sums of its `amounts` and the bounds of its longest span."""
    groups, back = np.unique(codes, return_inverse=True)
    back = back.reshape(-1)
    sums = {
        name: np.bincount(back, weights=amount, minlength=len(groups)) for name, amount in amounts.items()
    }
    in_steps = _steps_by_group(back, steps.at(start), len(groups))
    longest = _longest_members(back, end - start, len(groups))
    calls = [[] for _ in groups] if rows is None else _rows_by_group(rows, back)
    for position, code in enumerate(groups.tolist()):
        site, place = sites.of(cause, code)
        at = longest[position]
        totals = {name: int(column[position]) for name, column in sums.items()}
        cost = Cost(cause=cause, site=site, place=place, start=int(start[at]), end=int(end[at]), **totals)
        yield _CostSum(cost, in_steps[position], calls[position])


def _rows_by_group(rows: Ints, groups: Ints) -> list[list[Ints]]:
    """Return the rows of each group."""
    parts = np.split(rows[np.argsort(groups, kind="stable")], np.cumsum(np.bincount(groups))[:-1])
    return [[part] for part in parts]


def _steps_by_group(groups: Ints, steps: Ints, count: int) -> list[set[int]]:
    """Return the steps in which each group occurs."""
    steps_of: list[set[int]] = [set() for _ in range(count)]
    if len(groups):
        width = int(steps.max()) + 2
        for pair in distinct(groups * width + steps + 1).tolist():
            steps_of[pair // width].add(pair % width)
    return steps_of


def _longest_members(groups: Ints, length: Ints, count: int) -> Ints:
    """Return for each group the position of its longest member."""
    order = np.lexsort((length, groups))
    ends = np.cumsum(np.bincount(groups, minlength=count)) - 1
    return order[ends] if len(order) else order


def _add_cost(sums: dict[tuple[Cause, Site, str], _CostSum], cost_sum: _CostSum) -> None:
    """Add to the cost of the same cause and site; the calls of a wait join the idleness it causes."""
    key = (cost_sum.cost.cause, cost_sum.cost.site, "" if cost_sum.cost.site.stack else cost_sum.cost.place)
    if key in sums:
        sums[key].add(cost_sum)
    else:
        sums[key] = cost_sum


def _merge_small_costs(sums: list[_CostSum]) -> list[_CostSum]:
    """Sort the costs and merge the small ones of each cause into one."""
    kept: list[_CostSum] = []
    counts: dict[Cause, int] = {}
    small: dict[Cause, _CostSum] = {}
    for sum_ in sorted(sums, key=lambda sum_: (-sum_.cost.idle, -sum_.cost.blocked, sum_.cost.start)):
        cause = sum_.cost.cause
        counts[cause] = counts.get(cause, 0) + 1
        if counts[cause] <= MAX_PLACES_PER_CAUSE:
            kept.append(sum_)
        elif cause in small:
            small[cause].add(sum_)
        else:
            site = Site(operator="", mechanism=sum_.cost.site.mechanism)
            sum_.cost = msgspec.structs.replace(sum_.cost, site=site, place="elsewhere")
            small[cause] = sum_
    return [*kept, *small.values()]
