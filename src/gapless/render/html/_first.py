"""Prepare the page's first screen: facts, what to do first, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gapless.model import Change, Profile, Report
from gapless.model.wording import CAUSES, count, duration, percent
from gapless.render import _brief as brief
from gapless.render import _words as words
from gapless.render.html._clean import Clean

MEANINGS = {
    "wait": "the CPU waited for the GPU, and nothing else was queued",
    "input": "the next batch was not ready",
    "launch": "kernels are shorter than their launches",
    "host": "the CPU did other work and launched nothing",
    "allocator": "the allocator got memory from the driver or returned it",
    "communication": "only collectives ran, or ranks waited for one another",
    "graph": "a graph launch, a compilation or another long driver call",
    "profiler": "the profiler's own overhead",
    "unknown": "nothing recorded explains it",
}
_WORK = (("kernel", "kernels"), ("memcpy", "copies"), ("memset", "memset"))
_MIN_SHARE_SHOWN = 0.0005
"""Parts of a step below this share are left out: they would read “under 0.1 %”."""
_MAX_STEP_BARS, _MAX_COURSE_BARS = 240, 120
"""Bars that fit into the strip, of steps (neighbours share one), and of a single step's course."""


def facts(report: Report, clean: Clean) -> list[str]:
    """Return what the report is about, and the versions, in few words each."""
    environment = report.environment
    parts = words.about(report, clean.path).split(" · ")
    parts += [f"torch {environment.torch}"] if environment.torch else []
    parts += [f"Python {environment.python}"] if environment.python else []
    return [part for part in parts if part]


def changes(report: Report, anchors: Sequence[str], clean: Clean) -> list[dict[str, Any]]:
    """Return the changes to make first: place, before → after, and a link to the finding."""
    first = max((change.before for change in report.verdict.do_first[:1]), default=0.0)
    _, brought = brief.effects(report.verdict)
    return [
        _change(change, gain, first, anchors, clean)
        for change, gain in zip(report.verdict.do_first, brought, strict=True)
    ]


def _change(
    change: Change, brought: str, first: float, anchors: Sequence[str], clean: Clean
) -> dict[str, Any]:
    where = change.place
    if change.line is not None:
        where = f"{clean.path(change.line.file)}:{brief.numbers(change.lines or (change.line.line,))}"
    links = [anchors[at] for at in change.findings if 0 <= at < len(anchors)]
    codes = change.codes[:1] if links else ()
    return {
        "what": change.what,
        "where": where,
        "brought": brought,
        "left": f"{100 * change.after / first:.1f}" if first > 0 and change.after >= 0 else "",
        "link": links[0] if links else "",
        "code": codes[0] if codes else "details",
    }


def strip(profile: Profile) -> dict[str, Any] | None:
    """Return a bar for each step: its length, and the share that the GPU works; of one step its course."""
    if profile.steps.count < 2:
        return _course(profile)
    steps = profile.steps
    length = [end - start for start, end in zip(steps.start, steps.end, strict=True)]
    group = -(-steps.count // _MAX_STEP_BARS)
    longest = max(length) or 1
    bars = []
    for first in range(0, steps.count, group):
        last = min(first + group, steps.count) - 1
        each = sum(length[first : last + 1]) / (last - first + 1)
        busy = sum(steps.busy[first : last + 1]) / (last - first + 1)
        numbered = f"step {first + 1}" if first == last else f"steps {first + 1} to {last + 1}"
        name = steps.names[first] if group == 1 and first < len(steps.names) else numbered
        part = min(busy / each, 1.0) if each else 0.0
        title = f"{name}: {duration(each)}, GPU busy for {duration(busy)}"
        bars.append(_bar(each / longest, part, title, steps.start[first], steps.end[last]))
    order = sorted(length)
    caption = f"{count(steps.count, 'step')}: {duration(order[len(order) // 2])} in the median, "
    caption += f"{duration(order[0])} to {duration(order[-1])}"
    return {
        "bars": bars,
        "kind": "",
        "told": caption + (f"; a bar is the mean of {group}" if group > 1 else ""),
    }


def _course(profile: Profile) -> dict[str, Any] | None:
    """Return bars of how busy the GPU is over the recording; None if that was not recorded."""
    busy = profile.lanes.busy if profile.lanes is not None else ()
    if not busy or not any(busy):
        return None
    windows = profile.lanes.windows if profile.lanes is not None else ()
    low, high = (windows[0].start, windows[0].end) if windows else (0, profile.span)
    group = -(-len(busy) // _MAX_COURSE_BARS)
    bars = []
    for first in range(0, len(busy), group):
        few = busy[first : first + group]
        part = sum(few) / len(few) / 100
        start, end = (low + (high - low) * at // len(busy) for at in (first, first + len(few)))
        title = f"{duration(start - low)}–{duration(end - low)}: GPU busy {percent(part)}"
        bars.append(_bar(1.0, part, title, start, end))
    return {"bars": bars, "kind": " course", "told": f"{duration(high - low)} from first to last event"}


def _bar(height: float, busy: float, title: str, start: int, end: int) -> dict[str, Any]:
    return {
        "height": f"{100 * height:.2f}",
        "busy": f"{100 * busy:.2f}",
        "title": title,
        "from": start,
        "to": end,
    }


def split(profile: Profile) -> list[dict[str, Any]]:
    """Return the parts that a step's time consists of: the GPU's work, and its idle time by cause."""
    total, per = profile.steps.total, max(profile.steps.count, 1)
    if not total:
        return []
    work = [("part", name, label, getattr(profile.split, name), "the GPU works") for name, label in _WORK]
    lost = [
        ("cause", cause, f"idle: {CAUSES[cause]}", time, MEANINGS[cause])
        for cause, time in profile.idle_by_cause()
    ]
    return [
        {
            "color": f"{kind}-{key}",
            "label": label,
            "share": percent(time / total),
            "width": f"{100 * time / total:.3f}",
            "title": f"{label}: {duration(time / per)}, {percent(time / total)}; {meaning}",
        }
        for kind, key, label, time, meaning in (*work, *lost)
        if time / total >= _MIN_SHARE_SHOWN
    ]
