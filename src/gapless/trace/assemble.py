"""Columns to a `Timeline`: in order, on one clock, with what the file says of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gapless.trace.build import ASTRAY, TWICE, Builder
from gapless.trace.events import Head, integer
from gapless.trace.links import links
from gapless.trace.losses import arrows, numbered, ranges
from gapless.trace.timeline import (
    Facts,
    Gpu,
    Host,
    HostKind,
    Ints,
    Memory,
    Syncs,
    Table,
    Thread,
    Timeline,
    Work,
    concatenate,
    distinct,
)

_TYPES: dict[str, Any] = {
    "kind": np.int8,
    "name": np.int32,
    "thread": np.int32,
    "stack": np.int32,
    "given": np.int32,
    "group": np.int32,
    "blocks_per_sm": np.float64,
    "occupancy": np.float64,
}
"""Columns that are no 64-bit integers."""
_SYNC_TYPES: dict[str, Any] = {"kind": np.int32}
_FAR = 10 * 86_400 * 10**9
"""Nanoseconds: ten days. No profile is so long: what lies further off has no time, or a wrong one."""
_MARKS = ("ProfilerStep#", "Optimizer.step#", "Optimizer.zero_grad#", "enumerate(")
"""Annotations of torch's own, which files up to torch 1.11 hold as operators."""

T = TypeVar("T", bound=Table)
V = TypeVar("V")


def timeline(builder: Builder, head: Head, facts: Facts) -> Timeline:
    """What `builder` took in. `facts` are those that come from the file as a whole."""
    builder.finish()
    host, work = _joined(Host, builder.host), _joined(Work, builder.work)
    syncs, memory = _joined(Syncs, builder.syncs), _joined(Memory, builder.memory)
    builder.host, builder.work, builder.syncs, builder.memory = [], [], [], []
    host, work, syncs, memory = _together(builder, host, work, syncs, memory)
    _set_marks(host, builder.names)
    threads, numbers = _by_id(builder.threads)
    host = replace(host, thread=numbers[host.thread])
    host, work = host.take(order(host)), work.take(_by_start(work))
    host, work = _once(builder, host, ("correlation", "external")), _once(builder, work, ("correlation",))
    syncs = syncs.take(np.argsort(syncs.start, kind="stable"))
    memory = memory.take(np.argsort(memory.time, kind="stable"))
    names = _renumbered(builder.names, host.name, work.name, syncs.kind)
    earliest = min([int(t.start.min()) for t in (host, work) if len(t)], default=0)
    for table in (host, work, syncs):
        np.subtract(table.start, earliest, out=table.start)
        np.subtract(table.end, earliest, out=table.end)
    np.subtract(memory.time, earliest, out=memory.time)
    flows = {
        phase: [(key, time - earliest, int(numbers[thread])) for key, time, thread in found]
        for phase, found in builder.flows.items()
    }
    made = Timeline(
        host=host,
        work=work,
        syncs=syncs,
        memory=replace(memory, thread=numbers[memory.thread]),
        links=links(host, names, flows),
        names=names,
        threads=threads,
        stacks=_renumbered(builder.stacks, host.stack),
        groups=_renumbered(builder.groups, work.group),
        given=_renumbered(builder.given, host.given),
    )
    origin = (builder.zero or 0) * 1000 + earliest + head.base
    counted, ends = numbered(builder, made, earliest), arrows(builder, made, earliest)
    bare, beyond = ranges(builder, made, earliest)
    window = _window(builder, made, earliest)
    losses = replace(
        facts.losses,
        numbered=counted.seen,
        numbers=counted.of,
        before=counted.before,
        gaps=counted.gaps,
        dense=counted.dense,
        arrows=ends.gone,
        uncaused=ends.uncaused,
        bare=bare,
        beyond=beyond,
        astray=builder.dropped[ASTRAY],
        window=window or made.span,
        marked=window is not None,
        stopped=(builder.stopped() or earliest) - earliest,
        endless=not builder.window_ends and not builder.stops,
    )
    unread = tuple(category for category, _ in builder.unread.most_common())
    facts = replace(facts, events=builder.events, origin=origin, losses=losses, unread=unread)
    return replace(made, facts=_facts(facts, head, made))


def _once(builder: Builder, table: T, ids: Sequence[str]) -> T:
    """`table`, in order, without rows with one of these ids that are there twice: pieces written again."""
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
    builder.dropped[TWICE] += int(same.sum())
    return table.take(~same) if same.any() else table


def _window(builder: Builder, timeline: Timeline, earliest: int) -> tuple[int, int] | None:
    """From when to when was recorded by the profiler's own mark; None where there is none to be believed."""
    window, span = builder.window(), timeline.span
    if window is None or span[1] <= span[0] or window[1] - window[0] > _FAR:
        return None
    begin, end = (time - earliest for time in window)
    return (begin, end) if begin > -_FAR and end < _FAR else None


def order(host: Host) -> Ints:
    """The order by thread, start and falling end; of spans with the same times what opens first."""
    if not len(host):
        return np.empty(0, np.int64)
    low = int(host.start.min())
    span = int(host.end.max()) - low + 1
    threads = int(host.thread.max()) + 1
    if threads * span >= 1 << 62:
        return np.lexsort((host.external, _depth(host.kind), -host.end, host.start, host.thread))
    key = host.thread.astype(np.int64) * span + (host.start - low)

    def ties(part: Ints) -> tuple[Ints, ...]:
        operator = host.kind[part] == HostKind.OPERATOR
        number = np.where(operator, host.external[part], host.correlation[part])
        return number, _depth(host.kind[part]), -host.end[part]

    return _sorted(key, ties)


