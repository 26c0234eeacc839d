"""What a page says of a whole profile: where its steps go, why the GPU idles, ranks, kernels and phases."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from gapless.model import Profile, RankSummary, Report
from gapless.model.profile import Prices
from gapless.model.wording import count, duration, in_column, percent, size, three_digits
from gapless.render import _words as words
from gapless.render._comparison import short
from gapless.render.html import _memory as remembered
from gapless.render.html._clean import Clean
from gapless.rules._places import short_path

MEANING = {
    "wait": "the host waited for the GPU, and nothing was queued behind what it waited for",
    "input": "the next batch was not there",
    "launch": "kernels are shorter than their launches",
    "host": "the host did something else and launched nothing",
    "allocator": "memory was taken from the driver or given back",
    "communication": "only collectives ran, or their peers were waited for",
    "graph": "a graph launch, a compilation or another long driver call",
    "profiler": "the profiler itself",
    "unknown": "nothing recorded explains it",
}
_BARS = 240
"""Steps shown as one bar each; of more, neighbours share one."""
_RANKS = 128


def facts(report: Report, clean: Clean) -> list[str]:
    """What was looked at, a few words each."""
    profile, steps = report.profile, report.steps
    parts: list[str] = []
    if profile is not None:
        marked = profile.steps.source != "span"
        parts.append(
            f"{count(profile.steps.count, 'step')} ({profile.steps.source})" if marked else "no steps marked"
        )
        if profile.gpu:
            parts.append(profile.gpu + (f", one of {profile.devices}" if profile.devices > 1 else ""))
        if profile.rank >= 0:
            parts.append(f"rank {profile.rank}" + (f" of {profile.world_size}" if profile.world_size else ""))
        parts.append(clean.path(profile.path))
        return [part for part in parts if part]
    if report.memory and not steps.seen and not report.environment.torch:
        return [part for one in report.memory for part in remembered.facts(one, clean)]
    if steps.seen:
        parts.append(f"{count(steps.seen, 'step')} ({steps.source})")
    environment = report.environment
    if environment.device:
        parts.append(environment.device + (", emulated" if environment.emulated else ""))
    parts += [f"torch {environment.torch}"] if environment.torch else []
    parts += [f"Python {environment.python}"] if environment.python else []
    parts += [clean.path(one) for one in report.script[:1]]  # arguments may hold what is not for others
    return [part for part in parts if part]


def split(profile: Profile) -> list[dict[str, Any]]:
    """The parts of a step's time, which add up to it."""
    total, per = profile.steps.total, max(profile.steps.count, 1)
    rows = [(name, label, getattr(profile.split, name)) for name, label in words.PARTS]
    return [
        _part(name, label, time, total, per) for name, label, time in rows if total and time / total >= 5e-4
    ]


def idle(profile: Profile) -> list[dict[str, Any]]:
    """The GPU's idleness by cause."""
    sums: Counter[str] = Counter()
    for cost in profile.costs:
        sums[cost.cause] += cost.idle
    total, per = profile.steps.total, max(profile.steps.count, 1)
    return [
        {**_part(cause, words.CAUSES[cause], time, total, per), "title": MEANING[cause]}
        for cause, time in sums.most_common()
        if total and time / total >= 5e-4
    ]


def _part(name: str, label: str, time: int, total: int, per: int) -> dict[str, Any]:
    return {
        "key": name,
        "label": label,
        "share": f"{100 * time / total:.1f}",
        "width": f"{100 * time / total:.3f}",
        "time": duration(time / per),
    }


def tiles(profile: Profile) -> list[tuple[str, str, str]]:
    """Numbers with their names and what they are."""
    found: list[tuple[str, str, str]] = []
    steps = profile.steps
    if steps.count > 1:
        found.append(("step", duration(steps.mean), f"the mean of {steps.count}"))
    if profile.utilization >= 0:
        found.append(("GPU utilization", percent(profile.utilization), "of the time a kernel runs"))
    if profile.sm_efficiency >= 0:
        found.append(("est. SM efficiency", percent(profile.sm_efficiency), "of its multiprocessors at work"))
    if profile.occupancy >= 0:
        found.append(("est. occupancy", percent(profile.occupancy / 100), "of the threads they could hold"))
    launches = profile.launches
    if launches.count:
        per = launches.count / max(steps.count, 1)
        each = "" if steps.source == "span" else " a step"
        found.append((f"launches{each}", three_digits(per), f"queue {three_digits(launches.depth)} deep"))
    memory = profile.memory
    if memory.peak_allocated >= 0:
        of = f"of {size(memory.peak_reserved)} reserved" if memory.peak_reserved >= 0 else ""
        found.append(("memory peak", size(memory.peak_allocated), of))
    return found


