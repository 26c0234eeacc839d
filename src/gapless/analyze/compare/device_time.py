"""Device time by kernel and by operator, before and after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gapless.analyze.compare.both import Both
from gapless.analyze.compare.matching import match_names
from gapless.analyze.compare.verdict import verdict
from gapless.model import Profile
from gapless.model.comparison import State, WorkChange
from gapless.model.profile import KernelTime

LISTED = 40
"""A list this long may have been cut: what is not in it need not be absent."""


class _Limits(NamedTuple):
    """For each side what may be missing from its list, in nanoseconds; 0 where the list is whole."""

    before: float
    after: float


def kernels(pair: Both, floor: float) -> tuple[WorkChange, ...]:
    """Kernels matched by name, those that changed most first; a change up to `floor` is none."""
    old, new = pair.before.kernels, pair.after.kernels
    limits = _Limits(*(_shortest(one) / by for one, by in _sides(pair)))
    rows = []
    for left, right in match_names([one.name for one in old], [one.name for one in new]):
        was, now = [old[i] for i in left], [new[j] for j in right]
        longest = max(now or was, key=lambda one: one.total)
        exact = {one.name for one in was} == {one.name for one in now}
        former = max(was, key=lambda one: one.total).name if was and now and not exact else ""
        made = _change(longest.name, was, now, pair, limits, floor)
        rows.append(msgspec.structs.replace(made, was=former, operator=longest.operator))
    return _ordered(rows)


def operators(pair: Both, floor: float) -> tuple[WorkChange, ...]:
    """Kernels by the operator that launched most of them; those that no operator launched are left out.

    Where a list of kernels is cut, a change counts only if what is missing cannot explain it, and launches
    are not told.
    """
    old, new = _by_operator(pair.before), _by_operator(pair.after)
    limits = _Limits(*(_missing(one) / by for one, by in _sides(pair)))
    rows = []
    for name in {**old, **new}:
        if name:
            made = _change(name, old.get(name, []), new.get(name, []), pair, limits, max(floor, *limits))
            if any(limits):
                made = msgspec.structs.replace(made, calls_before=-1.0, calls_after=-1.0)
            rows.append(made)
    return _ordered(rows)


def _sides(pair: Both) -> tuple[tuple[Profile, int], ...]:
    return tuple(zip((pair.before, pair.after), pair.by, strict=True))


def _by_operator(profile: Profile) -> dict[str, list[KernelTime]]:
    found: dict[str, list[KernelTime]] = defaultdict(list)
    for kernel in profile.kernels:
        found[kernel.operator].append(kernel)
    return found


def _shortest(profile: Profile) -> int:
    """What a kernel that is not listed can take at most."""
    return min(one.total for one in profile.kernels) if len(profile.kernels) >= LISTED else 0


def _missing(profile: Profile) -> int:
    """What all kernels that are not listed take together, and at least what one of them may."""
    if len(profile.kernels) < LISTED:
        return 0
    all_of_them = profile.split.kernel + profile.split.communication
    return max(_shortest(profile), all_of_them - sum(one.total for one in profile.kernels))


def _change(
    name: str,
    old: Sequence[KernelTime],
    new: Sequence[KernelTime],
    pair: Both,
    limits: _Limits,
    floor: float,
) -> WorkChange:
    before, calls_before = _time_and_calls(old, pair.by[0], unlisted=limits.before > 0)
    after, calls_after = _time_and_calls(new, pair.by[1], unlisted=limits.after > 0)
    return WorkChange(
        name=name,
        state=_state(before, after, limits, floor),
        before=before,
        after=after,
        calls_before=calls_before,
        calls_after=calls_after,
        at_most=limits.before if before < 0 else limits.after if after < 0 else 0.0,
    )


def _time_and_calls(some: Sequence[KernelTime], by: int, unlisted: bool) -> tuple[float, float]:
    if not some and unlisted:
        return -1.0, -1.0
    return sum(one.total for one in some) / by, sum(one.calls for one in some) / by


def _state(before: float, after: float, limits: _Limits, floor: float) -> State:
    """What became of it; where one side does not list it, only what holds whatever it took there."""
    if before < 0:
        return "more" if after - limits.before > floor else "same"
    if after < 0:
        return "less" if before - limits.after > floor else "same"
    return verdict(before, after, floor)


def _ordered(rows: Sequence[WorkChange]) -> tuple[WorkChange, ...]:
    def key(row: WorkChange) -> tuple[float, float, str]:
        before, after = row.before, row.after
        if before < 0:
            before = min(row.at_most, after)
        if after < 0:
            after = min(row.at_most, before)
        return (-abs(after - before), -max(before, after), row.name)

    return tuple(sorted(rows, key=key))
