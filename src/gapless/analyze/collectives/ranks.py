"""Group profiles by run, and compare the ranks of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from gapless.analyze.collectives.meetings import (
    collectives_by_group,
    find_meetings,
    number_ranks,
    rank_in_name,
)
from gapless.analyze.collectives.pairing import KernelPairs, SeriesByName, match_kernels
from gapless.analyze.collectives.straggler import find_straggler, mean_delays
from gapless.analyze.collectives.waiting import latecomers, split_collectives
from gapless.model import Profile, Ranks, RankSummary
from gapless.model.wording import count

_MIN_EPOCH_TIME = 10**17
"""Times below this count from the machine's start, not from 1970, and cannot be compared across machines."""

_MAX_CLOCK_DIFFERENCE = 10**9
"""Nanoseconds by which the clocks of two machines may differ; beyond, only matching collectives count."""

_MAX_START_DIFFERENCE = 3600 * 10**9
"""Files that begin further apart than this are of different runs: no clock is an hour wrong."""

_RANK_IN_FOLDER = re.compile(
    r"((?<![a-z])(?:rank|worker|gpu|node|host|tp|dp|pp|ep)[-_=.]?)\d+", re.IGNORECASE
)


@dataclass(frozen=True)
class Grouping:
    """Profiles by run, each run sorted by rank, runs by start; `notes` say on what evidence."""

    runs: tuple[tuple[Profile, ...], ...]
    notes: tuple[str, ...] = ()


def group_runs(profiles: Sequence[Profile]) -> list[list[Profile]]:
    """Return the profiles grouped by run: see :func:`group_ranks`."""
    return [list(run) for run in group_ranks(profiles).runs]


def group_ranks(profiles: Sequence[Profile]) -> Grouping:
    """Group profiles that ranks of one run recorded at the same time.

    Two belong together if their ranks differ, their steps and world sizes agree, and either both hold the
    same collectives (at a constant distance), or both were recorded at the same time or by one launch and
    declare themselves ranks: in the file, or by names like ``rank3.json`` in one folder. The same rank twice
    is two captures. What cannot be shown to belong together stays apart.
    """
    files = sorted((_ProfileFile(profile) for profile in profiles), key=lambda profile: profile.sort_key)
    crowded = _has_repeated_rank(files)
    captures: list[list[_ProfileFile]] = []
    for file in files:
        fitting_captures = [capture for capture in captures if _belongs_to(file, capture, crowded)]
        if fitting_captures:
            min(
                fitting_captures, key=lambda capture: abs(capture[0].profile.origin - file.profile.origin)
            ).append(file)
        else:
            captures.append([file])
    runs = [
        tuple(file.profile for file in sorted(capture, key=lambda file: file.rank_key))
        for capture in captures
    ]
    notes = [note for capture in captures for note in _grouping_notes(capture)]
    return Grouping(tuple(runs), (*notes, *_repeat_notes(captures)))


@dataclass
class _ProfileFile:
    """A profile with what shows to which run it belongs."""

    profile: Profile
    rank: int = field(init=False)
    folder: str = field(init=False)
    sequences: dict[str, SeriesByName] = field(init=False)

    def __post_init__(self) -> None:
        path = PurePath(self.profile.path.replace("\\", "/"))
        self.folder = _RANK_IN_FOLDER.sub(r"\1#", os.fspath(path.parent))
        self.rank = self.profile.rank if self.records_rank else rank_in_name(self.profile.path)
        self.sequences = collectives_by_group(self.profile)

    @property
    def records_rank(self) -> bool:
        return self.profile.rank >= 0 and self.profile.world_size > 1

    @property
    def sort_key(self) -> tuple[int, int, str]:
        return self.profile.origin, self.rank, self.profile.path

    @property
    def rank_key(self) -> tuple[int, str, int]:
        return self.rank, self.profile.path, self.profile.origin


def _has_repeated_rank(files: list[_ProfileFile]) -> bool:
    """Whether one rank was recorded twice at overlapping times, so by two runs."""
    last: dict[int, _ProfileFile] = {}
    for file in files:
        if file.rank >= 0:
            if file.rank in last and _overlap_in_time(file.profile, last[file.rank].profile):
                return True
            last[file.rank] = file
    return False


def _belongs_to(file: _ProfileFile, capture: list[_ProfileFile], crowded: bool) -> bool:
    """Whether `file` is another rank of the run in `capture`."""
    if any(file.rank == other.rank >= 0 or file.profile is other.profile for other in capture):
        return False
    first = capture[0]
    worlds = {other.profile.world_size for other in (file, first)} - {0}
    if len(worlds) > 1 or 1 in worlds or max(worlds, default=len(capture) + 1) <= len(capture):
        return False
    if not _have_common_steps(file.profile, first.profile):
        return False
    both = file.records_rank == first.records_rank and min(file.rank, first.rank) >= 0
    if (
        both
        and (file.records_rank or file.folder == first.folder)
        and _are_concurrent(file.profile, first.profile)
    ):
        comparable = not file.sequences.keys().isdisjoint(first.sequences)
        if not (crowded and comparable) or _match_files(file, first, proof=False):
            return True
    return bool(_match_files(file, first, proof=True))


