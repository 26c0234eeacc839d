"""Several runs at once: what each rule costs all of them together, and which run loses most."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gapless.model import Finding, Profile, Report, SourceLine, Table, Verdict
from gapless.model.table import Cell, row, table
from gapless.model.verdict import Level
from gapless.model.wording import count, duration, in_column, percent

SHOWN = 20
"""Findings and runs that stand unfolded."""


@dataclass
class Shared:
    """One rule over several runs: in which it was met, the idleness of the GPU that it goes with
    (nanoseconds over all of their steps), the most that mending one such finding saves per step (prices are
    never added up), and its syncs per step where they are most. `most` is the run that loses most by it."""

    code: str
    name: str
    runs: set[int] = field(default_factory=set)
    idle: int = 0
    saved: float = 0.0
    syncs: float = 0.0
    most: int = 0
    _highest: tuple[float, float, float] = (-1.0, 0.0, 0.0)

    @property
    def of_the_profile(self) -> bool:
        """Whether it is about how the profile was taken, which costs the training nothing."""
        return self.code.startswith("GAP7")

    def add(self, run: int, members: Sequence[Finding]) -> None:
        """What `members`, findings of one run, cost it."""
        idle = sum(one.loss.idle for one in members if one.loss is not None)
        priced = (one.price for one in members if one.price is not None and one.price.estimated)
        saved = max((max(one.last, one.most_last) for one in priced), default=0)
        syncs = sum(one.frequency.per_step for one in members if one.loss is None)
        self.runs.add(run)
        self.idle += idle
        self.saved, self.syncs = max(self.saved, saved), max(self.syncs, syncs)
        if (idle, saved, syncs) > self._highest:
            self._highest, self.most = (idle, saved, syncs), run


def shared(reports: Sequence[Report]) -> list[Shared]:
    """Every rule that was met in `reports`, what loses most first."""
    found: dict[str, Shared] = {}
    for number, report in enumerate(reports):
        members: dict[str, list[Finding]] = {}
        for one in report.findings:
            members.setdefault(one.code, []).append(one)
        for code, group in members.items():
            found.setdefault(code, Shared(code, group[0].name)).add(number, group)
    ranked = found.values()
    return sorted(
        ranked,
        key=lambda one: (one.of_the_profile, -one.idle, -one.saved, -one.syncs, -len(one.runs), one.code),
    )


def summarized(reports: Sequence[Report]) -> list[Report]:
    """`reports`, and before them, where they are several runs, one that sums them up."""
    if len(reports) < 2 or any(one.kind not in ("session", "profile") for one in reports):
        return list(reports)
    return [summary(reports), *reports]


def summary(reports: Sequence[Report]) -> Report:
    """What `reports` have in common: findings over all runs, ranked, and the runs themselves.

    >>> [table.title for table in summary(reports).tables]
    ['Finding', 'Run']
    """
    ranked = shared(reports)
    tables = (_findings(ranked, reports), _runs(reports))
    return Report(
        verdict=_verdict(ranked, reports), kind="runs", tables=tuple(one for one in tables if one.rows)
    )


def _total(reports: Sequence[Report]) -> int:
    """The length of all recorded steps of which enough is known."""
    return sum(profile.steps.total for profile in _whole(reports))


def _whole(reports: Sequence[Report]) -> list[Profile]:
    """The profiles that hold enough of what happened."""
    found = (one.profile for one in reports)
    return [profile for profile in found if profile is not None and profile.coverage.complete]


def _verdict(ranked: Sequence[Shared], reports: Sequence[Report]) -> Verdict:
    total = _total(reports)
    profiles = sum(one.profile is not None for one in reports)
    what = "profile" if profiles == len(reports) else "run" if profiles else "checked script"
    told = count(len(reports), what)
    levels = {one.verdict.level for one in reports}
    worst: tuple[Level, ...] = ("failed", "act", "fine")
    level: Level = next((one for one in worst if one in levels), "unknown")
    missing = sum(one.profile is not None and not one.profile.coverage.complete for one in reports)
    untold = f"; {count(missing, 'profile')} cannot be judged: records are missing" if missing else ""
    if not ranked or ranked[0].of_the_profile:
        where = "the others" if missing else "any of them"
        return Verdict(sentence=f"{told}: found nothing to fix in {where}{untold}", level=level)
    first = ranked[0]
    where = f"in {len(first.runs)} of {len(reports)}"
    if total and first.idle:
        idle = sum(profile.idle for profile in _whole(reports))
        sentence = (
            f"{told}: the GPU idles {percent(idle / total)} of {duration(total)} of steps; "
            f"{percent(first.idle / total)} of them with {first.code} {first.name}, {where}"
        )
    else:
        sentence = f"{told}: {first.code} {first.name} costs most, {where}"
    return Verdict(sentence=f"{sentence}{untold}", level=level)


def _names(reports: Sequence[Report]) -> list[str]:
    """What tells the runs' files apart: their paths without the folders that all of them are in."""
    parts = [re.split(r"[\\/]", one.file) for one in reports]
    most = min(map(len, parts)) - 1
    levels = zip(*parts, strict=False)
    same = next((at for at, level in enumerate(levels) if at == most or len(set(level)) > 1), 0)
    return ["/".join(one[same:]) for one in parts]


def _findings(ranked: Sequence[Shared], reports: Sequence[Report]) -> Table:
    """Finding × runs × GPU time lost; a column only where a run has such a number."""
    total = _total(reports)
    longest = max((one.idle for one in ranked), default=0) or 1
    columns: dict[str, Callable[[Shared], Cell]] = {"runs": lambda one: f"{len(one.runs)} of {len(reports)}"}
    if total:
        columns["GPU idle"] = lambda one: duration(one.idle) if one.idle else ""
        columns["of all steps"] = lambda one: percent(one.idle / total) if one.idle else ""
        columns["~"] = lambda one: one.idle / longest
    if any(one.saved for one in ranked):
        columns["one saves per step, up to"] = lambda one: duration(one.saved) if one.saved else ""
    if any(one.syncs for one in ranked):
        columns["syncs per step, up to"] = lambda one: in_column(one.syncs) if one.syncs else ""
    names = _names(reports)
    columns["<most in"] = lambda one: SourceLine(names[one.most], 0)
    rows = (row(f"{one.code} {one.name}", *(cell(one) for cell in columns.values())) for one in ranked)
    return table("Finding", " | ".join(columns), rows, shown=SHOWN, where="before")


def _runs(reports: Sequence[Report]) -> Table:
    """One row for each run, in their order."""

    def of_profile(told: Callable[[Profile], str]) -> Callable[[Report], Cell]:
        return lambda one: told(one.profile) if one.profile is not None and one.profile.steps.total else ""

    columns: dict[str, Callable[[Report], Cell]] = {}
    if any(one.profile is not None for one in reports):
        columns["step"] = of_profile(lambda profile: duration(profile.steps.mean))
        columns["GPU idle"] = of_profile(
            lambda profile: percent(profile.idle / profile.steps.total) if profile.coverage.complete else "?"
        )
    if any(one.profile is None and one.steps.seen for one in reports):
        columns["syncs per step"] = lambda one: in_column(one.steps.waits_per_step) if one.steps.seen else ""
    columns["findings"] = lambda one: str(len(one.findings))
    rows = (
        row(SourceLine(name, 0), *(cell(one) for cell in columns.values()))
        for name, one in zip(_names(reports), reports, strict=True)
    )
    return table("Run", " | ".join(columns), rows, shown=SHOWN, where="before")
