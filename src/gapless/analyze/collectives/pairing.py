"""Pair kernels of two profiles that belong to the same collectives, whatever their clocks say.

A collective ends on all its ranks at nearly the same moment, when the last rank has arrived and the data has
been exchanged. So the ends in two profiles differ by a constant, the difference between the clocks; that
constant shows whether kernels belong to the same collectives, and which to which.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from gapless.model.profile import Collectives

UNEVEN_COLLECTIVES = frozenset({"all_to_all"})
"""Collectives whose ranks send different numbers of elements."""

MIN_MEETINGS = 3
"""Collectives in a row that must fit before two files are taken to be of one run."""

MAX_CLOCK_DRIFT = 5e-4
"""How much faster one clock may run than another: NTP corrects by half a millisecond per second."""

MAX_END_DIFFERENCE = 100_000
"""Nanoseconds by which the ends of one collective may differ on two ranks."""

SURE_END_DIFFERENCE = 10_000
"""Ends that differ by fewer nanoseconds belong to one collective, or to two that are as good."""

MIN_RIVAL_ERROR = 3
"""How many times as large the error of every other pairing must be."""

_RESOLUTION = 1_000
"""Nanoseconds to which older profilers rounded times."""

_MAX_RIVAL_SHIFT = 48
"""Other shifts tried on each side: collectives of some layers; each one costs a fit."""
_MAX_SAMPLES = 32
"""Kernels compared at each shift: bounds the time; a wrong shift shows in far fewer."""


class KernelSeries(NamedTuple):
    """The kernels of one name and group in one profile, by end; `typical` is their median length."""

    end: list[int]
    length: tuple[int, ...]
    elements: tuple[int, ...]
    typical: float


SeriesByName = dict[str, KernelSeries]


class ClockDifference(NamedTuple):
    """What to add to a time of one clock to get the time of the other; a straight line through `at`."""

    at: int
    offset: float
    slope: float

    def __call__(self, time: int) -> float:
        return self.offset + self.slope * (time - self.at)


KernelPairs = dict[str, list[tuple[int, int]]]
"""For each name, indices of kernels of two profiles that belong to the same collective."""


def sort_by_end(collectives: Collectives) -> KernelSeries:
    """Return the kernels of `collectives` in the order of their ends."""
    end = [start + length for start, length in zip(collectives.start, collectives.length, strict=True)]
    length, elements = collectives.length, collectives.elements or (-1,) * len(end)
    if any(a > b for a, b in pairwise(end)):  # several streams in one
        order = sorted(range(len(end)), key=end.__getitem__)
        end = [end[at] for at in order]
        length = tuple(length[at] for at in order)
        elements = tuple(elements[at] for at in order)
    return KernelSeries(end, length, elements, median(length))


def match_kernels(first: SeriesByName, other: SeriesByName, apart: int, *, proof: bool) -> KernelPairs:
    """Pair the kernels of `first` and `other` by name; empty unless some surely belong together.

    `apart` is how much later the file of `other` begins if the clocks agree: a first guess. Steps may be so
    regular that the ends of unrelated runs fit well: with `proof` such a fit is rejected.
    """
    names = sorted(first.keys() & other.keys(), key=lambda name: (-_shorter(first[name], other[name]), name))
    if not names:
        return {}
    trend = _fit_clocks(first[names[0]], other[names[0]], names[0], apart, proof)
    if trend is None:
        return {}
    pairs = {name: _pair_kernels(first[name], other[name], name, trend) for name in names}
    possible = sum(_shorter(first[name], other[name]) for name in names)
    return pairs if sum(map(len, pairs.values())) >= max(MIN_MEETINGS, possible / 2) else {}


def _shorter(series: KernelSeries, other: KernelSeries) -> int:
    return min(len(series.end), len(other.end))


def _fit_clocks(
    series: KernelSeries, other: KernelSeries, name: str, apart: int, proof: bool
) -> ClockDifference | None:
    """Return how the clocks differ, or None if these are not the same collectives.

    Kernels are aligned by the clocks, by the first kernel, or by the last one; only if none of these fits,
    by any other shift. Steps are alike, so the ends of unrelated runs fit somehow: the true alignment fits
    far better than its neighbours.
    """
    last = len(series.end) - len(other.end)
    usual = tuple(dict.fromkeys((_vote_shift(series, other, ClockDifference(0, apart, 0.0)), 0, last)))
    need = max(min(MIN_MEETINGS, _shorter(series, other)), (_shorter(series, other) + 1) // 2)
    for shifts in (usual, range(need - len(other.end), len(series.end) - need + 1)):
        candidates = [
            (*_fit_error(series, other, name, shift), shift)
            for shift in shifts
            if _overlap(series, other, shift) >= need
        ]
        error, trend, shift = min(
            candidates, key=lambda candidate: max(candidate[0], SURE_END_DIFFERENCE), default=_NO_FIT
        )
        if error <= SURE_END_DIFFERENCE and not proof:
            return trend
        if error <= max_end_difference(series, other) and _is_clearly_best(series, other, name, error, shift):
            return trend
    return None


_NO_FIT = (float("inf"), ClockDifference(0, 0.0, 0.0), 0)


def _overlap(series: KernelSeries, other: KernelSeries, shift: int) -> int:
    """How many kernels have a partner at this shift."""
    return min(len(series.end), len(other.end) + shift) - max(0, shift)


def _is_clearly_best(series: KernelSeries, other: KernelSeries, name: str, error: float, shift: int) -> bool:
    """Whether the neighbouring shifts fit much worse."""
    need = max(MIN_MEETINGS + 1, (_shorter(series, other) + 1) // 2)
    rivals = 0
    for rival in range(shift - _MAX_RIVAL_SHIFT, shift + _MAX_RIVAL_SHIFT + 1):
        if rival != shift and _overlap(series, other, rival) >= need:
            rivals += 1
            if _fit_error(series, other, name, rival)[0] <= MIN_RIVAL_ERROR * max(error, _RESOLUTION):
                return False
    return rivals > 0


def _fit_error(
    series: KernelSeries, other: KernelSeries, name: str, shift: int
) -> tuple[float, ClockDifference]:
    """Return how far the ends are from a line, if `other` starts `shift` kernels late, and that line."""
    no_trend = ClockDifference(0, 0.0, 0.0)
    low, high = max(0, shift), min(len(series.end), len(other.end) + shift)
    if high <= low:
        return float("inf"), no_trend
    rows = _sample_indices(low, high)
    if not all(_same_elements(series, other, row, row - shift, name) for row in rows):
        return float("inf"), no_trend
    times = [other.end[row - shift] for row in rows]
    apart = [series.end[row] - other.end[row - shift] for row in rows]
    trend = _fit_line(times, apart)
    errors = sorted(abs(b - trend(a)) for a, b in zip(times, apart, strict=True))
    return errors[len(errors) * 3 // 4 - (len(errors) % 4 == 0)], trend


def _same_elements(
    series: KernelSeries, other: KernelSeries, index: int, other_index: int, name: str
) -> bool:
    a, b = series.elements[index], other.elements[other_index]
    return a == b or a < 0 or b < 0 or name in UNEVEN_COLLECTIVES


def _sample_indices(low: int, high: int) -> range | list[int]:
    """Return the integers from `low` to below `high`; if too many, evenly spaced ones with both ends."""
    count = high - low
    if count <= _MAX_SAMPLES:
        return range(low, high)
    return [low + at * (count - 1) // (_MAX_SAMPLES - 1) for at in range(_MAX_SAMPLES)]


def _fit_line(times: list[int], apart: list[int]) -> ClockDifference:
    """Fit a straight line through these differences, from the medians of both halves."""
    half = len(times) // 2
    middle = median(times)
    slope = 0.0
    if half >= 4:
        run = median(times[half:]) - median(times[:half])
        rise = median(apart[half:]) - median(apart[:half])
        slope = max(-MAX_CLOCK_DRIFT, min(MAX_CLOCK_DRIFT, rise / run)) if run > 0 else 0.0
    offset = median([b - slope * (a - middle) for a, b in zip(times, apart, strict=True)])
    return ClockDifference(int(middle), offset, slope)


def max_end_difference(series: KernelSeries, other: KernelSeries) -> float:
    """Nanoseconds by which the ends of one collective may differ: less where collectives follow quickly."""
    limit = max(MAX_END_DIFFERENCE, min(series.typical, other.typical) / 4)
    count = len(series.end)
    spacing = (series.end[-1] - series.end[0]) / (count - 1) if count > 1 else float("inf")
    return max(MAX_END_DIFFERENCE / 10, min(limit, spacing / 4))


def _vote_shift(series: KernelSeries, other: KernelSeries, trend: ClockDifference) -> int:
    """How many kernels `other` starts behind `series`, if the clocks differ by `trend`."""
    votes: Counter[int] = Counter()
    for row in _sample_indices(0, len(other.end)):
        time = other.end[row] + trend(other.end[row])
        at = bisect_left(series.end, time)
        if at == len(series.end) or (at and time - series.end[at - 1] <= series.end[at] - time):
            at -= 1
        votes[at - row] += 1
    return min(votes, key=lambda shift: (-votes[shift], abs(shift)))


def _pair_kernels(
    series: KernelSeries, other: KernelSeries, name: str, trend: ClockDifference
) -> list[tuple[int, int]]:
    """Return the indices of kernels of both that belong to the same collective."""
    shift = _vote_shift(series, other, trend)
    slack = max_end_difference(series, other)
    low, high = max(0, shift), min(len(series.end), len(other.end) + shift)
    return [
        (row, row - shift)
        for row in range(low, high)
        if _same_elements(series, other, row, row - shift, name)
        and abs(series.end[row] - other.end[row - shift] - trend(other.end[row - shift])) <= slack
    ]
