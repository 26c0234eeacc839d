"""The report of a profile as text: the sentence, where the time goes, and what the GPU lost to what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from gapless.model import Finding, Profile, RankSummary, Report
from gapless.model.profile import Asked, Prices
from gapless.model.wording import count, duration, percent, size, three_digits
from gapless.render import _words as words
from gapless.render._canvas import Canvas
from gapless.render._finding import finding
from gapless.render._style import Style
from gapless.rules._places import deciding_frame, short_path

_MANY = 10
"""More findings than this are named by number alone, unless everything is unfolded."""
_MATTERS = 0.005
"""A finding that leaves the GPU idle for less than this share of the steps is folded away."""
_LONG = 0.05
"""A wait in which the host spends this share of the steps is told of even where it costs nothing."""
_ROWS = 10
"""Rows of the lists of kernels and lines, unless everything is unfolded."""


def render(report: Report, profile: Profile, style: Style) -> str:
    """`report` as text; `profile` is its own."""
    canvas = Canvas(style)
    canvas.wrapped(Text(report.sentence + ".", style="bold"))
    if profile.prices is not None and profile.prices.asked is not None:
        _asked(canvas, profile.prices, profile.prices.asked)
    canvas.wrapped(Text(_what(profile, style), style="dim"))
    _split(canvas, profile)
    _idle(canvas, profile)
    _numbers(canvas, profile)
    if report.ranks:
        _ranks(canvas, report.ranks)
    if style.unfold:
        _phases(canvas, profile)
        _kernels(canvas, profile)
        _lines(canvas, profile)
    _findings(canvas, report)
    return canvas.text()


def _what(profile: Profile, style: Style) -> str:
    steps = profile.steps
    if steps.source == "span":
        parts = ["no steps are marked: the whole trace counts as one"]
    else:
        parts = [f"{count(steps.count, 'step')} ({steps.source})"]
    if profile.gpu:
        parts.append(profile.gpu + (f", one of {profile.devices}" if profile.devices > 1 else ""))
    if profile.rank >= 0:
        parts.append(f"rank {profile.rank}" + (f" of {profile.world_size}" if profile.world_size else ""))
    parts.append(style.path(profile.path))
    return " · ".join(parts)


def _split(canvas: Canvas, profile: Profile) -> None:
    total = profile.steps.total
    if not total:
        return
    canvas.blank()
    per = max(profile.steps.count, 1)
    longest = max(getattr(profile.split, name) for name, _ in words.PARTS) or 1
    room = max(canvas.style.width - 38, 10)
    for name, label in words.PARTS:
        time = getattr(profile.split, name)
        if time / total < 0.0005:
            continue
        bar = canvas.style.bar(time / longest, room)
        row = Text(f"  {label:<14}{100 * time / total:5.1f} %{duration(time / per):>12}   ")
        canvas.clipped(row + Text(bar, style="green" if name == "kernel" else "yellow"))


def _idle(canvas: Canvas, profile: Profile) -> None:
    """The GPU's idleness by cause; the parts add up to it."""
    sums: Counter[str] = Counter()
    for cost in profile.costs:
        sums[cost.cause] += cost.idle
    total = profile.steps.total
    parts = [
        f"{words.CAUSES[cause]} {100 * idle / total:.1f}"
        for cause, idle in sums.most_common()
        if total and idle / total >= 0.0005
    ]
    if not parts:
        return
    canvas.blank()
    lead = Text(f"  GPU idle      {100 * profile.idle / total:5.1f} %: ", style="bold")
    canvas.hanging(lead, Text(", ".join(parts)))


def _numbers(canvas: Canvas, profile: Profile) -> None:
    parts = []
    if profile.utilization >= 0:
        parts.append(f"utilization {percent(profile.utilization)}")
    if profile.sm_efficiency >= 0:
        parts.append(f"est. SM efficiency {percent(profile.sm_efficiency)}")
    if profile.occupancy >= 0:
        parts.append(f"est. occupancy {percent(profile.occupancy / 100)}")
    launches = profile.launches
    if launches.count:
        per = max(profile.steps.count, 1)
        each = "" if profile.steps.source == "span" else " a step"
        parts.append(
            f"{three_digits(launches.count / per)} launches{each}, queue {three_digits(launches.depth)} deep"
        )
    memory = profile.memory
    if memory.peak_allocated >= 0:
        of = f" of {size(memory.peak_reserved)} reserved" if memory.peak_reserved >= 0 else ""
        parts.append(f"memory peak {size(memory.peak_allocated)}{of}")
    canvas.hanging(Text("  "), Text(" · ".join(parts), style="dim"))


