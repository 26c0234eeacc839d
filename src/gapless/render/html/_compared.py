"""A comparison as a page shows it: tables of before, after and change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gapless.model.comparison import Comparison, FindingChange, LineChange, Measure, Side, WorkChange
from gapless.model.wording import count, duration, in_column, number
from gapless.render import _table as table
from gapless.render import _words as words
from gapless.render._comparison import short
from gapless.render.html._clean import Clean

Row = dict[str, Any]


def sides(made: Comparison, clean: Clean) -> list[tuple[str, str]]:
    """The two runs in words."""
    return [("before", _side(made.before, clean)), ("after", _side(made.after, clean))]


def _side(side: Side, clean: Clean) -> str:
    parts = [clean.path(side.name)]
    if side.files > 1:
        parts.append(f"rank {side.rank} of {side.files}" if side.rank >= 0 else clean.path(side.path))
    parts += [count(side.steps, "step")] if side.steps else []
    parts += [side.device] if side.device else []
    if side.spread is not None:
        middle, low, high = (duration(one) for one in (side.spread.median, side.spread.low, side.spread.high))
        parts.append(f"median {middle}, half of them {low} to {high}")
    return ", ".join(parts)


def tables(made: Comparison, clean: Clean) -> list[dict[str, Any]]:
    """All numbers that changed, part by part."""
    found: list[dict[str, Any]] = []
    if made.of == "profiles":
        per = "per step" if made.per == "step" else "whole trace"
        rows = [_measure(made.length, name=made.per), *(_measure(row, sub=True) for row in made.split)]
        found.append(_table("time", f"Time, {per}", rows))
        if made.idle is not None and max(made.idle.before, made.idle.after) > 0:
            rows = [_measure(made.idle, name="idle"), *(_measure(row, sub=True) for row in made.causes)]
            found.append(_table("idle", "GPU idle by cause", rows))
        found.append(
            _table("measures", "GPU and memory", [_measure(row, judged=False) for row in made.measures])
        )
        phases = [
            _measure(getattr(phase, field), name=f"{phase.name}, {told}")
            for phase in made.phases
            for field, told in (("host", "host"), ("device", "GPU work"), ("idle", "GPU idle"))
        ]
        found.append(_table("phases", "Phases", phases))
        found.append(_table("operators", "Kernels by main operator", _work(made.operators)))
        found.append(_table("kernels", "Kernels", _work(made.kernels)))
        found.append(_table("lines", "Lines and places", _lines(made.lines, clean)))
    else:
        found.append(_table("waits", f"Waits per {made.per}", [_measure(made.length, name="waits")]))
    return [one for one in found if one["rows"]]


def findings(made: Comparison, clean: Clean) -> list[Row]:
    """The findings that changed, what became of each, and at the end how many did not."""
    return [_finding(made, row, clean) for row in made.findings if row.state != "same"]


def _table(name: str, title: str, rows: list[Row]) -> dict[str, Any]:
    """Bars are as long as the numbers, within one table of one unit."""
    most = max((max(row["values"]) for row in rows if row["unit"] == "ns"), default=0.0)
    for row in rows:
        own = most if row["unit"] == "ns" else max(row["values"])
        row["widths"] = [f"{100 * max(value, 0) / own:.1f}" if own > 0 else "0" for value in row["values"]]
    return {"id": name, "title": title, "rows": rows}


def _row(name: str, values: tuple[float, float], texts: tuple[str, str], change: str, **more: Any) -> Row:
    told = {"name": name, "values": values, "texts": texts, "change": change}
    return {**told, "tone": "", "unit": "ns", "sub": False, "title": "", **more}


def _measure(one: Measure, name: str = "", sub: bool = False, judged: bool = True) -> Row:
    """One number; what is not `judged` is better or worse as it comes."""
    told = (table.change(one) if judged else table.other_change(one)).plain
    texts = (_amount(one, one.before), _amount(one, one.after))
    percent = one.percent or 0.0
    tone = "" if not judged or abs(percent) < 1 else "less" if percent < 0 else "grew"
    values = (one.before, one.after)
    return _row(name or one.name, values, texts, told, sub=sub, unit=one.unit, tone=tone)


def _amount(one: Measure, value: float) -> str:
    from gapless.render._comparison import _amount as told

    return duration(value) if one.unit == "ns" and value >= 0 else told(one, value)


def _work(rows: Sequence[WorkChange]) -> list[Row]:
    found = []
    for one in rows:
        if one.state == "same":
            continue
        texts = tuple(
            duration(t) if t >= 0 else f"under {duration(one.at_most)}" for t in (one.before, one.after)
        )
        told = table.state(one.state, one.before, one.after).plain
        name = short(one.name) + (f" · {one.operator}" if one.operator else "")
        values = (one.before, one.after)
        found.append(_row(name, values, (texts[0], texts[1]), told, tone=_tone(one.state), title=one.name))
    return found


def _lines(rows: Sequence[LineChange], clean: Clean) -> list[Row]:
    found = []
    for one in rows:
        if one.state == "same":
            continue
        line = one.line or one.was
        name = f"{clean.path(line.file)}:{line.line} {line.function}" if line else one.place
        for what, before, after in (
            ("GPU time", one.device_before, one.device_after),
            ("idle", one.idle_before, one.idle_after),
        ):
            if max(before, after) <= 0:
                continue
            texts = (duration(before) if before >= 0 else "", duration(after) if after >= 0 else "")
            told = table.state(one.state, before, after).plain
            tone = "less" if after < before else "grew"
            found.append(_row(f"{name}, {what}", (before, after), texts, told, tone=tone))
    return found


def _tone(state: str) -> str:
    return {"gone": "less", "less": "less", "more": "grew", "new": "grew"}.get(state, "")


def _in_steps(waits: float) -> str:
    """``2 a step``, ``1 in 10 steps``."""
    told = in_column(waits)
    return f"{told} steps" if " in " in told else f"{told} a step"


def _finding(made: Comparison, row: FindingChange, clean: Clean) -> Row:
    one = row.finding
    place = f"{clean.path(one.line.file)}:{one.line.line}" if one.line else one.place
    if made.of == "sessions":
        values = (row.calls_before, row.calls_after)
        per = f" ({words.WHEN[one.frequency.when]})"
        say = _in_steps if one.frequency.per_step else lambda waits: number(waits) + per
        texts = (say(values[0]), say(values[1]))
    elif max(row.idle_before, row.idle_after) > 0:
        values = (row.idle_before, row.idle_after)
        texts = (f"idle {duration(values[0])}", f"idle {duration(values[1])}")
    elif not max(row.calls_before, row.calls_after) > 0:
        texts = ("found", "found")
    else:
        values = (row.calls_before, row.calls_after)
        texts = (count(round(values[0], 2), "call"), count(round(values[1], 2), "call"))
    return {
        "code": one.code,
        "name": one.name,
        "where": place,
        "backward": one.backward,
        "state": row.state,
        "tone": _tone(row.state),
        "before": texts[0] if row.before is not None else "",
        "after": texts[1] if row.after is not None else "",
        "remedy": one.remedy if row.after is not None else "",
    }
