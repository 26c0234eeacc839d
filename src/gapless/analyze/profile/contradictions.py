"""Count events whose times cannot be right, as other events of the same profile show.

Of 50 public profiles none breaks these laws by more than 0.1 ms, or in more than 0.4 % of its spans: work
begins after its launch, kernels of one stream follow one another, spans of one thread nest, nothing runs on
a thread inside a driver call, what a synchronization waits for has ended when it returns, and work of an
annotation ends within the span that the profiler gives for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gapless.analyze.profile.spans import Spans
from gapless.trace.timeline import HostKind, Ints, Timeline, WorkKind, distinct

_MAX_CLOCK_SHIFT = 150_000
"""Nanoseconds: the clocks of CPU and GPU differ by less in all profiles examined."""
_MAX_OVERLAP = 20_000
"""Nanoseconds: overlaps of kernels of one stream, or of spans of one thread, are shorter."""
_MIN_SHARE_COUNTED = 0.02
"""Share of the events, or of the time, below which contradictions are ignored."""
_MIN_SHARE_FAR = 0.05
"""Share of the span by which an event must be separated to be far from all others."""
_MAX_STRAYS = (3, 10)
"""How many events may be far from all others: device operations, and any events in a damaged file."""
_MAX_SHARE_LENGTHLESS = 0.5
"""If more kernels than this share have no length, the file lost them: not all are below a microsecond."""
_MIN_ROUNDED_LENGTH = 5_000
"""Nanoseconds: an operation this long is not rounded to 0 even in whole microseconds."""
_MAX_SILENCE = 1_000_000_000
"""Nanoseconds without any event that are no pause if they are most of the time and the profiler does not
confirm that it recorded for so long."""
_DEVICE_SYNC = re.compile(r"^(?:cuda|hip)DeviceSynchronize")
_STREAM_SYNC = re.compile(r"^(?:cuda|hip)StreamSynchronize")


def count_contradictions(timeline: Timeline) -> int:
    """Return how many events contradict others, 0 if they are too few to matter."""
    return sum(_counts(timeline)) if len(timeline.work) else 0


def _counts(timeline: Timeline) -> Iterator[int]:
    host, work = timeline.host, timeline.work
    linked = np.flatnonzero(timeline.launchers >= 0)
    early = work.start[linked] < host.start[timeline.launchers[linked]] - _MAX_CLOCK_SHIFT
    yield _zero_if_few(int(early.sum()), len(linked))
    yield _count_overlaps(timeline)
    yield _count_crossing(timeline)
    yield _count_within_calls(timeline)
    yield timeline.facts.losses.beyond
    yield _zero_if_few(timeline.facts.losses.astray, len(host) + len(work))
    yield _count_out_of_order(timeline)
    yield _count_early_device_syncs(timeline, linked)
    yield _count_early_stream_syncs(timeline, linked)
    yield _count_strays(timeline)
    yield _count_outside_window(timeline)


def find_lengthless(timeline: Timeline, device: int) -> Spans:
    """Return operations of `device` that lost their length, each until the next one on its stream.

    Files of whole microseconds also hold kernels of length 0 that are really shorter than one.
    """
    work = timeline.work
    rows = np.flatnonzero(work.device == device)
    rows = rows[np.lexsort((work.start[rows], work.stream[rows]))]
    length = work.end[rows] - work.start[rows]
    follows = np.append(work.stream[rows][1:] == work.stream[rows][:-1], False)
    has_no_length = length == 0
    is_doubtful = has_no_length if has_no_length.mean() > _MAX_SHARE_LENGTHLESS else np.zeros(len(rows), bool)
    for name in distinct(work.name[rows[has_no_length & ~is_doubtful]]):  # there are few
        is_alike = work.name[rows] == name
        typical = np.median(length[is_alike & ~has_no_length]) if (is_alike & ~has_no_length).any() else 0
        is_doubtful |= is_alike & has_no_length & (typical > _MIN_ROUNDED_LENGTH)
    is_doubtful &= follows
    start = work.start[rows]
    return Spans(start[is_doubtful], np.append(start[1:], 0)[is_doubtful], rows[is_doubtful])


def _zero_if_few(count: int, of: int) -> int:
    return count if count > _MIN_SHARE_COUNTED * of else 0


def _count_overlaps(timeline: Timeline) -> int:
    """Count operations of one stream that begin long before the previous one has ended."""
    work = timeline.work
    low, high = timeline.span
    order = np.lexsort((work.start, work.stream, work.device))
    stream, device = work.stream[order], work.device[order]
    same = (stream[1:] == stream[:-1]) & (device[1:] == device[:-1])
    start, end = work.start[order], work.end[order]
    over = np.where(same, np.minimum(end[1:], end[:-1]) - start[1:], 0)
    over = over[over > _MAX_OVERLAP]
    return len(over) if over.sum() > _MIN_SHARE_COUNTED * (high - low) else _zero_if_few(len(over), len(work))


def _count_crossing(timeline: Timeline) -> int:
    """Count spans of one thread that neither follow nor contain each other."""
    host = timeline.host
    if len(host) < 2:
        return 0
    same = (host.thread[1:] == host.thread[:-1]) & (host.kind[1:] != HostKind.OVERHEAD)
    crossing = same & (host.start[1:] < host.end[:-1]) & (host.end[1:] > host.end[:-1] + _MAX_OVERLAP)
    # The clock of calls may run slightly ahead of that of the operators around them.
    ahead = (host.kind[:-1] == HostKind.CALL) & (host.kind[1:] != HostKind.CALL)
    crossing &= ~(ahead & (host.start[1:] - host.start[:-1] <= _MAX_OVERLAP))
    return _zero_if_few(int(crossing.sum()), len(host))


def _count_within_calls(timeline: Timeline) -> int:
    """Count spans of torch or Python inside a driver call, when the thread was in the driver."""
    host = timeline.host
    count, long = 0, 0
    for thread in range(len(timeline.threads)):
        begin, end = timeline.thread_rows[thread]
        own = np.arange(begin, end)  # by start
        calls = own[host.kind[own] == HostKind.CALL]
        rows = own[(host.kind[own] != HostKind.CALL) & (host.kind[own] != HostKind.OVERHEAD)]
        if not len(calls):
            continue
        latest = np.maximum.accumulate(host.end[calls])
        last = calls[np.maximum.accumulate(np.where(host.end[calls] == latest, np.arange(len(calls)), 0))]
        at = np.searchsorted(host.start[calls], host.start[rows] - _MAX_OVERLAP) - 1
        inside = (at >= 0) & (latest[at] > host.end[rows] + _MAX_OVERLAP)
        count += int(inside.sum())
        around = distinct(last[at[inside]])
        long += int((host.end[around] - host.start[around]).sum())
    low, high = timeline.span
    return count if long > _MIN_SHARE_COUNTED * (high - low) else _zero_if_few(count, len(host))


def _count_out_of_order(timeline: Timeline) -> int:
    """Count calls that begin long before calls with lower numbers from the driver."""
    host = timeline.host
    rows = np.flatnonzero((host.kind == HostKind.CALL) & (host.correlation > 0))
    start = host.start[rows[np.argsort(host.correlation[rows], kind="stable")]]
    if not len(start):
        return 0
    early = np.maximum.accumulate(start) - start > _MAX_CLOCK_SHIFT
    late = start - np.minimum.accumulate(start[::-1])[::-1] > _MAX_CLOCK_SHIFT
    # A single wrong number puts all others before or behind it.
    return _zero_if_few(min(int(early.sum()), int(late.sum())), len(start))


def _call_rows(timeline: Timeline, name: re.Pattern[str]) -> Ints:
    matches = timeline.names_where(name.match)
    return np.flatnonzero((timeline.host.kind == HostKind.CALL) & matches[timeline.host.name])


def _count_early_device_syncs(timeline: Timeline, linked: Ints) -> int:
    """Count device synchronizations that return before work launched earlier has ended."""
    host, work = timeline.host, timeline.work
    launched = host.end[timeline.launchers[linked]]
    order = np.argsort(launched, kind="stable")
    latest = np.maximum.accumulate(work.end[linked][order])
    syncs = _call_rows(timeline, _DEVICE_SYNC)
    at = np.searchsorted(launched[order], host.start[syncs], side="right") - 1
    syncs, at = syncs[at >= 0], at[at >= 0]
    return int((latest[at] > host.end[syncs] + _MAX_CLOCK_SHIFT).sum())


def _count_early_stream_syncs(timeline: Timeline, linked: Ints) -> int:
    """Count stream synchronizations that return before the thread's last copy has ended."""
    host, work = timeline.host, timeline.work
    syncs = _call_rows(timeline, _STREAM_SYNC)
    copies = linked[work.kind[linked] == WorkKind.MEMCPY]
    if not len(syncs) or not len(copies):
        return 0
    far = int(host.end.max()) + 1
    calls = timeline.launchers[copies]
    keys = host.thread[calls].astype(np.int64) * far + host.end[calls]
    order = np.argsort(keys, kind="stable")
    wanted = host.thread[syncs].astype(np.int64) * far + host.start[syncs]
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    mine = (at >= 0) & (host.thread[calls[order[np.maximum(at, 0)]]] == host.thread[syncs])
    late = work.end[copies[order[np.maximum(at, 0)]]] > host.end[syncs] + _MAX_CLOCK_SHIFT
    return _zero_if_few(int((mine & late).sum()), len(syncs))


