"""Findings before and after: gone, new, less, more."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from gapless.analyze.compare.matching import ComparedPlace, match_places
from gapless.analyze.compare.verdict import judge_change
from gapless.model import Finding
from gapless.model.comparison import FindingChange, State

_ORDER: tuple[State, ...] = ("gone", "new", "less", "more", "same")
MeasureFinding = Callable[[Finding], float]


def finding_changes(
    before: Sequence[Finding], after: Sequence[Finding], divisors: tuple[int, int], floor: float
) -> tuple[FindingChange, ...]:
    """Compare the findings of two profiles, totals divided by `by`; idleness up to `floor` is ignored."""

    def state(change: FindingChange) -> State:
        if max(change.idle_before, change.idle_after) > floor:
            state_ = judge_change(change.idle_before, change.idle_after, floor)
        else:
            state_ = judge_change(change.calls_before, change.calls_after)
        # The finding is on both sides, whatever its numbers became.
        return {"gone": "less", "new": "more"}.get(state_, state_)  # type: ignore[return-value]

    return _compare_findings(
        before,
        after,
        idle=(lambda finding: _idle(finding) / divisors[0], lambda finding: _idle(finding) / divisors[1]),
        calls=(lambda finding: _calls(finding) / divisors[0], lambda finding: _calls(finding) / divisors[1]),
        state=state,
    )


def _idle(finding: Finding) -> int:
    return finding.loss.idle if finding.loss else 0


def _calls(finding: Finding) -> int:
    return finding.loss.calls if finding.loss else finding.frequency.total


def session_changes(
    before: Sequence[Finding], after: Sequence[Finding], scripts: tuple[str, str]
) -> tuple[FindingChange, ...]:
    """Compare the findings of two sessions by their syncs per step, or in total outside of steps.

    The two `scripts` that were run count as one file, whatever their names.
    """

    def waits(finding: Finding) -> float:
        return finding.frequency.per_step or finding.frequency.waits

    def state(change: FindingChange) -> State:
        assert change.before is not None
        assert change.after is not None
        was, now = change.before.frequency, change.after.frequency
        # A wait in every third step stays one, however many steps were recorded.
        if (was.when, was.waits, was.every) == (now.when, now.waits, now.every):
            return "same"
        if bool(was.per_step) != bool(now.per_step):  # out of the steps, or into them
            return "less" if was.per_step else "more"
        return judge_change(change.calls_before, change.calls_after)

    return _compare_findings(before, after, (_zero, _zero), (waits, waits), state, scripts)


def _zero(finding: Finding) -> float:
    return 0.0


def _compare_findings(
    before: Sequence[Finding],
    after: Sequence[Finding],
    idle: tuple[MeasureFinding, MeasureFinding],
    calls: tuple[MeasureFinding, MeasureFinding],
    state: Callable[[FindingChange], State],
    scripts: tuple[str, str] = ("", ""),
) -> tuple[FindingChange, ...]:
    rows = []
    places = [_place_of(finding, scripts) for finding in before], [_place_of(finding) for finding in after]
    for i, j in match_places(*places, edited=False):
        was = before[i] if i is not None else None
        now = after[j] if j is not None else None
        row = FindingChange(
            state="same" if was and now else "gone" if was else "new",
            before=was,
            after=now,
            idle_before=idle[0](was) if was else 0.0,
            idle_after=idle[1](now) if now else 0.0,
            calls_before=calls[0](was) if was else 0.0,
            calls_after=calls[1](now) if now else 0.0,
        )
        rows.append(msgspec.structs.replace(row, state=state(row)) if was and now else row)
    return tuple(sorted(rows, key=_sort_key))


def _sort_key(row: FindingChange) -> tuple[int, float, float]:
    idle = -max(abs(row.idle_after - row.idle_before), 0.0)
    return (_ORDER.index(row.state), idle, -abs(row.calls_after - row.calls_before))


def _place_of(finding: Finding, scripts: tuple[str, str] = ("", "")) -> ComparedPlace:
    """Return where `finding` is; a line of the first of `scripts` counts as one of the second."""
    kind = finding.code + (" backward" if finding.backward else "")
    traits = (bool(finding.frequency.per_step), finding.frequency.when, finding.operators)
    line = finding.line
    if line is None:
        return ComparedPlace(kind, None, finding.place, traits)
    old, new = map(os.path.basename, scripts)
    if old and new and os.path.basename(line.file) == old:
        folder = os.path.dirname(line.file)
        line = msgspec.structs.replace(line, file=f"{folder}/{new}" if folder else new)
    return ComparedPlace(kind, line, traits=traits)