def _have_common_steps(profile: Profile, other: Profile) -> bool:
    """Whether numbered steps overlap; True for steps without numbers."""
    if profile.steps.source != other.steps.source:
        return False
    if profile.steps.source != "ProfilerStep" or not profile.steps.names or not other.steps.names:
        return True
    return not set(profile.steps.names).isdisjoint(other.steps.names)


def _match_files(file: _ProfileFile, other: _ProfileFile, *, proof: bool) -> KernelPairs:
    """Pair the first collectives that both files recorded; empty if none match."""
    apart = file.profile.origin - other.profile.origin
    if _count_from_epoch(file.profile, other.profile) and abs(apart) > _MAX_START_DIFFERENCE:
        return {}
    for name in sorted(file.sequences.keys() & other.sequences.keys()):
        pairs = match_kernels(other.sequences[name], file.sequences[name], apart, proof=proof)
        if pairs:
            return pairs
    return {}


def _are_concurrent(profile: Profile, other: Profile) -> bool:
    """Whether both were recorded by one launch or, if unknown, at one time.

    Ranks that exchange nothing may run one after the other on few processors.
    """
    if profile.launch and other.launch:
        return profile.launch == other.launch
    return _overlap_in_time(profile, other)


def _overlap_in_time(profile: Profile, other: Profile) -> bool:
    """Whether both may have been recorded at one time, given how far clocks differ."""
    if not _count_from_epoch(profile, other):
        return True
    begin = max(profile.origin, other.origin)
    end = min(profile.origin + profile.span, other.origin + other.span)
    return begin - end <= _MAX_CLOCK_DIFFERENCE


def _count_from_epoch(profile: Profile, other: Profile) -> bool:
    """Whether the times of both count from 1970."""
    return min(profile.origin, other.origin) >= _MIN_EPOCH_TIME


def _grouping_notes(capture: list[_ProfileFile]) -> list[str]:
    """Say on what evidence these files are treated as ranks of one run."""
    if len(capture) < 2:
        return []
    if all(file.records_rank for file in capture):
        return []  # the files declare it
    has_ranks = all(file.rank >= 0 for file in capture)
    by = (
        "their names and times"
        if has_ranks and not _match_files(capture[1], capture[0], proof=True)
        else "their collectives"
    )
    names = sorted(PurePath(file.profile.path).name for file in capture)
    return [
        f"{names[0]} and {count(len(names) - 1, 'other file')} are treated as ranks of one run, based on {by}"
    ]


def _repeat_notes(captures: list[list[_ProfileFile]]) -> list[str]:
    """Say that ranks were recorded more than once."""
    recordings: dict[int, int] = {}
    for capture in captures:
        if len(capture) > 1:
            for file in capture:
                if file.rank >= 0:
                    recordings[file.rank] = recordings.get(file.rank, 0) + 1
    repeats = {times for times in recordings.values() if times > 1}
    if not repeats:
        return []
    return [f"the same ranks were recorded up to {max(repeats)} times: each recording is reported separately"]


def summarize_ranks(profiles: Sequence[Profile]) -> tuple[RankSummary, ...]:
    """Return a row for each profile of one run, by rank; times in nanoseconds per step."""
    ranks = number_ranks(profiles)
    arrival = mean_delays(len(profiles), find_meetings(profiles))
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


def position_of_straggler(profiles: Sequence[Profile]) -> int:
    """Return the position of the profile whose rank the others wait for, -1 if there is none."""
    slowest = compare_ranks(profiles).straggler
    return slowest.position if slowest is not None else -1


def compare_ranks(profiles: Sequence[Profile]) -> Ranks:
    """Return the profiles of one run with the ranks that the others wait for."""
    matches = find_meetings(profiles)
    return Ranks(
        tuple(profiles),
        find_straggler(profiles, matches),
        latecomers(profiles, matches),
        split_collectives(matches),
    )


def missing_rank_notes(profiles: Sequence[Profile]) -> tuple[str, ...]:
    """Return a sentence for each thing missing from the profiles of one run."""
    if len(profiles) < 2:
        return ()
    ranks = number_ranks(profiles)
    matches = find_meetings(profiles)
    world = max(profile.world_size for profile in profiles)
    notes = []
    if world > len(profiles):
        notes.append(
            f"only {len(profiles)} of the run's {world} ranks are here: a missing rank may be slower"
        )
    for positions, why in (
        (matches.silent, "recorded no collective that shows when a rank arrives"),
        (
            matches.alone,
            "recorded only collectives that match no other rank's, so its arrival times are unknown",
        ),
    ):
        if positions:
            notes.append(f"{_format_ranks([ranks[at] for at in positions])} {why}")
    return tuple(notes)


def _format_ranks(numbers: list[int]) -> str:
    """``rank 3``, ``ranks 0-3 and 7``."""
    parts: list[list[int]] = []
    for rank in sorted(set(numbers)):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    texts = [f"{part[0]}-{part[-1]}" if len(part) > 2 else " and ".join(map(str, part)) for part in parts]
    noun = "rank" if len(set(numbers)) == 1 else "ranks"
    if len(texts) > 6:
        return f"{len(set(numbers))} {noun}"
    return f"{noun} {', '.join(texts)}"
