"""Judge how complete a profile is: launches against records, and times against each other.

What is missing in every profile is not counted: launches into a graph being captured, memsets of no bytes,
work launched before the recording began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from gapless.analyze.profile.contradictions import count_contradictions, find_lengthless
from gapless.analyze.profile.holes import LaunchTrace
from gapless.analyze.profile.promises import count_missing_numbers, operators_without_launch
from gapless.analyze.profile.spans import Spans, intersect
from gapless.analyze.profile.trace_steps import StepSpans, busy_spans
from gapless.model.coverage import Coverage, Kind, Missing
from gapless.trace.names import LAUNCH
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, distinct, is_among, union

_GRAPH = re.compile(r"^(?:cuda|hip|cu)GraphLaunch")
_CAPTURE = re.compile(r"^(?:cuda|hip|cu)Stream(Begin|End)Capture")
_MAX_SHARE_BEFORE = 0.2
"""Share of the span that may pass silently before the first event."""
_MAX_SHARE_AFTER = 0.05
"""Share of the span that may lie between the last event and the end of the recording."""
_MAX_PAUSE = 1_000_000
"""Nanoseconds that a queue may be idle between two operations."""
_STEP_MARK = re.compile(r"ProfilerStep#|Optimizer\.")
_SHARE_WITHOUT_MARKS = 0.995
"""If at least this share of the CPU events is present, the missing ones are not taken for step marks."""
_MAX_SHARE_OUTSIDE_STEPS = 0.1
"""Share of the launches that may lie outside of the steps where CPU events are missing."""
_MIN_SHARE_OF_PROCESS = 0.02
"""Share of the launches from which a second process counts as one, not as damaged numbers."""
_MIN_PROMISED_LAUNCHES = 3
"""Fewer missing launches that the file announces are no sign of a loss."""


def judge_coverage(timeline: Timeline, device: int, steps: StepSpans) -> Coverage:
    """Return how complete `timeline` is for `device`, as far as the file itself shows."""
    facts, losses, work = timeline.facts, timeline.facts.losses, timeline.work
    (low, high), (begin, end) = timeline.span, losses.window
    launches = _launch_calls(timeline)
    when = timeline.host.start[launches]
    captured = _in_capture(timeline, when)
    calls = launches[(when < (steps.end[-1] if len(steps.end) else 0)) & ~captured]
    recorded = is_among(timeline.host.correlation[calls], work.correlation[work.correlation > 0])
    numberless = int(np.count_nonzero(work.correlation <= 0))
    gone = calls[~recorded] if not numberless else calls[~recorded][numberless:]
    untraced = LaunchTrace(timeline, launches, captured, operators_without_launch(timeline, launches))
    missing = [*_missing_by_kind(timeline, device, calls, gone)]
    missing += _missing_without_trace(untraced, any(part.kind == "operator" for part in missing))
    lost = np.append(timeline.host.start[gone], untraced.holes.start)
    return Coverage(
        launches=len(calls),
        records=len(work),
        missing=tuple(sorted(missing, key=lambda part: part.share)),
        cut=facts.truncated,
        broken=losses.broken,
        corrupted=losses.corrupted,
        size=facts.size,
        profiles=losses.lists,
        processes=_count_processes(timeline, calls),
        contradictory=count_contradictions(timeline),
        excerpt=losses.before,
        unrecorded=_zero_if_short(end - high, _MAX_SHARE_AFTER * (high - low)),
        endless=losses.endless,
        # If the first event is present, the profiler itself took so long to begin.
        silent=0 if losses.dense else _zero_if_short(low - begin, _MAX_SHARE_BEFORE * (high - low)),
        bare=not (timeline.host.kind == HostKind.OPERATOR).any(),
        hidden=_hidden_idle_time(timeline, device, steps, lost),
        unexplained=_unexplained_idle_time(timeline, device, steps),
        steps=steps.total,
        unmarked=_may_miss_marks(timeline, steps, launches, missing),
    )


def _zero_if_short(time: int, bound: float) -> int:
    """Return `time` if it exceeds `bound` and a pause, else 0."""
    return time if time > max(bound, _MAX_PAUSE) else 0


def explain_no_device_work(timeline: Timeline) -> str:
    """Say why a profile has no device work: whether there was some, and how to record it."""
    is_launch = timeline.names_where(LAUNCH.match)
    launches = int(is_launch[timeline.host.name].sum()) if is_launch.any() else 0
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
    unread = ", ".join(
        repr(category) for category in timeline.facts.unread[:_MIN_PROMISED_LAUNCHES] if category
    )
    if not len(timeline.host):
        content = (
            f"its events are of other categories ({unread})" if unread else "its events have no category"
        )
        return f"is not a PyTorch profiler trace: {content}"
    if unread:
        return f"has no work of an NVIDIA or AMD GPU: other devices ({unread}) are not supported"
    gpu = next((gpu.name for gpu in timeline.facts.gpus if gpu.name), "")
    activity = "XPU" if not timeline.facts.waits_known or "Intel" in gpu else "CUDA"
    beside = f" It was recorded beside a GPU ({gpu})." if gpu else ""
    return (
        "has no GPU work: record it while a GPU works, with activities=[ProfilerActivity.CPU, "
        f"ProfilerActivity.{activity}].{beside}"
    )


def _missing_by_kind(timeline: Timeline, device: int, calls: Ints, gone: Ints) -> Iterator[Missing]:
    """Yield each kind of event of which some are missing."""
    host, losses = timeline.host, timeline.facts.losses
    graph = timeline.names_where(_GRAPH.match)
    of_graph, lost_graph = graph[host.name[calls]], graph[host.name[gone]]
    launched = int(np.count_nonzero(of_graph)), int(np.count_nonzero(lost_graph))
    yield from _missing_kind("graph", launched[0] - launched[1], launched[0])
    other_calls = len(calls) - launched[0]
    yield from _missing_kind("launch", other_calls - (len(gone) - launched[1]), other_calls)
    more = max(losses.arrows - len(gone), 0)  # beyond the launches whose work is missing altogether
    yield from _missing_kind("record", len(timeline.work), len(timeline.work) + more)
    without_launch, total = _count_without_launch(timeline, device)
    yield from _missing_kind("call", total - without_launch, total)
    operators = max(losses.numbered, int(np.count_nonzero(host.kind == HostKind.OPERATOR)))
    missing_operators = max(
        losses.numbers - losses.numbered,
        _count_unknown_operators(timeline),
        _count_uncalled_operators(timeline),
    )
    yield from _missing_kind("operator", operators, operators + missing_operators)


def _missing_kind(kind: Kind, present: int, of: int) -> Iterator[Missing]:
    if present < of:
        yield Missing(kind=kind, seen=present, of=of)


def _launch_calls(timeline: Timeline) -> Ints:
    """Return the calls that put work on a device or into a graph, by start."""
    host = timeline.host
    is_launch = timeline.names_where(LAUNCH.match)
    calls = np.flatnonzero((host.kind == HostKind.CALL) & is_launch[host.name])
    around = timeline.parents[calls]
    inner = (around >= 0) & (host.kind[around] == HostKind.CALL) & is_launch[host.name[around]]
    calls = calls[~inner]
    by_start: Ints = calls[np.argsort(host.start[calls], kind="stable")]
    return by_start


def _in_capture(timeline: Timeline, times: Ints) -> Bools:
    """Return which of these times lie within the capture of a graph."""
    host = timeline.host
    bounds = []
    for which in ("Begin", "End"):
        matches = timeline.names_where(lambda name, w=which: (m := _CAPTURE.match(name)) and m[1] == w)
        rows = np.flatnonzero((host.kind == HostKind.CALL) & matches[host.name])
        bounds.append(np.sort(host.start[rows]))
    opened = np.searchsorted(bounds[0], times, side="right")
    closed = np.searchsorted(bounds[1], times, side="right")
    is_captured: Bools = opened > closed
    return is_captured


def _count_without_launch(timeline: Timeline, device: int) -> tuple[int, int]:
    """Count operations of `device` whose launch is missing, and all operations that should have one.

    Operations on a stream before its first one with a launch were queued before the recording and do not
    count, unless the device idles in between: a queue has no gaps.
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
        if idle > max(_MAX_PAUSE, (end[-1] - start[0]) / 2):
            queued[:] = False
    return int(np.count_nonzero(~linked & ~queued)), int(np.count_nonzero(~queued))


