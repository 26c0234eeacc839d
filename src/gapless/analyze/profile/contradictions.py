"""Events whose times cannot be right, as other events of the same profile show.

Of 50 public profiles none breaks these laws by more than 0.1 ms, or in more than 0.4 % of its spans: work
begins after its launch, kernels of one stream follow one another, spans of one thread nest, nothing runs on
a thread that is in a call of the driver's, what a synchronization waits for has ended when it returns, and
work of an annotation ends within the span that the profiler gives for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gapless.analyze.profile.spans import Spans
from gapless.trace.timeline import HostKind, Ints, Timeline, WorkKind, distinct

_OFF = 150_000
"""Nanoseconds: the clocks of CPU and GPU differ by less."""
_OVERLAP = 20_000
"""Nanoseconds: kernels of one stream overlap by less, and spans of one thread."""
_MATTERS = 0.02
"""From this part of the events or of the time on they count."""
_FAR = 0.05
"""Part of the span that is far from everything else."""
_STRAYS = (3, 10)
"""So many events may be far from all others: operations of the device, and in a damaged file any."""
_MOST = 0.5
"""So many kernels are not shorter than a microsecond."""
_LONG = 5_000
"""Nanoseconds that an operation takes which is not rounded to nothing."""
_SILENT = 1_000_000_000
"""Nanoseconds without any event, on CPU or GPU, that are no pause where they are most of the time and the
profiler does not say that it recorded for so long."""
_DEVICE_SYNC = re.compile(r"^(?:cuda|hip)DeviceSynchronize")
_STREAM_SYNC = re.compile(r"^(?:cuda|hip)StreamSynchronize")


def contradictory(timeline: Timeline) -> int:
    """How many events contradict others, 0 where they are too few to matter."""
    return sum(_kinds(timeline)) if len(timeline.work) else 0


def _kinds(timeline: Timeline) -> Iterator[int]:
    host, work = timeline.host, timeline.work
    linked = np.flatnonzero(timeline.launchers >= 0)
    early = work.start[linked] < host.start[timeline.launchers[linked]] - _OFF
    yield _if_many(int(early.sum()), len(linked))
    yield _overlaps(timeline)
    yield _crossing(timeline)
    yield _within_calls(timeline)
    yield timeline.facts.losses.beyond
    yield _if_many(timeline.facts.losses.astray, len(host) + len(work))
    yield _out_of_order(timeline)
    yield _after_device_syncs(timeline, linked)
    yield _after_copies(timeline, linked)
    yield _strays(timeline)
    yield _beyond(timeline)


def lengthless(timeline: Timeline, device: int) -> Spans:
    """Operations of `device` without a length whose like take long, each until the next one of its stream.

    Files of whole microseconds have kernels of 0 that are shorter than one.
    """
    work = timeline.work
    rows = np.flatnonzero(work.device == device)
    rows = rows[np.lexsort((work.start[rows], work.stream[rows]))]
    length = work.end[rows] - work.start[rows]
    follows = np.append(work.stream[rows][1:] == work.stream[rows][:-1], False)
    none = length == 0
    doubted = none if none.mean() > _MOST else np.zeros(len(rows), bool)
    for name in distinct(work.name[rows[none & ~doubted]]):  # there are few
        like = work.name[rows] == name
        usual = np.median(length[like & ~none]) if (like & ~none).any() else 0
        doubted |= like & none & (usual > _LONG)
    doubted &= follows
    start = work.start[rows]
    return Spans(start[doubted], np.append(start[1:], 0)[doubted], rows[doubted])


def _if_many(count: int, of: int) -> int:
    return count if count > _MATTERS * of else 0


def _overlaps(timeline: Timeline) -> int:
    """Operations of one stream that begin long before the one before them has ended."""
    work = timeline.work
    low, high = timeline.span
    order = np.lexsort((work.start, work.stream, work.device))
    stream, device = work.stream[order], work.device[order]
    same = (stream[1:] == stream[:-1]) & (device[1:] == device[:-1])
    start, end = work.start[order], work.end[order]
    over = np.where(same, np.minimum(end[1:], end[:-1]) - start[1:], 0)
    over = over[over > _OVERLAP]
    return len(over) if over.sum() > _MATTERS * (high - low) else _if_many(len(over), len(work))


def _crossing(timeline: Timeline) -> int:
    """Spans of one thread that neither follow nor hold each other."""
    host = timeline.host
    if len(host) < 2:
        return 0
    same = (host.thread[1:] == host.thread[:-1]) & (host.kind[1:] != HostKind.OVERHEAD)
    crossing = same & (host.start[1:] < host.end[:-1]) & (host.end[1:] > host.end[:-1] + _OVERLAP)
    # The clock of calls may run a little ahead of that of the operators around them.
    ahead = (host.kind[:-1] == HostKind.CALL) & (host.kind[1:] != HostKind.CALL)
    crossing &= ~(ahead & (host.start[1:] - host.start[:-1] <= _OVERLAP))
    return _if_many(int(crossing.sum()), len(host))


def _within_calls(timeline: Timeline) -> int:
    """What torch or Python did within a call of the driver's: the thread was in the driver."""
    host = timeline.host
    found, long = 0, 0
    for thread in range(len(timeline.threads)):
        begin, end = timeline.thread_rows[thread]
        own = np.arange(begin, end)  # by start
        calls = own[host.kind[own] == HostKind.CALL]
        rows = own[(host.kind[own] != HostKind.CALL) & (host.kind[own] != HostKind.OVERHEAD)]
        if not len(calls):
            continue
        latest = np.maximum.accumulate(host.end[calls])
        last = calls[np.maximum.accumulate(np.where(host.end[calls] == latest, np.arange(len(calls)), 0))]
        at = np.searchsorted(host.start[calls], host.start[rows] - _OVERLAP) - 1
        inside = (at >= 0) & (latest[at] > host.end[rows] + _OVERLAP)
        found += int(inside.sum())
        around = distinct(last[at[inside]])
        long += int((host.end[around] - host.start[around]).sum())
    low, high = timeline.span
    return found if long > _MATTERS * (high - low) else _if_many(found, len(host))


