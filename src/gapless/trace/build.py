"""Events to columns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from gapless.trace.events import NO_ARGS, Head, TraceEvent
from gapless.trace.timeline import (
    Facts,
    Gpu,
    Host,
    HostKind,
    Ints,
    Links,
    Memory,
    Syncs,
    Table,
    Thread,
    Timeline,
    Work,
    WorkKind,
    concatenate,
)

_HOST = {
    "cpu_op": HostKind.OPERATOR,
    "operator": HostKind.OPERATOR,
    "cuda_runtime": HostKind.CALL,
    "cuda_driver": HostKind.CALL,
    "runtime": HostKind.CALL,
    "hip_runtime": HostKind.CALL,
    "xpu_runtime": HostKind.CALL,
    "privateuse1_runtime": HostKind.CALL,
    "python_function": HostKind.FRAME,
    "user_annotation": HostKind.ANNOTATION,
    "overhead": HostKind.OVERHEAD,
}
_WORK = {
    "kernel": WorkKind.KERNEL,
    "gpu_memcpy": WorkKind.MEMCPY,
    "memcpy": WorkKind.MEMCPY,
    "gpu_memset": WorkKind.MEMSET,
    "memset": WorkKind.MEMSET,
}
_DIGITS = re.compile(r"-?\d+")
_INT64 = 1 << 63
_TYPES: dict[str, Any] = {
    "kind": np.int8,
    "name": np.int32,
    "thread": np.int32,
    "stack": np.int32,
    "group": np.int32,
    "blocks_per_sm": np.float64,
    "occupancy": np.float64,
}
"""Columns that are no 64-bit integers."""

K = TypeVar("K")


class Codes(dict[Any, int]):
    """Numbers for values, in order of appearance."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number

    def of(self, values: Iterable[Any], count: int) -> Any:
        """The number of each value."""
        return np.fromiter(map(self.__getitem__, values), np.int32, count)


def integer(value: object) -> int:
    """`value` as a number that fits a column: "0x7", "stream 7" and -1 for what is none."""
    if isinstance(value, str):
        try:
            number = int(value, 0)
        except ValueError:
            found = _DIGITS.search(value)
            number = int(found.group()) if found else -1
    else:
        number = int(value)  # type: ignore[call-overload]  # int or float by now
    return number if -_INT64 <= number < _INT64 else ((number + _INT64) % (2 * _INT64)) - _INT64


