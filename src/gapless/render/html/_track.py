"""A `Track` as a page draws it: columns of differences, in units that keep the numbers short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gapless.model import Report
from gapless.model.memory_report import MemoryReport
from gapless.model.track import Layer, Points, Track
from gapless.model.wording import TENSORS, rename_steps
from gapless.render.html._clean import Clean

_UNIT = 512
"""All sizes of blocks are multiples of it."""
_COLORS = {
    "parameter": "c-host",
    "gradient": "c-launch",
    "optimizer": "c-graph",
    "activation": "busy",
    "forward": "busy",
    "kept": "c-profiler",
    "temporary": "b-operator",
    "backward": "c-communication",
    "batch": "c-input",
    "workspace": "c-allocator",
    "communication": "c-communication",
    "checkpoint": "c-input",
    "unknown": "c-unknown",
}
_LINES = ("busy", "c-host", "c-input", "c-launch", "c-graph", "c-allocator")
_OTHERS = ("c-host", "c-launch", "c-allocator", "c-graph", "c-input", "c-communication")


def drawn(report: Report, prefix: str, peak: str, clean: Clean) -> list[dict[str, Any]]:
    """The memory of each device that can be drawn; `peak` is the table of who holds it, "" for none."""
    found = []
    for made in report.memory:
        if made.track is not None:
            several = len(report.memory) > 1
            found.append(
                {
                    "id": f"{prefix}memory{made.device if several else ''}",
                    "title": f"Memory of GPU {made.device}" if several else "Memory",
                    "data": data(made, made.track, report.steps.noun, peak, clean),
                    "finest": made.track.finest,
                    "thinned": len(made.track.windows) > 1,
                }
            )
    return found


def data(report: MemoryReport, track: Track, noun: str, target: str, clean: Clean) -> dict[str, Any]:
    """What is drawn of `report`, whose steps are called `noun`; `target` is where those who hold the peak
    are told."""
    calls, steps = track.calls, track.steps
    used = [
        number for number in range(len(track.layers)) if any(any(one.layers[number]) for one in track.windows)
    ]
    each = max(1, round(report.steps / len(steps))) if steps else 1
    return {
        "unit": _UNIT,
        "windows": [_points(one, used) for one in track.windows],
        "layers": [
            {"name": _named(track.layers[at], clean), "color": _color(track.layers[at], at)} for at in used
        ],
        "calls": {
            "event": _steps(calls.event),
            "what": list(calls.what),
            "count": calls.count,
            "size": calls.size,
            "place": calls.place,
        },
        "places": [f"{_short(one.file, clean)}:{one.line} {one.function}" for one in track.places],
        "steps": steps,
        "each": each,
        "noun": noun,
        "nouns": rename_steps("steps", noun),
        "others": others(report, track),
        "limit": report.limit,
        "peak": {
            "event": report.peak.event,
            "allocated": report.baseline.peak_allocated,
            "id": target,
        },
        "stops": _stops(report, track, target),
    }


def _named(one: Layer, clean: Clean) -> str:
    if one.kind:
        return TENSORS.get(one.kind, one.kind)
    if one.line is not None:
        return f"{_short(one.line.file, clean)}:{one.line.line} {one.line.function}"
    return one.operator or ("from before the recording" if one.before else "elsewhere")


def _color(one: Layer, number: int) -> str:
    if one.kind:
        return _COLORS.get(one.kind, "c-unknown")
    if one.before:
        return "c-profiler"
    return _LINES[number % len(_LINES)] if one.line is not None or one.operator else "c-unknown"


def others(report: MemoryReport, track: Track) -> list[dict[str, Any]]:
    """The run under other settings. The best is drawn from the start, and what the user asked for by name."""
    best = report.trials[report.best].settings if report.best >= 0 else ""
    return [
        {
            "name": one.name,
            "color": _OTHERS[number % len(_OTHERS)],
            "best": one.name == best,
            "shown": one.name == best or not report.searched,
            "event": _steps(one.event),
            "reserved": _steps(one.reserved, _UNIT),
        }
        for number, one in enumerate(track.others)
    ]


def _stops(report: MemoryReport, track: Track, target: str) -> list[dict[str, Any]]:
    """What is worth going to, in order: the peaks, and where the driver had no more."""
    found = [(report.peak.event, "peak of allocated memory", target)]
    if report.height.event != report.peak.event:
        found.append((report.height.event, "peak of reserved memory", ""))
    base = report.baseline
    for one, told in ((base.shortage, "out of memory"), (base.failure, "a request that failed")):
        if one is not None:
            found.append((one.event, told, ""))
    full = [
        at
        for at, what in zip(track.calls.event, track.calls.what, strict=True)
        if what in ("retry", "failed")
    ]
    found += [(at, "a request found the GPU full", "") for at in full]
    return [{"start": at, "end": at, "label": told, "id": target} for at, told, target in sorted(found)]


def _points(one: Points, layers: Sequence[int]) -> dict[str, Any]:
    return {
        "event": _steps(one.event),
        "allocated": _steps(one.allocated, _UNIT),
        "reserved": _steps(one.reserved, _UNIT),
        "time": _steps(one.time, 1000),
        "layers": [_steps(one.layers[at]) for at in layers],
    }


def _steps(column: Sequence[int], unit: int = 1) -> list[int]:
    """The first value, and differences from one to the next, in `unit`."""
    found, before = [], 0
    for value in column:
        found.append(value // unit - before)
        before = value // unit
    return found


def _short(file: str, clean: Clean) -> str:
    """The path from the working directory; of one that is elsewhere and long, its last two parts."""
    parts = clean.path(file).replace("\\", "/").split("/")
    return "/".join(parts if len(parts) < 4 else parts[-2:])
