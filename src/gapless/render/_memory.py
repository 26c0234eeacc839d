"""A memory report for a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.text import Text

from gapless.model import Finding
from gapless.model.memory import LargestBatch, MemoryReport, Moment, Outcome, Owner
from gapless.model.wording import count, duration, percent, size
from gapless.render._canvas import Canvas
from gapless.render._finding import finding
from gapless.render._style import Style
from gapless.render.json import plain

FORMAT = "gapless-memory-report"
VERSION = 1
_ROWS = 8
"""Rows of a list, unless everything is unfolded."""
_LEVELS = " ▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = " ._-=+*%#"
_KINDS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer": "optimizer",
    "activation": "forward",
    "backward": "backward",
    "batch": "batches",
    "workspace": "workspaces",
    "unknown": "unknown",
}


def as_json(made: MemoryReport, style: Style) -> str:
    """`made` as a JSON object in one line, every field in it."""
    document = {"format": FORMAT, "version": VERSION, **plain(made)}
    return json.dumps(document, ensure_ascii=not style.unicode, separators=(",", ":")) + "\n"


def as_text(made: MemoryReport, style: Style) -> str:
    """`made` as text: the sentence, the curve, who holds the peak, the calls, other settings."""
    canvas = Canvas(style)
    canvas.wrapped(Text(made.sentence + ".", style="bold"))
    if made.remedy >= 0:
        canvas.wrapped(Text(made.advice + ".", style="green"))
        if made.remedies[made.remedy].settings:
            settings = made.remedies[made.remedy].settings
            canvas.line(Text(f"  PYTORCH_CUDA_ALLOC_CONF={settings}", style="green"))
    elif made.best >= 0:
        settings = made.trials[made.best].settings
        gain = made.advice.removeprefix(f"Better with {settings}: ")
        canvas.wrapped(Text(f"Better with other settings: {gain}.", style="green"))
        canvas.line(Text(f"  PYTORCH_CUDA_ALLOC_CONF={settings}", style="green"))
    elif made.advice:
        canvas.wrapped(Text(made.advice + ".", style="yellow"))
    canvas.wrapped(Text(_what(made, style), style="dim"))
    _curve(canvas, made)
    _peak(canvas, made)
    _idle(canvas, made)
    _calls(canvas, made)
    if made.largest is not None:
        _largest(canvas, made.largest)
    if made.trials:
        _trials(canvas, made)
    if made.remedies:
        _remedies(canvas, made)
    _findings(canvas, made)
    _closing(canvas, made)
    return canvas.text()


def _what(made: MemoryReport, style: Style) -> str:
    parts = [count(made.allocations, "allocation")]
    if made.steps:
        parts.append(count(made.steps, "step"))
    if made.span >= 0:
        parts.append(duration(made.span))
    parts.append(f"device {made.device}")
    parts.append(made.settings or "default settings")
    return " · ".join([*parts, style.path(made.path)] if made.path else parts)


def _curve(canvas: Canvas, made: MemoryReport) -> None:
    """Reserved and allocated over the events, on one scale."""
    top = max(made.curve.reserved, default=0)
    if len(made.curve.event) < 2 or not top:
        return
    canvas.blank()
    room = max(canvas.style.width - 26, 10)
    for name, values in (("reserved", made.curve.reserved), ("allocated", made.curve.allocated)):
        line = sparkline(values, top, room, canvas.style.unicode)
        color = "yellow" if name == "reserved" else "green"
        canvas.clipped(Text.assemble(f"  {name:<11}", (line, color), f"  {size(max(values))}"))


def sparkline(values: Sequence[int], top: int, room: int, unicode: bool = True) -> str:
    """`values` in `room` characters, the highest of each stretch, as parts of `top`."""
    levels = _LEVELS if unicode else _PLAIN_LEVELS
    room = min(room, len(values))
    found = []
    for column in range(room):
        low, high = column * len(values) // room, (column + 1) * len(values) // room
        part = max(values[low : max(high, low + 1)]) / top if top else 0.0
        found.append(levels[min(round(part * 8), 8)])
    return "".join(found)


def _peak(canvas: Canvas, made: MemoryReport) -> None:
    """Who holds the memory when most of it is allocated."""
    peak = made.peak
    if not peak.owners:
        return
    canvas.blank()
    title = f"  At the peak, {_when(peak, made)}: {size(peak.allocated)} allocated"
    canvas.clipped(Text(title, style="bold"))
    total = sum(peak.kinds.values()) or 1
    if set(peak.kinds) != {"unknown"}:
        told = [f"{_KINDS.get(kind, kind)} {percent(held / total)}" for kind, held in peak.kinds.items()]
        canvas.hanging(Text("  by kind  ", style="dim"), Text(", ".join(told)))
    shown = peak.owners if canvas.style.unfold else peak.owners[:_ROWS]
    for one in shown:
        canvas.clipped(_owner(one, total, canvas.style))
    rest = sum(peak.kinds.values()) - sum(one.bytes for one in shown)
    if rest > 0:
        canvas.clipped(Text(f"  {size(rest):>9}{_share(rest / total):>8}{'':>20}elsewhere", style="dim"))


def _owner(one: Owner, total: int, style: Style) -> Text:
    if one.line is not None:
        place = f"{_short(one.line.file, style)}:{one.line.line} {one.line.function}"
        place += f" ({one.operator})" if one.operator and not one.line.is_user else ""
    else:
        place = one.operator or ("from before the recording" if one.before else "no stack recorded")
    kind = _KINDS[one.kind] if one.kind != "unknown" else ""
    numbers = f"  {size(one.bytes):>9}{_share(one.bytes / total):>8}"
    return Text.assemble(numbers, (f"{'×' + str(one.tensors):>7}  {kind:<11}", "dim"), place)


def _share(share: float) -> str:
    return "<0.1 %" if share < 0.0005 else percent(share)


def _short(file: str, style: Style) -> str:
    """The path from the working directory, or its last two parts."""
    shown = style.path(file)
    if shown != file:
        return shown
    return "/".join(file.replace("\\", "/").split("/")[-2:])


def _when(moment: Moment, made: MemoryReport) -> str:
    if moment.event < 0:
        return "as recording begins"
    if made.steps:
        return f"in step {moment.step + 1} of {max(made.steps, moment.step + 1)}"
    return f"event {moment.event + 1} of {made.events}"


def _idle(canvas: Canvas, made: MemoryReport) -> None:
    """What is reserved and not used when most is reserved."""
    height = made.height
    if not height.reserved:
        return
    canvas.blank()
    lead = Text(f"  {'idle':<11}", style="bold")
    if not height.free:
        canvas.hanging(lead, Text("nothing: all that is reserved is in use when most is"))
        return
    pieces = f"in {count(height.free_blocks, 'piece')}, the largest {size(height.largest)}"
    if height.free_blocks == 1:
        pieces = "in one piece"
    told = f"{size(height.free)} of {size(height.reserved)} when most is reserved, {pieces}"
    if height.small:
        told += f" ({size(height.small)} of it for requests up to 1 MiB)"
    if height.slack:
        told += f"; rounding takes {size(height.slack)}"
    canvas.hanging(lead, Text(told))


def _calls(canvas: Canvas, made: MemoryReport) -> None:
    base = made.baseline
    parts = _call_counts(base)
    if not parts:
        parts = ["none: the cache serves every request"]
    else:
        times = "by this run's own times" if made.times.source == "measured" else "at typical times"
        share = f", {percent(base.price / made.span)} of the run" if made.span > 0 else ""
        parts.append(f"about {duration(base.price)} {times}{share}")
    canvas.hanging(Text(f"  {'calls':<11}", style="bold"), Text(", ".join(parts)))
    if made.fidelity is not None:
        _fidelity(canvas, made)


def _largest(canvas: Canvas, largest: LargestBatch) -> None:
    """The largest batch that fits."""
    lead = Text(f"  {'batch':<11}", style="bold")
    recorded = " and ".join(map(str, largest.recorded))
    if not largest.batch:
        canvas.hanging(lead, Text("none fits, not even one of 1", style="red"))
        return
    told = f"{largest.batch} at most fits"
    if 0 < largest.without_retries < largest.batch:
        told += f", {largest.without_retries} without a request that finds the GPU full"
    elif not largest.without_retries:
        told += ", with requests that find the GPU full"
    told += f": {size(largest.outcome.peak_reserved)} reserved. Sizes lie on a straight line through batches "
    canvas.hanging(lead, Text(f"{told}of {recorded}"))


def _call_counts(outcome: Outcome) -> list[str]:
    named = (
        (outcome.mallocs, "cudaMalloc"),
        (outcome.frees, "cudaFree"),
        (outcome.maps, "mapped"),
        (outcome.unmaps, "unmapped"),
    )
    parts = [f"{number} {name}" for number, name in named if number]
    if outcome.retries:
        parts.append("1 retry" if outcome.retries == 1 else f"{outcome.retries} retries")
    if outcome.collections:
        parts.append(f"garbage collected {outcome.collections} times")
    return parts


def _fidelity(canvas: Canvas, made: MemoryReport) -> None:
    fidelity = made.fidelity
    assert fidelity is not None
    lead = Text(f"  {'replay':<11}", style="bold")
    if fidelity.exact:
        told = "exact: calls and reserved memory are as recorded"
        if fidelity.allocations:
            told += f", {fidelity.addresses} of {fidelity.allocations} addresses too"
        canvas.hanging(lead, Text(told))
    else:
        canvas.hanging(lead, Text("not exact: " + ", ".join(fidelity.misses), style="yellow"))


def _trials(canvas: Canvas, made: MemoryReport) -> None:
    """One row for each setting, below the run's own."""
    canvas.blank()
    columns = f"{'reserved':>10}{'change':>9}{'retries':>9}{'calls':>8}{'their time':>12}"
    room = canvas.style.width - len(columns)
    canvas.clipped(Text.assemble((f"{'  settings':<{room}}", "bold"), (columns, "dim")))
    base = made.baseline
    _row(canvas, "  " + (made.settings or "as the run has them"), base, base, room, "")
    shown = made.trials if canvas.style.unfold or not made.searched else made.trials[:_ROWS]
    for at, one in enumerate(shown):
        name = f"  {one.settings}"
        if one.outcome is None:
            _long(canvas, name, room, Text(f"  {one.note}", style="dim"))
            continue
        _row(canvas, name, one.outcome, base, room, "green" if at == made.best else "")
        if one.note:
            canvas.hanging(Text("    "), Text(one.note, style="dim"))
    rest = len(made.trials) - len(shown)
    if rest:
        canvas.clipped(Text(f"  … and {count(rest, 'setting')} that do no better (--all)", style="dim"))


