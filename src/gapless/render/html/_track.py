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
    tracks = []
    for memory in report.memory:
        if memory.track is not None:
            several = len(report.memory) > 1
            tracks.append(
                {
                    "id": f"{prefix}memory{memory.device if several else ''}",
                    "title": f"Memory of GPU {memory.device}" if several else "Memory",
                    "data": data(memory, memory.track, report.steps.noun, peak, clean),
                    "finest": memory.track.finest,
                    "thinned": len(memory.track.windows) > 1,
                }
            )
    return tracks


def data(report: MemoryReport, track: Track, noun: str, target: str, clean: Clean) -> dict[str, Any]:
    """What is drawn of `report`, whose steps are called `noun`; `target` is where those who hold the peak
    are told."""
    calls, steps = track.calls, track.steps
    used = [
        number
        for number in range(len(track.layers))
        if any(any(window.layers[number]) for window in track.windows)
    ]
    each = max(1, round(report.steps / len(steps))) if steps else 1
    return {
        "unit": _UNIT,
        "windows": [_points(window, used) for window in track.windows],
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
        "places": [f"{_short(line.file, clean)}:{line.line} {line.function}" for line in track.places],
        "steps": steps,
        "each": each,
        "noun": noun,
        "nouns": rename_steps("steps", noun),
        "others": other_settings(report, track),
        "limit": report.limit,
        "peak": {
            "event": report.peak.event,
            "allocated": report.baseline.peak_allocated,
            "id": target,
        },
        "stops": _stops(report, track, target),
    }


def _named(layer: Layer, clean: Clean) -> str:
    if layer.kind:
        return TENSORS.get(layer.kind, layer.kind)
    if layer.line is not None:
        return f"{_short(layer.line.file, clean)}:{layer.line.line} {layer.line.function}"
    return layer.operator or ("from before the recording" if layer.before else "elsewhere")


def _color(layer: Layer, number: int) -> str:
    if layer.kind:
        return _COLORS.get(layer.kind, "c-unknown")
    if layer.before:
        return "c-profiler"
    return _LINES[number % len(_LINES)] if layer.line is not None or layer.operator else "c-unknown"


def other_settings(report: MemoryReport, track: Track) -> list[dict[str, Any]]:
    """The run under other settings. The best is drawn from the start, and what the user asked for by name."""
    best = report.trials[report.best].settings if report.best >= 0 else ""
    return [
        {
            "name": course.name,
            "color": _OTHERS[number % len(_OTHERS)],
            "best": course.name == best,
            "shown": course.name == best or not report.searched,
            "event": _steps(course.event),
            "reserved": _steps(course.reserved, _UNIT),
        }
        for number, course in enumerate(track.others)
    ]


def _stops(report: MemoryReport, track: Track, target: str) -> list[dict[str, Any]]:
    """What is worth going to, in order: the peaks, and where the driver had no more."""
    stops = [(report.peak.event, "peak of allocated memory", target)]
    if report.height.event != report.peak.event:
        stops.append((report.height.event, "peak of reserved memory", ""))
    base = report.baseline
    for shortage, label in ((base.shortage, "out of memory"), (base.failure, "a request that failed")):
        if shortage is not None:
            stops.append((shortage.event, label, ""))
    full = [
        at
        for at, call in zip(track.calls.event, track.calls.what, strict=True)
        if call in ("retry", "failed")
    ]
    stops += [(at, "a request found the GPU full", "") for at in full]
    return [{"start": at, "end": at, "label": label, "id": target} for at, label, target in sorted(stops)]


def _points(points: Points, layers: Sequence[int]) -> dict[str, Any]:
    return {
        "event": _steps(points.event),
        "allocated": _steps(points.allocated, _UNIT),
        "reserved": _steps(points.reserved, _UNIT),
        "time": _steps(points.time, 1000),
        "layers": [_steps(points.layers[at]) for at in layers],
    }


def _steps(column: Sequence[int], unit: int = 1) -> list[int]:
    """The first value, and differences from one to the next, in `unit`."""
    differences, before = [], 0
    for value in column:
        differences.append(value // unit - before)
        before = value // unit
    return differences


def _short(file: str, clean: Clean) -> str:
    """The path from the working directory; of one that is elsewhere and long, its last two parts."""
    parts = clean.path(file).replace("\\", "/").split("/")
    return "/".join(parts if len(parts) < 4 else parts[-2:])