def _count_strays(timeline: Timeline) -> int:
    """Count a few events far from all others, and events across a silence that is most of the time."""
    host, work, losses = timeline.host, timeline.work, timeline.facts.losses
    is_damaged = losses.broken > 0 or losses.numbered < losses.numbers
    low, high = timeline.span
    far = _MIN_SHARE_FAR * (high - low)
    start = np.concatenate([host.start, work.start])
    end = np.concatenate([host.end, work.end])
    device = np.arange(len(start)) >= len(host)
    max_strays = _MAX_STRAYS[is_damaged]
    count = 0
    order = np.argsort(start, kind="stable")
    silent = start[order][1:] - np.maximum.accumulate(end[order])[:-1]
    whole = losses.marked and losses.window[0] <= low and losses.window[1] >= high
    if not whole and len(silent) and silent.max() > max(_MAX_SILENCE, (high - low) / 2):
        count += 1
    before = np.flatnonzero(silent[:max_strays] > far)
    if len(before) and (is_damaged or device[order[: before[-1] + 1]].all()):
        count += int(before[-1]) + 1
    order = np.argsort(end, kind="stable")[::-1]
    alone = np.minimum.accumulate(start[order])[:-1] - end[order][1:]
    if is_damaged:
        alone = end[order][:-1] - end[order][1:]
    behind = np.flatnonzero(alone[:max_strays] > far)
    if len(behind) and (is_damaged or device[order[: behind[-1] + 1]].all()):
        count += int(behind[-1]) + 1
    return count


def _count_outside_window(timeline: Timeline) -> int:
    """Count events outside of the time for which, by its own mark, the profiler recorded.

    CPU spans that are open when the recording stops may end after it, and calls of other threads are recorded
    until the profiler has stopped.
    """
    host, work, losses = timeline.host, timeline.work, timeline.facts.losses
    begin, end = losses.window
    starts, latest = np.append(host.start, work.start), np.append(host.start, work.end)
    # Files round times, and the clocks of CPU and GPU differ.
    margin = max(_MIN_SHARE_FAR * float(latest.max() - starts.min()), _MAX_CLOCK_SHIFT)
    after = np.count_nonzero(host.start > max(end, losses.stopped) + margin)
    return int(np.count_nonzero(starts < begin - margin) + after + np.count_nonzero(work.end > end + margin))
