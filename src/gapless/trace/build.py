"""Events to columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from decimal import Decimal
from itertools import islice
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from gapless.trace.arguments import SEPARATOR, Written
from gapless.trace.codes import Codes, ThreadCodes
from gapless.trace.events import NO_ARGS, Args, Event, integer, place
from gapless.trace.names import SILENT
from gapless.trace.timeline import (
    Floats,
    Host,
    HostKind,
    Ints,
    Memory,
    Syncs,
    Thread,
    Work,
    WorkKind,
)
from gapless.trace.values import column, external_ids, integers, places, reals

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
_UNNAMED = ("xpu_runtime", "privateuse1_runtime")
"""Calls whose names say nothing here: which of them wait is not known."""
_NUMBERED = (HostKind.OPERATOR, HostKind.ANNOTATION)
"""What the profiler numbers in order, without gaps."""
_WORK = {
    "kernel": WorkKind.KERNEL,
    "gpu_memcpy": WorkKind.MEMCPY,
    "memcpy": WorkKind.MEMCPY,
    "gpu_memset": WorkKind.MEMSET,
    "memset": WorkKind.MEMSET,
}
_WINDOW = "PyTorch Profiler"
"""A span of the whole recording, which the profiler writes behind all others."""
_DRIVERS = {
    "Command Buffer Full",
    "Driver Compiler",
    "Lazy Function Loading",
    "Runtime Triggered Module Loading",
}
"""Overheads that are the driver's and not the profiler's: they lie in calls, which are recorded as well."""
_ARROWS = {"ac2g", "async", "async_gpu", "async_cpu_to_gpu"}
"""Arrows from a call to what it launched."""
TWICE = "there twice"
"""What is counted of events that are the same as others; they are no loss."""
ASTRAY = "with impossible times"
"""What is counted of events that lie days away from the others."""
_LATEST = 9e15
"""Microseconds: what is later overflows as nanoseconds, and would be in the year 2255."""
_SYNC_ROWS = 1_000_000
"""Some files show waits in rows of their own, numbered from here on."""

_ts, _dur, _args = attrgetter("ts"), attrgetter("dur"), attrgetter("args")
_arguments = attrgetter("sizes", "types", "values")
_arguments_old = attrgetter("sizes_old", "types", "values")
_name, _thread, _id = attrgetter("name"), attrgetter("pid", "tid"), attrgetter("id")


class Arrows:
    """Where arrows from calls to what they launched end: the number of the arrow, the place and the time."""

    def __init__(self) -> None:
        self._places = Codes()
        self._ends: list[tuple[Ints, NDArray[np.int32], Ints]] = []

    def add(self, ends: Sequence[Event], time: Ints) -> None:
        """Take in these ends."""
        if ends:
            self._ends.append((integers(ends, _id), self._places.of(map(_thread, ends), len(ends)), time))

    def beside(self, threads: Collection[tuple[str, str]]) -> tuple[Ints, Ints]:
        """Number and time of those that end on none of these threads, but on a device."""
        if not self._ends:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        numbers, places, times = (np.concatenate(one) for one in zip(*self._ends, strict=True))
        device = np.array([(str(pid), str(tid)) not in threads for pid, tid in self._places], bool)
        return numbers[device[places]], times[device[places]]


class Numbers:
    """The profiler's own numbers of events, under either of their names, and when these begin."""

    def __init__(self) -> None:
        self._found: list[tuple[Ints, Ints]] = []

    def add(self, args: list[Args], start: Ints) -> None:
        """Take in the numbers of these events."""
        found = column(args, "index")
        if (found < 0).any():
            found = np.where(found < 0, column(args, "index_old"), found)
        self._found.append((found[found >= 0], start[found >= 0]))

    def all(self) -> tuple[Ints, Ints]:
        """Each number once, in order, and when its event begins, nanoseconds since the builder's `zero`."""
        if not self._found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        numbers, start = (np.concatenate(one) for one in zip(*self._found, strict=True))
        numbers, first = np.unique(numbers, return_index=True)
        return numbers, start[first]


