"""The profiles of two traces, side by side."""

from __future__ import annotations

from collections.abc import Callable
from statistics import quantiles

import msgspec

from gapless.analyze.compare.both import Both, both, stepped
from gapless.analyze.compare.changed_findings import finding_changes
from gapless.analyze.compare.changed_lines import lines
from gapless.analyze.compare.device_time import kernels, operators
from gapless.analyze.compare.notes import profile_notes
from gapless.analyze.compare.sentence import profile_sentence
from gapless.analyze.compare.subject import Subject
from gapless.model import Profile
from gapless.model.comparison import Comparison, Measure, PhaseChange, Side, Spread

ENOUGH = 5
"""Steps from which on their spread says something."""

NEGLIGIBLE = 0.002
"""Part of a step below which a change of a kernel, line or finding is not worth a word."""

_SPLIT = {
    "kernel": "kernels",
    "memcpy": "copies",
    "memset": "memset",
    "communication": "communication",
    "runtime": "runtime calls",
    "loading": "data loading",
    "host": "CPU operators",
    "other": "other",
}


def compare_profiles(before: Subject, after: Subject) -> Comparison:
    """What changed from the trace `before` to the trace `after`: per step where both have steps."""
    pair = both(before.profile, after.profile)
    sides = _side(before), _side(after)
    length = pair.measure(pair.per, lambda one: one.steps.total)
    floor = NEGLIGIBLE * max(length.before, length.after)
    made = Comparison(
        sentence="",
        of="profiles",
        per=pair.per,
        before=sides[0],
        after=sides[1],
        length=length,
        within_spread=pair.per == "step" and (_within(sides, length) or _mixed(pair, length)),
        idle=pair.measure("idle", lambda one: one.idle),
        split=_split(pair),
        measures=_measures(pair),
        causes=_causes(pair),
        phases=_phases(pair),
        kernels=kernels(pair, floor),
        operators=operators(pair, floor),
        lines=lines(pair, floor),
        findings=finding_changes(before.findings, after.findings, pair.by, floor),
    )
    told = [
        f"{name}: {note}"
        for name, one in (("before", before), ("after", after))
        for note in one.notes + one.profile.notes
    ]
    missing = "; ".join(
        f"{name}: {one.profile.coverage.reason}"
        for name, one in (("before", before), ("after", after))
        if not one.profile.coverage.complete
    )
    return msgspec.structs.replace(
        made,
        sentence=f"Cannot tell: {missing}" if missing else profile_sentence(made),
        incomplete=missing,
        notes=(*profile_notes(made, pair), *told),
    )


def _side(subject: Subject) -> Side:
    profile, steps = subject.profile, subject.profile.steps
    known = stepped(profile)
    lengths = _lengths(profile)
    spread = None
    if known and len(lengths) >= ENOUGH:
        low, median, high = quantiles(lengths, n=4, method="inclusive")
        spread = Spread(steps=len(lengths), median=median, low=low, high=high)
    return Side(
        name=subject.name,
        path=profile.path,
        files=subject.files,
        rank=profile.rank,
        device=profile.gpu,
        steps=steps.count if known else 0,
        marks=steps.source if known else "",
        spread=spread,
    )


def _within(sides: tuple[Side, Side], length: Measure) -> bool:
    """Whether mean and median of one side lie in the middle half of the other side's steps."""
    before, after = sides
    for one, other, mean in ((before, after, length.after), (after, before, length.before)):
        typical = (mean, other.spread.median) if other.spread else (mean,)
        if one.spread and all(one.spread.low <= value <= one.spread.high for value in typical):
            return True
    return False


def _mixed(pair: Both, length: Measure) -> bool:
    """Whether, with few steps on a side, each side's mean lies among the other's steps."""
    before, after = (_lengths(one) for one in (pair.before, pair.after))
    if not 2 <= min(len(before), len(after)) < ENOUGH:
        return False
    return min(before) <= length.after <= max(before) and min(after) <= length.before <= max(after)


def _lengths(profile: Profile) -> list[int]:
    return [end - start for start, end in zip(profile.steps.start, profile.steps.end, strict=True)]


def _split(pair: Both) -> tuple[Measure, ...]:
    def of(field: str) -> Callable[[Profile], float]:
        return lambda one: float(getattr(one.split, field))

    rows = [pair.measure(words, of(field)) for field, words in _SPLIT.items()]
    return tuple(row for row in rows if row.before or row.after)


def _measures(pair: Both) -> tuple[Measure, ...]:
    """Numbers that are no times: how well the device is used, what is launched, what memory it takes."""
    rows = [
        pair.plain("GPU utilization", lambda one: one.utilization, "share"),
        pair.plain("est. SM efficiency", lambda one: one.sm_efficiency, "share"),
        pair.plain("est. occupancy", lambda one: one.occupancy, "percent"),
        pair.measure("device operations", lambda one: one.launches.count, "count"),
        pair.measure("graph launches", lambda one: one.launches.graphs, "count"),
        pair.plain("median kernel", lambda one: one.launches.kernel, "ns"),
        pair.plain("memory allocated, peak", lambda one: one.memory.peak_allocated, "bytes"),
        pair.plain("memory reserved, peak", lambda one: one.memory.peak_reserved, "bytes"),
    ]
    return tuple(row for row in rows if max(row.before, row.after) > 0)


def _causes(pair: Both) -> tuple[Measure, ...]:
    """Idleness by cause, the largest first."""

    def of(cause: str) -> Callable[[Profile], float]:
        return lambda one: sum(cost.idle for cost in one.costs if cost.cause == cause)

    causes = dict.fromkeys(cost.cause for one in (pair.before, pair.after) for cost in one.costs)
    rows = [row for row in (pair.measure(cause, of(cause)) for cause in causes) if row.before or row.after]
    return tuple(sorted(rows, key=lambda row: -max(row.before, row.after)))


def _phases(pair: Both) -> tuple[PhaseChange, ...]:
    def of(name: str, field: str) -> Measure:
        def pick(profile: Profile) -> float:
            return sum(float(getattr(phase, field)) for phase in profile.phases if phase.name == name)

        return pair.measure(field, pick)

    names = dict.fromkeys(phase.name for one in (pair.before, pair.after) for phase in one.phases)
    return tuple(
        PhaseChange(name=name, host=of(name, "host"), device=of(name, "device"), idle=of(name, "idle"))
        for name in names
    )