def real(value: object) -> float:
    """`value` as a finite float, -1 for what is none ("inf" blocks per SM)."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except ValueError:
        return -1.0
    return number if np.isfinite(number) else -1.0


def _ints(values: Iterable[Any], again: Callable[[], Iterable[Any]], count: int) -> Ints:
    try:
        return np.fromiter(values, np.int64, count)
    except (TypeError, ValueError, OverflowError):
        return np.fromiter(map(integer, again()), np.int64, count)


class Builder:
    """Takes events, some thousands at a time, and makes a `Timeline` of them."""

    def __init__(self) -> None:
        self._names = Codes()
        self._threads = Codes()
        self._stacks = Codes({"": 0})
        self._groups = Codes()
        self._thread_names: dict[tuple[str, str], str] = {}
        self._host: list[Host] = []
        self._work: list[Work] = []
        self._syncs: list[Syncs] = []
        self._memory: list[Memory] = []
        self._flows: dict[str, list[tuple[int | str, int, int]]] = {"s": [], "f": []}
        self._zero: int | None = None
        self._labels: dict[str, str] = {}
        self.events = 0
        self.dropped: defaultdict[str, int] = defaultdict(int)

    # Times --------------------------------------------------------------------------------------------------

    def _nanoseconds(self, events: Sequence[TraceEvent]) -> Ints:
        """Microseconds of the file as nanoseconds since its first event.

        The whole part is taken off before the fraction is scaled: a float holds nanoseconds since 1970 to
        256 of them only.
        """
        micro = np.fromiter((e.ts for e in events), np.float64, len(events))
        whole = np.floor(micro)
        if self._zero is None:
            self._zero = int(whole[0])
        return (whole.astype(np.int64) - self._zero) * 1000 + np.rint((micro - whole) * 1000).astype(np.int64)

    def _spans(self, events: Sequence[TraceEvent]) -> tuple[Ints, Ints]:
        start = self._nanoseconds(events)
        length = np.fromiter((e.dur for e in events), np.float64, len(events))
        return start, start + np.rint(np.maximum(length, 0.0) * 1000).astype(np.int64)

    # Events -------------------------------------------------------------------------------------------------

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Take these events in."""
        self.events += len(events)
        buckets: defaultdict[str, list[TraceEvent]] = defaultdict(list)
        for event in events:
            buckets[event.cat].append(event)
        for category, members in buckets.items():
            if self._take(category, members):
                continue
            folded = category.lower()
            if not self._take(folded, members):
                self._others(folded, members)

    def _take(self, category: str, events: list[TraceEvent]) -> bool:
        if category == "ac2g":  # the correlation of both ends says the same
            return True
        kind = _HOST.get(category)
        if kind is not None:
            self._add_host(kind, self._complete(category, events))
            return True
        work = _WORK.get(category)
        if work is not None:
            self._add_work(work, self._complete(category, events))
            return True
        if category == "fwdbwd":
            self._add_flows(events)
            return True
        if category == "cuda_sync":
            self._add_syncs(self._complete(category, events))
            return True
        return False

    def _complete(self, category: str, events: list[TraceEvent]) -> list[TraceEvent]:
        """Those that have a start and an end."""
        whole = [e for e in events if e.ph == "X" and e.dur >= 0 and e.ts > 0]
        if len(whole) < len(events):
            for event in events:
                if event.ph != "X":
                    self.dropped[f"of category {category} that are no spans"] += 1
                elif event.dur < 0:
                    self.dropped["without a duration"] += 1
                elif event.ts <= 0:
                    self.dropped["without a time"] += 1
        return whole

    def _others(self, category: str, events: list[TraceEvent]) -> None:
        memory: list[TraceEvent] = []
        for event in events:
            if event.ph == "M":
                self._add_metadata(event)
            elif event.ph in "iI" and event.name == "[memory]":
                memory.append(event)
        self._add_memory(memory)

    def _add_metadata(self, event: TraceEvent) -> None:
        key = (str(event.pid), str(event.tid))
        if event.name == "thread_name":
            self._thread_names[key] = event.args.name
        elif event.name == "process_labels":
            self._labels[str(event.pid)] = event.args.labels

    def _add_host(self, kind: HostKind, events: list[TraceEvent]) -> None:
        count = len(events)
        if not count:
            return
        start, end = self._spans(events)
        none = np.full(count, -1, np.int64)
        correlation = sequence = forward = external = none
        stack = none.astype(np.int32)
        args = [e.args for e in events]
        if kind is HostKind.CALL:
            correlation = np.fromiter((a.correlation for a in args), np.int64, count)
        elif kind is HostKind.OPERATOR:
            sequence = np.fromiter((a.sequence for a in args), np.int64, count)
            forward = np.fromiter((a.forward_thread for a in args), np.int64, count)
            stack = self._stacks.of((a.call_stack for a in args), count) - 1
        if kind is not HostKind.FRAME:
            external = self._external(args)
        self._host.append(
            Host(
                kind=np.full(count, kind, np.int8),
                name=self._names.of((e.name for e in events), count),
                thread=self._threads.of(((e.pid, e.tid) for e in events), count),
                start=start,
                end=end,
                correlation=correlation,
                external=external,
                sequence=sequence,
                forward_thread=forward,
                stack=stack,
            )
        )

    def _external(self, args: list[Any]) -> Ints:
        count = len(args)
        found = _ints((a.external_id for a in args), lambda: (a.external_id for a in args), count)
        if (found < 0).any():
            old = _ints((a.external_id_old for a in args), lambda: (a.external_id_old for a in args), count)
            found = np.where(found < 0, old, found)
        return found

    def _add_work(self, kind: WorkKind, events: list[TraceEvent]) -> None:
        count = len(events)
        if not count:
            return
        start, end = self._spans(events)
        args = [e.args for e in events]
        device = _ints((a.device for a in args), lambda: (a.device for a in args), count)
        stream = _ints((a.stream for a in args), lambda: (a.stream for a in args), count)
        if (device < 0).any() or (stream < 0).any():
            bare = np.array([a is NO_ARGS or (a.device == -1 and a.stream == -1) for a in args])
            if bare.any():  # the file says it by the place only
                device = np.where(bare, np.array([integer(e.pid) for e in events], np.int64), device)
                stream = np.where(bare, np.array([integer(e.tid) for e in events], np.int64), stream)
        group = np.full(count, -1, np.int32)
        elements = np.full(count, -1, np.int64)
        if kind is WorkKind.KERNEL:
            for row, one in enumerate(args):
                if one.collective:
                    group[row] = self._groups[one.group]
                    elements[row] = one.elements
        self._work.append(
            Work(
                kind=np.full(count, kind, np.int8),
                name=self._names.of((e.name for e in events), count),
                device=device,
                stream=stream,
                start=start,
                end=end,
                correlation=np.fromiter((a.correlation for a in args), np.int64, count),
                external=self._external(args),
                bytes=np.full(count, -1, np.int64)
                if kind is WorkKind.KERNEL
                else _ints((a.bytes for a in args), lambda: (a.bytes for a in args), count),
                blocks_per_sm=_reals([a.blocks_per_sm for a in args]),
                occupancy=_reals([a.occupancy for a in args]),
                graph_node=np.fromiter((a.graph_node for a in args), np.int64, count),
                group=group,
                elements=elements,
            )
        )

    def _add_syncs(self, events: list[TraceEvent]) -> None:
        count = len(events)
        if not count:
            return
        start, end = self._spans(events)
        args = [e.args for e in events]

        def column(name: str) -> Ints:
            get = attrgetter(name)
            return _ints(map(get, args), lambda: map(get, args), count)

        self._syncs.append(
            Syncs(
                kind=self._names.of(
                    (a.sync_kind or e.name for a, e in zip(args, events, strict=True)), count
                ),
                start=start,
                end=end,
                device=column("device"),
                stream=column("stream"),
                correlation=column("correlation"),
                on_stream=column("sync_stream"),
                record=column("sync_record"),
            )
        )

    def _add_memory(self, events: list[TraceEvent]) -> None:
        count = len(events)
        if not count:
            return
        args = [e.args for e in events]

        def column(name: str) -> Ints:
            get = attrgetter(name)
            return _ints(map(get, args), lambda: map(get, args), count)

        self._memory.append(
            Memory(
                time=self._nanoseconds(events),
                thread=self._threads.of(((e.pid, e.tid) for e in events), count),
                device_type=column("device_type"),
                device=column("device_id"),
                address=column("address"),
                bytes=column("memory"),
                allocated=column("allocated"),
                reserved=column("reserved"),
            )
        )

    def _add_flows(self, events: list[TraceEvent]) -> None:
        times = self._nanoseconds(events)
        threads = self._threads.of(((e.pid, e.tid) for e in events), len(events))
        for event, time, thread in zip(events, times.tolist(), threads.tolist(), strict=True):
            if event.ph in self._flows:
                self._flows[event.ph].append((event.id, time, thread))

    # The whole ----------------------------------------------------------------------------------------------

    def timeline(self, head: Head, facts: Facts, notes: Sequence[str]) -> Timeline:
        """What was taken in."""
        host, work = _joined(Host, self._host), _joined(Work, self._work)
        syncs, memory = _joined(Syncs, self._syncs), _joined(Memory, self._memory)
        self._host, self._work, self._syncs, self._memory = [], [], [], []
        host = host.take(_by_thread(host))
        work = work.take(np.argsort(work.start, kind="stable"))
        threads = tuple(
            Thread(str(pid), str(tid), self._thread_names.get((str(pid), str(tid)), ""))
            for pid, tid in self._threads
        )
        names = tuple(self._names)
        earliest = min([int(t.start.min()) for t in (host, work) if len(t)], default=0)
        for table in (host, work, syncs):
            np.subtract(table.start, earliest, out=table.start)
            np.subtract(table.end, earliest, out=table.end)
        np.subtract(memory.time, earliest, out=memory.time)
        return Timeline(
            host=host,
            work=work,
            syncs=syncs.take(np.argsort(syncs.start, kind="stable")),
            memory=memory.take(np.argsort(memory.time, kind="stable")),
            links=self._links(host, earliest),
            names=names,
            threads=threads,
            stacks=tuple(self._stacks)[1:],
            groups=tuple(self._groups),
            facts=_facts(facts, head, work, names, (self._zero or 0) * 1000 + earliest, self.events),
            notes=tuple(notes),
        )

    def _links(self, host: Host, earliest: int) -> Links:
        """The flows from forward to backward, as pairs of operators that start where the flow does."""
        ends = {key: (time, thread) for key, time, thread in self._flows["f"]}
        pairs = [(start, ends[key]) for key, *start in self._flows["s"] if key in ends]
        if not pairs:
            return Links(np.empty(0, np.int64), np.empty(0, np.int64))
        rows = np.flatnonzero(host.kind == HostKind.OPERATOR)
        span = int(host.end.max()) + 1
        keys = host.thread[rows].astype(np.int64) * span + host.start[rows]
        sides = []
        for side in range(2):
            time = np.array([pair[side][0] for pair in pairs], np.int64) - earliest
            thread = np.array([pair[side][1] for pair in pairs], np.int64)
            # The outermost operator that starts there; a microsecond's grace for rounding.
            at = np.searchsorted(keys, thread * span + time - 1)
            at = np.minimum(at, len(rows) - 1)
            near = np.abs(keys[at] - (thread * span + time)) <= 1000
            sides.append(np.where(near, rows[at], -1))
        good = (sides[0] >= 0) & (sides[1] >= 0)
        return Links(sides[0][good], sides[1][good])


