"""Summarise several runs: what each rule costs all of them, and which run loses most."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gapless.model import Finding, Profile, Report, SourceLine, Table, Verdict
from gapless.model.table import Cell, row, table
from gapless.model.verdict import Level
from gapless.model.wording import count, duration, percent, rate_in_column

MAX_ROWS_SHOWN = 20
"""Findings and runs shown without unfolding; about what fits on a screen."""


@dataclass
class RuleCost:
    """What one rule costs over several runs.

    `runs` are those with a finding of it, `idle` the GPU idleness of its findings in nanoseconds over all
    steps, `saved` the largest saving per step of a single finding (prices are never added up), `syncs` its
    highest number of syncs per step, and `most` the run that loses most by it.
    """

    code: str
    name: str
    runs: set[int] = field(default_factory=set)
    idle: int = 0
    saved: float = 0.0
    syncs: float = 0.0
    most: int = 0
    _highest: tuple[float, float, float] = (-1.0, 0.0, 0.0)

    @property
    def is_about_profiling(self) -> bool:
        """Whether the rule is about how the profile was taken, which costs training nothing."""
        return self.code.startswith("GAP7")

    def add(self, run: int, members: Sequence[Finding]) -> None:
        """Add what `members`, the findings of one run, cost it."""
        idle = sum(finding.loss.idle for finding in members if finding.loss is not None)
        priced = (
            finding.price for finding in members if finding.price is not None and finding.price.estimated
        )
        saved = max((max(price.last, price.most_last) for price in priced), default=0)
        syncs = sum(finding.frequency.per_step for finding in members if finding.loss is None)
        self.runs.add(run)
        self.idle += idle
        self.saved, self.syncs = max(self.saved, saved), max(self.syncs, syncs)
        if (idle, saved, syncs) > self._highest:
            self._highest, self.most = (idle, saved, syncs), run


def rule_costs(reports: Sequence[Report]) -> list[RuleCost]:
    """Return the cost of every rule with a finding in `reports`, the most expensive first."""
    by_code: dict[str, RuleCost] = {}
    for number, report in enumerate(reports):
        members: dict[str, list[Finding]] = {}
        for finding in report.findings:
            members.setdefault(finding.code, []).append(finding)
        for code, group in members.items():
            by_code.setdefault(code, RuleCost(code, group[0].name)).add(number, group)
    ranked = by_code.values()
    return sorted(
        ranked,
        key=lambda rule: (
            rule.is_about_profiling,
            -rule.idle,
            -rule.saved,
            -rule.syncs,
            -len(rule.runs),
            rule.code,
        ),
    )


def with_summary(reports: Sequence[Report]) -> list[Report]:
    """Return `reports`, preceded by a report that summarises them if they are several runs."""
    if len(reports) < 2 or any(report.kind not in ("session", "profile") for report in reports):
        return list(reports)
    return [summary(reports), *reports]


def summary(reports: Sequence[Report]) -> Report:
    """Return a report on `reports` together: their rules, ranked, and the runs.

    >>> from gapless.model import Verdict
    >>> reports = [Report(verdict=Verdict(sentence="2 syncs"), script=(name,)) for name in ("a.py", "b.py")]
    >>> [table.title for table in summary(reports).tables]
    ['Run']
    """
    ranked = rule_costs(reports)
    tables = (_findings_table(ranked, reports), _runs_table(reports))
    return Report(
        verdict=_verdict(ranked, reports), kind="runs", tables=tuple(table for table in tables if table.rows)
    )


def _step_time(reports: Sequence[Report]) -> int:
    """Return the length of all steps in the complete profiles, in nanoseconds."""
    return sum(profile.steps.total for profile in _complete_profiles(reports))


def _complete_profiles(reports: Sequence[Report]) -> list[Profile]:
    """Return the profiles with enough records for a verdict."""
    profiles = (report.profile for report in reports)
    return [profile for profile in profiles if profile is not None and profile.coverage.complete]


def _verdict(ranked: Sequence[RuleCost], reports: Sequence[Report]) -> Verdict:
    """Return the verdict over all runs: the worst level, and the rule that costs most."""
    total = _step_time(reports)
    profiles = sum(report.profile is not None for report in reports)
    noun = "profile" if profiles == len(reports) else "run" if profiles else "checked script"
    subject = count(len(reports), noun)
    levels = {report.verdict.level for report in reports}
    worst: tuple[Level, ...] = ("failed", "act", "fine")
    level: Level = next((candidate for candidate in worst if candidate in levels), "unknown")
    missing = sum(report.profile is not None and not report.profile.coverage.complete for report in reports)
    untold = f"; {count(missing, 'profile')} cannot be judged: records are missing" if missing else ""
    if not ranked or ranked[0].is_about_profiling:
        where = "the others" if missing else "any of them"
        return Verdict(sentence=f"{subject}: found nothing to fix in {where}{untold}", level=level)
    first = ranked[0]
    where = f"in {len(first.runs)} of {len(reports)}"
    if total and first.idle:
        idle = sum(profile.idle for profile in _complete_profiles(reports))
        sentence = (
            f"{subject}: the GPU idles {percent(idle / total)} of {duration(total)} of steps; "
            f"{percent(first.idle / total)} of them with {first.code} {first.name}, {where}"
        )
    else:
        sentence = f"{subject}: {first.code} {first.name} costs most, {where}"
    return Verdict(sentence=f"{sentence}{untold}", level=level)


def _names(reports: Sequence[Report]) -> list[str]:
    """Return the files' paths without the folders that all of them share."""
    parts = [re.split(r"[\\/]", report.file) for report in reports]
    most = min(map(len, parts)) - 1
    levels = zip(*parts, strict=False)
    same = next((at for at, level in enumerate(levels) if at == most or len(set(level)) > 1), 0)
    return ["/".join(path[same:]) for path in parts]


