"""Device time by kernel and by operator, before and after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gapless.analyze.compare.both import ProfilePair
from gapless.analyze.compare.matching import match_names
from gapless.analyze.compare.verdict import judge_change
from gapless.model import Profile
from gapless.model.comparison import State, WorkChange
from gapless.model.profile import KernelTime

MAX_KERNELS_LISTED = 40
"""A profile keeps at most this many kernels: a kernel missing from a full list may still have run."""


class _UnlistedTimes(NamedTuple):
    """Upper bounds of the nanoseconds that unlisted kernels take per side; 0 where the list is complete."""

    before: float
    after: float


def kernel_changes(pair: ProfilePair, floor: float) -> tuple[WorkChange, ...]:
    """Match kernels by name, those that changed most first; a change up to `floor` is ignored."""
    old, new = pair.before.kernels, pair.after.kernels
    limits = _UnlistedTimes(*(_max_unlisted_time(profile) / by for profile, by in _sides(pair)))
    rows = []
    for left, right in match_names([kernel.name for kernel in old], [kernel.name for kernel in new]):
        was, now = [old[i] for i in left], [new[j] for j in right]
        longest = max(now or was, key=lambda kernel: kernel.total)
        exact = {kernel.name for kernel in was} == {kernel.name for kernel in now}
        former = max(was, key=lambda kernel: kernel.total).name if was and now and not exact else ""
        change = _work_change(longest.name, was, now, pair, limits, floor)
        rows.append(msgspec.structs.replace(change, was=former, operator=longest.operator))
    return _sort_changes(rows)


def operator_changes(pair: ProfilePair, floor: float) -> tuple[WorkChange, ...]:
    """Sum kernels by the operator that launched most of them; kernels without an operator are left out.

    Where a list of kernels is cut, a change counts only if the missing kernels cannot explain it, and
    launches are not counted.
    """
    old, new = _by_operator(pair.before), _by_operator(pair.after)
    limits = _UnlistedTimes(*(_total_unlisted_time(profile) / by for profile, by in _sides(pair)))
    rows = []
    for name in {**old, **new}:
        if name:
            change = _work_change(
                name, old.get(name, []), new.get(name, []), pair, limits, max(floor, *limits)
            )
            if any(limits):
                change = msgspec.structs.replace(change, calls_before=-1.0, calls_after=-1.0)
            rows.append(change)
    return _sort_changes(rows)


def _sides(pair: ProfilePair) -> tuple[tuple[Profile, int], ...]:
    return tuple(zip((pair.before, pair.after), pair.divisors, strict=True))


def _by_operator(profile: Profile) -> dict[str, list[KernelTime]]:
    by_operator: dict[str, list[KernelTime]] = defaultdict(list)
    for kernel in profile.kernels:
        by_operator[kernel.operator].append(kernel)
    return by_operator


def _max_unlisted_time(profile: Profile) -> int:
    """The longest that an unlisted kernel can have taken, in nanoseconds."""
    return (
        min(kernel.total for kernel in profile.kernels) if len(profile.kernels) >= MAX_KERNELS_LISTED else 0
    )


def _total_unlisted_time(profile: Profile) -> int:
    """Nanoseconds of all unlisted kernels together, at least the maximum of a single one."""
    if len(profile.kernels) < MAX_KERNELS_LISTED:
        return 0
    all_of_them = profile.split.kernel + profile.split.communication
    return max(_max_unlisted_time(profile), all_of_them - sum(kernel.total for kernel in profile.kernels))


def _work_change(
    name: str,
    old: Sequence[KernelTime],
    new: Sequence[KernelTime],
    pair: ProfilePair,
    limits: _UnlistedTimes,
    floor: float,
) -> WorkChange:
    before, calls_before = _time_and_calls(old, pair.divisors[0], unlisted=limits.before > 0)
    after, calls_after = _time_and_calls(new, pair.divisors[1], unlisted=limits.after > 0)
    return WorkChange(
        name=name,
        state=_state(before, after, limits, floor),
        before=before,
        after=after,
        calls_before=calls_before,
        calls_after=calls_after,
        at_most=limits.before if before < 0 else limits.after if after < 0 else 0.0,
    )


def _time_and_calls(kernels: Sequence[KernelTime], by: int, unlisted: bool) -> tuple[float, float]:
    if not kernels and unlisted:
        return -1.0, -1.0
    return sum(kernel.total for kernel in kernels) / by, sum(kernel.calls for kernel in kernels) / by


def _state(before: float, after: float, limits: _UnlistedTimes, floor: float) -> State:
    """Return how a time changed; if one side (-1) is unlisted, only what holds for any time it may have."""
    if before < 0:
        return "more" if after - limits.before > floor else "same"
    if after < 0:
        return "less" if before - limits.after > floor else "same"
    return judge_change(before, after, floor)


def _sort_changes(rows: Sequence[WorkChange]) -> tuple[WorkChange, ...]:
    def key(row: WorkChange) -> tuple[float, float, str]:
        before, after = row.before, row.after
        if before < 0:
            before = min(row.at_most, after)
        if after < 0:
            after = min(row.at_most, before)
        return (-abs(after - before), -max(before, after), row.name)

    return tuple(sorted(rows, key=key))
