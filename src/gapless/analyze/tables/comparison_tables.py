"""Two runs side by side: times, idleness, phases, kernels, lines and findings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gapless.analyze.tables.memory_tables import owner
from gapless.analyze.tables.sides import SHOWN, TONES, became, measured, sided
from gapless.model import Table
from gapless.model.comparison import (
    Comparison,
    FindingChange,
    LineChange,
    Measure,
    Side,
    Unit,
    WorkChange,
    scale,
)
from gapless.model.memory_comparison import MemoryComparison
from gapless.model.table import Row, row, table
from gapless.model.wording import CAUSES, TENSORS, binary_size, count, duration, in_column, number, part

_MATTERS = 0.005
"""Part of the whole."""


def tables(comparison: Comparison) -> tuple[Table, ...]:
    """Every table of `comparison`, those that changed nothing left out."""
    found = [_sides(comparison), _findings(comparison)]
    if comparison.of == "profiles":
        found = [_sides(comparison), _times(comparison), _idle(comparison), _findings(comparison)]
        found.append(sided("GPU and memory", [measured(one, judged=False) for one in comparison.measures]))
        found.append(_phases(comparison))
        found.append(_work("Kernels by main operator", comparison.operators))
        found.append(_work("Kernels", comparison.kernels))
        found.append(_lines(comparison))
    if comparison.memory is not None:
        found += [_peaks(comparison.memory), _kinds(comparison.memory), _owners(comparison.memory)]
    return tuple(one for one in found if one.rows)


def _peaks(comparison: MemoryComparison) -> Table:
    before, after = comparison.before, comparison.after
    rows = [
        measured(Measure(name=name, before=getattr(before, field), after=getattr(after, field), unit=unit))
        for name, field, unit in _PEAKS
        if getattr(before, field) or getattr(after, field)
    ]
    return sided("Memory", rows, where="before")


_PEAKS: tuple[tuple[str, str, Unit], ...] = (
    ("allocated at the peak", "allocated", "bytes"),
    ("reserved at the peak", "reserved", "bytes"),
    ("requests that failed", "failures", "count"),
    ("requests that found the GPU full", "retries", "count"),
    ("calls to the driver", "calls", "count"),
)


def _kinds(comparison: MemoryComparison) -> Table:
    rows = [
        measured(Measure(name=TENSORS.get(kind, kind), before=was, after=now, unit="bytes"))
        for kind, was, now in comparison.kinds
        if was != now
    ]
    return sided("At the peak, by kind", rows)


def _owners(comparison: MemoryComparison) -> Table:
    rows = (
        row(
            *owner(one.owner),
            *(binary_size(held) if held else "-" for held in (one.before, one.after)),
            tone="bad" if one.change > 0 else "good",
        )
        for one in comparison.owners
    )
    columns = "<at | < | before | after"
    return table("At the peak, by owner", columns, rows, shown=SHOWN, rest="more that changed")


def _sides(comparison: Comparison) -> Table:
    rows = (
        row(name, _side(side)) for name, side in (("before", comparison.before), ("after", comparison.after))
    )
    return table("", "<", rows, where="before")


def _side(side: Side) -> str:
    parts = [side.name]
    if side.files > 1:
        parts.append(f"rank {side.rank}, one of {side.files} files" if side.rank >= 0 else side.path)
    parts += [count(side.steps, "step")] if side.steps else []
    parts += [side.device] if side.device else []
    if side.spread is not None:
        middle, low, high = (duration(one) for one in (side.spread.median, side.spread.low, side.spread.high))
        parts.append(f"median {middle}, half of the steps {low} to {high}")
    return ", ".join(parts)


def _least(comparison: Comparison) -> float:
    """What a part must change by, in nanoseconds, to make the whole better or worse."""
    return _MATTERS * max(comparison.length.before, comparison.length.after)


def _times(comparison: Comparison) -> Table:
    unit = scale(max(comparison.length.before, comparison.length.after), least=1)
    rows = [
        measured(comparison.length, unit, comparison.per),
        *(measured(one, unit, least=_least(comparison)) for one in comparison.split),
    ]
    title = f"Time {'per step' if comparison.per == 'step' else 'of the whole trace'}, {unit.name}"
    return sided(title, rows, where="before")


def _idle(comparison: Comparison) -> Table:
    if comparison.idle is None or not max(comparison.idle.before, comparison.idle.after):
        return sided("", [])
    unit = scale(max(comparison.length.before, comparison.length.after), least=1)
    least = _least(comparison)
    causes = [measured(one, unit, CAUSES.get(one.name, one.name), least=least) for one in comparison.causes]
    rows = [measured(comparison.idle, unit, "idle", least=least), *causes]
    return sided(f"GPU idle by cause, {unit.name}", rows, where="before")


def _phases(comparison: Comparison) -> Table:
    rows = [
        measured(getattr(phase, field), name=f"{phase.name}, {told}", least=_least(comparison))
        for phase in comparison.phases
        for field, told in (("host", "CPU"), ("device", "GPU"), ("idle", "GPU idle"))
    ]
    return sided("Phases", rows)


def _work(title: str, changes: Sequence[WorkChange]) -> Table:
    changed = [one for one in changes if one.state != "same"]
    if not changed:
        return sided(title, [])
    unit = scale(max(max(one.before, one.after) for one in changed), least=1)
    rows = [
        row(
            short(one.name) + (f" · {one.operator}" if one.operator else ""),
            unit(one.before) if one.before >= 0 else f"<{unit(one.at_most)}",
            unit(one.after) if one.after >= 0 else f"<{unit(one.at_most)}",
            became(one.state, one.before, one.after),
            _calls(one),
            tone=TONES[one.state],
        )
        for one in changed
    ]
    return sided(f"{title}, {unit.name}", rows, SHOWN, more="launches")


def _calls(change: WorkChange) -> str:
    before, after = (
        f"{calls:,.0f}" if calls >= 0 else "?" for calls in (change.calls_before, change.calls_after)
    )
    if before == after:
        return before if before != "?" else ""
    return f"{before} → {after}"


def short(kernel: str) -> str:
    """A kernel's name without namespaces, template arguments and parameters."""
    text = kernel.removeprefix("void ").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    text = re.split(r"[<(]", text, maxsplit=1)[0].strip() or kernel
    return text.rsplit("::", 1)[-1] if not text.startswith("aten::") and "::" in text else text


