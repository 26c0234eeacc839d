"""Build a `Timeline` from a builder's columns: rows in order, on one clock, with the facts of the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gapless.trace.build import DUPLICATED, IMPOSSIBLE_TIME, TimelineBuilder
from gapless.trace.events import Head, to_integer
from gapless.trace.links import find_links
from gapless.trace.losses import count_numbered_events, find_bare_ranges, find_lost_arrows
from gapless.trace.timeline import (
    ColumnTable,
    Facts,
    Host,
    HostKind,
    Ints,
    Losses,
    Memory,
    Syncs,
    Thread,
    Timeline,
    TraceGpu,
    Work,
    concatenate,
    distinct,
)

_TYPES: dict[str, Any] = {
    "kind": np.int8,
    "name": np.int32,
    "thread": np.int32,
    "stack": np.int32,
    "arguments": np.int32,
    "group": np.int32,
    "blocks_per_sm": np.float64,
    "occupancy": np.float64,
}
"""Columns that are not 64-bit integers."""
_SYNC_TYPES: dict[str, Any] = {"kind": np.int32}
_MAX_PROFILE_NS = 10 * 86_400 * 10**9
"""Nanoseconds: ten days. No profile is so long: times further away are missing or wrong."""
_ANNOTATION_PREFIXES = ("ProfilerStep#", "Optimizer.step#", "Optimizer.zero_grad#", "enumerate(")
"""Annotations by torch itself, which files up to torch 1.11 record as operators."""

T = TypeVar("T", bound=ColumnTable)
V = TypeVar("V")


def build_timeline(builder: TimelineBuilder, head: Head, facts: Facts) -> Timeline:
    """Return the timeline of the events in `builder`; `facts` are those of the file as a whole."""
    builder.finish()
    host, work = _join_tables(Host, builder.host), _join_tables(Work, builder.work)
    syncs, memory = _join_tables(Syncs, builder.syncs), _join_tables(Memory, builder.memory)
    builder.host, builder.work, builder.syncs, builder.memory = [], [], [], []
    host, work, syncs, memory = _drop_far_rows(builder, host, work, syncs, memory)
    _mark_annotations(host, builder.names)
    threads, numbers = _sort_threads(builder.threads)
    host = replace(host, thread=numbers[host.thread])
    host, work = host.take(host_order(host)), work.take(_work_order(work))
    host, work = (
        _drop_repeated_rows(builder, host, ("correlation", "external")),
        _drop_repeated_rows(builder, work, ("correlation",)),
    )
    syncs = syncs.take(np.argsort(syncs.start, kind="stable"))
    memory = memory.take(np.argsort(memory.time, kind="stable"))
    names = _renumber_by_first_use(builder.names, host.name, work.name, syncs.kind)
    earliest = min([int(t.start.min()) for t in (host, work) if len(t)], default=0)
    for table in (host, work, syncs):
        np.subtract(table.start, earliest, out=table.start)
        np.subtract(table.end, earliest, out=table.end)
    np.subtract(memory.time, earliest, out=memory.time)
    flows = {
        phase: [(key, time - earliest, int(numbers[thread])) for key, time, thread in ends]
        for phase, ends in builder.flows.items()
    }
    timeline = Timeline(
        host=host,
        work=work,
        syncs=syncs,
        memory=replace(memory, thread=numbers[memory.thread]),
        links=find_links(host, names, flows),
        names=names,
        threads=threads,
        stacks=_renumber_by_first_use(builder.stacks, host.stack),
        groups=_renumber_by_first_use(builder.groups, work.group),
        encoded_arguments=_renumber_by_first_use(builder.encoded_arguments, host.arguments),
    )
    origin = (builder.zero or 0) * 1000 + earliest + head.base
    losses = _find_losses(builder, timeline, earliest, facts.losses)
    unread = tuple(category for category, _ in builder.unread.most_common())
    facts = replace(
        facts,
        events=builder.events,
        origin=origin,
        losses=losses,
        unread=unread,
        waits_known=not builder.calls_of_unknown_name,
    )
    return replace(timeline, facts=_complete_facts(facts, head, timeline))


def _find_losses(builder: TimelineBuilder, timeline: Timeline, earliest: int, losses: Losses) -> Losses:
    """Return `losses` with what `timeline`, which begins at `earliest` ns, lacks of the recording."""
    counted, ends = (
        count_numbered_events(builder, timeline, earliest),
        find_lost_arrows(builder, timeline, earliest),
    )
    bare, beyond = find_bare_ranges(builder, timeline, earliest)
    window = _recording_window(builder, timeline, earliest)
    return replace(
        losses,
        numbered=counted.recorded,
        numbers=counted.total,
        before=counted.before,
        gaps=counted.gaps,
        dense=counted.dense,
        arrows=ends.without_work,
        uncaused=ends.uncaused,
        bare=bare,
        beyond=beyond,
        astray=builder.dropped[IMPOSSIBLE_TIME],
        window=window or timeline.span,
        marked=window is not None,
        stopped=(builder.stopped() or earliest) - earliest,
        endless=not builder.window_ends and not builder.stops,
    )


def _drop_repeated_rows(builder: TimelineBuilder, table: T, ids: Sequence[str]) -> T:
    """Remove from the sorted `table` each row that equals the one before it and has one of these ids.

    Files contain such rows where a piece was written twice.
    """
    if len(table) < 2:
        return table
    numbered = np.zeros(len(table) - 1, bool)
    for name in ids:
        numbered |= getattr(table, name)[1:] > 0
    same = np.concatenate([[False], numbered])
    for column in fields(table):
        if not same.any():
            return table
        values = getattr(table, column.name)
        same[1:] &= values[1:] == values[:-1]
    builder.dropped[DUPLICATED] += int(same.sum())
    return table.take(~same) if same.any() else table


def _recording_window(builder: TimelineBuilder, timeline: Timeline, earliest: int) -> tuple[int, int] | None:
    """When recording began and ended, by the profiler's own mark; None without a plausible mark."""
    window, span = builder.window(), timeline.span
    if window is None or span[1] <= span[0] or window[1] - window[0] > _MAX_PROFILE_NS:
        return None
    begin, end = (time - earliest for time in window)
    return (begin, end) if begin > -_MAX_PROFILE_NS and end < _MAX_PROFILE_NS else None