def _findings_table(ranked: Sequence[RuleCost], reports: Sequence[Report]) -> Table:
    """Return a row per rule; a column appears only if some rule has a number in it."""
    total = _step_time(reports)
    longest = max((rule.idle for rule in ranked), default=0) or 1
    columns: dict[str, Callable[[RuleCost], Cell]] = {
        "runs": lambda rule: f"{len(rule.runs)} of {len(reports)}"
    }
    if total:
        columns["GPU idle"] = lambda rule: duration(rule.idle) if rule.idle else ""
        columns["of all steps"] = lambda rule: percent(rule.idle / total) if rule.idle else ""
        columns["~"] = lambda rule: rule.idle / longest
    if any(rule.saved for rule in ranked):
        columns["one saves per step, up to"] = lambda rule: duration(rule.saved) if rule.saved else ""
    if any(rule.syncs for rule in ranked):
        columns["syncs per step, up to"] = lambda rule: rate_in_column(rule.syncs) if rule.syncs else ""
    names = _names(reports)
    columns["<most in"] = lambda rule: SourceLine(names[rule.most], 0)
    rows = (row(f"{rule.code} {rule.name}", *(cell(rule) for cell in columns.values())) for rule in ranked)
    return table("Finding", " | ".join(columns), rows, shown=MAX_ROWS_SHOWN, where="before")


def _runs_table(reports: Sequence[Report]) -> Table:
    """Return a row per run, in order."""

    def of_profile(show: Callable[[Profile], str]) -> Callable[[Report], Cell]:
        return lambda report: (
            show(report.profile) if report.profile is not None and report.profile.steps.total else ""
        )

    columns: dict[str, Callable[[Report], Cell]] = {}
    if any(report.profile is not None for report in reports):
        columns["step"] = of_profile(lambda profile: duration(profile.steps.mean))
        columns["GPU idle"] = of_profile(
            lambda profile: percent(profile.idle / profile.steps.total) if profile.coverage.complete else "?"
        )
    if any(report.profile is None and report.steps.seen for report in reports):
        columns["syncs per step"] = lambda report: (
            rate_in_column(report.steps.waits_per_step) if report.steps.seen else ""
        )
    columns["findings"] = lambda report: str(len(report.findings))
    rows = (
        row(SourceLine(name, 0), *(cell(report) for cell in columns.values()))
        for name, report in zip(_names(reports), reports, strict=True)
    )
    return table("Run", " | ".join(columns), rows, shown=MAX_ROWS_SHOWN, where="before")
