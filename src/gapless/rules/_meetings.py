"""Where ranks meet: the same collective found in the profiles of several ranks, whatever their clocks say.

A collective ends on all its ranks at nearly the same moment, when the last of them has come and the data has
gone round. So the ends in two profiles differ by the same amount throughout, the difference between their
clocks; that is what tells whether the kernels of two files are of the same collectives, and which of which.
How long a kernel runs then says how early its rank came.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from gapless.model import Profile
from gapless.model.profile import Collectives

SYNCHRONIZING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Collectives that no rank can finish before all have come: the root of a broadcast may."""

UNEVEN = frozenset({"all_to_all"})
"""Collectives whose ranks send different amounts."""

ENOUGH = 3
"""Meetings in a row that fit before two files are believed to be of one run."""

DRIFT = 5e-4
"""How much faster one clock may run than another: NTP sets them right by half a millisecond per second."""

SLACK = 100_000
"""Nanoseconds by which the ends of one collective may differ on two ranks."""

ROUNDS = 16
"""How many sets of ranks that do not meet one another are told apart where groups were not recorded."""

SURE = 10_000
"""Ends that differ by less than these nanoseconds are of the same collectives, or of two that are as good."""

CLEARLY = 3
"""By how much the true pairing must fit better than others."""

_RESOLUTION = 1_000
"""What older profilers rounded times to, in nanoseconds."""

_RIVALS = 48
_SAMPLE = 32
_RANK = re.compile(
    r"(?<![a-z])(?:global_?rank|rank|worker|(?:tp|dp|pp|ep|gpu|node)(?=[-_]?\d))[-_=.]?(\d+)", re.I
)


class Meeting(NamedTuple):
    """A collective in which several of the profiles took part.

    `lengths` are those of its kernels in nanoseconds, by position of the profile. `time` is its end on the
    clock of the profile at `reference`, and `step` the name of the step of that profile in which it is, ""
    outside of them.
    """

    name: str
    group: str
    time: int
    step: str
    lengths: dict[int, int]
    reference: int


@dataclass(frozen=True)
class Meetings:
    """All that were found, by time within each set of ranks that meet.

    The first of each set is left out: what delayed a rank on the way there lies before the recording, the
    start of the profiler itself among it. `silent` are the positions of profiles without collectives to tell
    arrival by, `alone` those whose collectives are in no other profile.
    """

    found: tuple[Meeting, ...]
    silent: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()


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


def rank_in_name(path: str) -> int:
    """The rank that the name of a file tells (``rank3.json``, ``worker0.123.pt.trace.json``), or -1."""
    parts = path.replace("\\", "/").split("/")
    for part in (parts[-1], *parts[-2:-1]):
        found = _RANK.findall(part)
        if found:
            return int(found[-1])
    return -1


def numbers(profiles: Sequence[Profile]) -> list[int]:
    """The rank of each profile: as recorded, else as its file is named, else the next number that is free.

    Where two claim the same, both keep it: they are different recordings.
    """
    found = [profile.rank if profile.rank >= 0 else rank_in_name(profile.path) for profile in profiles]
    taken = set(found)
    free = (number for number in range(2 * len(profiles) + 1) if number not in taken)
    order = sorted(range(len(profiles)), key=lambda at: (profiles[at].path, profiles[at].origin))
    for position in order:
        if found[position] < 0:
            found[position] = next(free)
    return found


def meetings(profiles: Sequence[Profile]) -> Meetings:
    """The collectives that are in two or more of these profiles of one run."""
    ranks = numbers(profiles)
    order = sorted(range(len(profiles)), key=lambda at: (ranks[at], profiles[at].path, profiles[at].origin))
    sequences = [by_group(profile) for profile in profiles]
    found: list[Meeting] = []
    met: set[int] = set()
    for group in sorted({group for one in sequences for group in one}):
        inside = {at: sequences[at][group] for at in order if group in sequences[at]}
        for reference, members in _sets(profiles, inside, proof=not group or group.startswith("stream ")):
            met |= {reference, *members}
            some = _meet(profiles[reference], group, reference, inside, members)
            found += sorted(some, key=lambda one: one.time)[1:]
    return Meetings(
        tuple(found),
        silent=tuple(at for at, one in enumerate(sequences) if not one),
        alone=tuple(at for at, one in enumerate(sequences) if one and at not in met),
    )


def by_group(profile: Profile) -> dict[str, Sequences]:
    """The collectives of a profile that tell arrival, by group and name."""
    found: dict[str, Sequences] = defaultdict(dict)
    for one in profile.collectives:
        if one.name in SYNCHRONIZING and one.start:
            found[one.group][one.name] = _series(one)
    return dict(found)


def _series(one: Collectives) -> Series:
    end = [start + length for start, length in zip(one.start, one.length, strict=True)]
    length, elements = one.length, one.elements or (-1,) * len(end)
    if any(a > b for a, b in pairwise(end)):  # several streams in one
        order = sorted(range(len(end)), key=end.__getitem__)
        end = [end[at] for at in order]
        length = tuple(length[at] for at in order)
        elements = tuple(elements[at] for at in order)
    return Series(end, length, elements, median(length))


def _sets(
    profiles: Sequence[Profile], inside: dict[int, Sequences], proof: bool
) -> Iterable[tuple[int, dict[int, Pairs]]]:
    """Sets of profiles that meet: the reference of each, and what pairs the others with it."""
    left = sorted(inside, key=lambda at: -sum(len(series.end) for series in inside[at].values()))
    for _ in range(ROUNDS):
        if len(left) < 2:
            return
        reference, *others = left
        members = {}
        for other in others:
            apart = profiles[other].origin - profiles[reference].origin
            pairs = match(inside[reference], inside[other], apart, proof=proof)
            if pairs:
                members[other] = pairs
        if members:
            yield reference, members
        left = [at for at in others if at not in members]


