"""Two runs side by side: times, idleness, phases, kernels, lines and findings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gapless.analyze.tables.memory import owner
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


def tables(made: Comparison) -> tuple[Table, ...]:
    """Every table of `made`, those that changed nothing left out."""
    found = [_sides(made), _findings(made)]
    if made.of == "profiles":
        found = [_sides(made), _times(made), _idle(made), _findings(made)]
        found.append(sided("GPU and memory", [measured(one, judged=False) for one in made.measures]))
        found.append(_phases(made))
        found.append(_work("Kernels by main operator", made.operators))
        found.append(_work("Kernels", made.kernels))
        found.append(_lines(made))
    if made.memory is not None:
        found += [_peaks(made.memory), _kinds(made.memory), _owners(made.memory)]
    return tuple(one for one in found if one.rows)


def _peaks(made: MemoryComparison) -> Table:
    before, after = made.before, made.after
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


def _kinds(made: MemoryComparison) -> Table:
    rows = [
        measured(Measure(name=TENSORS.get(kind, kind), before=was, after=now, unit="bytes"))
        for kind, was, now in made.kinds
        if was != now
    ]
    return sided("At the peak, by kind", rows)


def _owners(made: MemoryComparison) -> Table:
    rows = (
        row(
            *owner(one.owner),
            *(binary_size(held) if held else "-" for held in (one.before, one.after)),
            tone="bad" if one.change > 0 else "good",
        )
        for one in made.owners
    )
    columns = "<at | < | before | after"
    return table("At the peak, by owner", columns, rows, shown=SHOWN, rest="more that changed")


def _sides(made: Comparison) -> Table:
    rows = (row(name, _side(side)) for name, side in (("before", made.before), ("after", made.after)))
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


def _times(made: Comparison) -> Table:
    unit = scale(max(made.length.before, made.length.after), least=1)
    rows = [measured(made.length, unit, made.per), *(measured(one, unit) for one in made.split)]
    title = f"Time {'per step' if made.per == 'step' else 'of the whole trace'}, {unit.name}"
    return sided(title, rows, where="before")


def _idle(made: Comparison) -> Table:
    if made.idle is None or not max(made.idle.before, made.idle.after):
        return sided("", [])
    unit = scale(max(made.length.before, made.length.after), least=1)
    causes = [measured(one, unit, CAUSES.get(one.name, one.name)) for one in made.causes]
    rows = [measured(made.idle, unit, "idle"), *causes]
    return sided(f"GPU idle by cause, {unit.name}", rows, where="before")


def _phases(made: Comparison) -> Table:
    rows = [
        measured(getattr(phase, field), name=f"{phase.name}, {told}")
        for phase in made.phases
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


def _calls(one: WorkChange) -> str:
    before, after = (f"{calls:,.0f}" if calls >= 0 else "?" for calls in (one.calls_before, one.calls_after))
    if before == after:
        return before if before != "?" else ""
    return f"{before} → {after}"


def short(kernel: str) -> str:
    """A kernel's name without namespaces, template arguments and parameters."""
    text = kernel.removeprefix("void ").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    text = re.split(r"[<(]", text, maxsplit=1)[0].strip() or kernel
    return text.rsplit("::", 1)[-1] if not text.startswith("aten::") and "::" in text else text


def _lines(made: Comparison) -> Table:
    rows = [each for one in made.lines if one.state != "same" for each in _line(one)]
    columns = "<time | before | after | change"
    return table("Lines and places", columns, rows, shown=SHOWN, rest="that changed less")


def _line(one: LineChange) -> list[Row]:
    """A row for the device's time and one for its idleness, each where there is any."""
    found = []
    for what, before, after in (
        ("GPU busy", one.device_before, one.device_after),
        ("GPU idle", one.idle_before, one.idle_after),
    ):
        if max(before, after) > 0:
            was, now = (duration(value) if value >= 0 else "" for value in (before, after))
            name = one.line or one.was or one.place
            told = became(one.state, before, after)
            found.append(row(name, what, was, now, told, tone=TONES[one.state]))
    return found


def _findings(made: Comparison) -> Table:
    changed = [one for one in made.findings if one.state != "same"]
    rows = [_finding(made, one) for one in changed]
    same = len(made.findings) - len(changed)
    notes = (f"{count(same, 'unchanged finding')}",) if same else ()
    columns = "<is | <at | before | after" + (" | <syncs" if made.of == "sessions" else "")
    return table("Findings", columns, rows, shown=SHOWN, rest="changed too", notes=notes)


def _finding(made: Comparison, one: FindingChange) -> Row:
    found = one.finding
    before, after, *when = _costs(made, one)
    name = f"{found.code} {found.name}" + (" (backward)" if found.backward else "")
    where = found.line or found.place
    sides = (before if one.before is not None else "", after if one.after is not None else "")
    return row(name, one.state, where, *sides, *when, tone=TONES[one.state])


def _costs(made: Comparison, one: FindingChange) -> tuple[str, ...]:
    """What it cost before and costs after; of syncs, when they are."""
    if made.of == "sessions":
        often = one.finding.frequency
        if often.per_step:
            return in_column(one.calls_before), in_column(one.calls_after), "per step"
        return (
            number(one.calls_before),
            number(one.calls_after),
            part(often.when, often.phase, often.times),
        )
    if max(one.idle_before, one.idle_after) > 0:
        return f"idle {duration(one.idle_before)}", f"idle {duration(one.idle_after)}"
    if max(one.calls_before, one.calls_after) > 0:
        return count(round(one.calls_before, 2), "call"), count(round(one.calls_after, 2), "call")
    return "found", "found"
