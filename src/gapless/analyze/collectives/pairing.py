"""Which kernels in two profiles are the same collectives, whatever their clocks say.

A collective ends on all its ranks at nearly the same moment, when the last of them has come and the data has
gone round. So the ends in two profiles differ by the same amount throughout, the difference between their
clocks; that is what tells whether the kernels of two files are of the same collectives, and which of which.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from gapless.model.profile import Collectives

UNEVEN = frozenset({"all_to_all"})
"""Collectives whose ranks send different amounts."""

ENOUGH = 3
"""Meetings in a row that fit before two files are believed to be of one run."""

DRIFT = 5e-4
"""How much faster one clock may run than another: NTP sets them right by half a millisecond per second."""

SLACK = 100_000
"""Nanoseconds by which the ends of one collective may differ on two ranks."""

SURE = 10_000
"""Ends that differ by less than these nanoseconds are of the same collectives, or of two that are as good."""

CLEARLY = 3
"""By how much the true pairing must fit better than others."""

_RESOLUTION = 1_000
"""What older profilers rounded times to, in nanoseconds."""

_RIVALS = 48
_SAMPLE = 32


class Series(NamedTuple):
    """The kernels of one name and group in one profile; `typical` is the median of their lengths."""

    end: list[int]
    length: tuple[int, ...]
    elements: tuple[int, ...]
    typical: float


Sequences = dict[str, Series]


class Trend(NamedTuple):
    """What to add to a time of one clock to get that of the other."""

    at: int
    offset: float
    slope: float

    def __call__(self, time: int) -> float:
        return self.offset + self.slope * (time - self.at)


Pairs = dict[str, list[tuple[int, int]]]
"""For each name which kernel of one profile is which of the other."""


def series(one: Collectives) -> Series:
    """The kernels of `one`, by their ends."""
    end = [start + length for start, length in zip(one.start, one.length, strict=True)]
    length, elements = one.length, one.elements or (-1,) * len(end)
    if any(a > b for a, b in pairwise(end)):  # several streams in one
        order = sorted(range(len(end)), key=end.__getitem__)
        end = [end[at] for at in order]
        length = tuple(length[at] for at in order)
        elements = tuple(elements[at] for at in order)
    return Series(end, length, elements, median(length))


def match(one: Sequences, other: Sequences, apart: int, *, proof: bool) -> Pairs:
    """Which kernels of `other` are those of `one`, by name; empty where nothing shows that any are.

    `apart` is how much later the file of `other` begins, if the clocks agree: a guess to begin with. Steps
    may be so regular that the ends of unrelated runs fit well: with `proof` they do not pass.
    """
    names = sorted(one.keys() & other.keys(), key=lambda name: (-_shorter(one[name], other[name]), name))
    if not names:
        return {}
    trend = _clocks(one[names[0]], other[names[0]], names[0], apart, proof)
    if trend is None:
        return {}
    pairs = {name: _pairs(one[name], other[name], name, trend) for name in names}
    possible = sum(_shorter(one[name], other[name]) for name in names)
    return pairs if sum(map(len, pairs.values())) >= max(ENOUGH, possible / 2) else {}


def _shorter(series: Series, other: Series) -> int:
    return min(len(series.end), len(other.end))


def _clocks(series: Series, other: Series, name: str, apart: int, proof: bool) -> Trend | None:
    """How the clocks differ, if these are the same collectives.

    The kernels are taken to be the same by the clocks, then from the first on, then up to the last; only
    where none of these fits, in any other way. Steps are alike, so the ends of unrelated runs fit somehow:
    those of the same collectives fit far better than if they were taken to be the ones before or after.
    """
    last = len(series.end) - len(other.end)
    usual = tuple(dict.fromkeys((_vote(series, other, Trend(0, apart, 0.0)), 0, last)))
    need = max(min(ENOUGH, _shorter(series, other)), (_shorter(series, other) + 1) // 2)
    for shifts in (usual, range(need - len(other.end), len(series.end) - need + 1)):
        tried = [
            (*_judge(series, other, name, shift), shift)
            for shift in shifts
            if _common(series, other, shift) >= need
        ]
        error, trend, shift = min(tried, key=lambda found: max(found[0], SURE), default=_NOTHING)
        if error <= SURE and not proof:
            return trend
        if error <= tolerance(series, other) and _stands_out(series, other, name, error, shift):
            return trend
    return None


_NOTHING = (float("inf"), Trend(0, 0.0, 0.0), 0)


def _common(series: Series, other: Series, shift: int) -> int:
    """How many kernels have a partner."""
    return min(len(series.end), len(other.end) + shift) - max(0, shift)


def _stands_out(series: Series, other: Series, name: str, error: float, shift: int) -> bool:
    """Whether the kernels before and after fit much worse."""
    need = max(ENOUGH + 1, (_shorter(series, other) + 1) // 2)
    rivals = 0
    for rival in range(shift - _RIVALS, shift + _RIVALS + 1):
        if rival != shift and _common(series, other, rival) >= need:
            rivals += 1
            if _judge(series, other, name, rival)[0] <= CLEARLY * max(error, _RESOLUTION):
                return False
    return rivals > 0


def _judge(series: Series, other: Series, name: str, shift: int) -> tuple[float, Trend]:
    """How far the ends are from a constant distance, if `other` lags `shift` kernels behind `series`."""
    nothing = Trend(0, 0.0, 0.0)
    low, high = max(0, shift), min(len(series.end), len(other.end) + shift)
    if high <= low:
        return float("inf"), nothing
    rows = _sample(low, high)
    if not all(_agree(series, other, row, row - shift, name) for row in rows):
        return float("inf"), nothing
    times = [other.end[row - shift] for row in rows]
    apart = [series.end[row] - other.end[row - shift] for row in rows]
    trend = _fit(times, apart)
    errors = sorted(abs(b - trend(a)) for a, b in zip(times, apart, strict=True))
    return errors[len(errors) * 3 // 4 - (len(errors) % 4 == 0)], trend


def _agree(series: Series, other: Series, here: int, there: int, name: str) -> bool:
    a, b = series.elements[here], other.elements[there]
    return a == b or a < 0 or b < 0 or name in UNEVEN


def _sample(low: int, high: int) -> range | list[int]:
    count = high - low
    if count <= _SAMPLE:
        return range(low, high)
    return [low + at * (count - 1) // (_SAMPLE - 1) for at in range(_SAMPLE)]


def _fit(times: list[int], apart: list[int]) -> Trend:
    """The straight line through these differences, from the medians of both halves."""
    half = len(times) // 2
    middle = median(times)
    slope = 0.0
    if half >= 4:
        run = median(times[half:]) - median(times[:half])
        rise = median(apart[half:]) - median(apart[:half])
        slope = max(-DRIFT, min(DRIFT, rise / run)) if run > 0 else 0.0
    offset = median([b - slope * (a - middle) for a, b in zip(times, apart, strict=True)])
    return Trend(int(middle), offset, slope)


def tolerance(series: Series, other: Series) -> float:
    """By how many nanoseconds the ends of the same collectives may differ: less where they come quickly."""
    most = max(SLACK, min(series.typical, other.typical) / 4)
    count = len(series.end)
    spacing = (series.end[-1] - series.end[0]) / (count - 1) if count > 1 else float("inf")
    return max(SLACK / 10, min(most, spacing / 4))


def _vote(series: Series, other: Series, trend: Trend) -> int:
    """How many kernels `other` lags behind `series`, if the clocks differ by `trend`."""
    votes: Counter[int] = Counter()
    for row in _sample(0, len(other.end)):
        time = other.end[row] + trend(other.end[row])
        at = bisect_left(series.end, time)
        if at == len(series.end) or (at and time - series.end[at - 1] <= series.end[at] - time):
            at -= 1
        votes[at - row] += 1
    return min(votes, key=lambda shift: (-votes[shift], abs(shift)))


def _pairs(series: Series, other: Series, name: str, trend: Trend) -> list[tuple[int, int]]:
    """The kernels of both that are the same collective."""
    shift = _vote(series, other, trend)
    slack = tolerance(series, other)
    low, high = max(0, shift), min(len(series.end), len(other.end) + shift)
    return [
        (row, row - shift)
        for row in range(low, high)
        if _agree(series, other, row, row - shift, name)
        and abs(series.end[row] - other.end[row - shift] - trend(other.end[row - shift])) <= slack
    ]
