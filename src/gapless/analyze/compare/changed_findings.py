"""Findings before and after: gone, new, less, more."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from gapless.analyze.compare.matching import Place, match_places
from gapless.analyze.compare.verdict import verdict
from gapless.model import Finding
from gapless.model.comparison import FindingChange, State

_ORDER: tuple[State, ...] = ("gone", "new", "less", "more", "same")
Number = Callable[[Finding], float]


def finding_changes(
    before: Sequence[Finding], after: Sequence[Finding], by: tuple[int, int], floor: float
) -> tuple[FindingChange, ...]:
    """Findings of two profiles, their totals divided by `by`; idleness up to `floor` matters to nobody."""

    def state(change: FindingChange) -> State:
        if max(change.idle_before, change.idle_after) > floor:
            found = verdict(change.idle_before, change.idle_after, floor)
        else:
            found = verdict(change.calls_before, change.calls_after)
        # It is there on both sides, whatever became of its numbers.
        return {"gone": "less", "new": "more"}.get(found, found)  # type: ignore[return-value]

    return _changes(
        before,
        after,
        idle=(lambda one: _idle(one) / by[0], lambda one: _idle(one) / by[1]),
        calls=(lambda one: _calls(one) / by[0], lambda one: _calls(one) / by[1]),
        state=state,
    )


def _idle(finding: Finding) -> int:
    return finding.loss.idle if finding.loss else 0


def _calls(finding: Finding) -> int:
    return finding.loss.calls if finding.loss else finding.frequency.total


def session_changes(
    before: Sequence[Finding], after: Sequence[Finding], scripts: tuple[str, str]
) -> tuple[FindingChange, ...]:
    """Findings of two sessions, by their waits per step; outside of steps by their waits in all.

    The two `scripts` that were run are one file to this, whatever their names.
    """

    def waits(finding: Finding) -> float:
        return finding.frequency.per_step or finding.frequency.waits

    def state(change: FindingChange) -> State:
        assert change.before is not None
        assert change.after is not None
        was, now = change.before.frequency, change.after.frequency
        # Every third step is every third step, however many steps were looked at.
        if (was.when, was.waits, was.every) == (now.when, now.waits, now.every):
            return "same"
        if bool(was.per_step) != bool(now.per_step):  # out of the steps, or into them
            return "less" if was.per_step else "more"
        return verdict(change.calls_before, change.calls_after)

    return _changes(before, after, (_nothing, _nothing), (waits, waits), state, scripts)


def _nothing(finding: Finding) -> float:
    return 0.0


def _changes(
    before: Sequence[Finding],
    after: Sequence[Finding],
    idle: tuple[Number, Number],
    calls: tuple[Number, Number],
    state: Callable[[FindingChange], State],
    scripts: tuple[str, str] = ("", ""),
) -> tuple[FindingChange, ...]:
    rows = []
    places = [_place(one, scripts) for one in before], [_place(one) for one in after]
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
    return tuple(sorted(rows, key=_key))


def _key(row: FindingChange) -> tuple[int, float, float]:
    idle = -max(abs(row.idle_after - row.idle_before), 0.0)
    return (_ORDER.index(row.state), idle, -abs(row.calls_after - row.calls_before))


def _place(finding: Finding, scripts: tuple[str, str] = ("", "")) -> Place:
    """Where `finding` is; a line of the first of `scripts` as one of the second."""
    kind = finding.code + (" backward" if finding.backward else "")
    traits = (bool(finding.frequency.per_step), finding.frequency.when, finding.operators)
    line = finding.line
    if line is None:
        return Place(kind, None, finding.place, traits)
    old, new = map(os.path.basename, scripts)
    if old and new and os.path.basename(line.file) == old:
        folder = os.path.dirname(line.file)
        line = msgspec.structs.replace(line, file=f"{folder}/{new}" if folder else new)
    return Place(kind, line, traits=traits)