def _out_of_order(timeline: Timeline) -> int:
    """Calls that begin long before ones to which the driver gave lower numbers."""
    host = timeline.host
    rows = np.flatnonzero((host.kind == HostKind.CALL) & (host.correlation > 0))
    start = host.start[rows[np.argsort(host.correlation[rows], kind="stable")]]
    if not len(start):
        return 0
    early = np.maximum.accumulate(start) - start > _OFF
    late = start - np.minimum.accumulate(start[::-1])[::-1] > _OFF
    # A single number that is wrong puts all others before or behind it.
    return _if_many(min(int(early.sum()), int(late.sum())), len(start))


def _calls(timeline: Timeline, name: re.Pattern[str]) -> Ints:
    named = timeline.names_where(name.match)
    return np.flatnonzero((timeline.host.kind == HostKind.CALL) & named[timeline.host.name])


def _after_device_syncs(timeline: Timeline, linked: Ints) -> int:
    """Synchronizations of the device that return before what was launched before them has ended."""
    host, work = timeline.host, timeline.work
    launched = host.end[timeline.launchers[linked]]
    order = np.argsort(launched, kind="stable")
    latest = np.maximum.accumulate(work.end[linked][order])
    syncs = _calls(timeline, _DEVICE_SYNC)
    at = np.searchsorted(launched[order], host.start[syncs], side="right") - 1
    syncs, at = syncs[at >= 0], at[at >= 0]
    return int((latest[at] > host.end[syncs] + _OFF).sum())


def _after_copies(timeline: Timeline, linked: Ints) -> int:
    """Synchronizations of a stream that return before the copy that the thread made last has ended."""
    host, work = timeline.host, timeline.work
    syncs = _calls(timeline, _STREAM_SYNC)
    copies = linked[work.kind[linked] == WorkKind.MEMCPY]
    if not len(syncs) or not len(copies):
        return 0
    far = int(host.end.max()) + 1
    made = timeline.launchers[copies]
    keys = host.thread[made].astype(np.int64) * far + host.end[made]
    order = np.argsort(keys, kind="stable")
    wanted = host.thread[syncs].astype(np.int64) * far + host.start[syncs]
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    mine = (at >= 0) & (host.thread[made[order[np.maximum(at, 0)]]] == host.thread[syncs])
    late = work.end[copies[order[np.maximum(at, 0)]]] > host.end[syncs] + _OFF
    return _if_many(int((mine & late).sum()), len(syncs))


def _strays(timeline: Timeline) -> int:
    """Few events far from all others, and events on both sides of a long silence that is most of the time."""
    host, work, losses = timeline.host, timeline.work, timeline.facts.losses
    damaged = losses.broken > 0 or losses.numbered < losses.numbers
    low, high = timeline.span
    far = _FAR * (high - low)
    start = np.concatenate([host.start, work.start])
    end = np.concatenate([host.end, work.end])
    device = np.arange(len(start)) >= len(host)
    most = _STRAYS[damaged]
    found = 0
    order = np.argsort(start, kind="stable")
    silent = start[order][1:] - np.maximum.accumulate(end[order])[:-1]
    whole = losses.marked and losses.window[0] <= low and losses.window[1] >= high
    if not whole and len(silent) and silent.max() > max(_SILENT, (high - low) / 2):
        found += 1
    before = np.flatnonzero(silent[:most] > far)
    if len(before) and (damaged or device[order[: before[-1] + 1]].all()):
        found += int(before[-1]) + 1
    order = np.argsort(end, kind="stable")[::-1]
    alone = np.minimum.accumulate(start[order])[:-1] - end[order][1:]
    if damaged:
        alone = end[order][:-1] - end[order][1:]
    behind = np.flatnonzero(alone[:most] > far)
    if len(behind) and (damaged or device[order[: behind[-1] + 1]].all()):
        found += int(behind[-1]) + 1
    return found


def _beyond(timeline: Timeline) -> int:
    """Events outside of the time for which the profiler recorded, by its own mark.

    What the CPU was about when the recording stopped may end behind it, and what other threads call is
    recorded until the profiler has stopped.
    """
    host, work, losses = timeline.host, timeline.work, timeline.facts.losses
    begin, end = losses.window
    starts, latest = np.append(host.start, work.start), np.append(host.start, work.end)
    # Files round times, and the clocks of CPU and GPU differ.
    margin = max(_FAR * float(latest.max() - starts.min()), _OFF)
    after = np.count_nonzero(host.start > max(end, losses.stopped) + margin)
    return int(np.count_nonzero(starts < begin - margin) + after + np.count_nonzero(work.end > end + margin))