def _ranks(canvas: Canvas, ranks: Sequence[RankSummary]) -> None:
    canvas.blank()
    canvas.clipped(Text("  rank      step      idle   communicates   arrives late", style="dim"))
    shown = list(ranks)
    if len(shown) > 16 and not canvas.style.unfold:
        shown = sorted(shown, key=lambda one: (-one.late, -one.step))[:8]
    for one in shown:
        late = duration(one.late) if one.late >= 0 else "?"
        idle, communication = (one.idle / one.step, one.communication / one.step) if one.step else (0.0, 0.0)
        name = str(one.rank) if one.rank >= 0 else canvas.style.path(one.path)
        canvas.clipped(
            Text(
                f"  {name:<6}{duration(one.step):>10}{percent(idle):>9}{percent(communication):>13}{late:>16}"
            )
        )
    if len(shown) < len(ranks):
        canvas.wrapped(Text(f"  … and {count(len(ranks) - len(shown), 'rank')} that arrive earlier (--all)"))


def _phases(canvas: Canvas, profile: Profile) -> None:
    if not profile.phases:
        return
    per = max(profile.steps.count, 1)
    canvas.blank()
    canvas.clipped(Text(f"  {'phase':<14}{'host':>12}{'GPU work':>12}{'GPU idle':>12}", style="dim"))
    for one in profile.phases:
        times = "".join(f"{duration(time / per):>12}" for time in (one.host, one.device, one.idle))
        canvas.clipped(Text(f"  {one.name:<14}{times}"))


def _kernels(canvas: Canvas, profile: Profile) -> None:
    if not profile.kernels:
        return
    per = max(profile.steps.count, 1)
    canvas.blank()
    canvas.clipped(Text(f"  {'kernel time':>11}{'calls':>8}  kernel (operator)", style="dim"))
    for one in profile.kernels:
        operator = f" ({one.operator})" if one.operator else ""
        calls = three_digits(one.calls / per)
        canvas.clipped(Text(f"  {duration(one.total / per):>11}{calls:>8}  {one.name}{operator}"))


def _lines(canvas: Canvas, profile: Profile) -> None:
    lines = [one for one in profile.lines if one.site.line is not None]
    if not lines:
        return
    per = max(profile.steps.count, 1)
    canvas.blank()
    canvas.clipped(Text(f"  {'GPU time':>11}{'kernels':>9}  launched at", style="dim"))
    for one in lines[:_ROWS]:
        line = one.site.line
        if line is None:
            continue
        where = f"{canvas.style.path(line.file)}:{line.line}" if line.is_user else short_path(line)
        kernels = three_digits(one.kernels / per)
        place = f"{where} {line.function} ({one.site.operator})"
        canvas.clipped(Text(f"  {duration(one.total / per):>11}{kernels:>9}  {place}"))


def _weight(one: Finding, report: Report) -> Text:
    """What a finding costs, at its right."""
    loss = one.loss
    if loss is None or not (loss.idle or loss.blocked):
        return Text("")
    if loss.share < 0.0005:
        return Text("GPU idles under 0.1 %", style="dim")
    steps = report.profile.steps.count if report.profile else 1
    each = "" if steps < 2 else " a step"
    text = f"GPU idles {percent(loss.share)}, {duration(loss.idle / max(steps, 1))}{each}"
    return Text(text, style="yellow" if loss.share >= 10 * _MATTERS else "dim")


def _findings(canvas: Canvas, report: Report) -> None:
    def matters(one: Finding) -> bool:
        return one.loss is None or not (one.loss.idle or one.loss.blocked) or one.loss.share >= _MATTERS

    shown = [one for one in report.findings if canvas.style.unfold or matters(one)]
    if not canvas.style.unfold:
        shown = shown[:_MANY]
    prices = report.profile.prices if report.profile else None
    span = prices.span if prices and not prices.reasons else 0
    advised: dict[str, Finding] = {}
    for one in shown:
        canvas.blank()
        finding(canvas, one, _weight(one, report), advised.setdefault(one.remedy, one), span)
    rest = [one for one in report.findings if one not in shown]
    for one in rest:
        if _long_and_free(one, report):
            shown.append(one)
            _free(canvas, one, report)
    rest = [one for one in rest if one not in shown]
    if rest:
        canvas.blank()
        codes = Counter(one.code for one in rest)
        named = ", ".join(f"{code} ×{times}" if times > 1 else code for code, times in sorted(codes.items()))
        lost = max(one.loss.share if one.loss else 0.0 for one in rest)
        least = (
            f", none of which costs the GPU more than {percent(lost)}"
            if lost >= 0.0005
            else " that cost it nothing"
        )
        canvas.wrapped(Text(f"… and {count(len(rest), 'finding')}{least}: {named}", style="dim"))
    if prices is not None:
        _prices(canvas, report, prices)
    _closing(canvas, report, folded=bool(rest))


