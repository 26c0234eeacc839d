"""Compare the profiles of two traces."""

from __future__ import annotations

from collections.abc import Callable
from statistics import quantiles

import msgspec

from gapless.analyze.compare.both import ProfilePair, has_marked_steps, pair_profiles
from gapless.analyze.compare.changed_findings import finding_changes
from gapless.analyze.compare.changed_lines import line_changes
from gapless.analyze.compare.device_time import kernel_changes, operator_changes
from gapless.analyze.compare.notes import profile_notes
from gapless.analyze.compare.sentence import profile_sentence
from gapless.analyze.compare.subject import ComparisonSide
from gapless.model import Profile
from gapless.model.comparison import Comparison, Measure, PhaseChange, Side, Spread

MIN_STEPS_FOR_SPREAD = 5
"""Quartiles of fewer steps mean nothing."""

MIN_SHARE_OF_STEP = 0.002
"""Share of a step below which a change of a kernel, line or finding is noise and is not reported."""

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


def compare_profiles(before: ComparisonSide, after: ComparisonSide) -> Comparison:
    """Compare the traces `before` and `after`, per step if both have marked steps."""
    pair = pair_profiles(before.profile, after.profile)
    sides = _side(before), _side(after)
    length = pair.measure(pair.per, lambda profile: profile.steps.total)
    floor = MIN_SHARE_OF_STEP * max(length.before, length.after)
    comparison = Comparison(
        sentence="",
        of="profiles",
        per=pair.per,
        before=sides[0],
        after=sides[1],
        length=length,
        within_spread=pair.per == "step" and (_is_within_quartiles(sides, length) or _overlap(pair, length)),
        idle=pair.measure("idle", lambda profile: profile.idle),
        split=_split_measures(pair),
        measures=_usage_measures(pair),
        causes=_cause_measures(pair),
        phases=_phase_changes(pair),
        kernels=kernel_changes(pair, floor),
        operators=operator_changes(pair, floor),
        lines=line_changes(pair, floor),
        findings=finding_changes(before.findings, after.findings, pair.divisors, floor),
    )
    side_notes = [
        f"{name}: {note}"
        for name, side_subject in (("before", before), ("after", after))
        for note in side_subject.notes + side_subject.profile.notes
    ]
    missing = "; ".join(
        f"{name}: {side_subject.profile.coverage.reason}"
        for name, side_subject in (("before", before), ("after", after))
        if not side_subject.profile.coverage.complete
    )
    return msgspec.structs.replace(
        comparison,
        sentence=f"Cannot tell: {missing}" if missing else profile_sentence(comparison),
        incomplete=missing,
        notes=(*profile_notes(comparison, pair), *side_notes),
    )


def _side(subject: ComparisonSide) -> Side:
    profile, steps = subject.profile, subject.profile.steps
    is_marked = has_marked_steps(profile)
    lengths = _step_lengths(profile)
    spread = None
    if is_marked and len(lengths) >= MIN_STEPS_FOR_SPREAD:
        low, median, high = quantiles(lengths, n=4, method="inclusive")
        spread = Spread(steps=len(lengths), median=median, low=low, high=high)
    return Side(
        name=subject.name,
        path=profile.path,
        files=subject.files,
        rank=profile.rank,
        device=profile.gpu,
        steps=steps.count if is_marked else 0,
        marks=steps.source if is_marked else "",
        spread=spread,
    )


def _is_within_quartiles(sides: tuple[Side, Side], length: Measure) -> bool:
    """Whether mean and median of one side lie between the quartiles of the other side's steps."""
    before, after = sides
    for side, other, mean in ((before, after, length.after), (after, before, length.before)):
        typical = (mean, other.spread.median) if other.spread else (mean,)
        if side.spread and all(side.spread.low <= value <= side.spread.high for value in typical):
            return True
    return False


def _overlap(pair: ProfilePair, length: Measure) -> bool:
    """Whether, with few steps on a side, each side's mean lies within the range of the other's steps."""
    before, after = (_step_lengths(profile) for profile in (pair.before, pair.after))
    if not 2 <= min(len(before), len(after)) < MIN_STEPS_FOR_SPREAD:
        return False
    return min(before) <= length.after <= max(before) and min(after) <= length.before <= max(after)


def _step_lengths(profile: Profile) -> list[int]:
    return [end - start for start, end in zip(profile.steps.start, profile.steps.end, strict=True)]


def _split_measures(pair: ProfilePair) -> tuple[Measure, ...]:
    def of(field: str) -> Callable[[Profile], float]:
        return lambda profile: float(getattr(profile.split, field))

    rows = [pair.measure(words, of(field)) for field, words in _SPLIT.items()]
    return tuple(row for row in rows if row.before or row.after)


def _usage_measures(pair: ProfilePair) -> tuple[Measure, ...]:
    """Compare the numbers that are not times: utilization, launches and memory."""
    rows = [
        pair.measure_as_is("GPU utilization", lambda profile: profile.utilization, "share"),
        pair.measure_as_is("est. SM efficiency", lambda profile: profile.sm_efficiency, "share"),
        pair.measure_as_is("est. occupancy", lambda profile: profile.occupancy, "percent"),
        pair.measure("device operations", lambda profile: profile.launches.count, "count"),
        pair.measure("graph launches", lambda profile: profile.launches.graphs, "count"),
        pair.measure_as_is("median kernel", lambda profile: profile.launches.kernel, "ns"),
        pair.measure_as_is("memory allocated, peak", lambda profile: profile.memory.peak_allocated, "bytes"),
        pair.measure_as_is("memory reserved, peak", lambda profile: profile.memory.peak_reserved, "bytes"),
    ]
    return tuple(row for row in rows if max(row.before, row.after) > 0)


def _cause_measures(pair: ProfilePair) -> tuple[Measure, ...]:
    """Compare idleness by cause, the largest first."""

    def of(cause: str) -> Callable[[Profile], float]:
        return lambda profile: sum(cost.idle for cost in profile.costs if cost.cause == cause)

    causes = dict.fromkeys(cost.cause for profile in (pair.before, pair.after) for cost in profile.costs)
    rows = [row for row in (pair.measure(cause, of(cause)) for cause in causes) if row.before or row.after]
    return tuple(sorted(rows, key=lambda row: -max(row.before, row.after)))


def _phase_changes(pair: ProfilePair) -> tuple[PhaseChange, ...]:
    def of(name: str, field: str) -> Measure:
        def pick(profile: Profile) -> float:
            return sum(float(getattr(phase, field)) for phase in profile.phases if phase.name == name)

        return pair.measure(field, pick)

    names = dict.fromkeys(phase.name for profile in (pair.before, pair.after) for phase in profile.phases)
    return tuple(
        PhaseChange(name=name, host=of(name, "host"), device=of(name, "device"), idle=of(name, "idle"))
        for name in names
    )