def _lines(comparison: Comparison) -> Table:
    rows = [each for one in comparison.lines if one.state != "same" for each in _line(one)]
    columns = "<time | before | after | change"
    return table("Lines and places", columns, rows, shown=SHOWN, rest="that changed less")


def _line(change: LineChange) -> list[Row]:
    """A row for the device's time and one for its idleness, each where there is any."""
    found = []
    for what, before, after in (
        ("GPU busy", change.device_before, change.device_after),
        ("GPU idle", change.idle_before, change.idle_after),
    ):
        if max(before, after) > 0:
            was, now = (duration(value) if value >= 0 else "" for value in (before, after))
            name = change.line or change.was or change.place
            told = became(change.state, before, after)
            found.append(row(name, what, was, now, told, tone=TONES[change.state]))
    return found


def _findings(comparison: Comparison) -> Table:
    changed = [one for one in comparison.findings if one.state != "same"]
    rows = [_finding(comparison, one) for one in changed]
    same = len(comparison.findings) - len(changed)
    notes = (f"{count(same, 'unchanged finding')}",) if same else ()
    columns = "<is | <at | before | after" + (" | <syncs" if comparison.of == "sessions" else "")
    return table("Findings", columns, rows, shown=SHOWN, rest="changed too", notes=notes)


def _finding(comparison: Comparison, change: FindingChange) -> Row:
    found = change.finding
    before, after, *when = _costs(comparison, change)
    name = f"{found.code} {found.name}" + (" (backward)" if found.backward else "")
    where = found.line or found.place
    sides = (before if change.before is not None else "", after if change.after is not None else "")
    return row(name, change.state, where, *sides, *when, tone=TONES[change.state])


def _costs(comparison: Comparison, change: FindingChange) -> tuple[str, ...]:
    """What it cost before and costs after; of syncs, when they are."""
    if comparison.of == "sessions":
        often = change.finding.frequency
        if often.per_step:
            return in_column(change.calls_before), in_column(change.calls_after), "per step"
        return (
            number(change.calls_before),
            number(change.calls_after),
            part(often.when, often.phase, often.times),
        )
    if max(change.idle_before, change.idle_after) > 0:
        return f"idle {duration(change.idle_before)}", f"idle {duration(change.idle_after)}"
    if max(change.calls_before, change.calls_after) > 0:
        return count(round(change.calls_before, 2), "call"), count(round(change.calls_after, 2), "call")
    return "found", "found"