def _prices(canvas: Canvas, report: Report, prices: Prices) -> None:
    """What all waits together cost, and the few that matter, in the order to remove them."""
    if prices.reasons:
        canvas.blank()
        canvas.wrapped(Text(f"prices are bounds: {'; '.join(prices.reasons)}", style="dim"))
        return
    if prices.refused or not prices.span or prices.all < _MATTERS * prices.span:
        return
    canvas.blank()
    told = words.without_waits(prices)
    if len(prices.shortest) < 2:
        canvas.wrapped(Text(told, style="bold"))
        return
    canvas.wrapped(Text.assemble((told, "bold"), " Most of it in this order, saved so far:"))
    places = {one.price.costs: one for one in report.findings if one.price is not None}
    for number, (position, saved) in enumerate(zip(prices.shortest, prices.saved, strict=True), 1):
        one = places.get(prices.each[position].costs)
        if one is not None:
            lead = Text(f"  {number:>2}  {duration(saved):>8}  ", style="dim")
            canvas.hanging(lead, Text(f"{one.code} {_in_short(canvas, one)}"))


def _in_short(canvas: Canvas, one: Finding) -> str:
    """The line that decides to wait, a library's or the user's."""
    decides = deciding_frame(one.sites[0]) if one.sites else None
    if decides is not None:
        return f"{short_path(decides)} {decides.function}"
    return f"{canvas.style.path(one.line.file)}:{one.line.line}" if one.line else one.place


def _where(canvas: Canvas, one: Finding) -> str:
    """The user's line and the library's that decides, in one."""
    decides = deciding_frame(one.sites[0]) if one.sites else None
    where = f"{canvas.style.path(one.line.file)}:{one.line.line}" if one.line else one.place
    return where if decides is None else f"{where} through {short_path(decides)} {decides.function}"


def _asked(canvas: Canvas, prices: Prices, asked: Asked) -> None:
    """The answer to ``--without``."""
    told = f"{words.assumed(asked)}, {duration(prices.span)} would be "
    told += f"{duration(prices.span - asked.saved)}, {percent(abs(asked.saved) / prices.span)} "
    told += "less" if asked.saved >= 0 else "more"
    if asked.least < asked.saved:
        told += f" ({duration(asked.saved - asked.least)} of it only if the peers come earlier, too)"
    canvas.wrapped(Text(("At best: " if prices.reasons else "") + told + ".", style="bold"))


def _long_and_free(one: Finding, report: Report) -> bool:
    """Whether the host waits long there and the GPU loses nothing: what other tools would name first."""
    total = report.profile.steps.total if report.profile else 0
    return one.loss is not None and total > 0 and one.loss.blocked >= _LONG * total


def _free(canvas: Canvas, one: Finding, report: Report) -> None:
    """One line and a half: the wait is known, and not worth the work."""
    if one.loss is None:
        return
    steps = max(report.profile.steps.count, 1) if report.profile else 1
    canvas.blank()
    title = Text.assemble((one.code, "bold cyan"), " ", (one.name, "bold"))
    canvas.spread(title, Text(f"long, and costs the GPU {percent(one.loss.share)}", style="dim"))
    canvas.hanging(Text("  "), Text(_where(canvas, one)))
    waits = count(one.loss.calls, "wait")
    each = "" if steps < 2 else " a step"
    working = one.loss.working >= 0.8 * one.loss.blocked
    meanwhile = "while the GPU works" if working else "for something that the profile does not show"
    text = f"the host waits {duration(one.loss.blocked / steps)}{each} ({waits} in all) {meanwhile}; "
    text += f"the GPU idles {duration(one.loss.idle / steps)} because of it"
    prices = report.profile.prices if report.profile else None
    if one.price is not None and prices and prices.span and not prices.reasons:
        text += f"; it saves {'; '.join(words.price(one.price, prices.span))}"
    canvas.hanging(Text("  "), Text(text, style="dim"))


def _closing(canvas: Canvas, report: Report, folded: bool) -> None:
    lines = [Text.assemble(("note: ", "bold"), note) for note in report.notes]
    hints = [f"gapless rule {report.findings[0].code} explains the first"] if report.findings else []
    if not canvas.style.unfold:
        hints.append("--all shows kernels, lines and phases" + (", and the rest" if folded else ""))
    hints += list(canvas.style.hints)
    if hints:
        lines.append(Text(" · ".join(hints), style="dim"))
    if lines:
        canvas.blank()
    for line in lines:
        canvas.wrapped(line)
