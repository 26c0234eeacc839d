"""How much of what happened the profile holds: launches against records, and times against each other.

What is missing in every profile is not counted: launches into a graph that is being captured, memsets of no
bytes, work that was launched before the recording began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gapless.analyze.profile.contradictions import contradictory
from gapless.analyze.profile.spans import Spans, intersect
from gapless.analyze.profile.steps import StepSpans, compute_busy
from gapless.model.coverage import Coverage, Kind, Missing
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, union

_LAUNCH = re.compile(r"^(?:cuda|hip|cu)(?:(?:Ext)?(?:Module)?(?:Graph)?Launch(?!HostFunc)|Memcpy)")
_GRAPH = re.compile(r"^(?:cuda|hip|cu)GraphLaunch")
_CAPTURE = re.compile(r"^(?:cuda|hip|cu)Stream(Begin|End)Capture")
_SILENT = 0.2
"""Part of the span for which a recording may go on before the first event without a word."""
_TAIL = 0.05
"""Part of the span that may lie between the last event and the end of the recording."""
_PAUSE = 1_000_000
"""Nanoseconds in which a queue may be idle between two operations."""
_SECOND = 0.02
"""Part of the launches that make a second process one."""


def coverage(timeline: Timeline, device: int, steps: StepSpans) -> Coverage:
    """What `timeline` holds of what happened on `device`, as far as the file itself lets one tell."""
    facts, losses, work = timeline.facts, timeline.facts.losses, timeline.work
    low, high = timeline.span
    calls = _launch_calls(timeline, steps)
    recorded = np.isin(timeline.host.correlation[calls], work.correlation[work.correlation > 0])
    numberless = int(np.count_nonzero(work.correlation <= 0))
    gone = calls[~recorded] if not numberless else calls[~recorded][numberless:]
    return Coverage(
        launches=len(calls),
        records=len(work),
        missing=tuple(sorted(_missing(timeline, device, calls, gone), key=lambda one: one.share)),
        cut=facts.truncated,
        broken=losses.broken,
        corrupted=losses.corrupted,
        profiles=losses.lists,
        processes=_processes(timeline, calls),
        contradictory=contradictory(timeline),
        excerpt=losses.before,
        unrecorded=losses.unrecorded if losses.unrecorded > max(_TAIL * (high - low), _PAUSE) else 0,
        endless=losses.endless,
        silent=losses.silent if losses.silent > max(_SILENT * (high - low), _PAUSE) else 0,
        bare=not (timeline.host.kind == HostKind.OPERATOR).any(),
        hidden=_hidden(timeline, device, steps, calls, gone),
        steps=steps.total,
    )


def why_nothing(timeline: Timeline) -> str:
    """What to say of a profile without any work of a device: whether there was some, and what to do."""
    named = timeline.names_where(_LAUNCH.match)
    launches = int(named[timeline.host.name].sum()) if named.any() else 0
    if timeline.facts.truncated:
        return "is cut off before the work of the GPU: let the process live until the trace is written"
    if launches:
        return (
            f"has no GPU work and {launches:,} launches, so that it was lost: let the GPU finish before the "
            "profiler stops, and let no other profiler run (Nsight, DCGM)"
        )
    return (
        "has no GPU work: record it on the GPU, with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    )


def _missing(timeline: Timeline, device: int, calls: Ints, gone: Ints) -> Iterator[Missing]:
    """Each kind of which something is missing."""
    host, losses = timeline.host, timeline.facts.losses
    graph = timeline.names_where(_GRAPH.match)
    of_graph, lost_graph = graph[host.name[calls]], graph[host.name[gone]]
    launched = int(np.count_nonzero(of_graph)), int(np.count_nonzero(lost_graph))
    yield from _kind("graph", launched[0] - launched[1], launched[0])
    others = len(calls) - launched[0]
    yield from _kind("launch", others - (len(gone) - launched[1]), others)
    more = max(losses.arrows - len(gone), 0)  # than the launches whose work is missing altogether
    yield from _kind("record", len(timeline.work), len(timeline.work) + more)
    bare, all_of_them = _without_launch(timeline, device)
    yield from _kind("call", all_of_them - bare, all_of_them)
    operators = max(losses.numbered, int(np.count_nonzero(host.kind == HostKind.OPERATOR)))
    gone_ones = max(losses.numbers - losses.numbered, _unknown_operators(timeline))
    yield from _kind("operator", operators, operators + gone_ones)


def _kind(kind: Kind, seen: int, of: int) -> Iterator[Missing]:
    if seen < of:
        yield Missing(kind=kind, seen=seen, of=of)


def _launch_calls(timeline: Timeline, steps: StepSpans) -> Ints:
    """Calls up to the end of the steps that put work on a device, not into a graph that is captured."""
    host = timeline.host
    named = timeline.names_where(_LAUNCH.match)
    if not named.any() or not len(steps.start):
        return np.empty(0, np.int64)
    calls = np.flatnonzero((host.kind == HostKind.CALL) & named[host.name] & (host.start < steps.end[-1]))
    around = timeline.parents[calls]
    inner = (around >= 0) & (host.kind[around] == HostKind.CALL) & named[host.name[around]]
    calls = calls[~inner]
    calls = calls[np.argsort(host.start[calls], kind="stable")]
    found: Ints = calls[~_captured(timeline, host.start[calls])]
    return found


def _captured(timeline: Timeline, times: Ints) -> Bools:
    """Which of these moments lie within the capture of a graph."""
    host = timeline.host
    bounds = []
    for which in ("Begin", "End"):
        named = timeline.names_where(lambda name, w=which: (m := _CAPTURE.match(name)) and m[1] == w)
        rows = np.flatnonzero((host.kind == HostKind.CALL) & named[host.name])
        bounds.append(np.sort(host.start[rows]))
    opened = np.searchsorted(bounds[0], times, side="right")
    closed = np.searchsorted(bounds[1], times, side="right")
    found: Bools = opened > closed
    return found


def _without_launch(timeline: Timeline, device: int) -> tuple[int, int]:
    """Operations of `device` whose launch is not there, and of how many.

    What runs on a stream before the first operation with a launch was queued before the recording began, and
    does not count, unless the device idles meanwhile: a queue has no gaps.
    """
    work = timeline.work
    rows = np.flatnonzero(work.device == device)
    linked = timeline.launchers[rows] >= 0
    if not linked.any():
        return len(rows), len(rows)
    streams, at = np.unique(work.stream[rows], return_inverse=True)
    first = np.full(len(streams), int(work.start[rows[linked]].min()), np.int64)
    for number in range(len(streams)):  # there are few
        own = linked & (at == number)
        if own.any():
            first[number] = work.start[rows[own]].min()
    queued = ~linked & (work.start[rows] < first[at])
    if queued.any():
        start, end = union(work.start[rows[queued]], work.end[rows[queued]])
        idle = int((start[1:] - end[:-1]).sum())
        if idle > max(_PAUSE, (end[-1] - start[0]) / 2):
            queued[:] = False
    return int(np.count_nonzero(~linked & ~queued)), int(np.count_nonzero(~queued))


def _unknown_operators(timeline: Timeline) -> int:
    """How many operators are not there that calls and work of the device name as the ones around them."""
    host = timeline.host
    named = np.isin(host.kind, (HostKind.OPERATOR, HostKind.ANNOTATION))
    wanted = np.concatenate([host.external[host.kind == HostKind.CALL], timeline.work.external])
    wanted = np.unique(wanted[wanted > 0])
    return len(np.setdiff1d(wanted, host.external[named], assume_unique=False))


def _processes(timeline: Timeline, calls: Ints) -> int:
    """How many processes launch more than a damaged number would have them launch."""
    if not len(calls):
        return 1
    pids = np.array([one.pid for one in timeline.threads])
    _, counts = np.unique(pids[timeline.host.thread[calls]], return_counts=True)
    return max(int(np.count_nonzero(counts > max(_SECOND * len(calls), 1))), 1)


def _hidden(timeline: Timeline, device: int, steps: StepSpans, calls: Ints, gone: Ints) -> int:
    """Idleness in the steps between launches without a record and the next work that was launched later."""
    if not len(gone) or not len(steps.start):
        return 0
    host, work = timeline.host, timeline.work
    linked = np.flatnonzero((work.device == device) & (timeline.launchers >= 0))
    when = host.start[timeline.launchers[linked]]
    order = np.argsort(when, kind="stable")
    begins = work.start[linked][order]
    # The earliest start of anything launched later: from the back, the least so far.
    least = np.minimum.accumulate(begins[::-1])[::-1] if len(begins) else begins
    at = np.searchsorted(when[order], host.start[gone], side="right")
    until = np.append(least, steps.end[-1])[at]
    start = host.start[gone]
    low, high = union(start, np.maximum(until, start))
    where, _, _ = intersect(
        Spans(steps.start, steps.end, np.arange(len(steps.start))), Spans(low, high, np.arange(len(low)))
    )
    busy = Spans(*compute_busy(timeline, device), np.empty(0, np.int64))
    busy = busy._replace(row=np.arange(len(busy.start)))
    return int(where.length.sum() - intersect(where, busy)[0].length.sum())