def _by_start(work: Work) -> Ints:
    return _sorted(work.start, lambda part: (work.correlation[part], work.end[part], work.stream[part]))


def _sorted(key: Ints, ties: Callable[[Ints], tuple[Ints, ...]]) -> Ints:
    """The order by `key`, and where that is the same by the last of `ties`, then the one before it."""
    rows = np.argsort(key, kind="stable")
    ordered = key[rows]
    tied = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(tied):
        places = distinct(np.concatenate([tied, tied + 1]))
        part = rows[places]
        rows[places] = part[np.lexsort((*ties(part), key[part]))]
    return rows


_DEPTHS = {
    HostKind.FRAME: 0,
    HostKind.ANNOTATION: 1,
    HostKind.OPERATOR: 2,
    HostKind.CALL: 3,
    HostKind.OVERHEAD: 4,
}
"""How far inside something of a kind lies, where its times do not tell."""


def _depth(kind: NDArray[np.int8]) -> Ints:
    return np.array([_DEPTHS[HostKind(number)] for number in range(len(HostKind))], np.int64)[kind]


def _by_id(threads: Sequence[Thread]) -> tuple[tuple[Thread, ...], NDArray[np.int32]]:
    """The threads by process and number, whatever order the file has them in, and the new number of each."""

    def key(row: int) -> tuple[tuple[int, str], ...]:
        parts = (threads[row].pid, threads[row].tid)
        return tuple((integer(part), part) for part in parts)

    order = sorted(range(len(threads)), key=key)
    numbers = np.empty(len(threads), np.int32)
    numbers[order] = np.arange(len(threads), dtype=np.int32)
    return tuple(threads[row] for row in order), numbers


def _renumbered(values: Sequence[V], *columns: NDArray[np.int32]) -> tuple[V, ...]:
    """`values` as `columns` first refer to them, which are changed in place; without those that none does."""
    never = sum(map(len, columns))
    first = np.full(len(values), never, np.int64)
    begin = never
    for column in reversed(columns):
        begin -= len(column)
        rows = np.flatnonzero(column >= 0)[::-1]
        first[column[rows]] = begin + rows  # of several assignments the last stands: the first row
    order = np.argsort(first, kind="stable")
    numbers = np.empty(len(values), np.int32)
    numbers[order] = np.arange(len(values), dtype=np.int32)
    for column in columns:
        held = column >= 0
        column[held] = numbers[column[held]]
    return tuple(values[row] for row in order.tolist() if first[row] < never)


def _joined(kind: type[T], tables: Sequence[T]) -> T:
    if tables:
        return concatenate(tables)
    types = _TYPES | (_SYNC_TYPES if kind is Syncs else {})
    empty = {name: np.empty(0, types.get(name, np.int64)) for name in kind.__dataclass_fields__}
    return kind(**empty)


def _together(
    builder: Builder, host: Host, work: Work, syncs: Syncs, memory: Memory
) -> tuple[Host, Work, Syncs, Memory]:
    """Without what lies days away from the rest: times of 0, and numbers that a crash left behind."""
    starts = [table.start for table in (host, work) if len(table)]
    if not starts:
        return host, work, syncs, memory
    low, high = min(int(s.min()) for s in starts), max(int(s.max()) for s in starts)
    ends = max(int(table.end.max()) for table in (host, work) if len(table))
    if ends - low < _FAR:
        return (
            host,
            work,
            syncs.take(_near(syncs.start, low, high)),
            memory.take(_near(memory.time, low, high)),
        )
    everything = np.concatenate(starts)
    timed = everything[everything != -1000 * (builder.zero or 0)]
    middle = int(np.median(timed if len(timed) else everything))
    kept: list[Any] = []
    for table in (host, work, syncs, memory):
        start = table.time if isinstance(table, Memory) else table.start
        end = table.time if isinstance(table, Memory) else table.end
        near = (np.abs(start - middle) < _FAR) & (end - start < _FAR)
        builder.dropped[ASTRAY] += int((~near).sum())
        kept.append(table.take(near))
    return kept[0], kept[1], kept[2], kept[3]


def _near(times: Ints, low: int, high: int) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = (times > low - _FAR) & (times < high + _FAR)
    return near


def _set_marks(host: Host, names: tuple[str, ...]) -> None:
    marks = np.fromiter((name.startswith(_MARKS) for name in names), bool, len(names))
    if marks.any():
        host.kind[marks[host.name] & (host.kind == HostKind.OPERATOR)] = HostKind.ANNOTATION


def _facts(facts: Facts, head: Head, timeline: Timeline) -> Facts:
    devices = head.devices or head.devices_before_1_9
    known = {one.id: Gpu(one.id, one.name, one.multiprocessors, one.memory) for one in devices}
    used = distinct(timeline.work.device) if len(timeline.work) else sorted(known)
    gpus = tuple(known.get(int(number), Gpu(int(number))) for number in used)
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
    )


def _vendor(gpus: tuple[Gpu, ...], names: tuple[str, ...]) -> str:
    if any(name.startswith("hip") for name in names) or any("AMD" in gpu.name for gpu in gpus):
        return "amd"
    return "nvidia"
