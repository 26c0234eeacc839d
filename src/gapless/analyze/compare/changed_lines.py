"""Device time and idleness by the user's line, before and after."""

from __future__ import annotations

from collections import defaultdict

from gapless.analyze.compare.both import ProfilePair
from gapless.analyze.compare.device_time import MAX_KERNELS_LISTED
from gapless.analyze.compare.matching import ComparedPlace, match_places
from gapless.analyze.compare.verdict import judge_change
from gapless.model import Profile
from gapless.model.comparison import LineChange, State

LineTimes = tuple[float, float]
"""Nanoseconds of device time launched from a place (-1 if unknown) and of idleness it causes."""


def line_changes(pair: ProfilePair, floor: float) -> tuple[LineChange, ...]:
    """Match lines one to one, those that changed most first; a change up to `floor` is ignored."""
    old, new = _by_line(pair.before, pair.divisors[0]), _by_line(pair.after, pair.divisors[1])
    before, after = list(old), list(new)
    nothing = _default_line_times(pair.before), _default_line_times(pair.after)
    rows = []
    for i, j in match_places(before, after):
        was = before[i] if i is not None else None
        now = after[j] if j is not None else None
        rows.append(
            _change(was, now, old[was] if was else nothing[0], new[now] if now else nothing[1], floor)
        )
    return tuple(sorted(rows, key=_sort_key))


def _change(
    was: ComparedPlace | None, now: ComparedPlace | None, before: LineTimes, after: LineTimes, floor: float
) -> LineChange:
    place = now or was
    if place and place.line is None:
        before, after = (-1.0, before[1]), (-1.0, after[1])
    return LineChange(
        state=_state(was, now, before, after, floor),
        was=was.line if was else None,
        line=now.line if now else None,
        place=place.text if place else "",
        device_before=before[0],
        device_after=after[0],
        idle_before=before[1],
        idle_after=after[1],
    )


def _state(
    was: ComparedPlace | None, now: ComparedPlace | None, before: LineTimes, after: LineTimes, floor: float
) -> State:
    state = judge_change(_known_time(before), _known_time(after), floor)
    has_line = bool((was or now or ComparedPlace("", None)).line)
    if state == "gone" and (now or (has_line and after[0] < 0)):  # the line exists, or may exist
        return "less"
    if state == "new" and (was or (has_line and before[0] < 0)):
        return "more"
    return state


def _known_time(time: LineTimes) -> float:
    return max(time[0], 0.0) + time[1]


def _sort_key(row: LineChange) -> tuple[float, float]:
    before = _known_time((row.device_before, row.idle_before))
    after = _known_time((row.device_after, row.idle_after))
    return (-abs(after - before), -max(before, after))


def _default_line_times(profile: Profile) -> LineTimes:
    return (-1.0 if len(profile.lines) >= MAX_KERNELS_LISTED else 0.0, 0.0)


def _by_line(profile: Profile, steps: int) -> dict[ComparedPlace, LineTimes]:
    device: dict[ComparedPlace, int] = defaultdict(int)
    idle: dict[ComparedPlace, int] = defaultdict(int)
    for line in profile.lines:
        if line.site.line:  # without lines the operators say it
            device[ComparedPlace("", line.site.line)] += line.total
    for cost in profile.costs:
        if cost.idle:
            where = cost.site.line
            place = ComparedPlace("", where, "" if where else cost.place or cost.site.operator)
            if where or place.text:
                idle[place] += cost.idle
    absent = _default_line_times(profile)[0]

    return {
        place: (device[place] / steps if place in device else absent, idle[place] / steps)
        for place in {**device, **idle}
    }