def host_order(host: Host) -> Ints:
    """Return the row order by thread, start and falling end; of spans with equal times the outer one
    first."""
    if not len(host):
        return np.empty(0, np.int64)
    low = int(host.start.min())
    span = int(host.end.max()) - low + 1
    threads = int(host.thread.max()) + 1
    if threads * span >= 1 << 62:
        return np.lexsort((host.external, _kind_depths(host.kind), -host.end, host.start, host.thread))
    key = host.thread.astype(np.int64) * span + (host.start - low)

    def ties(part: Ints) -> tuple[Ints, ...]:
        operator = host.kind[part] == HostKind.OPERATOR
        number = np.where(operator, host.external[part], host.correlation[part])
        return number, _kind_depths(host.kind[part]), -host.end[part]

    return _order_with_ties(key, ties)


def _work_order(work: Work) -> Ints:
    return _order_with_ties(
        work.start, lambda part: (work.correlation[part], work.end[part], work.stream[part])
    )


def _order_with_ties(key: Ints, ties: Callable[[Ints], tuple[Ints, ...]]) -> Ints:
    """Return the order by `key`; equal keys by the last of `ties`, then by the one before it."""
    rows = np.argsort(key, kind="stable")
    ordered = key[rows]
    tied = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(tied):
        places = distinct(np.concatenate([tied, tied + 1]))
        part = rows[places]
        rows[places] = part[np.lexsort((*ties(part), key[part]))]
    return rows


_DEPTH_OF_KIND = {
    HostKind.FRAME: 0,
    HostKind.ANNOTATION: 1,
    HostKind.OPERATOR: 2,
    HostKind.CALL: 3,
    HostKind.OVERHEAD: 4,
}
"""Nesting order of the kinds, for spans whose times do not say which is the outer one."""


def _kind_depths(kind: NDArray[np.int8]) -> Ints:
    return np.array([_DEPTH_OF_KIND[HostKind(number)] for number in range(len(HostKind))], np.int64)[kind]


def _sort_threads(threads: Sequence[Thread]) -> tuple[tuple[Thread, ...], NDArray[np.int32]]:
    """Return the threads sorted by process and thread id, and the new number of each."""

    def key(row: int) -> tuple[tuple[int, str], ...]:
        parts = (threads[row].pid, threads[row].tid)
        return tuple((to_integer(part), part) for part in parts)

    order = sorted(range(len(threads)), key=key)
    numbers = np.empty(len(threads), np.int32)
    numbers[order] = np.arange(len(threads), dtype=np.int32)
    return tuple(threads[row] for row in order), numbers


