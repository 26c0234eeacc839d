"""Tables of two runs side by side: times, idleness, phases, kernels, lines and findings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gapless.analyze.tables.memory_tables import owner_cells
from gapless.analyze.tables.sides import MAX_ROWS_SHOWN, TONES, describe_change, measure_row, two_sided_table
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
from gapless.model.wording import (
    CAUSES,
    TENSORS,
    binary_size,
    count,
    describe_phase,
    duration,
    number,
    rate_in_column,
)

_MIN_SHARE = 0.005
"""Share of the whole by which a part must change to make it better or worse."""


def tables(comparison: Comparison) -> tuple[Table, ...]:
    """Return the tables of `comparison` that have rows."""
    results = [_sides(comparison), _findings(comparison)]
    if comparison.of == "profiles":
        results = [_sides(comparison), _times(comparison), _idle(comparison), _findings(comparison)]
        results.append(
            two_sided_table(
                "GPU and memory", [measure_row(measure, judged=False) for measure in comparison.measures]
            )
        )
        results.append(_phases(comparison))
        results.append(_work("Kernels by main operator", comparison.operators))
        results.append(_work("Kernels", comparison.kernels))
        results.append(_lines(comparison))
    if comparison.memory is not None:
        results += [_peaks(comparison.memory), _kinds(comparison.memory), _owners(comparison.memory)]
    return tuple(table for table in results if table.rows)


def _peaks(comparison: MemoryComparison) -> Table:
    """Return memory at the peak before and after."""
    before, after = comparison.before, comparison.after
    rows = [
        measure_row(Measure(name=name, before=getattr(before, field), after=getattr(after, field), unit=unit))
        for name, field, unit in _PEAKS
        if getattr(before, field) or getattr(after, field)
    ]
    return two_sided_table("Memory", rows, where="before")


_PEAKS: tuple[tuple[str, str, Unit], ...] = (
    ("allocated at the peak", "allocated", "bytes"),
    ("reserved at the peak", "reserved", "bytes"),
    ("requests that failed", "failures", "count"),
    ("requests that found the GPU full", "retries", "count"),
    ("calls to the driver", "calls", "count"),
)


def _kinds(comparison: MemoryComparison) -> Table:
    """Return memory at the peak by kind of tensor, if it changed."""
    rows = [
        measure_row(Measure(name=TENSORS.get(kind, kind), before=was, after=now, unit="bytes"))
        for kind, was, now in comparison.kinds
        if was != now
    ]
    return two_sided_table("At the peak, by kind", rows)


def _owners(comparison: MemoryComparison) -> Table:
    """Return memory at the peak by owner, if it changed."""
    rows = (
        row(
            *owner_cells(change.owner),
            *(binary_size(size) if size else "-" for size in (change.before, change.after)),
            tone="bad" if change.change > 0 else "good",
        )
        for change in comparison.owners
    )
    columns = "<at | < | before | after"
    return table("At the peak, by owner", columns, rows, shown=MAX_ROWS_SHOWN, rest="more that changed")


def _sides(comparison: Comparison) -> Table:
    """Return a row that describes each run."""
    rows = (
        row(name, _side(side)) for name, side in (("before", comparison.before), ("after", comparison.after))
    )
    return table("", "<", rows, where="before")


def _side(side: Side) -> str:
    """Describe one run: name, rank, steps, device and spread."""
    parts = [side.name]
    if side.files > 1:
        parts.append(f"rank {side.rank}, one of {side.files} files" if side.rank >= 0 else side.path)
    parts += [count(side.steps, "step")] if side.steps else []
    parts += [side.device] if side.device else []
    if side.spread is not None:
        middle, low, high = (
            duration(time) for time in (side.spread.median, side.spread.low, side.spread.high)
        )
        parts.append(f"median {middle}, half of the steps {low} to {high}")
    return ", ".join(parts)


def _min_change(comparison: Comparison) -> float:
    """Return how many nanoseconds a part must change by to make the whole better or worse."""
    return _MIN_SHARE * max(comparison.length.before, comparison.length.after)


def _times(comparison: Comparison) -> Table:
    """Return the time of a step, or the trace, and how it divides."""
    unit = scale(max(comparison.length.before, comparison.length.after), least=1)
    rows = [
        measure_row(comparison.length, unit, comparison.per),
        *(measure_row(measure, unit, least=_min_change(comparison)) for measure in comparison.split),
    ]
    title = f"Time {'per step' if comparison.per == 'step' else 'of the whole trace'}, {unit.name}"
    return two_sided_table(title, rows, where="before")


def _idle(comparison: Comparison) -> Table:
    """Return idle time and its causes; no rows if the GPU never idles."""
    if comparison.idle is None or not max(comparison.idle.before, comparison.idle.after):
        return two_sided_table("", [])
    unit = scale(max(comparison.length.before, comparison.length.after), least=1)
    least = _min_change(comparison)
    causes = [
        measure_row(measure, unit, CAUSES.get(measure.name, measure.name), least=least)
        for measure in comparison.causes
    ]
    rows = [measure_row(comparison.idle, unit, "idle", least=least), *causes]
    return two_sided_table(f"GPU idle by cause, {unit.name}", rows, where="before")


def _phases(comparison: Comparison) -> Table:
    """Return CPU, GPU and idle time of each phase."""
    rows = [
        measure_row(getattr(phase, field), name=f"{phase.name}, {label}", least=_min_change(comparison))
        for phase in comparison.phases
        for field, label in (("host", "CPU"), ("device", "GPU"), ("idle", "GPU idle"))
    ]
    return two_sided_table("Phases", rows)


def _work(title: str, changes: Sequence[WorkChange]) -> Table:
    """Return the kernels or operators whose time changed."""
    changed = [change for change in changes if change.state != "same"]
    if not changed:
        return two_sided_table(title, [])
    unit = scale(max(max(change.before, change.after) for change in changed), least=1)
    rows = [
        row(
            short_kernel_name(change.name) + (f" · {change.operator}" if change.operator else ""),
            unit(change.before) if change.before >= 0 else f"<{unit(change.at_most)}",
            unit(change.after) if change.after >= 0 else f"<{unit(change.at_most)}",
            describe_change(change.state, change.before, change.after),
            _calls(change),
            tone=TONES[change.state],
        )
        for change in changed
    ]
    return two_sided_table(f"{title}, {unit.name}", rows, MAX_ROWS_SHOWN, more="launches")


def _calls(change: WorkChange) -> str:
    """Return launches before and after, or one number if they are equal."""
    before, after = (
        f"{calls:,.0f}" if calls >= 0 else "?" for calls in (change.calls_before, change.calls_after)
    )
    if before == after:
        return before if before != "?" else ""
    return f"{before} → {after}"


def short_kernel_name(kernel: str) -> str:
    """Return a kernel's name without namespaces, template arguments and parameters."""
    text = kernel.removeprefix("void ").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    text = re.split(r"[<(]", text, maxsplit=1)[0].strip() or kernel
    return text.rsplit("::", 1)[-1] if not text.startswith("aten::") and "::" in text else text