def _reals(values: list[Any]) -> Any:
    try:
        found = np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError):
        return np.fromiter(map(real, values), np.float64, len(values))
    return np.where(np.isfinite(found), found, -1.0)


def _joined(kind: type[Table], tables: list[Any]) -> Any:
    if tables:
        return concatenate(tables)
    empty = {name: np.empty(0, _TYPES.get(name, np.int64)) for name in kind.__dataclass_fields__}
    return kind(**empty)


def _by_thread(host: Host) -> Ints:
    """The order by thread, start and falling end."""
    if not len(host):
        return np.empty(0, np.int64)
    low = int(host.start.min())
    span = int(host.end.max()) - low + 1
    key = host.thread.astype(np.int64) * span + (host.start - low)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    tied = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(tied):
        rows = np.union1d(tied, tied + 1)
        part = order[rows]
        order[rows] = part[np.lexsort((host.kind[part] == HostKind.CALL, -host.end[part], key[part]))]
    return order


def _facts(facts: Facts, head: Head, work: Work, names: tuple[str, ...], origin: int, count: int) -> Facts:
    known = {
        device.id: Gpu(device.id, device.name, device.multiprocessors, device.memory)
        for device in head.devices
    }
    used = [int(number) for number in np.unique(work.device)]
    gpus = tuple(known.get(number, Gpu(number)) for number in used)
    return replace(
        facts,
        events=count,
        origin=origin + head.base,
        rank=head.distributed.rank,
        world_size=head.distributed.world_size,
        backend=head.distributed.backend,
        gpus=gpus,
        vendor=_vendor(gpus, names) if len(work) else "",
        with_stack=bool(head.with_stack),
        with_memory=bool(head.profile_memory),
        with_shapes=bool(head.record_shapes),
    )


def _vendor(gpus: tuple[Gpu, ...], names: tuple[str, ...]) -> str:
    calls = chain(names)
    if any(name.startswith("hip") for name in calls):
        return "amd"
    return "amd" if any("AMD" in gpu.name for gpu in gpus) else "nvidia"
