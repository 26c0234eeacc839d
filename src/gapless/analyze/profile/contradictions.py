"""Events whose times cannot be right, as other events of the same profile show.

Of 50 public profiles none breaks these laws by more than 0.1 ms, or in more than 0.4 % of its spans: work
begins after its launch, kernels of one stream follow one another, spans of one thread nest, and what a
synchronization waits for has ended when it returns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gapless.trace.timeline import HostKind, Ints, Timeline, WorkKind

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
_SILENT = 1_000_000_000
"""Nanoseconds without any event, on CPU or GPU, that are no pause where they are most of the time."""
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
    yield _after_device_syncs(timeline, linked)
    yield _after_copies(timeline, linked)
    yield _strays(timeline)


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
    return _if_many(int(crossing.sum()), len(host))


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
    if len(silent) and silent.max() > max(_SILENT, (high - low) / 2):
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
