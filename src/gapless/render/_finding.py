"""Write one finding as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from gapless.model import Finding, Report, Site, SourceLine
from gapless.model.finding import Spot
from gapless.model.source import places
from gapless.model.wording import count
from gapless.render import _brief as brief
from gapless.render import _words as words
from gapless.render._canvas import Canvas
from gapless.rules._places import deciding_frame, short_path

LABEL_COLUMNS = 10
"""Width of a label with its indent: the longest is ``instead``."""
_BAR = "│ "
_MAX_SPOTS_SHOWN = 4
"""Lines of one finding shown with their code, unless everything is unfolded: more would hide the remedy."""


def finding(canvas: Canvas, item: Finding, report: Report, advised: Finding) -> None:
    """Write `item`, a finding of `report`; its remedy only if it is `advised`, the first that has it."""
    title = Text.assemble((item.code, "bold cyan"), " ", (item.name, "bold"))
    weight = words.weight(item, report)
    canvas.spread(title, Text(weight, style="yellow" if words.stands_out(item) else "dim"))
    spots = item.spots or (item,)
    shown = spots if canvas.style.unfold else spots[:_MAX_SPOTS_SHOWN]
    for spot in shown:
        _place(canvas, item, spot)
    rest = [spot.line for spot in spots[len(shown) :] if spot.line is not None]
    if rest:
        canvas.hang(Text("  and at "), Text(places(rest, canvas.style.path)))
    for label, rows in _details(canvas, item, advised, report):
        for position, row in enumerate(rows):
            lead = Text(f"  {label if not position else '':<{LABEL_COLUMNS - 2}}", style="dim")
            if row.plain.startswith(_BAR):
                canvas.clip(lead + row)
            else:
                canvas.hang(lead, row)


def _place(canvas: Canvas, finding: Finding, spot: Finding | Spot) -> None:
    line = spot.line
    lead = Text("  backward of " if spot.backward else "  ", style="dim")
    if line is None:
        if finding.place:
            canvas.hang(lead, Text(finding.place))
        return
    named = line.function and line.function != "<module>"
    waits = f" ({words.times(spot.waits)})" if isinstance(spot, Spot) and len(finding.spots) > 1 else ""
    canvas.place(
        lead, f"{canvas.style.path(line.file)}:{line.line}", (f" in {line.function}" if named else "") + waits
    )
    if line.code and not spot.backward:
        canvas.clip(Text(f"  {_BAR}", style="dim") + canvas.code(line.code))
    if isinstance(spot, Spot) and spot.remedy:
        canvas.hang(Text(f"  {_BAR}", style="dim"), Text(spot.remedy, style="green"))


def _details(
    canvas: Canvas, finding: Finding, advised: Finding, report: Report
) -> Iterator[tuple[str, list[Text]]]:
    """Yield each label with its rows of text; no rows if there is nothing to say."""
    yield "called", [Text(text) for text in words.callers(finding, canvas.style.path)]
    yield "through", list(_frames(canvas, finding))
    yield "seen", [Text(text) for text in finding.evidence]
    yield "saves", [Text(text) for text in words.saving(finding, report)]
    yield "waits", [Text(text) for text in (brief.waits(finding),) if text]
    if advised is finding:
        yield "instead", [Text(line, style="green") for line in finding.remedy.split("\n")]
    else:
        where = _where(canvas, advised)
        reference = f"see {advised.code} at {where} above" if where else f"see {advised.code} above"
        yield "instead", [Text(reference, style="dim")]


def _where(canvas: Canvas, finding: Finding) -> str:
    return f"{canvas.style.path(finding.line.file)}:{finding.line.line}" if finding.line else finding.place


def _frames(canvas: Canvas, finding: Finding) -> Iterator[Text]:
    """Yield the library frames in calling order: from the user's line to what waits."""
    site = finding.sites[0] if finding.sites else None
    called = tuple(reversed(finding.library_stack))
    if canvas.style.frames:
        yield from (_frame(frame) for frame in called)
        return
    decides = deciding_frame(site) if site else None
    if decides is None:
        return
    until = called[: called.index(decides) + 1] if decides in called else called
    yield _frame(until[0])
    if len(until) > 2:
        yield Text(f"… {count(len(until) - 2, 'frame')} between", style="dim")
    if len(until) > 1:
        yield _frame(until[-1])
    if until[-1].code:
        yield Text(_BAR, style="dim") + canvas.code(until[-1].code)
    other_count = len(_deciding(finding.sites)) - 1
    if other_count > 0:
        yield Text(f"and {count(other_count, 'more place')} below this line", style="dim")


def _deciding(sites: Iterable[Site]) -> set[SourceLine | None]:
    return {deciding_frame(site) for site in sites}


def _frame(frame: SourceLine) -> Text:
    where = short_path(frame) if frame.library else frame.where
    return Text.assemble(where, (f" {frame.function}", "dim"))
