"""Several profiles: which of them are ranks of one run, and how the ranks compare."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from gapless.analyze.collectives.meetings import by_group, meetings, numbers, rank_in_name
from gapless.analyze.collectives.pairing import Pairs, Sequences, match
from gapless.analyze.collectives.straggler import late, straggler
from gapless.analyze.collectives.waiting import latecomers, split
from gapless.model import Profile, Ranks, RankSummary
from gapless.model.wording import count

_EPOCH = 10**17
"""Times below this count from when a machine started, not from 1970: two of them cannot be compared."""

_APART = 10**9
"""Nanoseconds by which the clocks of two machines may differ; more, and only matching collectives tell."""

_NO_CLOCK_IS_SO_WRONG = 3600 * 10**9
"""Files that begin further apart than these nanoseconds are not of one time, whatever else is alike."""

_MARKED = re.compile(r"((?<![a-z])(?:rank|worker|gpu|node|host|tp|dp|pp|ep)[-_=.]?)\d+", re.IGNORECASE)


@dataclass(frozen=True)
class Grouping:
    """Profiles by run: by rank in each, the runs by when they began; `notes` say how it was told."""

    runs: tuple[tuple[Profile, ...], ...]
    notes: tuple[str, ...] = ()


def runs(profiles: Sequence[Profile]) -> list[list[Profile]]:
    """The profiles, those of one run together: see :func:`group`."""
    return [list(run) for run in group(profiles).runs]


def group(profiles: Sequence[Profile]) -> Grouping:
    """Which of these profiles were recorded at the same time by ranks of one run.

    Two are, if their ranks differ, their steps and world sizes do not, and either the same collectives are in
    both (their ends keep the same distance), or they were recorded at the same time, or by one launch, and
    say themselves that they are ranks: in the file, or by names like ``rank3.json`` in one folder. The same
    rank twice is two captures. What cannot be shown to belong together stays apart.
    """
    files = sorted((_File(one) for one in profiles), key=lambda one: one.order)
    crowded = _crowded(files)
    captures: list[list[_File]] = []
    for one in files:
        fitting = [some for some in captures if _belongs(one, some, crowded)]
        if fitting:
            min(fitting, key=lambda some: abs(some[0].profile.origin - one.profile.origin)).append(one)
        else:
            captures.append([one])
    found = [tuple(one.profile for one in sorted(some, key=lambda one: one.place)) for some in captures]
    notes = [note for some in captures for note in _told(some)]
    return Grouping(tuple(found), (*notes, *_again(captures)))


@dataclass
class _File:
    """One profile with what tells where it belongs."""

    profile: Profile
    rank: int = field(init=False)
    folder: str = field(init=False)
    sequences: dict[str, Sequences] = field(init=False)

    def __post_init__(self) -> None:
        path = PurePath(self.profile.path.replace("\\", "/"))
        self.folder = _MARKED.sub(r"\1#", os.fspath(path.parent))
        self.rank = self.profile.rank if self.recorded else rank_in_name(self.profile.path)
        self.sequences = by_group(self.profile)

    @property
    def recorded(self) -> bool:
        return self.profile.rank >= 0 and self.profile.world_size > 1

    @property
    def order(self) -> tuple[int, int, str]:
        return self.profile.origin, self.rank, self.profile.path

    @property
    def place(self) -> tuple[int, str, int]:
        return self.rank, self.profile.path, self.profile.origin


def _crowded(files: list[_File]) -> bool:
    """Whether a rank was recorded twice at what may be the same time: by two runs, that is."""
    last: dict[int, _File] = {}
    for one in files:
        if one.rank >= 0:
            if one.rank in last and _same_time(one.profile, last[one.rank].profile):
                return True
            last[one.rank] = one
    return False


def _belongs(one: _File, capture: list[_File], crowded: bool) -> bool:
    """Whether `one` is another rank of what the others recorded."""
    if any(one.rank == other.rank >= 0 or one.profile is other.profile for other in capture):
        return False
    first = capture[0]
    worlds = {other.profile.world_size for other in (one, first)} - {0}
    if len(worlds) > 1 or 1 in worlds or max(worlds, default=len(capture) + 1) <= len(capture):
        return False
    if not _same_steps(one.profile, first.profile):
        return False
    both = one.recorded == first.recorded and min(one.rank, first.rank) >= 0
    if both and (one.recorded or one.folder == first.folder) and _together(one.profile, first.profile):
        comparable = not one.sequences.keys().isdisjoint(first.sequences)
        if not (crowded and comparable) or _meet(one, first, proof=False):
            return True
    return bool(_meet(one, first, proof=True))


def _same_steps(profile: Profile, other: Profile) -> bool:
    """Whether steps with numbers overlap; any others tell nothing."""
    if profile.steps.source != other.steps.source:
        return False
    if profile.steps.source != "ProfilerStep" or not profile.steps.names or not other.steps.names:
        return True
    return not set(profile.steps.names).isdisjoint(other.steps.names)


def _meet(one: _File, other: _File, *, proof: bool) -> Pairs:
    """The collectives that both recorded."""
    apart = one.profile.origin - other.profile.origin
    if _epoch(one.profile, other.profile) and abs(apart) > _NO_CLOCK_IS_SO_WRONG:
        return {}
    for name in sorted(one.sequences.keys() & other.sequences.keys()):
        pairs = match(other.sequences[name], one.sequences[name], apart, proof=proof)
        if pairs:
            return pairs
    return {}


def _together(profile: Profile, other: Profile) -> bool:
    """Whether both were recorded by one launch, or else at one time.

    Ranks that exchange nothing may run one after the other where processors are few.
    """
    if profile.launch and other.launch:
        return profile.launch == other.launch
    return _same_time(profile, other)


def _same_time(profile: Profile, other: Profile) -> bool:
    """Whether both were recorded at one time, as far as their clocks can tell."""
    if not _epoch(profile, other):
        return True
    begin = max(profile.origin, other.origin)
    end = min(profile.origin + profile.span, other.origin + other.span)
    return begin - end <= _APART


def _epoch(profile: Profile, other: Profile) -> bool:
    """Whether the times of both count from 1970."""
    return min(profile.origin, other.origin) >= _EPOCH


def _told(capture: list[_File]) -> list[str]:
    """How these files were found to be ranks of one run."""
    if len(capture) < 2:
        return []
    if all(one.recorded for one in capture):
        return []  # they say so themselves
    named = all(one.rank >= 0 for one in capture)
    by = (
        "their names and times"
        if named and not _meet(capture[1], capture[0], proof=True)
        else "their collectives"
    )
    names = sorted(PurePath(one.profile.path).name for one in capture)
    return [
        f"{names[0]} and {count(len(names) - 1, 'other file')} are treated as ranks of one run, based on {by}"
    ]


def _again(captures: list[list[_File]]) -> list[str]:
    """Which ranks were recorded more than once."""
    found: dict[int, int] = {}
    for capture in captures:
        if len(capture) > 1:
            for one in capture:
                if one.rank >= 0:
                    found[one.rank] = found.get(one.rank, 0) + 1
    often = {times for times in found.values() if times > 1}
    if not often:
        return []
    return [f"the same ranks were recorded up to {max(often)} times: each recording is reported separately"]


def summaries(profiles: Sequence[Profile]) -> tuple[RankSummary, ...]:
    """A row for each profile of one run, by rank; nanoseconds per step."""
    ranks = numbers(profiles)
    arrival = late(len(profiles), meetings(profiles))
    rows = [
        RankSummary(
            rank=rank,
            path=profile.path,
            step=profile.steps.mean,
            idle=profile.idle / max(profile.steps.count, 1),
            communication=profile.split.communication / max(profile.steps.count, 1),
            late=delay,
            utilization=profile.utilization,
            incomplete=profile.coverage.reason,
        )
        for profile, rank, delay in zip(profiles, ranks, arrival, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (row.rank, row.path, row.step, row.late)))


def slow_rank(profiles: Sequence[Profile]) -> int:
    """The position of the profile whose rank the others of its run wait for, -1 where there is none."""
    found = side_by_side(profiles).straggler
    return found.position if found is not None else -1


def side_by_side(profiles: Sequence[Profile]) -> Ranks:
    """The profiles of one run with the ranks that the others wait for."""
    found = meetings(profiles)
    return Ranks(tuple(profiles), straggler(profiles, found), latecomers(profiles, found), split(found))


def remarks(profiles: Sequence[Profile]) -> tuple[str, ...]:
    """What is missing in the profiles of one run for a whole picture, a sentence each."""
    if len(profiles) < 2:
        return ()
    ranks = numbers(profiles)
    found = meetings(profiles)
    world = max(profile.world_size for profile in profiles)
    notes = []
    if world > len(profiles):
        notes.append(
            f"only {len(profiles)} of the run's {world} ranks are here: a missing rank may be slower"
        )
    for positions, why in (
        (found.silent, "recorded no collective that shows when a rank arrives"),
        (
            found.alone,
            "recorded only collectives that match no other rank's, so its arrival times are unknown",
        ),
    ):
        if positions:
            notes.append(f"{_ranks([ranks[at] for at in positions])} {why}")
    return tuple(notes)


def _ranks(some: list[int]) -> str:
    """``rank 3``, ``ranks 0-3 and 7``."""
    parts: list[list[int]] = []
    for rank in sorted(set(some)):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    texts = [f"{part[0]}-{part[-1]}" if len(part) > 2 else " and ".join(map(str, part)) for part in parts]
    noun = "rank" if len(set(some)) == 1 else "ranks"
    if len(texts) > 6:
        return f"{len(set(some))} {noun}"
    return f"{noun} {', '.join(texts)}"