def _count_unknown_operators(timeline: Timeline) -> int:
    """Count operators that are missing though calls and device work refer to them."""
    host = timeline.host
    is_operator = np.isin(host.kind, (HostKind.OPERATOR, HostKind.ANNOTATION))
    wanted = np.concatenate([host.external[host.kind == HostKind.CALL], timeline.work.external])
    wanted = distinct(wanted[wanted > 0])
    return int(np.count_nonzero(~is_among(wanted, host.external[is_operator])))


def _count_uncalled_operators(timeline: Timeline) -> int:
    """Count operators after the last Python frame of a thread whose other operators are all inside frames."""
    host = timeline.host
    count = 0
    for thread in distinct(host.thread[host.kind == HostKind.FRAME]):
        own = np.flatnonzero(host.thread == thread)  # by start
        frames, operators = (own[host.kind[own] == kind] for kind in (HostKind.FRAME, HostKind.OPERATOR))
        start = host.start[operators]
        late = start > host.end[frames[-1]]
        at = np.searchsorted(host.start[frames], start, side="right") - 1
        end = np.maximum.accumulate(host.end[frames])
        # Autograd's threads have frames only where the gradients of Python's own functions are computed.
        if (at >= 0).all() and (end[at] >= start).all():
            count += int(np.count_nonzero(late))
    return count


