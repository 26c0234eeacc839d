"""Two runs' memory side by side: what the peak has more of, by owner."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

from gapless.memory import recorded_curve
from gapless.memory.moment import moment
from gapless.memory.report import Wishes, report
from gapless.model.memory import MemoryRun
from gapless.model.memory_comparison import MemoryComparison, MemorySide, OwnerChange
from gapless.model.memory_report import MemoryReport, Moment, Owner
from gapless.model.wording import binary_size, percent

_ALL = 1 << 30
_LINE = re.compile(r":\d+(?= > |$)")
_NOTABLE = 0.001
"""A share of the larger peak, below which a change of an owner is none."""
Key = tuple[str, str, str, str, str, bool]


def compare_runs(
    before: tuple[str, MemoryRun],
    after: tuple[str, MemoryRun],
    source: Callable[[str], str] = lambda file: "",
) -> MemoryComparison:
    """What grew from one run to the other, each with its name; owners are matched by what they are.

    Kind, module, file, function and operator make an owner, not its line's number: code that moved is the
    same. Several lines of one function are matched in their order where both sides have as many.
    """
    made = [report(run, Wishes(source=source)) for _, run in (before, after)]
    peaks = [_whole(run, one) for (_, run), one in zip((before, after), made, strict=True)]
    sides = [
        MemorySide(
            name=name,
            device=one.device,
            gpu=one.gpu,
            steps=one.steps,
            allocated=one.baseline.peak_allocated,
            reserved=one.baseline.peak_reserved,
            retries=one.baseline.retries,
            failures=one.baseline.failures + (one.baseline.shortage is not None),
            calls=one.baseline.calls,
        )
        for (name, _), one in zip((before, after), made, strict=True)
    ]
    changes = _changes(peaks[0].owners, peaks[1].owners, _NOTABLE * max(side.allocated for side in sides))
    kinds = sorted({*peaks[0].kinds, *peaks[1].kinds})
    pairs = [(kind, peaks[0].kinds.get(kind, 0), peaks[1].kinds.get(kind, 0)) for kind in kinds]
    return MemoryComparison(
        sentence=_sentence(sides[0], sides[1], changes),
        before=sides[0],
        after=sides[1],
        kinds=tuple(sorted(pairs, key=lambda one: -abs(one[2] - one[1]))),
        owners=changes,
    )


def _whole(run: MemoryRun, report: MemoryReport) -> Moment:
    """The peak with all of its owners."""
    if recorded_curve.has_curve(run):
        return recorded_curve.peak(run, run.allocated, most=_ALL)
    return moment(run, report.peak.event, most=_ALL)


def _key(owner: Owner) -> Key:
    file = owner.line.name if owner.line else ""
    function = owner.line.function if owner.line else ""
    operator = "" if owner.line and owner.line.is_user else owner.operator
    return owner.kind, _LINE.sub("", owner.module), file, function, operator, owner.before


def _changes(before: tuple[Owner, ...], after: tuple[Owner, ...], notable: float) -> tuple[OwnerChange, ...]:
    groups: defaultdict[Key, tuple[list[Owner], list[Owner]]] = defaultdict(lambda: ([], []))
    for side, owners in enumerate((before, after)):
        for one in owners:
            groups[_key(one)][side].append(one)
    found = []
    for was, now in groups.values():
        for owned in (was, now):
            owned.sort(key=lambda owner: (owner.line.line if owner.line else 0, owner.module))
        if len(was) == len(now):
            found += [_change([a], [b]) for a, b in zip(was, now, strict=True)]
        else:
            found.append(_change(was, now))
    found = [one for one in found if abs(one.change) > notable]
    return tuple(sorted(found, key=lambda one: (-abs(one.change), one.owner.kind, one.owner.module)))


def _change(was: list[Owner], now: list[Owner]) -> OwnerChange:
    largest = max(now or was, key=lambda one: one.bytes)
    return OwnerChange(
        owner=largest,
        before=sum(one.bytes for one in was),
        after=sum(one.bytes for one in now),
        tensors_before=sum(one.tensors for one in was),
        tensors_after=sum(one.tensors for one in now),
    )


def _sentence(before: MemorySide, after: MemorySide, changes: tuple[OwnerChange, ...]) -> str:
    """Whether more is needed at the peak, and of what most."""
    if after.failures and not before.failures:
        return (
            f"Out of memory now, with {binary_size(after.allocated)} allocated; before, every request "
            "succeeded"
        )
    change = after.allocated - before.allocated
    if abs(change) <= _NOTABLE * max(before.allocated, after.allocated):
        told = f"Same peak as before: {binary_size(after.allocated)} allocated"
    else:
        part = f", {percent(abs(change) / before.allocated)}" if before.allocated else ""
        told = (
            f"{binary_size(abs(change))} {'more' if change > 0 else 'less'} at the peak: "
            f"{binary_size(before.allocated)} → {binary_size(after.allocated)} allocated{part}"
        )
    held = after.reserved - before.reserved
    if abs(held) > _NOTABLE * max(before.reserved, after.reserved):
        told += f" ({binary_size(before.reserved)} → {binary_size(after.reserved)} reserved)"
    return told