def _meet(
    profile: Profile,
    group: str,
    reference: int,
    inside: dict[int, Sequences],
    members: dict[int, Pairs],
) -> Iterable[Meeting]:
    """The meetings of one set."""
    for name, series in inside[reference].items():
        lengths: dict[int, dict[int, int]] = defaultdict(dict)
        for other, pairs in members.items():
            for here, there in pairs.get(name, ()):
                lengths[here][other] = inside[other][name].length[there]
        for here, those in lengths.items():
            time = series.end[here]
            those[reference] = series.length[here]
            yield Meeting(name, group, time, _step(profile, time), those, reference)


def _step(profile: Profile, time: int) -> str:
    """The name of the step in which a collective ended."""
    steps = profile.steps
    at = bisect_left(steps.end, time)
    if at == steps.count or time < steps.start[at]:
        return ""
    return steps.names[at] if at < len(steps.names) else str(at)


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


def _shorter(one: Series, other: Series) -> int:
    return min(len(one.end), len(other.end))


def _clocks(one: Series, other: Series, name: str, apart: int, proof: bool) -> Trend | None:
    """How the clocks differ, if these are the same collectives.

    The kernels are taken to be the same by the clocks, then from the first on, then up to the last; only
    where none of these fits, in any other way. Steps are alike, so the ends of unrelated runs fit somehow:
    those of the same collectives fit far better than if they were taken to be the ones before or after.
    """
    last = len(one.end) - len(other.end)
    usual = tuple(dict.fromkeys((_vote(one, other, Trend(0, apart, 0.0)), 0, last)))
    need = max(min(ENOUGH, _shorter(one, other)), (_shorter(one, other) + 1) // 2)
    for shifts in (usual, range(need - len(other.end), len(one.end) - need + 1)):
        tried = [
            (*_judge(one, other, name, shift), shift)
            for shift in shifts
            if _common(one, other, shift) >= need
        ]
        error, trend, shift = min(tried, key=lambda found: max(found[0], SURE), default=_NOTHING)
        if error <= SURE and not proof:
            return trend
        if error <= tolerance(one, other) and _stands_out(one, other, name, error, shift):
            return trend
    return None


_NOTHING = (float("inf"), Trend(0, 0.0, 0.0), 0)


def _common(one: Series, other: Series, shift: int) -> int:
    """How many kernels have a partner."""
    return min(len(one.end), len(other.end) + shift) - max(0, shift)


def _stands_out(one: Series, other: Series, name: str, error: float, shift: int) -> bool:
    """Whether the kernels before and after fit much worse."""
    need = max(ENOUGH + 1, (_shorter(one, other) + 1) // 2)
    rivals = 0
    for rival in range(shift - _RIVALS, shift + _RIVALS + 1):
        if rival != shift and _common(one, other, rival) >= need:
            rivals += 1
            if _judge(one, other, name, rival)[0] <= CLEARLY * max(error, _RESOLUTION):
                return False
    return rivals > 0


def _judge(one: Series, other: Series, name: str, shift: int) -> tuple[float, Trend]:
    """How far the ends are from a constant distance, if `other` lags `shift` kernels behind `one`."""
    nothing = Trend(0, 0.0, 0.0)
    low, high = max(0, shift), min(len(one.end), len(other.end) + shift)
    if high <= low:
        return float("inf"), nothing
    rows = _sample(low, high)
    if not all(_agree(one, other, row, row - shift, name) for row in rows):
        return float("inf"), nothing
    times = [other.end[row - shift] for row in rows]
    apart = [one.end[row] - other.end[row - shift] for row in rows]
    trend = _fit(times, apart)
    errors = sorted(abs(b - trend(a)) for a, b in zip(times, apart, strict=True))
    return errors[len(errors) * 3 // 4 - (len(errors) % 4 == 0)], trend


def _agree(one: Series, other: Series, here: int, there: int, name: str) -> bool:
    a, b = one.elements[here], other.elements[there]
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


def median(values: Sequence[float]) -> float:
    """The median of at least one value."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def tolerance(one: Series, other: Series) -> float:
    """By how many nanoseconds the ends of the same collectives may differ: less where they come quickly."""
    most = max(SLACK, min(one.typical, other.typical) / 4)
    count = len(one.end)
    spacing = (one.end[-1] - one.end[0]) / (count - 1) if count > 1 else float("inf")
    return max(SLACK / 10, min(most, spacing / 4))


def _vote(one: Series, other: Series, trend: Trend) -> int:
    """How many kernels `other` lags behind `one`, if the clocks differ by `trend`."""
    votes: Counter[int] = Counter()
    for row in _sample(0, len(other.end)):
        time = other.end[row] + trend(other.end[row])
        at = bisect_left(one.end, time)
        if at == len(one.end) or (at and time - one.end[at - 1] <= one.end[at] - time):
            at -= 1
        votes[at - row] += 1
    return min(votes, key=lambda shift: (-votes[shift], abs(shift)))


def _pairs(one: Series, other: Series, name: str, trend: Trend) -> list[tuple[int, int]]:
    """The kernels of both that are the same collective."""
    shift = _vote(one, other, trend)
    slack = tolerance(one, other)
    low, high = max(0, shift), min(len(one.end), len(other.end) + shift)
    return [
        (row, row - shift)
        for row in range(low, high)
        if _agree(one, other, row, row - shift, name)
        and abs(one.end[row] - other.end[row - shift] - trend(other.end[row - shift])) <= slack
    ]
