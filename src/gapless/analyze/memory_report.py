"""Turn what a run did with the GPU's memory into findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gapless.analyze.findings.finding import finding
from gapless.analyze.findings.order import order
from gapless.analyze.run.handled import handler_of
from gapless.analyze.run.loop import ReadSource
from gapless.analyze.tables.memory_tables import tables
from gapless.analyze.verdicts.memory_verdict import growth, verdict
from gapless.files.input import source_text
from gapless.model import Finding, Frequency, Hit, MemoryRule, Report, When
from gapless.model.loader_use import LoaderUse
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import MemoryReport
from gapless.rules import rules_of_kind

if TYPE_CHECKING:
    from gapless.memory.trials import TrialConditions


def replay_memory(
    run: MemoryRun, drawn: bool = False, finished: bool = False, read: ReadSource = source_text
) -> MemoryReport:
    """Replay the allocator on `run` and return the report with findings; if `drawn`, laid out for a page.

    `finished` says that the program ended by itself; `read` returns the text of source files.
    """
    from gapless.memory.report import report as replay  # loaded when memory was recorded
    from gapless.memory.tracking import build_track

    memory = with_handler(msgspec.structs.replace(replay(run), finished=finished), run, read)
    memory = msgspec.structs.replace(memory, findings=findings(memory))
    return msgspec.structs.replace(memory, track=build_track(run, memory)) if drawn else memory


def with_handler(report: MemoryReport, run: MemoryRun, read: ReadSource = source_text) -> MemoryReport:
    """Return `report` with the line that handles the missing memory, if only the emulated run lacked it."""
    lack = report.lack
    if lack is None or lack.recorded:
        return report
    return msgspec.structs.replace(report, handler=handler_of(run, lack, read))


def with_longest(
    reports: Sequence[MemoryReport],
    runs: Sequence[MemoryRun],
    uses: Sequence[LoaderUse],
    where: TrialConditions | None = None,
) -> tuple[MemoryReport, ...]:
    """Return `reports` with what the longest item of the loaders needs; `where` sets other conditions."""
    lengths = [
        max(use.fetch.padding.lengths)
        for use in uses
        if use.per_step
        and use.fetch is not None
        and use.fetch.padding is not None
        and use.fetch.padding.lengths
    ]
    if not lengths or len(runs) != len(reports):
        return tuple(reports)
    from gapless.memory.longest import longest_batch  # loaded when memory was recorded

    return tuple(
        report
        if report.lack is not None
        else msgspec.structs.replace(report, longest=longest_batch(run, max(lengths), where))
        for report, run in zip(reports, runs, strict=True)
    )


def lasts(report: MemoryReport, room: int) -> int:
    """Return after how many steps growing memory fills `room` bytes; -1 if it does not grow or has ended."""
    if report.finished or not growth(report) or not report.grows_by:
        return -1
    return max((room - report.baseline.peak_allocated) * report.grows_every // report.grows_by, 0)


def of_run(run: MemoryRun, drawn: bool = False) -> Report:
    """Replay `run` and return the report."""
    return report(replay_memory(run, drawn))


def findings(memory: MemoryReport) -> tuple[Finding, ...]:
    """Return what the rules find in `memory`, by code."""
    return tuple(
        finding(rule, hit, _frequency(hit, memory), place="the GPU's memory")
        for rule in rules_of_kind(MemoryRule)
        for hit in rule.of_memory(memory)
    )


def _frequency(hit: Hit, memory: MemoryReport) -> Frequency:
    """Return in which steps the hit happens, by how many of the run's steps have it."""
    when: When = "every-step" if memory.steps and hit.steps >= max(memory.steps - 3, 1) else "some-steps"
    if not hit.steps or not memory.steps:
        when = "no-steps"
    return Frequency(when=when, waits=0.0, every=hit.every if when == "some-steps" and hit.every > 1 else 0)


def report(memory: MemoryReport) -> Report:
    """Return a report on the replayed memory of one run."""
    return Report(
        verdict=verdict(memory),
        kind="memory",
        findings=order(memory.findings),
        tables=tables(memory),
        notes=memory.notes,
        memory=(memory,),
        path=memory.path,
    )
