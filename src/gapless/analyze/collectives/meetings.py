"""Match collectives across the profiles of several ranks. The longer the kernel of a collective runs on a
rank, the earlier that rank arrived."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gapless.analyze.collectives.pairing import KernelPairs, SeriesByName, match_kernels, sort_by_end
from gapless.model import Profile
from gapless.model.profile import SYNCHRONIZING

MAX_SETS = 16
"""How many disjoint sets of ranks are separated where process groups were not recorded."""

_RANK = re.compile(
    r"(?<![a-z])(?:global_?rank|rank|worker|(?:tp|dp|pp|ep|gpu|node)(?=[-_]?\d))[-_=.]?(\d+)", re.I
)


class Meeting(NamedTuple):
    """A collective that several of the profiles recorded.

    `lengths` maps the position of a profile to its kernel's nanoseconds. `time` is the end on the clock of
    the profile at `reference`, `step` the name of that profile's step it lies in, "" outside of steps.
    """

    name: str
    group: str
    time: int
    step: str
    lengths: dict[int, int]
    reference: int


@dataclass(frozen=True)
class Meetings:
    """All matched collectives, by time within each set of ranks that meet.

    The first of each set is left out: what delayed a rank before it, such as the profiler's start, was not
    recorded. `silent` are the positions of profiles without collectives that show arrival, `alone` those
    whose collectives are in no other profile.
    """

    matched: tuple[Meeting, ...]
    silent: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()


def rank_in_name(path: str) -> int:
    """Return the rank in a file name (``rank3.json``, ``worker0.123.pt.trace.json``), or -1."""
    parts = path.replace("\\", "/").split("/")
    for part in (parts[-1], *parts[-2:-1]):
        matches = _RANK.findall(part)
        if matches:
            return int(matches[-1])
    return -1


def number_ranks(profiles: Sequence[Profile]) -> list[int]:
    """Return the rank of each profile: as recorded, else as in the file name, else the next free number.

    Where two profiles claim the same rank, both keep it: they are different recordings.
    """
    ranks = [profile.rank if profile.rank >= 0 else rank_in_name(profile.path) for profile in profiles]
    taken = set(ranks)
    free = (number for number in range(2 * len(profiles) + 1) if number not in taken)
    order = sorted(range(len(profiles)), key=lambda at: (profiles[at].path, profiles[at].origin))
    for position in order:
        if ranks[position] < 0:
            ranks[position] = next(free)
    return ranks


def find_meetings(profiles: Sequence[Profile]) -> Meetings:
    """Find the collectives that two or more of these profiles of one run recorded."""
    ranks = number_ranks(profiles)
    order = sorted(range(len(profiles)), key=lambda at: (ranks[at], profiles[at].path, profiles[at].origin))
    sequences = [collectives_by_group(profile) for profile in profiles]
    matched: list[Meeting] = []
    met: set[int] = set()
    for group in sorted({group for by_name in sequences for group in by_name}):
        inside = {at: sequences[at][group] for at in order if group in sequences[at]}
        for reference, members in _find_sets(
            profiles, inside, proof=not group or group.startswith("stream ")
        ):
            met |= {reference, *members}
            meetings_of_set = _join_lengths(profiles[reference], group, reference, inside, members)
            matched += sorted(meetings_of_set, key=lambda meeting: meeting.time)[1:]
    return Meetings(
        tuple(matched),
        silent=tuple(at for at, by_name in enumerate(sequences) if not by_name),
        alone=tuple(at for at, by_name in enumerate(sequences) if by_name and at not in met),
    )


def collectives_by_group(profile: Profile) -> dict[str, SeriesByName]:
    """Return the collectives of a profile that show arrival, by group and name."""
    groups: dict[str, SeriesByName] = defaultdict(dict)
    for kernels in profile.collectives:
        if kernels.name in SYNCHRONIZING and kernels.start:
            groups[kernels.group][kernels.name] = sort_by_end(kernels)
    return dict(groups)


def _find_sets(
    profiles: Sequence[Profile], inside: dict[int, SeriesByName], proof: bool
) -> Iterable[tuple[int, dict[int, KernelPairs]]]:
    """Yield sets of profiles that meet: the reference of each, and the pairs of the others with it."""
    left = sorted(inside, key=lambda at: -sum(len(kernels.end) for kernels in inside[at].values()))
    for _ in range(MAX_SETS):
        if len(left) < 2:
            return
        reference, *rest = left
        members = {}
        for other in rest:
            apart = profiles[other].origin - profiles[reference].origin
            pairs = match_kernels(inside[reference], inside[other], apart, proof=proof)
            if pairs:
                members[other] = pairs
        if members:
            yield reference, members
        left = [at for at in rest if at not in members]


def _join_lengths(
    profile: Profile,
    group: str,
    reference: int,
    inside: dict[int, SeriesByName],
    members: dict[int, KernelPairs],
) -> Iterable[Meeting]:
    """Yield the meetings of one set."""
    for name, kernels in inside[reference].items():
        lengths: dict[int, dict[int, int]] = defaultdict(dict)
        for other, pairs in members.items():
            for index, their_index in pairs.get(name, ()):
                lengths[index][other] = inside[other][name].length[their_index]
        for index, by_position in lengths.items():
            time = kernels.end[index]
            by_position[reference] = kernels.length[index]
            yield Meeting(name, group, time, _step_name(profile, time), by_position, reference)


def _step_name(profile: Profile, time: int) -> str:
    """Return the name of the step in which `time` lies; "" outside of steps."""
    steps = profile.steps
    at = bisect_left(steps.end, time)
    if at == steps.count or time < steps.start[at]:
        return ""
    return steps.names[at] if at < len(steps.names) else str(at)
