"""What a loader yields wrongly, as lines of text."""

from __future__ import annotations

from rich.text import Text

from gapless.model.loading_mistakes import Mistake, Verification
from gapless.model.wording import count
from gapless.render._canvas import Canvas


def mistakes(canvas: Canvas, of: Verification) -> None:
    """Each mistake with its line, what was seen and what to write; or how much was looked at."""
    canvas.blank()
    canvas.clipped(Text("  Does it yield what it should?", style="bold"))
    for one in of.mistakes:
        _mistake(canvas, one)
    if not of.mistakes:
        canvas.hanging(Text("  yes  ", style="dim"), Text(f"nothing wrong in {looked(of)}"))
    for note in of.notes:
        canvas.hanging(Text("  note  ", style="dim"), Text(note))


def looked(of: Verification) -> str:
    """``4,000 items of 2 ranks and 3 workers``."""
    told = count(of.items, "item").replace(str(of.items), f"{of.items:,}")
    others = [count(of.ranks, "rank")] if of.ranks > 1 else []
    others += [count(of.workers, "worker")] if of.workers else []
    return f"{told} of {' and '.join(others)}" if others else told


def _mistake(canvas: Canvas, one: Mistake) -> None:
    canvas.clipped(Text.assemble("  ", (one.code, "bold cyan"), " ", (one.name, "bold")))
    if one.line is not None:
        where = f"{canvas.style.path(one.line.file)}:{one.line.line}"
        canvas.clipped(Text.assemble(f"    {where}  ", canvas.code(one.line.code)))
    canvas.hanging(Text("    seen    ", style="dim"), Text(one.seen))
    canvas.hanging(Text("    instead ", style="dim"), Text(one.remedy, style="green"))
