"""Prepare a `Track` of memory for the page: columns of differences, in units that keep numbers short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gapless.model import Report
from gapless.model.memory_report import MemoryReport
from gapless.model.track import Layer, Points, Track
from gapless.model.wording import TENSORS, rename_steps
from gapless.render.html._clean import Clean

_UNIT_BYTES = 512
"""The allocator rounds block sizes to multiples of this."""
_KIND_COLORS = {
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
_LINE_COLORS = ("busy", "c-host", "c-input", "c-launch", "c-graph", "c-allocator")
_SETTING_COLORS = ("c-host", "c-launch", "c-allocator", "c-graph", "c-input", "c-communication")


def charts(report: Report, prefix: str, peak: str, clean: Clean) -> list[dict[str, Any]]:
    """Return the chart of each device with a track; `peak` is the id of the table of the peak's owners."""
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
    """Return the chart of `report`, whose steps are called `noun`; `target` is the id of the peak's table."""
    calls, steps = track.calls, track.steps
    used = [
        number
        for number in range(len(track.layers))
        if any(any(window.layers[number]) for window in track.windows)
    ]
    each = max(1, round(report.steps / len(steps))) if steps else 1
    return {
        "unit": _UNIT_BYTES,
        "windows": [_points(window, used) for window in track.windows],
        "layers": [
            {"name": _layer_name(track.layers[at], clean), "color": _color(track.layers[at], at)}
            for at in used
        ],
        "calls": {
            "event": _differences(calls.event),
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


def _layer_name(layer: Layer, clean: Clean) -> str:
    if layer.kind:
        return TENSORS.get(layer.kind, layer.kind)
    if layer.line is not None:
        return f"{_short(layer.line.file, clean)}:{layer.line.line} {layer.line.function}"
    return layer.operator or ("from before the recording" if layer.before else "elsewhere")


def _color(layer: Layer, number: int) -> str:
    if layer.kind:
        return _KIND_COLORS.get(layer.kind, "c-unknown")
    if layer.before:
        return "c-profiler"
    return (
        _LINE_COLORS[number % len(_LINE_COLORS)] if layer.line is not None or layer.operator else "c-unknown"
    )


def other_settings(report: MemoryReport, track: Track) -> list[dict[str, Any]]:
    """Return the run under other settings. The best is shown from the start, and settings the user named."""
    best = report.trials[report.best].settings if report.best >= 0 else ""
    return [
        {
            "name": course.name,
            "color": _SETTING_COLORS[number % len(_SETTING_COLORS)],
            "best": course.name == best,
            "shown": course.name == best or not report.searched,
            "event": _differences(course.event),
            "reserved": _differences(course.reserved, _UNIT_BYTES),
        }
        for number, course in enumerate(track.others)
    ]


def _stops(report: MemoryReport, track: Track, target: str) -> list[dict[str, Any]]:
    """Return the events to jump to, in order: the peaks, and requests that found the GPU full."""
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
        "event": _differences(points.event),
        "allocated": _differences(points.allocated, _UNIT_BYTES),
        "reserved": _differences(points.reserved, _UNIT_BYTES),
        "time": _differences(points.time, 1000),
        "layers": [_differences(points.layers[at]) for at in layers],
    }


def _differences(column: Sequence[int], unit: int = 1) -> list[int]:
    """Return the first value and the differences between neighbours, in units of `unit`."""
    differences, before = [], 0
    for value in column:
        differences.append(value // unit - before)
        before = value // unit
    return differences


def _short(file: str, clean: Clean) -> str:
    """Return the path relative to the working directory; of four parts or more, the last two."""
    parts = clean.path(file).replace("\\", "/").split("/")
    return "/".join(parts if len(parts) < 4 else parts[-2:])
