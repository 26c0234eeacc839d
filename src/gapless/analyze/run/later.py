"""Compare what a long run did later, kept only in sums, with the steps kept one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from gapless.analyze.run.steps import RunSteps
from gapless.model import Event, Session
from gapless.model.later import Later
from gapless.model.tally import ADVANCING
from gapless.model.wording import count, number

_MIN_RATIO = 1.1
"""Factor by which a line's waits per step must differ to be reported."""
_MIN_DIFFERENCE = 0.005
"""Syncs per step by which a line must differ, so that single waits do not count."""
_MAX_LINES_NAMED = 3
"""Lines named in the remark."""


def later_steps(later: Later, session: Session, steps: RunSteps) -> int:
    """Return the number of steps in `later`, by the share of its marks that end a step."""
    kept: Counter[tuple[str, str]] = Counter((mark.kind, mark.name) for mark in session.marks)
    chosen: Counter[tuple[str, str]] = Counter((mark.kind, mark.name) for mark in steps.marks)
    kinds = {mark.kind for mark in steps.marks}
    total = 0.0
    for mark in later.marks:
        key = mark.kind, mark.name
        if mark.kind in kinds and key in kept:
            total += mark.count * chosen[key] / kept[key]
        elif mark.kind in kinds:
            total += mark.count
    return round(total)


def with_late_sites(session: Session, steps: RunSteps) -> Session:
    """Return `session` with an event in its last step for each site that waits only later."""
    later = session.later
    if later is None or not steps.seen:
        return session
    before = {event.site for event in session.events}
    tick = sum(mark.kind in ADVANCING for mark in session.marks) - 1 if steps.strands else steps.ends[-1]
    new = [
        msgspec.structs.replace(
            event,
            tick=tick,
            time=session.events[-1].time if session.events else event.time,
            calls=_mean(event.calls, later),
            waits=_mean(event.waits, later),
            bytes=_mean(event.bytes, later),
        )
        for event in later.events
        if event.site not in before
    ]
    return msgspec.structs.replace(session, events=(*session.events, *new))


def _mean(total: int, later: Later) -> int:
    """Return how much of `total` falls to a tick; at least 1 if there is any."""
    return max(round(total / max(later.ticks, 1)), min(total, 1))


def remark(session: Session, steps: RunSteps) -> Iterator[str]:
    """Yield which steps the report does not count, and whether they waited like those before."""
    later = session.later
    if later is None or not later.ticks:
        return
    number_of_steps = later_steps(later, session, steps) if steps.seen else 0
    waits = f"{later.waits:,} sync{'' if later.waits == 1 else 's'}"
    if not number_of_steps:
        yield f"the end of the run was not looked at step by step, but in sums: {waits}"
        return
    placed = steps.assign_ticks(session.events, session.strands)
    steady = set(steps.steady)
    kept = [event for event in placed if steps.of(event.tick) in steady]
    before = sum(event.waits for event in kept)
    text = (
        f"the first {steps.seen:,} steps were looked at one by one; of the {number_of_steps:,} after them "
        f"only sums were kept: {waits}, {_number(later.waits / number_of_steps)} per step "
        f"({_number(before / len(steady))} before)"
    )
    unlike = list(
        _changed_lines(_by_line(session, kept), _by_line(session, later.events), len(steady), number_of_steps)
    )
    if unlike:
        more = (
            f", and {count(len(unlike) - _MAX_LINES_NAMED, 'other line')}"
            if len(unlike) > _MAX_LINES_NAMED
            else ""
        )
        text += f"; other than before: {', '.join(unlike[:_MAX_LINES_NAMED])}{more}"
    yield text


def _changed_lines(
    before: Counter[str], after: Counter[str], steps_before: int, steps_after: int
) -> Iterator[str]:
    """Yield the lines that wait more or less often later than before, largest difference first."""
    rates = {
        where: (before[where] / steps_before, after[where] / steps_after) for where in {**before, **after}
    }
    for where, (earlier, now) in sorted(rates.items(), key=lambda item: -abs(item[1][0] - item[1][1])):
        if abs(now - earlier) > _MIN_DIFFERENCE and max(now, earlier) > _MIN_RATIO * min(now, earlier):
            yield f"{where} ({_number(now)} per step, {_number(earlier)} before)"


def _number(per_step: float) -> str:
    return number(round(per_step, 2))


def _by_line(session: Session, events: Sequence[Event]) -> Counter[str]:
    """Count the waits of `events` by line, or by operator without a line."""
    waits: Counter[str] = Counter()
    for event in events:
        line = session.sites[event.site].line
        waits[line.short if line is not None else session.sites[event.site].operator] += event.waits
    return waits
