"""Tables of a session beside its findings: waits by phase, and what the estimate is based on."""

from __future__ import annotations

from gapless.analyze.phrases.limiter import limiter
from gapless.analyze.phrases.speed import counting_notes, speed_rows, time_range
from gapless.analyze.tables.attempts_tables import remedies_table, search_table
from gapless.analyze.tables.compiled_tables import compiled_table, what_if_table
from gapless.analyze.tables.memory_tables import tables as memory_tables
from gapless.analyze.tables.offers_tables import offers_table
from gapless.analyze.tables.readiness_tables import tables as readiness
from gapless.model import Finding, Frequency, Report, SourceLine, Table
from gapless.model.assumption import describe_answer
from gapless.model.estimate import Estimate
from gapless.model.source import places
from gapless.model.table import Row, table
from gapless.model.wording import (
    describe_host,
    describe_phase,
    duration,
    number,
    percent,
    rate_in_column,
    size,
)

_MAX_TRAFFIC_ROWS = 6
"""Rows of communication shown without unfolding."""
_OUTSIDE_STEPS = ("phase", "evaluation", "first-step", "set-up", "after")
"""When syncs happen that are outside training steps."""


def tables(report: Report) -> tuple[Table, ...]:
    """Return the tables of a session's report."""
    results = [
        search_table(report),
        remedies_table(report),
        offers_table(report),
        _assumptions_table(report),
        _outside_table(report),
        compiled_table(report),
        what_if_table(report),
        _traffic_table(report),
        _places_table(report),
        _estimate_table(report),
    ]
    return (
        *readiness(report),
        *(table for table in results if table is not None),
        *(t for memory in report.memory for t in memory_tables(memory)),
    )


def _assumptions_table(report: Report) -> Table | None:
    """List values that a dry run assumed, if they decided something."""
    rows = []
    for assumption in report.assumptions:
        times = f"{number(assumption.times)} ×" + (
            f", {number(assumption.broken)} × the opposite" if assumption.broken else ""
        )
        rows.append(
            Row((describe_answer(assumption), times, assumption.made_by.lstrip("_"), assumption.line or ""))
        )
    if not rows:
        return None
    note = f"to set them: --assume {_place(report)}=VALUE"
    return table("Assumed in this dry run", "times | <a value of | <at", rows, shown=5, notes=(note,))


def _place(report: Report) -> str:
    """Return the line of the first assumption, or a placeholder."""
    line = report.assumptions[0].line
    return line.short if line is not None else "FILE:LINE"


def _outside_table(report: Report) -> Table | None:
    """List syncs outside the steady training steps, one row per phase."""
    parts: dict[str, list[Finding]] = {}
    for finding in report.findings:
        if finding.frequency.when in _OUTSIDE_STEPS or finding.frequency.rare:
            parts.setdefault(_part(finding.frequency), []).append(finding)
    rows = []
    for name, members in parts.items():
        waits = sum(finding.frequency.waits for finding in members)
        if members[0].frequency.rare:
            name += f" ({sum(finding.frequency.total for finding in members)} in all): fine"
        rows.append(Row((name, number(waits), _places(members))))
    return table("Not in every step", "syncs | <at", rows) if rows else None


def _traffic_table(report: Report) -> Table | None:
    """List what this rank sends, receives and waits for per step, by kind, group and line."""
    if not report.traffic:
        return None
    rows = [
        Row((
            transfer.kind
            + (" (backward)" if transfer.backward else "")
            + (" on the CPU" if transfer.host else ""),
            transfer.group,
            rate_in_column(transfer.times),
            size(transfer.sent),
            size(transfer.received),
            transfer.line or "",
        ))
        for transfer in report.traffic
    ]  # fmt: skip
    sent, received = (
        sum(getattr(transfer, name) for transfer in report.traffic) for name in ("sent", "received")
    )
    where = report.environment
    return table(
        f"Rank {where.rank} of {where.world_size} sends {size(sent)} per step and receives {size(received)}",
        "<waits for | times | sent | received | <at",
        rows,
        shown=_MAX_TRAFFIC_ROWS,
        rest="more",
        notes=("bytes as NCCL's rings move them; a collective ends when its last rank arrives",),
    )