def _remedies(canvas: Canvas, made: MemoryReport) -> None:
    """One row for each other way to make the batches."""
    canvas.blank()
    columns = f"{'reserved':>10}{'change':>9}{'retries':>9}{'calls':>8}{'elements':>12}"
    room = canvas.style.width - len(columns)
    canvas.clipped(Text.assemble((f"{'  batches':<{room}}", "bold"), (columns, "dim")))
    shown = made.remedies if canvas.style.unfold else made.remedies[:_ROWS]
    for at, one in enumerate(shown):
        if one.outcome is None:
            continue
        extra = f"{100 * one.tokens:+.1f} %" if abs(one.tokens) >= 0.0005 else "as many"
        _row(canvas, "  " + one.title, one.outcome, made.baseline, room, _won(at, made), extra)
    rest = len(made.remedies) - len(shown)
    if rest:
        canvas.clipped(Text(f"  … and {count(rest, 'change')} that do no better (--all)", style="dim"))


def _won(at: int, made: MemoryReport) -> str:
    return "green" if at == made.remedy else ""


def _findings(canvas: Canvas, made: MemoryReport) -> None:
    """What the rules find, each with what to do."""
    advised: dict[str, Finding] = {}
    for one in made.findings:
        canvas.blank()
        finding(canvas, one, Text(""), advised.setdefault(one.remedy, one))