def _lines(comparison: Comparison) -> Table:
    """Return busy and idle time of the lines that changed."""
    rows = [each for line in comparison.lines if line.state != "same" for each in _line(line)]
    columns = "<time | before | after | change"
    return table("Lines and places", columns, rows, shown=MAX_ROWS_SHOWN, rest="that changed less")


def _line(change: LineChange) -> list[Row]:
    """Return a row for the GPU's busy time and one for its idle time, each if there is any."""
    rows = []
    for label, before, after in (
        ("GPU busy", change.device_before, change.device_after),
        ("GPU idle", change.idle_before, change.idle_after),
    ):
        if max(before, after) > 0:
            was, now = (duration(value) if value >= 0 else "" for value in (before, after))
            name = change.line or change.was or change.place
            result = describe_change(change.state, before, after)
            rows.append(row(name, label, was, now, result, tone=TONES[change.state]))
    return rows


def _findings(comparison: Comparison) -> Table:
    """Return the findings that changed, with a note on those that did not."""
    changed = [change for change in comparison.findings if change.state != "same"]
    rows = [_finding(comparison, change) for change in changed]
    same = len(comparison.findings) - len(changed)
    notes = (f"{count(same, 'unchanged finding')}",) if same else ()
    columns = "<is | <at | before | after" + (" | <syncs" if comparison.of == "sessions" else "")
    return table("Findings", columns, rows, shown=MAX_ROWS_SHOWN, rest="changed too", notes=notes)


def _finding(comparison: Comparison, change: FindingChange) -> Row:
    """Return the row of one changed finding."""
    finding = change.finding
    before, after, *when = _costs(comparison, change)
    name = f"{finding.code} {finding.name}" + (" (backward)" if finding.backward else "")
    where = finding.line or finding.place
    sides = (before if change.before is not None else "", after if change.after is not None else "")
    return row(name, change.state, where, *sides, *when, tone=TONES[change.state])


def _costs(comparison: Comparison, change: FindingChange) -> tuple[str, ...]:
    """Return the cost before and after; for syncs also when they happen."""
    if comparison.of == "sessions":
        timing = change.finding.frequency
        if timing.per_step:
            return rate_in_column(change.calls_before), rate_in_column(change.calls_after), "per step"
        return (
            number(change.calls_before),
            number(change.calls_after),
            describe_phase(timing.when, timing.phase, timing.times),
        )
    if max(change.idle_before, change.idle_after) > 0:
        return f"idle {duration(change.idle_before)}", f"idle {duration(change.idle_after)}"
    if max(change.calls_before, change.calls_after) > 0:
        return count(round(change.calls_before, 2), "call"), count(round(change.calls_after, 2), "call")
    return "found", "found"
