"""How much of what happened the profile holds: launches against records, and times against each other.

What is missing in every profile is not counted: launches into a graph that is being captured, memsets of no
bytes, work that was launched before the recording began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from gapless.analyze.profile.contradictions import contradictory, lengthless
from gapless.analyze.profile.holes import Launches
from gapless.analyze.profile.promises import begun, left_out
from gapless.analyze.profile.spans import Spans, intersect
from gapless.analyze.profile.trace_steps import StepSpans, compute_busy
from gapless.model.coverage import Coverage, Kind, Missing
from gapless.trace.names import LAUNCH
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, distinct, is_among, union

_GRAPH = re.compile(r"^(?:cuda|hip|cu)GraphLaunch")
_CAPTURE = re.compile(r"^(?:cuda|hip|cu)Stream(Begin|End)Capture")
_SILENT = 0.2
"""Part of the span for which a recording may go on before the first event without a word."""
_TAIL = 0.05
"""Part of the span that may lie between the last event and the end of the recording."""
_PAUSE = 1_000_000
"""Nanoseconds in which a queue may be idle between two operations."""
_MARK = re.compile(r"ProfilerStep#|Optimizer\.")
_ALL_BUT_MARKS = 0.995
"""From this part of the CPU events on the missing ones are taken for others than marks of steps."""
_UNMARKED = 0.1
"""Part of the launches that may lie outside of the steps where CPU events are missing."""
_SECOND = 0.02
"""Part of the launches that make a second process one."""
_FEW = 3
"""Fewer launches that the file promises are no sign that more are missing."""


def coverage(timeline: Timeline, device: int, steps: StepSpans) -> Coverage:
    """What `timeline` holds of what happened on `device`, as far as the file itself lets one tell."""
    facts, losses, work = timeline.facts, timeline.facts.losses, timeline.work
    (low, high), (begin, end) = timeline.span, losses.window
    launches = _launch_calls(timeline)
    when = timeline.host.start[launches]
    captured = _captured(timeline, when)
    calls = launches[(when < (steps.end[-1] if len(steps.end) else 0)) & ~captured]
    recorded = is_among(timeline.host.correlation[calls], work.correlation[work.correlation > 0])
    numberless = int(np.count_nonzero(work.correlation <= 0))
    gone = calls[~recorded] if not numberless else calls[~recorded][numberless:]
    untold = Launches(timeline, launches, captured, begun(timeline, launches))
    missing = [*_missing(timeline, device, calls, gone)]
    missing += _untold(untold, any(one.kind == "operator" for one in missing))
    lost = np.append(timeline.host.start[gone], untold.holes.start)
    return Coverage(
        launches=len(calls),
        records=len(work),
        missing=tuple(sorted(missing, key=lambda one: one.share)),
        cut=facts.truncated,
        broken=losses.broken,
        corrupted=losses.corrupted,
        size=facts.size,
        profiles=losses.lists,
        processes=_processes(timeline, calls),
        contradictory=contradictory(timeline),
        excerpt=losses.before,
        unrecorded=_above(end - high, _TAIL * (high - low)),
        endless=losses.endless,
        # Where the first event is there, it was the profiler that took so long to begin.
        silent=0 if losses.dense else _above(low - begin, _SILENT * (high - low)),
        bare=not (timeline.host.kind == HostKind.OPERATOR).any(),
        hidden=_hidden(timeline, device, steps, lost),
        unexplained=_unexplained(timeline, device, steps),
        steps=steps.total,
        unmarked=_unmarked(timeline, steps, launches, missing),
    )


def _above(time: int, bound: float) -> int:
    """`time` where it is more than `bound` and more than a pause, else 0."""
    return time if time > max(bound, _PAUSE) else 0


def why_nothing(timeline: Timeline) -> str:
    """What to say of a profile without any work of a device: whether there was some, and what to do."""
    named = timeline.names_where(LAUNCH.match)
    launches = int(named[timeline.host.name].sum()) if named.any() else 0
    if timeline.facts.truncated:
        return (
            "was cut off before the GPU's work was written: keep the process alive until the trace is "
            "complete"
        )
    if timeline.facts.losses.astray:
        return "has no GPU work, but events days away from the others: their times or the unit were changed"
    if launches:
        return (
            f"has no GPU work but {launches:,} launches, so the GPU records were lost: let the GPU finish "
            "before the profiler stops, and run no other profiler (Nsight, DCGM)"
        )
    unread = ", ".join(repr(category) for category in timeline.facts.unread[:_FEW] if category)
    if not len(timeline.host):
        held = f"its events are of other categories ({unread})" if unread else "its events have no category"
        return f"is not a PyTorch profiler trace: {held}"
    if unread:
        return f"has no work of an NVIDIA or AMD GPU: other devices ({unread}) are not supported"
    gpu = next((gpu.name for gpu in timeline.facts.gpus if gpu.name), "")
    if gpu or (timeline.host.kind == HostKind.CALL).any():
        beside = f" It was recorded beside a GPU ({gpu})." if gpu else ""
        return (
            "has no GPU work: record it while the GPU works, with activities=[ProfilerActivity.CPU, "
            f"ProfilerActivity.CUDA].{beside}"
        )
    return "has no GPU work: record it on a GPU with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


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
    gone_ones = max(losses.numbers - losses.numbered, _unknown_operators(timeline), _uncalled(timeline))
    yield from _kind("operator", operators, operators + gone_ones)


def _kind(kind: Kind, seen: int, of: int) -> Iterator[Missing]:
    if seen < of:
        yield Missing(kind=kind, seen=seen, of=of)


def _launch_calls(timeline: Timeline) -> Ints:
    """Calls that put work on a device or into a graph, by start."""
    host = timeline.host
    named = timeline.names_where(LAUNCH.match)
    calls = np.flatnonzero((host.kind == HostKind.CALL) & named[host.name])
    around = timeline.parents[calls]
    inner = (around >= 0) & (host.kind[around] == HostKind.CALL) & named[host.name[around]]
    calls = calls[~inner]
    found: Ints = calls[np.argsort(host.start[calls], kind="stable")]
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
    wanted = distinct(wanted[wanted > 0])
    return int(np.count_nonzero(~is_among(wanted, host.external[named])))


def _uncalled(timeline: Timeline) -> int:
    """How many operators come behind the last Python frame of a thread on which frames called all others."""
    host = timeline.host
    found = 0
    for thread in distinct(host.thread[host.kind == HostKind.FRAME]):
        own = np.flatnonzero(host.thread == thread)  # by start
        frames, operators = (own[host.kind[own] == kind] for kind in (HostKind.FRAME, HostKind.OPERATOR))
        start = host.start[operators]
        late = start > host.end[frames[-1]]
        at = np.searchsorted(host.start[frames], start, side="right") - 1
        end = np.maximum.accumulate(host.end[frames])
        # Autograd's threads have frames only where the gradients of Python's own functions are computed.
        if (at >= 0).all() and (end[at] >= start).all():
            found += int(np.count_nonzero(late))
    return found


def _processes(timeline: Timeline, calls: Ints) -> int:
    """How many processes launch more than a damaged number would have them launch."""
    if not len(calls):
        return 1
    pids = np.array([one.pid for one in timeline.threads])
    _, counts = np.unique(pids[timeline.host.thread[calls]], return_counts=True)
    return max(int(np.count_nonzero(counts > max(_SECOND * len(calls), 1))), 1)


def _untold(launches: Launches, numbered: bool) -> Iterator[Missing]:
    """What is missing with all that would tell of it; `numbered`: of operators it is known already."""
    there = len(launches.calls)
    yield from _kind("stretch", there, there + launches.holes.lost)
    promised = max(left_out(launches.timeline, launches.calls), len(launches.begun))
    scattered = max(launches.scattered(), promised if promised >= _FEW else 0)
    yield from _kind("scattered", there, there + scattered)
    alone = launches.outside
    if alone > 1 and not numbered:  # a memset at the end is nothing
        yield from _kind("around", there - alone, there)


def _unmarked(timeline: Timeline, steps: StepSpans, launches: Ints, missing: Sequence[Missing]) -> bool:
    """Whether marks of steps are among the CPU events that are missing, as far as one can tell."""
    share = min((one.share for one in missing if one.kind == "operator"), default=1.0)
    if steps.source == "span":
        marks = timeline.names_where(_MARK.match)[timeline.host.name]
        some = bool((marks & (timeline.host.kind == HostKind.ANNOTATION)).any())
        return share < (1.0 if some else _ALL_BUT_MARKS)
    begun = timeline.host.start[launches]
    return share < 1 and bool(np.count_nonzero(steps.at(begun) < 0) > _UNMARKED * len(launches))


def _hidden(timeline: Timeline, device: int, steps: StepSpans, lost: Ints) -> int:
    """Idleness in the steps in which work that is missing may have run.

    That is from launches without a record, begun at the times in `lost`, to the next work that was launched
    later, from operations without a length to the next one of their stream, and where the profiler says that
    an annotation's work was.
    """
    if not len(steps.start):
        return 0
    host, work = timeline.host, timeline.work
    linked = np.flatnonzero((work.device == device) & (timeline.launchers >= 0))
    when = host.start[timeline.launchers[linked]]
    order = np.argsort(when, kind="stable")
    begins = work.start[linked][order]
    # The earliest start of anything launched later: from the back, the least so far.
    least = np.minimum.accumulate(begins[::-1])[::-1] if len(begins) else begins
    at = np.searchsorted(when[order], lost, side="right")
    until = np.append(least, steps.end[-1])[at]
    short, bare = lengthless(timeline, device), _pairs(timeline.facts.losses.bare)
    low, high = union(
        np.concatenate([lost, short.start, bare[:, 0]]),
        np.concatenate([np.maximum(until, lost), short.end, bare[:, 1]]),
    )
    return _idle(timeline, device, steps, low, high)


def _unexplained(timeline: Timeline, device: int, steps: StepSpans) -> int:
    """Idleness in the steps while events of the CPU begin that are missing, or before work without a call.

    Of that work only the arrow is left which led to it.
    """
    losses = timeline.facts.losses
    gaps, begun = _pairs(losses.gaps), np.array(losses.uncaused, np.int64)
    start, end = compute_busy(timeline, device)
    at = np.searchsorted(start, begun, side="right") - 1
    since = np.minimum(np.where(at >= 0, end[at], timeline.span[0]), begun) if len(start) else begun
    low, high = np.append(gaps[:, 0], since), np.append(gaps[:, 1], begun)
    return _idle(timeline, device, steps, *union(low, high))


def _pairs(some: Sequence[tuple[int, int]]) -> Ints:
    return np.array(some, np.int64).reshape(-1, 2)


def _idle(timeline: Timeline, device: int, steps: StepSpans, low: Ints, high: Ints) -> int:
    """The idleness in the steps from `low` to `high`, which follow one another."""
    where, _, _ = intersect(
        Spans(steps.start, steps.end, np.arange(len(steps.start))), Spans(low, high, np.arange(len(low)))
    )
    start, end = compute_busy(timeline, device)
    busy = Spans(start, end, np.arange(len(start)))
    return int(where.length.sum() - intersect(where, busy)[0].length.sum())