def _renumber_by_first_use(values: Sequence[V], *columns: NDArray[np.int32]) -> tuple[V, ...]:
    """Return `values` in the order in which `columns` first use them, without unused ones.

    The numbers in `columns` are changed in place.
    """
    never = sum(map(len, columns))
    first = np.full(len(values), never, np.int64)
    begin = never
    for column in reversed(columns):
        begin -= len(column)
        rows = np.flatnonzero(column >= 0)[::-1]
        first[column[rows]] = begin + rows  # of several assignments the last one counts: the first row
    order = np.argsort(first, kind="stable")
    numbers = np.empty(len(values), np.int32)
    numbers[order] = np.arange(len(values), dtype=np.int32)
    for column in columns:
        held = column >= 0
        column[held] = numbers[column[held]]
    return tuple(values[row] for row in order.tolist() if first[row] < never)


def _join_tables(kind: type[T], tables: Sequence[T]) -> T:
    if tables:
        return concatenate(tables)
    types = _TYPES | (_SYNC_TYPES if kind is Syncs else {})
    empty = {name: np.empty(0, types.get(name, np.int64)) for name in kind.__dataclass_fields__}
    return kind(**empty)


def _drop_far_rows(
    builder: TimelineBuilder, host: Host, work: Work, syncs: Syncs, memory: Memory
) -> tuple[Host, Work, Syncs, Memory]:
    """Return the tables without rows days away from the rest: times of 0, numbers left by a crash."""
    starts = [table.start for table in (host, work) if len(table)]
    if not starts:
        return host, work, syncs, memory
    low, high = min(int(s.min()) for s in starts), max(int(s.max()) for s in starts)
    ends = max(int(table.end.max()) for table in (host, work) if len(table))
    if ends - low < _MAX_PROFILE_NS:
        return (
            host,
            work,
            syncs.take(_near_mask(syncs.start, low, high)),
            memory.take(_near_mask(memory.time, low, high)),
        )
    everything = np.concatenate(starts)
    timed = everything[everything != -1000 * (builder.zero or 0)]
    middle = int(np.median(timed if len(timed) else everything))
    near_tables: list[Any] = []
    for table in (host, work, syncs, memory):
        starts_ns = table.time if isinstance(table, Memory) else table.start
        end = table.time if isinstance(table, Memory) else table.end
        near = (np.abs(starts_ns - middle) < _MAX_PROFILE_NS) & (end - starts_ns < _MAX_PROFILE_NS)
        builder.dropped[IMPOSSIBLE_TIME] += int((~near).sum())
        near_tables.append(table.take(near))
    return near_tables[0], near_tables[1], near_tables[2], near_tables[3]


def _near_mask(times: Ints, low: int, high: int) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = (times > low - _MAX_PROFILE_NS) & (times < high + _MAX_PROFILE_NS)
    return near


def _mark_annotations(host: Host, names: tuple[str, ...]) -> None:
    marks = np.fromiter((name.startswith(_ANNOTATION_PREFIXES) for name in names), bool, len(names))
    if marks.any():
        host.kind[marks[host.name] & (host.kind == HostKind.OPERATOR)] = HostKind.ANNOTATION


def _complete_facts(facts: Facts, head: Head, timeline: Timeline) -> Facts:
    devices = head.devices or head.devices_before_1_9
    gpus_by_id = {
        device.id: TraceGpu(device.id, device.name, device.multiprocessors, device.memory)
        for device in devices
    }
    used = distinct(timeline.work.device) if len(timeline.work) else sorted(gpus_by_id)
    gpus = tuple(gpus_by_id.get(int(number), TraceGpu(int(number))) for number in used)
    frames = bool((timeline.host.kind == HostKind.FRAME).any())
    return replace(
        facts,
        rank=head.distributed.rank,
        world_size=head.distributed.world_size,
        backend=head.distributed.backend,
        gpus=gpus,
        vendor=_vendor(gpus, timeline.names) if len(timeline.work) else "",
        with_stack=bool(head.with_stack) or frames or bool(timeline.stacks),
        with_memory=bool(head.profile_memory) or bool(len(timeline.memory)),
        with_shapes=bool(head.record_shapes),
        by_gapless=head.gapless is not None,
        unrecorded_step=max(head.gapless.unrecorded_step, 0) if head.gapless is not None else 0,
    )


def _vendor(gpus: tuple[TraceGpu, ...], names: tuple[str, ...]) -> str:
    if any(name.startswith("hip") for name in names) or any("AMD" in gpu.name for gpu in gpus):
        return "amd"
    return "nvidia"
