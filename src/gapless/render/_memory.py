"""A memory report for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gapless.model import Finding
from gapless.model.memory import MemoryReport, Outcome, Owner
from gapless.model.wording import binary_size, count, duration, percent
from gapless.render import _memory_words as words
from gapless.render._canvas import Canvas
from gapless.render._finding import finding
from gapless.render._style import Style
from gapless.render.json import document, plain

FORMAT = "gapless-memory-report"
VERSION = 1
_ROWS = 8
"""Rows of a list, unless everything is unfolded."""
_LEVELS = " ▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = " ._-=+*%#"


def as_json(made: MemoryReport, style: Style) -> str:
    """`made` as a JSON object in one line, every field in it."""
    return document(FORMAT, VERSION, plain(made), style)


def as_text(made: MemoryReport, style: Style) -> str:
    """`made` as text: the sentence, the curve, who holds the peak, the calls, other settings."""
    canvas = Canvas(style)
    canvas.wrapped(Text(made.sentence + ".", style="bold"))
    told, settings = words.advice(made)
    if told:
        canvas.wrapped(Text(told + ".", style="green" if made.answer.do_first else "yellow"))
    if settings:
        canvas.line(Text(f"  PYTORCH_CUDA_ALLOC_CONF={settings}", style="green"))
    if made.answer.why:
        canvas.wrapped(Text(words.why(made)))
    for one in made.others:
        canvas.wrapped(Text(words.other(one), style="red" if one.failures else "dim"))
    canvas.wrapped(Text(words.what(made, style.path), style="dim"))
    _curve(canvas, made)
    _peak(canvas, made)
    _kept(canvas, made)
    _idle(canvas, made)
    _calls(canvas, made)
    if made.largest is not None:
        style_of = "" if made.largest.batch else "red"
        canvas.hanging(
            Text(f"  {'batch':<11}", style="bold"), Text(words.largest(made.largest), style=style_of)
        )
    if made.trials:
        _trials(canvas, made)
    if made.remedies:
        _remedies(canvas, made)
    _findings(canvas, made)
    _closing(canvas, made)
    return canvas.text()


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
        canvas.clipped(Text.assemble(f"  {name:<11}", (line, color), f"  {binary_size(max(values))}"))


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
    """Who holds the memory when most of it is allocated, or when a request fails."""
    peak = made.failing or made.peak
    if not peak.owners:
        return
    canvas.blank()
    title = f"  {words.moment(made)}, {words.when(peak, made)}: {binary_size(peak.allocated)} allocated"
    canvas.clipped(Text(title, style="bold"))
    total = sum(peak.kinds.values()) or 1
    if set(peak.kinds) != {"unknown"}:
        told = [f"{words.KINDS.get(kind, kind)} {percent(held / total)}" for kind, held in peak.kinds.items()]
        canvas.hanging(Text("  by kind    ", style="dim"), Text(", ".join(told)))
    if parts := words.parts(peak):
        canvas.hanging(Text("  by module  ", style="dim"), Text(", ".join(parts)))
    shown = peak.owners if canvas.style.unfold else peak.owners[:_ROWS]
    for one in shown:
        canvas.hanging(_numbers(one, total), Text(words.place(one, canvas.style.path)))
    rest = sum(peak.kinds.values()) - sum(one.bytes for one in shown)
    if rest > 0:
        canvas.clipped(
            Text(f"  {binary_size(rest):>9}{words.share(rest / total):>8}{'':>20}elsewhere", style="dim")
        )


def _numbers(one: Owner, total: int) -> Text:
    kind = words.KINDS[one.kind] if one.kind != "unknown" else ""
    numbers = f"  {binary_size(one.bytes):>9}{words.share(one.bytes / total):>8}"
    return Text.assemble(numbers, (f"{'×' + str(one.tensors):>7}  {kind:<12}", "dim"))


def _kept(canvas: Canvas, made: MemoryReport) -> None:
    """What only a name keeps alive."""
    for one in made.kept:
        canvas.blank()
        canvas.hanging(Text(f"  {'kept':<11}", style="bold"), Text(words.kept(one, canvas.style.path)))


def _idle(canvas: Canvas, made: MemoryReport) -> None:
    if made.height.reserved:
        canvas.blank()
        canvas.hanging(Text(f"  {'idle':<11}", style="bold"), Text(words.idle(made.height)))


def _calls(canvas: Canvas, made: MemoryReport) -> None:
    canvas.hanging(Text(f"  {'calls':<11}", style="bold"), Text(words.calls(made)))
    if made.fidelity is not None:
        style = "" if made.fidelity.exact else "yellow"
        canvas.hanging(Text(f"  {'replay':<11}", style="bold"), Text(words.fidelity(made), style=style))


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
        more = words.more(made.trials[len(shown) :])
        canvas.clipped(Text(f"  … and {count(rest, 'setting')} that do no better{more} (--all)", style="dim"))


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
        extra = words.elements(one.tokens)
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
    failed = words.failed(outcome)
    if failed:
        _long(canvas, name, room, Text(f"{failed:>36}", style="red"))
        return
    change = words.change(outcome, base)
    calls = last or (duration(outcome.price) if outcome.price else "-")
    reserved = binary_size(outcome.peak_reserved)
    numbers = f"{reserved:>10}{change:>9}{outcome.retries:>9}{outcome.calls:>8}{calls:>12}"
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


def _closing(canvas: Canvas, made: MemoryReport) -> None:
    notes = [Text.assemble(("note: ", "bold"), note) for note in made.notes]
    hints = []
    if not made.trials and made.replayed:
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
