"""Two runs' memory side by side, for a terminal and as JSON."""

from __future__ import annotations

from rich.text import Text

from gapless.model.comparison import Measure
from gapless.model.memory_comparison import MemoryComparison, MemorySide, OwnerChange
from gapless.model.wording import binary_size, count
from gapless.render import _memory_words as words
from gapless.render import _table as table
from gapless.render._canvas import Canvas
from gapless.render._style import Style
from gapless.render.json import document, plain

FORMAT = "gapless-memory-comparison"
VERSION = 1
_ROWS = 10


def as_json(made: MemoryComparison, style: Style) -> str:
    """`made` as a JSON object in one line, every field in it."""
    return document(FORMAT, VERSION, plain(made), style)


def as_text(made: MemoryComparison, style: Style) -> str:
    """`made` as text: the sentence, the peaks, what holds more or less."""
    canvas = Canvas(style)
    draw(canvas, made)
    return canvas.text()


def draw(canvas: Canvas, made: MemoryComparison) -> None:
    """The same as a part of something larger."""
    canvas.wrapped(Text(made.sentence + ".", style="bold"))
    canvas.blank()
    for name, side in (("before", made.before), ("after", made.after)):
        canvas.hanging(Text(f"{name:<8}", style="dim"), Text(_side(side, canvas.style)))
    table.head(canvas, "memory")
    for name, field in (("allocated at the peak", "allocated"), ("reserved at the peak", "reserved")):
        _bytes(canvas, name, getattr(made.before, field), getattr(made.after, field))
    for name, field in (
        ("requests that failed", "failures"),
        ("requests that found the GPU full", "retries"),
        ("calls to the driver", "calls"),
    ):
        was, now = getattr(made.before, field), getattr(made.after, field)
        if was or now:
            row = Measure(name=name, before=was, after=now, unit="count")
            table.row(canvas, f"  {name}", f"{was:,}", f"{now:,}", table.change(row))
    changed = [(kind, was, now) for kind, was, now in made.kinds if was != now]
    if changed:
        table.head(canvas, "at the peak, by kind")
    for kind, was, now in changed:
        _bytes(canvas, words.KINDS.get(kind, kind), was, now)
    _owners(canvas, made)


def _side(side: MemorySide, style: Style) -> str:
    steps = [count(side.steps, "step")] if side.steps else []
    return ", ".join([style.path(side.name), f"device {side.device}", *steps, *filter(None, [side.gpu])])


def _bytes(canvas: Canvas, name: str, before: int, after: int) -> None:
    row = Measure(name=name, before=before, after=after, unit="bytes")
    was, now = (binary_size(value) if value else "-" for value in (before, after))
    table.row(canvas, f"  {name}", was, now, table.change(row))


def _owners(canvas: Canvas, made: MemoryComparison) -> None:
    shown = made.owners if canvas.style.unfold else made.owners[:_ROWS]
    if not shown:
        return
    canvas.blank()
    canvas.line(Text("at the peak, by owner", style="bold"))
    for one in shown:
        canvas.hanging(_change(one), Text(words.place(one.owner, canvas.style.path)))
    rest = len(made.owners) - len(shown)
    if rest:
        canvas.clipped(Text(f"  … and {rest} more that changed (--all)", style="dim"))


def _change(one: OwnerChange) -> Text:
    color = "red" if one.change > 0 else "green"
    sign = "+" if one.change > 0 else "−"
    kind = words.KINDS[one.owner.kind] if one.owner.kind != "unknown" else ""
    state = "new" if not one.before else "gone" if not one.after else f"×{one.tensors_after}"
    return Text.assemble(
        (f"  {sign + binary_size(abs(one.change)):>10}", color), (f"{state:>7}  {kind:<12}", "dim")
    )