def _row(
    canvas: Canvas, name: str, outcome: Outcome, base: Outcome, room: int, color: str, last: str = ""
) -> None:
    if outcome.shortage is not None:
        share = percent(outcome.done)
        _long(canvas, name, room, Text(f"{'out of memory after ' + share:>36}", style="red"))
        return
    change = "" if outcome is base or not base.peak_reserved or base.shortage else _change(outcome, base)
    calls = last or (duration(outcome.price) if outcome.price else "-")
    numbers = f"{size(outcome.peak_reserved):>10}{change:>9}{outcome.retries:>9}{outcome.calls:>8}{calls:>12}"
    _long(canvas, name, room, Text(numbers, style=color))


def _long(canvas: Canvas, name: str, room: int, rest: Text) -> None:
    """A name of any length in front of numbers: on a line of its own where it is too long."""
    shown = canvas.style.ascii(name)
    if len(shown) >= room:
        for line in _broken(shown, canvas.style.width):
            canvas.clipped(Text(line))
        shown = ""
    canvas.clipped(Text(f"{shown:<{room}}") + rest)


def _broken(settings: str, width: int) -> list[str]:
    """Settings on as many lines as they need, each ending behind a comma."""
    lines = [""]
    for part in settings.replace(",", ",\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("  ")
        lines[-1] += part
    return lines


def _change(outcome: Outcome, base: Outcome) -> str:
    share = (outcome.peak_reserved - base.peak_reserved) / base.peak_reserved
    return "0 %" if abs(share) < 0.0005 else f"{100 * share:+.1f} %"


def _closing(canvas: Canvas, made: MemoryReport) -> None:
    notes = [Text.assemble(("note: ", "bold"), note) for note in made.notes]
    hints = []
    if not made.trials:
        hints.append("--search tries other settings")
    if len(made.peak.owners) > _ROWS and not canvas.style.unfold:
        hints.append("--all shows every line")
    hints += list(canvas.style.hints)
    if hints:
        notes.append(Text(" · ".join(hints), style="dim"))
    if notes:
        canvas.blank()
    for note in notes:
        canvas.wrapped(note)
