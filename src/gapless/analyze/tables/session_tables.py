"""What a session's report shows beside its findings: waits by phase, and what the estimate rests on."""

from __future__ import annotations

from gapless.analyze.phrases.limiter import limiter
from gapless.analyze.phrases.speed import ranged, speeds, told_by
from gapless.analyze.tables.attempts_tables import remedies, search
from gapless.analyze.tables.compiled_tables import compiled, what_if
from gapless.analyze.tables.memory_tables import tables as memory_tables
from gapless.analyze.tables.offers_tables import offers
from gapless.analyze.tables.readiness_tables import tables as readiness
from gapless.model import Finding, Frequency, Report, SourceLine, Table
from gapless.model.assumption import answer
from gapless.model.estimate import Estimate
from gapless.model.source import places
from gapless.model.table import Row, table
from gapless.model.wording import duration, host, in_column, number, part, percent, size

_FEW = 6
"""Rows of communication that are shown without being asked for."""
_OUTSIDE = ("phase", "evaluation", "first-step", "set-up", "after")


def tables(report: Report) -> tuple[Table, ...]:
    """Every table of a session's report."""
    made = [
        search(report),
        remedies(report),
        offers(report),
        _assumed(report),
        _outside(report),
        compiled(report),
        what_if(report),
        _communication(report),
        _estimate(report),
    ]
    return (
        *readiness(report),
        *(one for one in made if one is not None),
        *(t for one in report.memory for t in memory_tables(one)),
    )


def _assumed(report: Report) -> Table | None:
    """What a dry run took values to be, where that decided something."""
    rows = []
    for one in report.assumptions:
        times = f"{number(one.times)} ×" + (f", {number(one.broken)} × the opposite" if one.broken else "")
        rows.append(Row((answer(one), times, one.made_by.lstrip("_"), one.line or "")))
    if not rows:
        return None
    note = f"to set them: --assume {_place(report)}=VALUE"
    return table("Assumed in this dry run", "times | <a value of | <at", rows, shown=5, notes=(note,))


def _place(report: Report) -> str:
    line = report.assumptions[0].line
    return line.short if line is not None else "FILE:LINE"


def _outside(report: Report) -> Table | None:
    """Syncs that are no part of each training step: one row for each phase."""
    parts: dict[str, list[Finding]] = {}
    for one in report.findings:
        if one.frequency.when in _OUTSIDE or one.frequency.rare:
            parts.setdefault(_part(one.frequency), []).append(one)
    rows = []
    for name, members in parts.items():
        waits = sum(one.frequency.waits for one in members)
        if members[0].frequency.rare:
            name += f" ({sum(one.frequency.total for one in members)} in all): fine"
        rows.append(Row((name, number(waits), _places(members))))
    return table("Not in every step", "syncs | <at", rows) if rows else None


def _communication(report: Report) -> Table | None:
    """What this rank sends, receives and waits for in a step: a row for each kind, group and line."""
    if not report.traffic:
        return None
    rows = [
        Row((
            one.kind + (" (backward)" if one.backward else "") + (" on the CPU" if one.host else ""),
            one.group,
            in_column(one.times),
            size(one.sent),
            size(one.received),
            one.line or "",
        ))
        for one in report.traffic
    ]  # fmt: skip
    sent, received = (sum(getattr(one, name) for one in report.traffic) for name in ("sent", "received"))
    where = report.environment
    return table(
        f"Rank {where.rank} of {where.world_size} sends {size(sent)} per step and receives {size(received)}",
        "<waits for | times | sent | received | <at",
        rows,
        shown=_FEW,
        rest="more",
        notes=("bytes as NCCL's rings move them; a collective ends when its last rank arrives",),
    )


def _part(often: Frequency) -> str:
    """``at each evaluation (every 500 steps)``, ``in set-up``, ``every 10 steps``."""
    if often.rare:
        return f"every {often.every} steps"
    seen = f", {often.times} seen" if often.times > 1 else ""
    return part(often.when, often.phase, often.times, often.apart) + seen


def _places(findings: list[Finding]) -> str | SourceLine:
    """``a.py:3, 5, b.py:7``, each file named once."""
    lines = [line for one in findings for line in one.lines]
    if len({(line.file, line.line) for line in lines}) == 1:
        return findings[0].line or ""
    return places(lines, lambda file: SourceLine(file, 0).name)


def _limited(estimate: Estimate) -> str:
    what = limiter(estimate)
    return f"{what} ({percent(estimate.sure)} sure)" if estimate.clear else f"cannot tell: {what}"


def _estimate(report: Report) -> Table | None:
    """The estimated step, and what it rests on."""
    one = report.estimate
    if one is None or one.refused:
        return None
    rows = [Row(("step, at the sizes of this run", ranged(one.whole)))]
    if one.waiting.likely:
        rows.append(Row(("waiting for data in it", ranged(one.waiting))))
    if one.uncalibrated > 0 and one.profiled > 0:
        rows.append(Row(("from the data sheet, without the profile", duration(one.uncalibrated))))
        rows.append(Row(("a step in the profile itself", duration(one.profiled))))
    if one.eager:
        rows.append(Row(("kernels in it, fused as in compiled code", _fused(one))))
    rows += [
        Row(("GPU work in it", duration(one.device))),
        Row(("CPU time to launch it", duration(one.host))),
        Row(("CPU blocked in syncs", ranged(one.blocked))),
    ]
    if one.speed is not None:
        rows.append(Row(("the CPU's speed", host(one.speed))))
    rows += [Row(("limited by", _limited(one))), Row(("cost of all syncs together", ranged(one.saved)))]
    notes = tuple(f"assumed: {text}" for text in one.assumptions)
    if one.communication > 0:
        part = percent(one.communication / one.whole.likely)
        rows.append(Row(("its collectives, one after the other", f"{duration(one.communication)} ({part})")))
    done = one.throughput
    rows += [Row(cells) for cells in speeds(done, one.whole)] if done is not None else []
    return table(f"Estimate for {one.gpu}", ">", rows, shown=0, notes=(*told_by(done), *notes))


def _fused(estimate: Estimate) -> str:
    """``181 (412 if nothing were compiled)``."""
    return f"{number(round(estimate.launches))} ({number(round(estimate.eager))} if nothing were compiled)"
