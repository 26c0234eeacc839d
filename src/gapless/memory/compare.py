"""Compare the peak memory of two runs by owner."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

from gapless.memory import recorded_curve
from gapless.memory.moment import moment
from gapless.memory.report import ReportOptions, report
from gapless.model.memory import MemoryRun
from gapless.model.memory_comparison import MemoryComparison, MemorySide, OwnerChange
from gapless.model.memory_report import MemoryReport, Moment, Owner
from gapless.model.wording import binary_size, percent

_ALL_OWNERS = 1 << 30
"""Rows of a peak without a limit."""
_LINE_NUMBER = re.compile(r":\d+(?= > |$)")
_MIN_SHARE_TO_REPORT = 0.001
"""Smaller changes, relative to the larger peak, are not reported."""
OwnerKey = tuple[str, str, str, str, str, bool]


def compare_runs(
    before: tuple[str, MemoryRun],
    after: tuple[str, MemoryRun],
    source: Callable[[str], str] = lambda file: "",
) -> MemoryComparison:
    """Return what grew from one run to the other, by owner.

    An owner is identified by kind, module, file, function and operator, not by line number, so that moved
    code still matches. Lines of one function are matched in order if both runs have equally many.
    """
    reports = [report(run, ReportOptions(source=source)) for _, run in (before, after)]
    peaks = [
        _peak_with_all_owners(run, result) for (_, run), result in zip((before, after), reports, strict=True)
    ]
    sides = [
        MemorySide(
            name=name,
            device=result.device,
            gpu=result.gpu,
            steps=result.steps,
            allocated=result.baseline.peak_allocated,
            reserved=result.baseline.peak_reserved,
            retries=result.baseline.retries,
            failures=result.baseline.failures + (result.baseline.shortage is not None),
            calls=result.baseline.calls,
        )
        for (name, _), result in zip((before, after), reports, strict=True)
    ]
    changes = _changes(
        peaks[0].owners, peaks[1].owners, _MIN_SHARE_TO_REPORT * max(side.allocated for side in sides)
    )
    kinds = sorted({*peaks[0].kinds, *peaks[1].kinds})
    pairs = [(kind, peaks[0].kinds.get(kind, 0), peaks[1].kinds.get(kind, 0)) for kind in kinds]
    return MemoryComparison(
        sentence=_sentence(sides[0], sides[1], changes),
        before=sides[0],
        after=sides[1],
        kinds=tuple(sorted(pairs, key=lambda row: -abs(row[2] - row[1]))),
        owners=changes,
    )


def _peak_with_all_owners(run: MemoryRun, report: MemoryReport) -> Moment:
    if recorded_curve.has_curve(run):
        return recorded_curve.peak(run, run.allocated, max_owners=_ALL_OWNERS)
    return moment(run, report.peak.event, max_owners=_ALL_OWNERS)


def _key(owner: Owner) -> OwnerKey:
    file = owner.line.name if owner.line else ""
    function = owner.line.function if owner.line else ""
    operator = "" if owner.line and owner.line.is_user else owner.operator
    return owner.kind, _LINE_NUMBER.sub("", owner.module), file, function, operator, owner.before


def _changes(before: tuple[Owner, ...], after: tuple[Owner, ...], notable: float) -> tuple[OwnerChange, ...]:
    groups: defaultdict[OwnerKey, tuple[list[Owner], list[Owner]]] = defaultdict(lambda: ([], []))
    for side, owners in enumerate((before, after)):
        for owner in owners:
            groups[_key(owner)][side].append(owner)
    changes = []
    for was, now in groups.values():
        for owned in (was, now):
            owned.sort(key=lambda owner: (owner.line.line if owner.line else 0, owner.module))
        if len(was) == len(now):
            changes += [_change([a], [b]) for a, b in zip(was, now, strict=True)]
        else:
            changes.append(_change(was, now))
    changes = [change for change in changes if abs(change.change) > notable]
    return tuple(
        sorted(changes, key=lambda change: (-abs(change.change), change.owner.kind, change.owner.module))
    )


def _change(was: list[Owner], now: list[Owner]) -> OwnerChange:
    largest = max(now or was, key=lambda owner: owner.bytes)
    return OwnerChange(
        owner=largest,
        before=sum(owner.bytes for owner in was),
        after=sum(owner.bytes for owner in now),
        tensors_before=sum(owner.tensors for owner in was),
        tensors_after=sum(owner.tensors for owner in now),
    )


def _sentence(before: MemorySide, after: MemorySide, changes: tuple[OwnerChange, ...]) -> str:
    """Say how the peak changed, in one sentence."""
    if after.failures and not before.failures:
        return (
            f"Out of memory now, with {binary_size(after.allocated)} allocated; before, every request "
            "succeeded"
        )
    change = after.allocated - before.allocated
    if abs(change) <= _MIN_SHARE_TO_REPORT * max(before.allocated, after.allocated):
        sentence = f"Same peak as before: {binary_size(after.allocated)} allocated"
    else:
        part = f", {percent(abs(change) / before.allocated)}" if before.allocated else ""
        sentence = (
            f"{binary_size(abs(change))} {'more' if change > 0 else 'less'} at the peak: "
            f"{binary_size(before.allocated)} → {binary_size(after.allocated)} allocated{part}"
        )
    held = after.reserved - before.reserved
    if abs(held) > _MIN_SHARE_TO_REPORT * max(before.reserved, after.reserved):
        sentence += f" ({binary_size(before.reserved)} → {binary_size(after.reserved)} reserved)"
    return sentence
