"""Write findings as tracks beside a trace's own events, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from gapless.model import Finding, Profile, Report, Site
from gapless.model.lanes import Lanes
from gapless.model.wording import CAUSES
from gapless.render import _brief as brief
from gapless.render import _words as words
from gapless.render._style import Style

PROCESS = 2_000_000_000
"""Process number of the tracks, larger than any process id or device number."""
MAX_BOXES = 60_000
"""Idle intervals drawn at most: shorter neighbours are merged, to keep the viewer fast."""

_STEP_THREAD, _IDLE_THREAD, _FINDING_THREAD, _FIRST_WAIT_THREAD = 1, 2, 3, 10
"""Thread numbers of the tracks, which also order them."""
_MAX_TEXT_LENGTH = 500
"""Characters of one text: the viewer repeats it for each slice."""

_text = partial(brief.cut, most=_MAX_TEXT_LENGTH)
Json = dict[str, Any]
Slice = tuple[int, int, int, int, int]
"""Start and end in nanoseconds since the first event; kind, number of spans, and their total length."""


def events(report: Report, style: Style, base: int = 0) -> Iterator[bytes]:
    """Yield the tracks of `report` as trace events in JSON; none if it has no profile.

    `base` is the file's ``baseTimeNanoseconds``, which is subtracted from every time.
    """
    profile = report.profile
    if profile is None:
        return
    clock = _Clock(profile.origin - base)
    for event in (
        *_process(),
        *_steps(profile, clock),
        *_findings(report, style, clock),
    ):
        yield _encode(event)
    if profile.lanes is not None:
        for event in _lane_events(report, profile, profile.lanes, style, clock):
            yield _encode(event)


class _Clock:
    """Converts nanoseconds since the first event to the file's times."""

    def __init__(self, origin: int) -> None:
        self._origin = origin

    def at(self, time: int) -> _Number:
        return _Number(self._origin + time)


class _Number(int):
    """Nanoseconds, written as microseconds with three decimals: a float cannot hold those since 1970."""

    def __str__(self) -> str:
        sign = "-" if self < 0 else ""
        whole, part = divmod(abs(int(self)), 1000)
        return f"{sign}{whole}.{part:03d}"


def _encode(event: Json) -> bytes:
    """Encode `event` as JSON, keeping times exact."""
    times = {key: str(value) for key, value in event.items() if isinstance(value, _Number)}
    text = json.dumps({key: value for key, value in event.items() if key not in times})
    time_fields = "".join(f'"{key}": {value}, ' for key, value in times.items())
    return f"{{{time_fields}{text[1:]}".encode()


def _meta(event_name: str, thread: int, value: Json) -> Json:
    return {"ph": "M", "name": event_name, "pid": PROCESS, "tid": thread, "args": value}


def _track(thread: int, name: str) -> Iterator[Json]:
    yield _meta("thread_name", thread, {"name": name})
    yield _meta("thread_sort_index", thread, {"sort_index": thread})


def _process() -> Iterator[Json]:
    yield _meta("process_name", 0, {"name": "Gapless"})
    yield _meta("process_sort_index", 0, {"sort_index": -100})


def _slice(clock: _Clock, thread: int, name: str, start: int, end: int, args: Json) -> Json:
    return {
        "ph": "X",
        "cat": "gapless",
        "name": _text(name),
        "pid": PROCESS,
        "tid": thread,
        "ts": clock.at(start),
        "dur": _Number(max(end - start, 0)),
        "args": args,
    }


def _steps(profile: Profile, clock: _Clock) -> Iterator[Json]:
    steps = profile.steps
    if steps.source == "span":
        return
    yield from _track(_STEP_THREAD, "training steps" if _trains(profile) else "steps")
    for number, (start, end) in enumerate(zip(steps.start, steps.end, strict=True)):
        name = steps.names[number] if number < len(steps.names) else f"step {number}"
        args: Json = {}
        if number < len(steps.busy) and end > start:
            args["GPU busy"] = f"{100 * steps.busy[number] / (end - start):.1f} %"
        yield _slice(clock, _STEP_THREAD, name, start, end, args)


def _trains(profile: Profile) -> bool:
    return any(phase.name in ("backward", "optimizer") and phase.host for phase in profile.phases)


