"""Write the verdict of a proof in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model import Finding
from gapless.model.proof import CallCost, CaseResult, Difference, Timing
from gapless.model.wording import count, number, three_digits


def make_verdict(cases: Sequence[CaseResult], costs: Sequence[CallCost], time: Timing | None) -> str:
    """Say whether the two are the same, which is faster, and how often they wait; without a full stop."""
    different = [case for case in cases if case.outcome == "differs"]
    races = find_new_races(costs)
    outside = [case for case in cases if case.outcome == "outside"]
    same = "The same" + (f" within the contract ({_describe_outside(outside)})" if outside else "")
    parts = [
        _describe_first_difference(different)
        if different
        else _describe_races(races)
        if races
        else _describe_same(same, time)
    ]
    if time is not None and different:
        parts.append(_describe_speed(time))
    if costs:
        parts.append(describe_waits(costs))
    return "; ".join(part for part in parts if part)


def find_new_races(costs: Sequence[CallCost]) -> list[Finding]:
    """Return races of the second side if the first has none; results may be equal by luck or emulation."""
    if not costs or any(finding.is_race for finding in costs[0].findings):
        return []
    return [finding for finding in costs[1].findings if finding.is_race]


def _describe_races(races: Sequence[Finding]) -> str:
    first, more = races[0], len(races) - 1
    where = f" at {first.line.short}" if first.line is not None else ""
    more_races = f" ({more} other{'' if more == 1 else 's'} too)" if more else ""
    return f"Not the same: a race{where}, {first.code} {first.name}{more_races}"


def _describe_first_difference(different: Sequence[CaseResult]) -> str:
    first = different[0]
    more = len(different) - 1
    more_cases = f" ({more} other case{'' if more == 1 else 's'} too)" if more else ""
    return f"Not the same: case `{first.name}`, {describe_difference(first.differences[0])}{more_cases}"


def describe_difference(difference: Difference) -> str:
    """Return a few words on a difference."""
    where = f"call {difference.call}, {difference.where}" if difference.call else difference.where
    if difference.kind != "value":
        return f"{where} {_describe_other_kind(difference)}"
    if difference.largest < 0:
        return f"{where} is {difference.after} instead of {difference.before}"
    largest = format_difference(difference.largest)
    return f"{where}, largest difference {largest} ({difference.after} instead of {difference.before})"


def _describe_other_kind(difference: Difference) -> str:
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


def _describe_outside(cases: Sequence[CaseResult]) -> str:
    """Return ``3 cases outside of it differ, `empty mask` first``."""
    first = f"`{cases[0].name}`"
    return (
        f"{len(cases)} cases outside of it differ, {first} first"
        if cases[1:]
        else f"{first} is outside of it"
    )


def _describe_same(same: str, time: Timing | None) -> str:
    if time is None:
        return same
    if time.faster == "neither":
        return f"{same}, with no measurable difference in time ({_format_range(time)}{_clock_suffix(time)})"
    if time.faster == "after":
        return (
            f"{same}, and {format_times(time.ratio.median)} ({_format_range(time)}) faster{_in_clock(time)}"
        )
    ratio = format_times(time.ratio.median)
    return f"{same}, but slower here: {ratio} ({_format_range(time)}{_clock_suffix(time)})"


def _describe_speed(time: Timing) -> str:
    if time.faster == "neither":
        return "no measurable difference in time"
    if time.faster == "before":
        return f"slower here: {format_times(time.ratio.median)} ({_format_range(time)}{_clock_suffix(time)})"
    return f"{format_times(time.ratio.median)} ({_format_range(time)}) faster{_in_clock(time)}"


def _format_range(time: Timing) -> str:
    return f"{format_ratio(time.ratio.low)}–{format_ratio(time.ratio.high)}"


def _clock_suffix(time: Timing) -> str:
    return ", CPU time" if time.clock == "CPU" else ""


def _in_clock(time: Timing) -> str:
    return " in CPU time" if time.clock == "CPU" else ""


def format_times(value: float) -> str:
    """Return a ratio as ``3.1×``."""
    return f"{format_ratio(value)}×"


def format_ratio(value: float) -> str:
    """Format a ratio of times: two decimals near 1, one above, none if large."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1.95 else f"{value:.2f}"


def format_difference(value: float) -> str:
    """Format a difference: ``0.25``, ``3.1e-05``."""
    return three_digits(value) if 0.01 <= value < 1e6 else f"{value:.2g}"


def describe_waits(costs: Sequence[CallCost]) -> str:
    """Say how often a call waits now, and how often it did."""
    before, after = (cost.waits for cost in costs)
    if before == after:
        return f"{_format_waits(after)} per call, as before"
    return f"{_format_waits(after)} per call instead of {number(before)}"


def _format_waits(value: float) -> str:
    return count(value, "sync") if value else "no sync"