class Builder:
    """Takes events, some thousands at a time, and makes columns of them.

    Times are nanoseconds since `zero`, a whole microsecond of the file's clock.
    """

    def __init__(self) -> None:
        self._names = Codes()
        self._threads = ThreadCodes()
        self._stacks = Codes({"": 0})
        self._groups = Codes()
        self._given = Codes({SEPARATOR.join([b""] * 3): 0})
        self._loud = np.empty(0, bool)
        self._thread_names: dict[tuple[str, str], str] = {}
        self._open: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
        self._halves = False
        self.host: list[Host] = []
        self.work: list[Work] = []
        self.syncs: list[Syncs] = []
        self.memory: list[Memory] = []
        self.flows: dict[str, list[tuple[int | str, int, int]]] = {"s": [], "f": []}
        self.arrows = Arrows()
        self.ranges: list[tuple[int, int, int, int]] = []
        """Device, stream, beginning and end of what the profiler says of an annotation's work."""
        self.window_ends: list[Event] = []
        self.stops: list[Event] = []
        self.numbers = Numbers()
        self.other_numbers = Numbers()
        self.frame_numbers = Numbers()
        self.zero: int | None = None
        self.events = 0
        self.dropped: Counter[str] = Counter()
        self.unnamed = 0
        self.unread: Counter[str] = Counter()
        """Spans by their category, of categories that are not read."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    @property
    def threads(self) -> tuple[Thread, ...]:
        return tuple(Thread(*key, self._thread_names.get(key, "")) for key in self._threads.threads)

    @property
    def stacks(self) -> tuple[str, ...]:
        return tuple(self._stacks)[1:]

    @property
    def given(self) -> tuple[Written, ...]:
        return tuple(self._given)[1:]

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self._groups)

    # Times --------------------------------------------------------------------------------------------------

    def _nanoseconds(self, events: Sequence[Event], micro: Floats) -> Ints:
        """Microseconds of the file, as floats in `micro`, as nanoseconds since `zero`.

        The whole part is taken off before the fraction is scaled: a float holds nanoseconds since 1970 to
        256 of them only.
        """
        whole = np.floor(micro)
        if self.zero is None and len(events):
            self.zero = int(whole[0])
        zero = self.zero or 0
        if events and isinstance(events[0].ts, Decimal):
            exact = (int(Decimal(event.ts) * 1000) - zero * 1000 for event in events)
            return np.fromiter(exact, np.int64, len(events))
        fraction = np.rint((micro - whole) * 1000).astype(np.int64)
        return (whole.astype(np.int64) - zero) * 1000 + fraction

    def _spans(self, category: str, events: list[Event]) -> tuple[list[Event], Ints, Ints]:
        """Those events that have a beginning and an end, and both."""
        micro = np.fromiter(map(_ts, events), np.float64, len(events))
        length = np.fromiter(map(_dur, events), np.float64, len(events))
        good = (length >= 0) & (length < _LATEST) & (np.abs(micro) < _LATEST)
        if not good.all():
            self._refused(category, [events[row] for row in np.flatnonzero(~good)])
            events = [events[row] for row in np.flatnonzero(good)]
            micro, length = micro[good], length[good]
        start = self._nanoseconds(events, micro)
        return events, start, start + np.rint(length * 1000).astype(np.int64)

    def _instants(self, events: list[Event]) -> tuple[list[Event], Ints]:
        micro = np.fromiter(map(_ts, events), np.float64, len(events))
        good = np.abs(micro) < _LATEST
        if not good.all():
            self.dropped["without a time"] += int((~good).sum())
            events, micro = [events[row] for row in np.flatnonzero(good)], micro[good]
        return events, self._nanoseconds(events, micro)

    def _refused(self, category: str, events: list[Event]) -> None:
        for event in events:
            if event.ph in ("B", "E"):
                self._halves = True
            elif event.ph not in ("X", ""):
                self.dropped[f"of category {category} but no span"] += 1
            elif not abs(float(event.ts)) < _LATEST:
                self.dropped["without a time"] += 1
            else:
                self.dropped["without a duration"] += 1

    # Events -------------------------------------------------------------------------------------------------

    def add(self, events: Sequence[Event]) -> None:
        """Take these events in."""
        self.events += len(events)
        self._halves = False
        self._sorted(events)
        if self._halves:
            self._sorted(self._paired(events))

    def _sorted(self, events: Sequence[Event]) -> None:
        buckets: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            buckets[event.cat].append(event)
        for category, members in buckets.items():
            if self._take(category, members):
                continue
            folded = category.lower()
            if folded == category or not self._take(folded, members):
                self._others(members)

    def _take(self, category: str, events: list[Event]) -> bool:
        if category in _ARROWS:  # the correlation of both ends says the same, where both are there
            self.arrows.add(*self._instants([event for event in events if event.ph == "f"]))
            return True
        kind = _HOST.get(category)
        self.unnamed += len(events) if category in _UNNAMED else 0
        if kind is HostKind.OVERHEAD:
            events = [event for event in events if event.name not in _DRIVERS]
        if kind is not None:
            self._add_host(kind, *self._spans(category, events))
            return True
        work = _WORK.get(category)
        if work is not None:
            self._add_work(work, *self._spans(category, events))
            return True
        if category == "fwdbwd":
            self._add_flows(events)
            return True
        if category == "gpu_user_annotation":
            self._add_ranges(*self._spans(category, events))
            return True
        if category == "cuda_sync":
            self._add_syncs(*self._spans(category, events))
            return True
        return False

    def _paired(self, events: Sequence[Event]) -> list[Event]:
        """Spans of events that mark the beginning and the end of one, which nest on each thread."""
        found: list[Event] = []
        for event in events:
            if event.ph not in ("B", "E") or not abs(float(event.ts)) < _LATEST:
                continue
            waiting = self._open[str(event.pid), str(event.tid)]
            if event.ph == "B":
                waiting.append(event)
            elif not waiting:
                self.dropped["whose beginning is missing"] += 1
            else:
                begin = waiting.pop()
                length = float(event.ts) - float(begin.ts)
                args = event.args if begin.args is NO_ARGS else begin.args
                fields = (begin.cat, begin.name, begin.pid, begin.tid, begin.ts, length)
                found.append(type(begin)("X", *fields, begin.id, args))  # type: ignore[arg-type]
        return found

    def window(self) -> tuple[int, int] | None:
        """When the recording began and ended, as the profiler says, nanoseconds since `zero`; or None."""
        _, start, end = self._spans("trace", self.window_ends)
        return (int(start.min()), int(end.max())) if len(end) else None

    def stopped(self) -> int | None:
        """When the profiler had stopped all recording, nanoseconds since `zero`; None: it does not say."""
        _, time = self._instants(self.stops)
        return int(time.max()) if len(time) else None

    def finish(self) -> None:
        """Count what never ended."""
        never = sum(map(len, self._open.values()))
        if never:
            self.dropped["whose end is missing"] += never

    def _others(self, events: list[Event]) -> None:
        memory: list[Event] = []
        numbered = [event for event in events if event.args.index != -1 or event.args.index_old != -1]
        if numbered:
            numbered, time = self._instants(numbered)
            self.other_numbers.add(list(map(_args, numbered)), time)
        for event in events:
            if event.ph == "M":
                if event.name == "thread_name":
                    self._thread_names[str(event.pid), str(event.tid)] = event.args.name
            elif event.name == "[memory]":
                memory.append(event)
            elif event.name == "Record Window End":
                self.stops.append(event)
            elif event.ph == "X" and event.name.startswith(_WINDOW):
                self.window_ends.append(event)
            elif event.ph in ("B", "E"):
                self._halves = True
            elif event.ph == "X":
                self.unread[event.cat] += 1
        if memory:
            self._add_memory(*self._instants(memory))

    # Rows ---------------------------------------------------------------------------------------------------

    def _add_host(self, kind: HostKind, events: list[Event], start: Ints, end: Ints) -> None:
        count = len(events)
        if not count:
            return
        correlation = external = sequence = forward = np.full(count, -1, np.int64)
        stack = given = np.full(count, -1, np.int32)
        name = self._names.of(map(_name, events), count)
        args = list(map(_args, events))
        if kind is HostKind.FRAME:
            self.frame_numbers.add(args, start)
        else:
            external = external_ids(args)
            if kind in _NUMBERED:
                self.numbers.add(args, start)
            if kind is HostKind.CALL:
                correlation = column(args, "correlation")
                external = np.where(external == correlation, -1, external)
            elif kind is HostKind.OPERATOR:
                sequence = column(args, "sequence")
                forward = column(args, "forward_thread")
                stack = self._stacks.of(map(attrgetter("call_stack"), args), count) - 1
                given = self._arguments(args, name)
        self.host.append(
            Host(
                kind=np.full(count, kind, np.int8),
                name=name,
                thread=self._threads.of(map(_thread, events), count),
                start=start,
                end=end,
                correlation=correlation,
                external=external,
                sequence=sequence,
                forward_thread=forward,
                stack=stack,
                given=given,
            )
        )

    def _arguments(self, args: list[Args], names: NDArray[np.int32]) -> NDArray[np.int32]:
        """What these operators were given, of those that may launch work: reading it takes time."""
        fresh = [name not in SILENT for name in islice(self._names, len(self._loud), None)]
        self._loud = np.append(self._loud, np.array(fresh, bool))
        rows = np.flatnonzero(self._loud[names])
        asked = [args[row] for row in rows.tolist()]
        read = _arguments_old if asked and bytes(asked[0].sizes_old) else _arguments
        found = np.full(len(args), -1, np.int32)
        found[rows] = self._given.of(map(SEPARATOR.join, map(read, asked)), len(rows)) - 1
        return found

    def _add_work(self, kind: WorkKind, events: list[Event], start: Ints, end: Ints) -> None:
        count = len(events)
        if not count:
            return
        args = list(map(_args, events))
        device, stream = places(args, "device"), places(args, "stream")
        bare = [row for row, one in enumerate(args) if one.device == -1 and one.stream == -1]
        for row in bare:  # the file says it by the place only
            device[row], stream[row] = place(events[row].pid), place(events[row].tid)
        group = np.full(count, -1, np.int32)
        elements = np.full(count, -1, np.int64)
        if kind is WorkKind.KERNEL:
            for row, one in enumerate(args):
                if one.collective:
                    group[row] = self._groups[one.group]
                    elements[row] = integer(one.elements)
        correlation, external = column(args, "correlation"), external_ids(args)
        nothing = np.full(count, -1, np.int64)
        self.work.append(
            Work(
                kind=np.full(count, kind, np.int8),
                name=self._names.of(map(_name, events), count),
                device=device,
                stream=stream,
                start=start,
                end=end,
                correlation=correlation,
                external=np.where(external == correlation, -1, external),
                bytes=nothing if kind is WorkKind.KERNEL else column(args, "bytes"),
                blocks_per_sm=reals([one.blocks_per_sm for one in args]),
                occupancy=reals([one.occupancy for one in args]),
                group=group,
                elements=elements,
            )
        )

    def _add_ranges(self, events: list[Event], start: Ints, end: Ints) -> None:
        devices, streams = [place(event.pid) for event in events], [place(event.tid) for event in events]
        self.ranges += zip(devices, streams, start.tolist(), end.tolist(), strict=True)

    def _add_syncs(self, events: list[Event], start: Ints, end: Ints) -> None:
        count = len(events)
        if not count:
            return
        args = list(map(_args, events))
        device, stream = places(args, "device"), places(args, "stream")
        for row, event in enumerate(events):
            if args[row].device == -1 and args[row].stream == -1:
                row_number = place(event.tid)
                device[row] = place(event.pid)
                stream[row] = row_number - _SYNC_ROWS if row_number >= _SYNC_ROWS else row_number
        kinds = (one.sync_kind or event.name for one, event in zip(args, events, strict=True))
        self.syncs.append(
            Syncs(
                kind=self._names.of(kinds, count),
                start=start,
                end=end,
                device=device,
                stream=stream,
                correlation=column(args, "correlation"),
                on_stream=places(args, "sync_stream"),
                record=column(args, "sync_record"),
            )
        )

    def _add_memory(self, events: list[Event], time: Ints) -> None:
        args = list(map(_args, events))
        self.memory.append(
            Memory(
                time=time,
                thread=self._threads.of(map(_thread, events), len(events)),
                device_type=column(args, "device_type"),
                device=column(args, "device_id"),
                address=column(args, "address"),
                bytes=column(args, "memory"),
                allocated=column(args, "allocated"),
                reserved=column(args, "reserved"),
            )
        )

    def _add_flows(self, events: list[Event]) -> None:
        events, times = self._instants(events)
        threads = self._threads.of(map(_thread, events), len(events))
        for event, time, thread in zip(events, times.tolist(), threads.tolist(), strict=True):
            if event.ph in self.flows:
                self.flows[event.ph].append((event.id, time, thread))