def strip(profile: Profile) -> dict[str, Any] | None:
    """The steps as bars: how long each is, and for how much of that the device has work."""
    steps = profile.steps
    if steps.count < 2:
        return None
    length = [end - start for start, end in zip(steps.start, steps.end, strict=True)]
    group = -(-steps.count // _BARS)
    longest = max(length) or 1
    bars = []
    for first in range(0, steps.count, group):
        last = min(first + group, steps.count) - 1
        each = sum(length[first : last + 1]) / (last - first + 1)
        busy = sum(steps.busy[first : last + 1]) / (last - first + 1)
        name = steps.names[first] if group == 1 and first < len(steps.names) else _numbered(first, last)
        bars.append(
            {
                "height": f"{100 * each / longest:.2f}",
                "busy": f"{100 * min(busy / each, 1) if each else 0:.2f}",
                "title": f"{name}: {duration(each)}, GPU at work for {duration(busy)}",
                "from": steps.start[first],
                "to": steps.end[last],
            }
        )
    order = sorted(length)
    told = f"{count(steps.count, 'step')}: {duration(order[len(order) // 2])} in the median, "
    told += f"{duration(order[0])} to {duration(order[-1])}"
    return {"bars": bars, "told": told, "group": group}


def _numbered(first: int, last: int) -> str:
    return f"step {first + 1}" if first == last else f"steps {first + 1} to {last + 1}"


def asked(prices: Prices | None) -> str:
    """The answer to what was asked for with ``--without`` and ``--what-if``; "" where nothing was."""
    one = prices.asked if prices else None
    if prices is None or one is None:
        return ""
    told = words.assumed(one) + f", {duration(prices.span)} would be {duration(prices.span - one.saved)}"
    if prices.span:
        told += f", {percent(abs(one.saved) / prices.span)} {'less' if one.saved >= 0 else 'more'}"
    return ("At best: " if prices.reasons else "") + told + "."


def order(report: Report, views: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What all waits together cost, and the few to remove first."""
    prices = report.profile.prices if report.profile else None
    if prices is None or prices.refused or not prices.span:
        return None
    if prices.reasons:
        return {"told": f"Prices are bounds: {'; '.join(prices.reasons)}.", "rows": []}
    if prices.all < 0.005 * prices.span:
        return None
    told = words.without_waits(prices)
    places = {
        one.price.costs: view
        for one, view in zip(report.findings, views, strict=True)
        if one.price is not None
    }
    rows = []
    for position, saved in zip(prices.shortest, prices.saved, strict=True):
        view = places.get(prices.each[position].costs)
        if view is not None:
            rows.append(
                {
                    "view": view,
                    "saved": duration(saved),
                    "width": f"{100 * saved / prices.all:.1f}",
                    "share": percent(saved / prices.span),
                }
            )
    return {"told": told, "rows": rows}


def ranks(rows: tuple[RankSummary, ...], clean: Clean) -> dict[str, Any] | None:
    """Ranks side by side, those that arrive last first where there are many."""
    if not rows:
        return None
    shown = list(rows)
    if len(shown) > _RANKS:
        shown = sorted(shown, key=lambda one: (-one.late, -one.step))[:_RANKS]
    longest = max((one.step for one in rows), default=0) or 1
    latest = max((one.late for one in rows), default=0)
    return {
        "rows": [
            {
                "name": str(one.rank) if one.rank >= 0 else clean.path(one.path),
                "step": duration(one.step),
                "idle": percent(one.idle / one.step) if one.step else "",
                "communication": percent(one.communication / one.step) if one.step else "",
                "late": duration(one.late) if one.late >= 0 else "?",
                "utilization": percent(one.utilization) if one.utilization >= 0 else "",
                "width": f"{100 * one.step / longest:.2f}",
                "idle_width": f"{100 * min(one.idle / one.step, 1):.2f}" if one.step else "0",
                "communication_width": f"{100 * min(one.communication / one.step, 1):.2f}"
                if one.step
                else "0",
                "last": one.late >= 0 and one.late == latest and latest > 0,
            }
            for one in shown
        ],
        "more": len(rows) - len(shown),
    }


def tables(profile: Profile, clean: Clean) -> list[dict[str, Any]]:
    """Phases, kernels and lines."""
    per = max(profile.steps.count, 1)
    found: list[dict[str, Any]] = []
    if profile.phases:
        rows = [
            [one.name, duration(one.host / per), duration(one.device / per), duration(one.idle / per)]
            for one in profile.phases
        ]
        found.append(_table("phases", "Phases", ["phase", "host", "GPU work", "GPU idle"], rows))
    if profile.kernels:
        rows = [
            [_brief(one.name), one.operator, duration(one.total / per), three_digits(one.calls / per)]
            for one in profile.kernels
        ]
        titles = [one.name for one in profile.kernels]
        found.append(_table("kernels", "Kernels", ["kernel", "operator", "time", "calls"], rows, 2, titles))
    lines = [one for one in profile.lines if one.site.line is not None]
    if lines:
        rows = []
        for one in lines:
            line = one.site.line
            if line is None:
                continue
            where = f"{clean.path(line.file)}:{line.line}" if line.is_user else short_path(line)
            rows.append(
                [where, one.site.operator, duration(one.total / per), three_digits(one.kernels / per)]
            )
        found.append(
            _table("lines", "Lines by GPU time", ["launched at", "operator", "GPU time", "kernels"], rows, 2)
        )
    return found


def _table(
    name: str,
    title: str,
    head: list[str],
    rows: list[list[str]],
    words: int = 1,
    titles: list[str] | None = None,
) -> dict[str, Any]:
    return {"id": name, "title": title, "head": head, "rows": rows, "words": words, "titles": titles or []}


def _brief(kernel: str) -> str:
    name = short(kernel)
    return re.sub(r"\s+", " ", name)[:120] or kernel[:120]


def waits(report: Report, views: list[dict[str, Any]]) -> dict[str, Any]:
    """The waits of a usual step, line by line."""
    steps = report.steps
    rows = [
        {
            "view": view,
            "width": f"{100 * one.frequency.per_step / steps.waits_per_step:.3f}",
            "waits": in_column(one.frequency.per_step),
        }
        for one, view in zip(report.findings, views, strict=True)
        if steps.waits_per_step and one.frequency.per_step
    ]
    found: list[tuple[str, str, str]] = []
    if steps.seen:
        spread = "" if steps.least == steps.most else f"{steps.least} to {steps.most}"
        found.append(("waits a step", in_column(steps.waits_per_step), spread))
        found.append(("steps", str(steps.seen), f"{steps.steady} of them steady"))
    total = sum(one.frequency.total for one in report.findings)
    found.append(("waits in all", f"{total:,}", "set-up and evaluation included"))
    return {"rows": rows, "tiles": found}


def estimate(report: Report) -> list[str]:
    """What a step would take on the GPU that was emulated, in sentences."""
    one = report.estimate
    if one is None or one.refused or not one.step.likely:
        return []
    source = ", with times from a real profile" if one.calibrated else ""
    where = f" on {one.gpu}" if one.gpu else ""
    told = [
        f"Estimated{source}: a step of {duration(one.step.likely)} "
        f"({duration(one.step.least)} to {duration(one.step.most)}){where}, at the sizes of this run; "
        f"the GPU has work for {duration(one.device)} of it, the host for {duration(one.host)}."
    ]
    if report.findings and one.saved.most >= 0.005 * one.step.likely:
        if one.reasons or one.saved.most > 3 * max(one.saved.least, 1):
            told.append(f"All waits together cost at most {duration(one.saved.most)} of it.")
        else:
            left = one.step.likely - one.prices.all
            less = percent(one.prices.all / one.step.likely)
            told.append(f"Without all waits it would be {duration(left)}, {less} less.")
    told += [f"Estimates are bounds: {reason}." for reason in one.reasons]
    return told
