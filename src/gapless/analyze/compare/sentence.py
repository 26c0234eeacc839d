"""The sentence a comparison begins with."""

from __future__ import annotations

from gapless.model.comparison import Comparison, Measure, percents, scale
from gapless.model.wording import count, duration, number, rate, three_digits

MAX_PERCENT_UNCHANGED = 0.5
"""A change of less than this percentage rounds to none and is called "as before"."""


def profile_sentence(comparison: Comparison) -> str:
    """Say how the time of the step changed, and how long the device is idle in it."""
    subject = "The step" if comparison.per == "step" else "The whole trace"
    change = comparison.length.percent
    if change is not None and abs(change) < MAX_PERCENT_UNCHANGED:
        text = f"{subject} takes {duration(comparison.length.after)} as before"
    else:
        text = f"{subject} takes {in_place_of(comparison.length)}"
        text += f": {_by_how_much(comparison.length)}" if change is not None else ""
        if comparison.within_spread:
            text += ", but within the spread of the steps"
    idle = comparison.idle
    if idle is None or not max(idle.before, idle.after):
        return text
    changed = abs(idle.change) > 0.01 * max(comparison.length.before, comparison.length.after)
    text += "; the GPU is idle for "
    if not changed:
        return text + f"{duration(idle.after)} of it, as before"
    return text + in_place_of(idle, " of it") + _because(comparison, idle)


def _because(comparison: Comparison, idle: Measure) -> str:
    """Name the cause with at least half of the change in idleness; "" if no cause has."""
    cause = max(comparison.causes, key=lambda row: abs(row.change), default=None)
    if cause is None or cause.change * idle.change <= 0 or abs(cause.change) < 0.5 * abs(idle.change):
        return ""
    return f" ({cause.name}: {in_place_of(cause)})"


def in_place_of(measure: Measure, of: str = "") -> str:
    """``485 ms instead of 678``, in one unit; `of` is put behind the unit."""
    less, more = sorted((measure.before, measure.after))
    # 600 µs beside 1,000 says more than 0.6 ms beside 1.
    unit = scale(less if 0 < less < 1e6 <= more < 1e7 else more)
    before, after = (three_digits(time / unit.nanoseconds) for time in (measure.before, measure.after))
    return f"{after} {unit.name}{of} instead of {before}"


def _by_how_much(measure: Measure) -> str:
    change = measure.percent or 0.0
    if change >= 100:
        return f"{number(round(measure.after / measure.before, 1))} times as long"
    return f"{percents(change)} {'less' if change < 0 else 'more'}"


def session_sentence(comparison: Comparison) -> str:
    """Say how many syncs a step has, and how many findings are gone and new."""
    before, after = comparison.length.before, comparison.length.after
    if before == after:
        text = f"{_waits(comparison, after)}, as before"
    elif comparison.per == "step" and 0 < min(before, after) < 1:
        text = f"{_waits(comparison, after)} instead of {rate(before, 'sync')}"
    else:
        text = f"{_waits(comparison, after)} instead of {number(before)}"
    states = [row.state for row in comparison.findings if not row.unseen]
    parts = [f"{count(states.count('gone'), 'finding')} gone"] if "gone" in states else []
    if "new" in states:
        new = states.count("new")
        parts.append(f"{new} new" if parts else f"{count(new, 'new finding')}")
    return text + ("; " + ", ".join(parts) if parts else "")


def _waits(comparison: Comparison, waits: float) -> str:
    if comparison.per == "step":
        return rate(waits, "sync", "training step") if waits else "No syncs per training step"
    return f"{count(waits, 'sync') if waits else 'No syncs'} in the whole run"
