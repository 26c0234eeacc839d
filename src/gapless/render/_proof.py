"""A proof for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from gapless.model import Finding
from gapless.model.comparison import Measure, Scale, scale
from gapless.model.estimate import Range
from gapless.model.proof import CaseResult, Cost, Difference, Interval, Proof, Sweep, SweepRow, Timing
from gapless.model.wording import number, rate, size
from gapless.render import _table as table
from gapless.render._canvas import Canvas
from gapless.render._style import Style
from gapless.render.json import document, plain

FORMAT = "gapless-proof"
VERSION = 1

_SHOWN = 8
"""Rows of a list that stand for the rest, unless everything is unfolded."""

_FULL = 3
"""Failing cases, and differences in one of them, that are told in full; of the others the name does."""

_LABEL = 8


def as_json(made: Proof, style: Style) -> str:
    """`made` as a JSON object in one line, every field in it."""
    return document(FORMAT, VERSION, plain(made), style)


def as_text(made: Proof, style: Style) -> str:
    """`made` as text: the verdict, what differs, what a call costs, where it waits."""
    canvas = Canvas(style)
    canvas.wrapped(Text(f"{made.verdict}.", style="bold" if made.same else "bold red"))
    canvas.blank()
    rows = [("before", style.path(made.before)), ("after", style.path(made.after)), ("cases", _cases(made))]
    for name, text in rows:
        canvas.hanging(Text(f"{name:<{_LABEL}}", style="dim"), Text(text))
    _differences(canvas, made)
    _unfolded(canvas, made)
    _calls(canvas, made)
    _where(canvas, made)
    if made.sweep is not None:
        _sweep(canvas, made.sweep)
    _closing(canvas, made)
    return canvas.text()


# -- cases -----------------------------------------------------------------------------------------


def _cases(made: Proof) -> str:
    """How many there were, and what became of them."""
    kinds = {outcome: [one for one in made.cases if one.outcome == outcome] for outcome in _WORDS}
    parts = [f"{len(of)} {_WORDS[outcome]}" for outcome, of in kinds.items() if of]
    device = f", on {made.device}" if made.device else ""
    return f"{', '.join(parts) or 'none'}{device}"


_WORDS = {
    "same": "the same",
    "differs": "not the same",
    "both raise": "the same error",
    "dropped": "dropped (the first raises)",
}


def _differences(canvas: Canvas, made: Proof) -> None:
    failed = made.failed
    if not failed:
        return
    canvas.blank()
    canvas.clipped(Text("not the same", style="bold"))
    everything = canvas.style.unfold
    shown = failed if everything else failed[:_FULL]
    for case in shown:
        canvas.wrapped(Text(f"  {case.name}", style="red"))
        rows = case.differences if everything else case.differences[:_FULL]
        for one in rows:
            canvas.hanging(Text("    "), Text(_difference(one, everything)))
        if len(case.differences) > len(rows):
            canvas.clipped(Text(f"    … and {len(case.differences) - len(rows)} more (--all)", style="dim"))
    if len(failed) > len(shown):
        names = ", ".join(case.name for case in failed[len(shown) :])
        canvas.hanging(Text("  and in  ", style="red"), Text(names))
    if made.again:
        canvas.line(Text(f"  again: {made.again}", style="dim"))


def _difference(one: Difference, bounds: bool) -> str:
    where = f"call {one.call}, {one.where}" if one.call else one.where
    if one.kind == "gradient":
        return f"{where} {one.after}"
    kind = f"{one.kind} " if one.kind in ("shape", "dtype", "device") else ""
    text = f"{where}: {kind}{one.after} instead of {one.before}"
    if one.at:
        text += f" at [{', '.join(map(str, one.at))}]"
    if one.largest >= 0:
        text += f", largest difference {one.largest:.3g}"
    if one.share and one.at:
        text += f", {_share(one.share)} of the elements"
    if bounds and one.largest >= 0 and (one.rtol or one.atol):
        text += f" (allowed: {one.rtol:.2g} relative, {one.atol:.2g} absolute)"
    return text


def _share(share: float) -> str:
    return "all" if share == 1 else f"{100 * share:.3g} %"


def _unfolded(canvas: Canvas, made: Proof) -> None:
    """Every case by name, where everything is asked for."""
    if not canvas.style.unfold or not made.cases:
        return
    canvas.blank()
    canvas.clipped(Text("cases", style="bold"))
    for case in made.cases:
        why = f": {case.why}" if case.why else ""
        canvas.hanging(Text(f"  {_fit(case):<36} "), Text(f"{case.outcome}{why}", style=_color(case)))


def _fit(case: CaseResult) -> str:
    return case.name if len(case.name) <= 36 else f"{case.name[:33]}..."


def _color(case: CaseResult) -> str:
    return {"same": "green", "differs": "red"}.get(case.outcome, "dim")


# -- what a call costs -----------------------------------------------------------------------------


def _calls(canvas: Canvas, made: Proof) -> None:
    if made.costs:
        before, after = made.costs
        table.head(canvas, f"per call, on an emulated {made.gpu}")
        _numbers(canvas, "waits", before.waits, after.waits)
        if any(one.first != one.waits for one in made.costs):
            _numbers(canvas, "  in the first call", before.first, after.first)
        _numbers(canvas, "operators launched", before.operators, after.operators)
        row = Measure(name="peak memory", before=before.peak, after=after.peak, unit="bytes")
        table.row(canvas, row.name, size(before.peak), size(after.peak), table.change(row))
        _estimates(canvas, before.estimate, after.estimate)
    if made.time is not None:
        _timing(canvas, made.time)


def _estimates(canvas: Canvas, before: Range | None, after: Range | None) -> None:
    if before is None or after is None:
        return
    unit = _time(canvas, "estimated time", before.likely, after.likely)
    for word, field in (("at least", "least"), ("at most", "most")):
        sides = [unit(getattr(side, field)) for side in (before, after)]
        table.row(canvas, f"    {word}", sides[0], sides[1], Text())


def _numbers(canvas: Canvas, name: str, before: float, after: float) -> None:
    measure = Measure(name=name, before=before, after=after, unit="count")
    table.row(canvas, name, number(before), number(after), table.change(measure))


def _timing(canvas: Canvas, time: Timing) -> None:
    kind = "time" if time.clock == "GPU" else "CPU time"
    table.head(canvas, f"{kind} of a call, {time.rounds} rounds")
    _times(canvas, "median", time.before.total, time.after.total)
    for name, field in (("on the host", "host"), ("on the device", "device")):
        before, after = getattr(time.before, field), getattr(time.after, field)
        if before is not None and after is not None:
            _times(canvas, f"  {name}", before, after)


def _times(canvas: Canvas, name: str, before: Interval, after: Interval) -> None:
    unit = _time(canvas, name, before.median, after.median)
    for word, field in (("at least", "low"), ("at most", "high")):
        sides = [unit(getattr(side, field)) for side in (before, after)]
        table.row(canvas, f"    {word} (95 %)", sides[0], sides[1], Text())


def _time(canvas: Canvas, name: str, before: float, after: float) -> Scale:
    unit = scale(max(before, after), least=1)
    change = table.change(Measure(name=name, before=before, after=after))
    table.row(canvas, f"{name}, {unit.name}", unit(before), unit(after), change)
    return unit


def _where(canvas: Canvas, made: Proof) -> None:
    for name, cost in zip(("before", "after"), made.costs, strict=False):
        if cost.findings:
            canvas.blank()
            canvas.clipped(Text(f"where it waits {name}", style="bold"))
            _findings(canvas, cost, advice=name == "after")


def _findings(canvas: Canvas, cost: Cost, advice: bool) -> None:
    shown = cost.findings if canvas.style.unfold else cost.findings[:_SHOWN]
    for one in shown:
        title = Text.assemble("  ", (one.code, "bold cyan"), " ", (one.name, "bold"))
        canvas.spread(title, Text(_often(one)))
        if one.line is not None:
            lead = Text("    backward of " if one.backward else "    ")
            where = f"{canvas.style.path(one.line.file)}:{one.line.line}"
            canvas.place(lead, where, f" {one.line.function}")
    if advice:  # of the new code, which may still get better
        for remedy, _ in groupby(one.remedy for one in shown if one.remedy):
            canvas.hanging(Text("    instead: ", style="dim"), Text(remedy))
    if len(cost.findings) > len(shown):
        canvas.clipped(Text(f"  … and {len(cost.findings) - len(shown)} more (--all)", style="dim"))


def _often(one: Finding) -> str:
    return rate(one.frequency.per_step, step="call", each="a")


# -- the sweep -------------------------------------------------------------------------------------


def _sweep(canvas: Canvas, sweep: Sweep) -> None:
    unit = scale(
        max(max(row.time.before.total.median, row.time.after.total.median) for row in sweep.rows), least=1
    )
    clock = "time" if sweep.rows[0].time.clock == "GPU" else "CPU time"
    canvas.blank()
    head = f"{'before':>10}{'after':>10}{'quotient':>10}{'99 %':>16}  faster"
    lead = max(12, canvas.style.width - len(head) - 2)
    canvas.clipped(Text.assemble((f"{f'{sweep.key}; {clock}, {unit.name}':<{lead}}", "bold"), (head, "dim")))
    for row in sweep.rows:
        time = row.time
        around = f"{time.ratio.low:.2f}–{time.ratio.high:.2f}"
        words = {"before": "before", "after": "after", "neither": "?"}[time.faster]
        words += "" if row.same else " *"
        numbers = f"{unit(time.before.total.median):>10}{unit(time.after.total.median):>10}"
        line = f"{f'  {row.value}':<{lead}}{numbers}{time.ratio.median:>10.2f}{around:>16}  {words}"
        canvas.clipped(Text(line))
    if not all(row.same for row in sweep.rows):
        canvas.clipped(Text("  * not the same", style="red"))
    for one in sweep.crossings:
        canvas.wrapped(
            Text(
                f"  Above {sweep.key} = {one.value:.3g} {one.faster} is faster, below it the other "
                f"(between {one.low:g} and {one.high:g})."
            )
        )
    if not sweep.crossings:
        canvas.wrapped(Text(f"  {_nowhere(sweep.rows)}", style="dim"))


def _nowhere(rows: Sequence[SweepRow]) -> str:
    sides = {row.time.faster for row in rows} - {"neither"}
    if not sides:
        return "At no value a difference can be told."
    return f"Neither overtakes the other: {sides.pop()} is faster wherever a difference can be told."


def _closing(canvas: Canvas, made: Proof) -> None:
    lines = [Text.assemble(("note: ", "bold"), note) for note in made.notes]
    if canvas.style.hints:
        lines.append(Text(" · ".join(canvas.style.hints), style="dim"))
    if lines:
        canvas.blank()
    for line in lines:
        canvas.wrapped(line)
