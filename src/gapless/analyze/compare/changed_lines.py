"""Device time and idleness by the user's line, before and after."""

from __future__ import annotations

from collections import defaultdict

from gapless.analyze.compare.both import Both
from gapless.analyze.compare.device_time import LISTED
from gapless.analyze.compare.matching import Place, match_places
from gapless.analyze.compare.verdict import verdict
from gapless.model import Profile
from gapless.model.comparison import LineChange, State

Time = tuple[float, float]
"""Device time launched from a place (-1 where it is not told) and idleness because of it."""


def lines(pair: Both, floor: float) -> tuple[LineChange, ...]:
    """Lines one to one, those that changed most first; a change up to `floor` is none."""
    old, new = _by_line(pair.before, pair.by[0]), _by_line(pair.after, pair.by[1])
    before, after = list(old), list(new)
    nothing = _absent(pair.before), _absent(pair.after)
    rows = []
    for i, j in match_places(before, after):
        was = before[i] if i is not None else None
        now = after[j] if j is not None else None
        rows.append(
            _change(was, now, old[was] if was else nothing[0], new[now] if now else nothing[1], floor)
        )
    return tuple(sorted(rows, key=_key))


def _change(was: Place | None, now: Place | None, before: Time, after: Time, floor: float) -> LineChange:
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


def _state(was: Place | None, now: Place | None, before: Time, after: Time, floor: float) -> State:
    state = verdict(_sum(before), _sum(after), floor)
    known = bool((was or now or Place("", None)).line)
    if state == "gone" and (now or (known and after[0] < 0)):  # the line is there, or may be
        return "less"
    if state == "new" and (was or (known and before[0] < 0)):
        return "more"
    return state


def _sum(time: Time) -> float:
    return max(time[0], 0.0) + time[1]


def _key(row: LineChange) -> tuple[float, float]:
    before = _sum((row.device_before, row.idle_before))
    after = _sum((row.device_after, row.idle_after))
    return (-abs(after - before), -max(before, after))


def _absent(profile: Profile) -> Time:
    return (-1.0 if len(profile.lines) >= LISTED else 0.0, 0.0)


def _by_line(profile: Profile, by: int) -> dict[Place, Time]:
    device: dict[Place, int] = defaultdict(int)
    idle: dict[Place, int] = defaultdict(int)
    for line in profile.lines:
        if line.site.line:  # without lines the operators say it
            device[Place("", line.site.line)] += line.total
    for cost in profile.costs:
        if cost.idle:
            where = cost.site.line
            place = Place("", where, "" if where else cost.place or cost.site.operator)
            if where or place.text:
                idle[place] += cost.idle
    absent = _absent(profile)[0]

    return {
        place: (device[place] / by if place in device else absent, idle[place] / by)
        for place in {**device, **idle}
    }