def _count_processes(timeline: Timeline, calls: Ints) -> int:
    """Count processes that launch more than damaged process numbers would explain."""
    if not len(calls):
        return 1
    pids = np.array([thread.pid for thread in timeline.threads])
    _, counts = np.unique(pids[timeline.host.thread[calls]], return_counts=True)
    return max(int(np.count_nonzero(counts > max(_MIN_SHARE_OF_PROCESS * len(calls), 1))), 1)


def _missing_without_trace(launches: LaunchTrace, numbered: bool) -> Iterator[Missing]:
    """Yield launches missing with all that refers to them; `numbered` if missing operators are reported."""
    present = len(launches.calls)
    yield from _missing_kind("stretch", present, present + launches.holes.lost)
    promised = max(count_missing_numbers(launches.timeline, launches.calls), len(launches.begun))
    scattered = max(launches.scattered_losses(), promised if promised >= _MIN_PROMISED_LAUNCHES else 0)
    yield from _missing_kind("scattered", present, present + scattered)
    alone = launches.outside
    if alone > 1 and not numbered:  # a single memset at the end means nothing
        yield from _missing_kind("around", present - alone, present)


def _may_miss_marks(timeline: Timeline, steps: StepSpans, launches: Ints, missing: Sequence[Missing]) -> bool:
    """Whether marks of steps may be among the missing CPU events."""
    share = min((part.share for part in missing if part.kind == "operator"), default=1.0)
    if steps.source == "span":
        marks = timeline.names_where(_STEP_MARK.match)[timeline.host.name]
        has_marks = bool((marks & (timeline.host.kind == HostKind.ANNOTATION)).any())
        return share < (1.0 if has_marks else _SHARE_WITHOUT_MARKS)
    begun = timeline.host.start[launches]
    return share < 1 and bool(
        np.count_nonzero(steps.at(begun) < 0) > _MAX_SHARE_OUTSIDE_STEPS * len(launches)
    )


def _hidden_idle_time(timeline: Timeline, device: int, steps: StepSpans, lost: Ints) -> int:
    """Return the idleness in the steps during which missing work may have run.

    That is from launches without a record, begun at the times in `lost`, to the next work launched later,
    from operations without a length to the next one on their stream, and where the profiler reports an
    annotation's work.
    """
    if not len(steps.start):
        return 0
    host, work = timeline.host, timeline.work
    linked = np.flatnonzero((work.device == device) & (timeline.launchers >= 0))
    when = host.start[timeline.launchers[linked]]
    order = np.argsort(when, kind="stable")
    begins = work.start[linked][order]
    # The earliest start of anything launched later: a running minimum from the back.
    least = np.minimum.accumulate(begins[::-1])[::-1] if len(begins) else begins
    at = np.searchsorted(when[order], lost, side="right")
    until = np.append(least, steps.end[-1])[at]
    short, bare = find_lengthless(timeline, device), _as_pairs(timeline.facts.losses.bare)
    low, high = union(
        np.concatenate([lost, short.start, bare[:, 0]]),
        np.concatenate([np.maximum(until, lost), short.end, bare[:, 1]]),
    )
    return _idle_time(timeline, device, steps, low, high)


def _unexplained_idle_time(timeline: Timeline, device: int, steps: StepSpans) -> int:
    """Return the idleness in the steps during which missing CPU events began, or before work without a call.

    Of that work only its arrow is left.
    """
    losses = timeline.facts.losses
    gaps, begun = _as_pairs(losses.gaps), np.array(losses.uncaused, np.int64)
    start, end = busy_spans(timeline, device)
    at = np.searchsorted(start, begun, side="right") - 1
    since = np.minimum(np.where(at >= 0, end[at], timeline.span[0]), begun) if len(start) else begun
    low, high = np.append(gaps[:, 0], since), np.append(gaps[:, 1], begun)
    return _idle_time(timeline, device, steps, *union(low, high))


def _as_pairs(pairs: Sequence[tuple[int, int]]) -> Ints:
    return np.array(pairs, np.int64).reshape(-1, 2)


def _idle_time(timeline: Timeline, device: int, steps: StepSpans, low: Ints, high: Ints) -> int:
    """Return the idleness in the steps within the disjoint spans from `low` to `high`."""
    where, _, _ = intersect(
        Spans(steps.start, steps.end, np.arange(len(steps.start))), Spans(low, high, np.arange(len(low)))
    )
    start, end = busy_spans(timeline, device)
    busy = Spans(start, end, np.arange(len(start)))
    return int(where.length.sum() - intersect(where, busy)[0].length.sum())
