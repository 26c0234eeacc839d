"""The sentence of a proof."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model import Finding
from gapless.model.proof import CaseResult, Cost, Difference, Timing
from gapless.model.wording import count, number, three_digits


def verdict(cases: Sequence[CaseResult], costs: Sequence[Cost], time: Timing | None) -> str:
    """Whether the two are the same, what came of the time, and of the waits; without a full stop."""
    different = [case for case in cases if case.outcome == "differs"]
    races = new_races(costs)
    outside = [case for case in cases if case.outcome == "outside"]
    same = "The same" + (f" within the contract ({_outside(outside)})" if outside else "")
    parts = [_not_same(different) if different else _raced(races) if races else _same(same, time)]
    if time is not None and different:
        parts.append(_speed(time))
    if costs:
        parts.append(waits(costs))
    return "; ".join(part for part in parts if part)


def new_races(costs: Sequence[Cost]) -> list[Finding]:
    """Races that the second side has, and the first has not: equal numbers are luck, or the emulation's."""
    if not costs or any(one.is_race for one in costs[0].findings):
        return []
    return [one for one in costs[1].findings if one.is_race]


def _raced(races: Sequence[Finding]) -> str:
    first, more = races[0], len(races) - 1
    where = f" at {first.line.short}" if first.line is not None else ""
    others = f" ({more} other{'' if more == 1 else 's'} too)" if more else ""
    return f"Not the same: a race{where}, {first.code} {first.name}{others}"


def _not_same(different: Sequence[CaseResult]) -> str:
    first = different[0]
    more = len(different) - 1
    others = f" ({more} other case{'' if more == 1 else 's'} too)" if more else ""
    return f"Not the same: case `{first.name}`, {difference(first.differences[0])}{others}"


def difference(one: Difference) -> str:
    """What differs, in a few words."""
    where = f"call {one.call}, {one.where}" if one.call else one.where
    if one.kind != "value":
        return f"{where} {_what(one)}"
    if one.largest < 0:
        return f"{where} is {one.after} instead of {one.before}"
    return f"{where}, largest difference {three(one.largest)} ({one.after} instead of {one.before})"


def _what(difference: Difference) -> str:
    if difference.kind == "error":
        return f"gives {difference.after} instead of {difference.before}"
    if difference.kind == "gradient":
        return difference.after
    kind = "" if difference.kind in ("structure", "type") else f"{difference.kind} "
    return (
        f"has {kind}{difference.after} instead of {difference.before}"
        if kind
        else f"is {difference.after} instead of {difference.before}"
    )


def _outside(cases: Sequence[CaseResult]) -> str:
    """``3 cases outside of it differ, `empty mask` first``."""
    first = f"`{cases[0].name}`"
    return (
        f"{len(cases)} cases outside of it differ, {first} first"
        if cases[1:]
        else f"{first} is outside of it"
    )


def _same(same: str, time: Timing | None) -> str:
    if time is None:
        return same
    if time.faster == "neither":
        return f"{same}, with no measurable difference in time ({_range(time)}{_clock(time)})"
    if time.faster == "after":
        return f"{same}, and {times(time.ratio.median)} ({_range(time)}) faster{_on(time)}"
    return f"{same}, but slower here: {times(time.ratio.median)} ({_range(time)}{_clock(time)})"


def _speed(time: Timing) -> str:
    if time.faster == "neither":
        return "no measurable difference in time"
    if time.faster == "before":
        return f"slower here: {times(time.ratio.median)} ({_range(time)}{_clock(time)})"
    return f"{times(time.ratio.median)} ({_range(time)}) faster{_on(time)}"


def _range(time: Timing) -> str:
    return f"{ratio(time.ratio.low)}–{ratio(time.ratio.high)}"


def _clock(time: Timing) -> str:
    return ", CPU time" if time.clock == "CPU" else ""


def _on(time: Timing) -> str:
    return " in CPU time" if time.clock == "CPU" else ""


def times(value: float) -> str:
    """``3.1×``."""
    return f"{ratio(value)}×"


def ratio(value: float) -> str:
    """A quotient of times: two digits where it is near 1, three where it is large."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1.95 else f"{value:.2f}"


def three(value: float) -> str:
    """A difference: ``0.25``, ``3.1e-05``."""
    return three_digits(value) if 0.01 <= value < 1e6 else f"{value:.2g}"


def waits(costs: Sequence[Cost]) -> str:
    """How often a call waits now, and how often it did."""
    before, after = (one.waits for one in costs)
    if before == after:
        return f"{_waits(after)} per call, as before"
    return f"{_waits(after)} per call instead of {number(before)}"


def _waits(value: float) -> str:
    return count(value, "sync") if value else "no sync"