def _title(finding: Finding, style: Style) -> str:
    return f"{finding.code} {brief.where(finding, style) if finding.line or finding.place else finding.name}"


def _describe(finding: Finding, report: Report, style: Style) -> Json:
    """Return the details of a finding for a slice's panel."""
    rows = {
        "rule": f"{finding.code} {finding.name}",
        "where": brief.where(finding, style),
        "code": finding.line.code if finding.line else "",
        "what waits": brief.waits(finding),
        "costs": words.weight(finding, report),
        "price": brief.cost(finding, report),
        "instead": finding.remedy,
    }
    return {key: _text(value) for key, value in rows.items() if value}


def _findings(report: Report, style: Style, clock: _Clock) -> Iterator[Json]:
    """Yield a mark where each finding is best inspected."""
    yield from _track(_FINDING_THREAD, "findings (where they cost most)")
    for finding in report.findings:
        yield {
            "ph": "i",
            "s": "t",
            "cat": "gapless",
            "name": _text(_title(finding, style)),
            "pid": PROCESS,
            "tid": _FINDING_THREAD,
            "ts": clock.at(finding.loss.start if finding.loss else 0),
            "args": {**_describe(finding, report, style), "seen": _text("; ".join(finding.evidence))},
        }


def _lane_events(
    report: Report, profile: Profile, lanes: Lanes, style: Style, clock: _Clock
) -> Iterator[Json]:
    """Yield idleness by cause, and every wait with its finding."""
    by_site: dict[Site, Finding] = {site: finding for finding in report.findings for site in finding.sites}
    for number, lane in enumerate(lanes.lanes):
        if lane.kind == "idle":
            yield from _track(_IDLE_THREAD, "GPU idle, and why")
            for start, end, kind, count, busy in _slices(lanes, number):
                name = CAUSES.get(lanes.kinds[kind], lanes.kinds[kind])
                yield _slice(clock, _IDLE_THREAD, name, start, end, _merged_share(start, end, count, busy))
        elif lane.kind == "waits":
            yield from _track(_FIRST_WAIT_THREAD + number, f"waits of {_text(lane.name)}")
            for start, end, kind, count, busy in _slices(lanes, number):
                finding = by_site.get(profile.costs[kind].site)
                name = _title(finding, style) if finding else profile.costs[kind].place or "wait"
                args = _merged_share(start, end, count, busy)
                args.update(_describe(finding, report, style) if finding else {})
                yield _slice(clock, _FIRST_WAIT_THREAD + number, name, start, end, args)


def _merged_share(start: int, end: int, count: int, busy: int) -> Json:
    """Return how many spans a box merges and which share of it they fill; empty for a single span."""
    if count < 2:
        return {}
    share = 100 * busy / (end - start) if end > start else 100.0
    return {"stretches": count, "together": f"{share:.0f} % of this"}


def _slices(lanes: Lanes, number: int) -> Iterator[Slice]:
    """Yield the boxes of lane `number` over the whole profile, each time in the finest detail there is."""
    windows = sorted(lanes.windows, key=lambda window_at: window_at.end - window_at.start)
    covered: list[tuple[int, int]] = []
    slices: list[Slice] = []
    for window in windows:
        for row in window.boxes:
            if row.lane == number:
                slices += [part for part in _unpack(window.start, row) if not _lies_within(part, covered)]
        covered.append((window.start, window.end))
    yield from _without_overlap(sorted(slices))


def _unpack(start: int, row: Any) -> Iterator[Slice]:
    at = start
    columns = zip(row.start, row.length, row.what, row.count, row.busy, strict=True)
    for step, length, kind, count, busy in columns:
        at += step
        yield at, at + length, kind, count, busy


def _lies_within(part: Slice, covered: Iterable[tuple[int, int]]) -> bool:
    return any(start <= part[0] and part[1] <= end for start, end in covered)


def _without_overlap(slices: Iterable[Slice]) -> Iterator[Slice]:
    """Yield `slices` in order, each cut at the end of the previous one: levels of detail may overlap."""
    last = None
    for start, end, kind, count, busy in slices:
        if last is not None and start < last:
            if end <= last:
                continue
            start = last
        yield start, end, kind, count, busy
        last = end
