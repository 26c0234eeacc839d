"""Device time by kernel and by operator, before and after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gapless.analyze.compare.both import Both
from gapless.analyze.compare.matching import match_names
from gapless.analyze.compare.verdict import verdict
from gapless.model import Profile
from gapless.model.comparison import State, WorkChange
from gapless.model.profile import KernelTime

LISTED = 40
"""A list this long may have been cut: what is not in it need not be absent."""


def kernels(pair: Both, floor: float) -> tuple[WorkChange, ...]:
    """Kernels matched by name, those that changed most first; a change up to `floor` is none."""
    old, new = pair.before.kernels, pair.after.kernels
    limits = _limits(pair)
    rows = []
    for left, right in match_names([one.name for one in old], [one.name for one in new]):
        was, now = [old[i] for i in left], [new[j] for j in right]
        longest = max(now or was, key=lambda one: one.total)
        exact = {one.name for one in was} == {one.name for one in now}
        former = max(was, key=lambda one: one.total).name if was and now and not exact else ""
        rows.append(_change(longest.name, was, now, pair, limits, floor, former, longest.operator))
    return _ordered(rows, limits)


def operators(pair: Both, floor: float) -> tuple[WorkChange, ...]:
    """Kernels by the operator that launched them; those that no operator launched are left out."""
    old, new = _by_operator(pair.before), _by_operator(pair.after)
    limits = _limits(pair)
    rows = [
        _change(name, old.get(name, []), new.get(name, []), pair, limits, floor)
        for name in {**old, **new}
        if name
    ]
    return _ordered(rows, limits)


def _by_operator(profile: Profile) -> dict[str, list[KernelTime]]:
    found: dict[str, list[KernelTime]] = defaultdict(list)
    for kernel in profile.kernels:
        found[kernel.operator].append(kernel)
    return found


def _limits(pair: Both) -> tuple[float, float]:
    """For each side what a kernel that is not listed can take at most: nothing, where the list is whole."""
    before, after = (
        min(one.total for one in profile.kernels) / by if len(profile.kernels) >= LISTED else 0.0
        for profile, by in zip((pair.before, pair.after), pair.by, strict=True)
    )
    return before, after


def _change(
    name: str,
    old: Sequence[KernelTime],
    new: Sequence[KernelTime],
    pair: Both,
    limits: tuple[float, float],
    floor: float,
    was: str = "",
    operator: str = "",
) -> WorkChange:
    before, calls_before = _time_and_calls(old, pair.by[0], unlisted=bool(limits[0]))
    after, calls_after = _time_and_calls(new, pair.by[1], unlisted=bool(limits[1]))
    return WorkChange(
        name=name,
        state=_state(before, after, limits, floor),
        before=before,
        after=after,
        calls_before=calls_before,
        calls_after=calls_after,
        was=was,
        operator=operator,
    )


def _time_and_calls(some: Sequence[KernelTime], by: int, unlisted: bool) -> tuple[float, float]:
    if not some and unlisted:
        return -1.0, -1.0
    return sum(one.total for one in some) / by, sum(one.calls for one in some) / by


def _state(before: float, after: float, limits: tuple[float, float], floor: float) -> State:
    """What became of it; where one side does not list it, only what holds whatever it took there."""
    if before < 0:
        return "more" if after - limits[0] > floor else "same"
    if after < 0:
        return "less" if before - limits[1] > floor else "same"
    return verdict(before, after, floor)


def _ordered(rows: Sequence[WorkChange], limits: tuple[float, float]) -> tuple[WorkChange, ...]:
    def key(row: WorkChange) -> tuple[float, float, str]:
        before = row.before if row.before >= 0 else min(limits[0], row.after)
        after = row.after if row.after >= 0 else min(limits[1], row.before)
        return (-abs(after - before), -max(before, after), row.name)

    return tuple(sorted(rows, key=key))