def _part(timing: Frequency) -> str:
    """Say when: ``at each evaluation (every 500 steps)``, ``in set-up``, ``every 10 steps``."""
    if timing.rare:
        return f"every {timing.every} steps"
    repeats = f", {timing.times} seen" if timing.times > 1 else ""
    return describe_phase(timing.when, timing.phase, timing.times, timing.apart) + repeats


def _places(findings: list[Finding]) -> str | SourceLine:
    """Return ``a.py:3, 5, b.py:7``, naming each file once."""
    lines = [line for finding in findings for line in finding.lines]
    if len({(line.file, line.line) for line in lines}) == 1:
        return findings[0].line or ""
    return places(lines, lambda file: SourceLine(file, 0).name)


def _places_table(report: Report) -> Table | None:
    """List what all findings of a file or function cost together; None if no place has several."""
    estimate = report.estimate
    if estimate is None or not estimate.places:
        return None
    rows = [
        Row((
            place.function or f"all of {SourceLine(place.file, 0).name}",
            number(place.findings),
            f"up to {duration(place.saved.most)}" if estimate.reasons else time_range(place.saved),
            place.line or "",
        ))
        for place in estimate.places
    ]  # fmt: skip
    note = "of a step, without all of them: their own prices do not add up"
    return table("Together, by file and function", "findings | saves | <from", rows, shown=0, notes=(note,))


def _limit_cell(estimate: Estimate) -> str:
    """Say what limits a step, and how sure that is."""
    limit = limiter(estimate)
    return f"{limit} ({percent(estimate.sure)} sure)" if estimate.clear else f"cannot tell: {limit}"


def _estimate_table(report: Report) -> Table | None:
    """Return the estimated step and what it is based on; None without an estimate."""
    estimate = report.estimate
    if estimate is None or estimate.refused:
        return None
    rows = [Row(("step, at the sizes of this run", time_range(estimate.whole)))]
    if estimate.waiting.likely:
        rows.append(Row(("waiting for data in it", time_range(estimate.waiting))))
    if estimate.uncalibrated > 0 and estimate.profiled > 0:
        rows.append(Row(("from the data sheet, without the profile", duration(estimate.uncalibrated))))
        rows.append(Row(("a step in the profile itself", duration(estimate.profiled))))
    if estimate.eager:
        rows.append(Row(("kernels in it, fused as in compiled code", _fused_kernels(estimate))))
    rows += [
        Row(("GPU work in it", duration(estimate.device))),
        Row(("CPU time to launch it", duration(estimate.host))),
        Row(("CPU blocked in syncs", time_range(estimate.blocked))),
    ]
    if estimate.speed is not None:
        rows.append(Row(("the CPU's speed", describe_host(estimate.speed))))
    rows += [
        Row(("limited by", _limit_cell(estimate))),
        Row(("cost of all syncs together, with what goes with them", time_range(estimate.saved))),
    ]
    notes = tuple(f"assumed: {text}" for text in estimate.assumptions)
    if estimate.communication > 0:
        part = percent(estimate.communication / estimate.whole.likely)
        rows.append(
            Row(("its collectives, one after the other", f"{duration(estimate.communication)} ({part})"))
        )
    done = estimate.throughput
    rows += [Row(cells) for cells in speed_rows(done, estimate.whole)] if done is not None else []
    return table(f"Estimate for {estimate.gpu}", ">", rows, shown=0, notes=(*counting_notes(done), *notes))


def _fused_kernels(estimate: Estimate) -> str:
    """Return ``181 (412 if nothing were compiled)``."""
    return f"{number(round(estimate.launches))} ({number(round(estimate.eager))} if nothing were compiled)"
