"""Where ranks meet: the same collective in the profiles of several. How long its kernel runs on each says how
early that rank came."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gapless.analyze.collectives.pairing import Pairs, Sequences, match, series
from gapless.model import Profile
from gapless.model.profile import SYNCHRONIZING

ROUNDS = 16
"""How many sets of ranks that do not meet one another are told apart where groups were not recorded."""

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
            found[one.group][one.name] = series(one)
    return dict(found)


def _sets(
    profiles: Sequence[Profile], inside: dict[int, Sequences], proof: bool
) -> Iterable[tuple[int, dict[int, Pairs]]]:
    """Sets of profiles that meet: the reference of each, and what pairs the others with it."""
    left = sorted(inside, key=lambda at: -sum(len(one.end) for one in inside[at].values()))
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
    for name, kernels in inside[reference].items():
        lengths: dict[int, dict[int, int]] = defaultdict(dict)
        for other, pairs in members.items():
            for here, there in pairs.get(name, ()):
                lengths[here][other] = inside[other][name].length[there]
        for here, those in lengths.items():
            time = kernels.end[here]
            those[reference] = kernels.length[here]
            yield Meeting(name, group, time, _step(profile, time), those, reference)


def _step(profile: Profile, time: int) -> str:
    """The name of the step in which a collective ended."""
    steps = profile.steps
    at = bisect_left(steps.end, time)
    if at == steps.count or time < steps.start[at]:
        return ""
    return steps.names[at] if at < len(steps.names) else str(at)
