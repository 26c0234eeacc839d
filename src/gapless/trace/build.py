"""Turn the events of a trace into columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from decimal import Decimal
from itertools import islice
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from gapless.trace.arguments import SEPARATOR, EncodedArguments
from gapless.trace.events import NO_ARGS, Args, Event, device_number, to_integer
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
from gapless.trace.values import (
    Codes,
    ThreadCodes,
    column,
    device_column,
    external_ids,
    to_floats,
    to_integers,
)

_HOST_KINDS = {
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
_RUNTIMES_OF_UNKNOWN_NAMES = ("xpu_runtime", "privateuse1_runtime")
"""Runtimes whose calls have names Gapless does not know: which of them wait is unknown."""
_NUMBERED_KINDS = (HostKind.OPERATOR, HostKind.ANNOTATION)
"""Kinds that the profiler numbers in order, without gaps."""
_WORK_KINDS = {
    "kernel": WorkKind.KERNEL,
    "gpu_memcpy": WorkKind.MEMCPY,
    "memcpy": WorkKind.MEMCPY,
    "gpu_memset": WorkKind.MEMSET,
    "memset": WorkKind.MEMSET,
}
_WINDOW_PREFIX = "PyTorch Profiler"
"""Name of the span of the whole recording, which the profiler writes after all others."""
_DRIVER_OVERHEADS = {
    "Command Buffer Full",
    "Driver Compiler",
    "Lazy Function Loading",
    "Runtime Triggered Module Loading",
}
"""Overheads of the driver, not of the profiler: they lie in calls, which are recorded too."""
_ARROW_CATEGORIES = {"ac2g", "async", "async_gpu", "async_cpu_to_gpu"}
"""Categories of arrows from a call to the work it launched."""
DUPLICATED = "there twice"
"""Reason under which repeated events are counted; they are no loss."""
IMPOSSIBLE_TIME = "with impossible times"
"""Reason under which events days away from the others are counted."""
_MAX_TIME_US = 9e15
"""Microseconds: later times would overflow as nanoseconds (they would lie in the year 2255)."""
_FIRST_SYNC_ROW = 1_000_000
"""Some files show waits in rows of their own, numbered from here on."""

_ts, _dur, _args = attrgetter("ts"), attrgetter("dur"), attrgetter("args")
_arguments = attrgetter("sizes", "types", "values")
_arguments_old = attrgetter("sizes_old", "types", "values")
_name, _thread, _id = attrgetter("name"), attrgetter("pid", "tid"), attrgetter("id")


class LaunchArrows:
    """The ends of arrows from calls to the work they launched: number of the arrow, place and time."""

    def __init__(self) -> None:
        self._places = Codes()
        self._ends: list[tuple[Ints, NDArray[np.int32], Ints]] = []

    def add(self, ends: Sequence[Event], time: Ints) -> None:
        """Record the ends of arrows."""
        if ends:
            self._ends.append((to_integers(ends, _id), self._places.of(map(_thread, ends), len(ends)), time))

    def ending_on_devices(self, threads: Collection[tuple[str, str]]) -> tuple[Ints, Ints]:
        """Return number and time of the arrows that end on none of these host threads."""
        if not self._ends:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        numbers, places, times = (np.concatenate(part) for part in zip(*self._ends, strict=True))
        device = np.array([(str(pid), str(tid)) not in threads for pid, tid in self._places], bool)
        return numbers[device[places]], times[device[places]]


class EventNumbers:
    """The profiler's own event numbers, under either of their names, and when those events begin."""

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints]] = []

    def add(self, args: list[Args], start: Ints) -> None:
        """Record the numbers of events."""
        indices = column(args, "index")
        if (indices < 0).any():
            indices = np.where(indices < 0, column(args, "index_old"), indices)
        self._parts.append((indices[indices >= 0], start[indices >= 0]))

    def all(self) -> tuple[Ints, Ints]:
        """Return each number once, sorted, and when its event begins (nanoseconds since the builder's
        `zero`)."""
        if not self._parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        numbers, start = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        numbers, first = np.unique(numbers, return_index=True)
        return numbers, start[first]


class TimelineBuilder:
    """Takes events, some thousands at a time, and turns them into columns.

    Times are nanoseconds since `zero`, a whole microsecond of the file's clock.
    """

    def __init__(self) -> None:
        self._names = Codes()
        self._threads = ThreadCodes()
        self._stacks = Codes({"": 0})
        self._groups = Codes()
        self._argument_codes = Codes({SEPARATOR.join([b""] * 3): 0})
        self._may_launch = np.empty(0, bool)
        self._thread_names: dict[tuple[str, str], str] = {}
        self._open_events: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
        self._has_halves = False
        self.host: list[Host] = []
        self.work: list[Work] = []
        self.syncs: list[Syncs] = []
        self.memory: list[Memory] = []
        self.flows: dict[str, list[tuple[int | str, int, int]]] = {"s": [], "f": []}
        self.arrows = LaunchArrows()
        self.ranges: list[tuple[int, int, int, int]] = []
        """Device, stream, start and end of each annotation span the profiler writes for a device."""
        self.window_ends: list[Event] = []
        self.stops: list[Event] = []
        self.numbers = EventNumbers()
        self.other_numbers = EventNumbers()
        self.frame_numbers = EventNumbers()
        self.zero: int | None = None
        self.events = 0
        self.dropped: Counter[str] = Counter()
        self.calls_of_unknown_name = 0
        self.unread: Counter[str] = Counter()
        """Number of spans by category, for categories that are not read."""

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
    def encoded_arguments(self) -> tuple[EncodedArguments, ...]:
        return tuple(self._argument_codes)[1:]

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the process groups of collectives, in the order of their numbers in `work`."""
        return tuple(self._groups)

    # Times --------------------------------------------------------------------------------------------------

    def _to_nanoseconds(self, events: Sequence[Event], micro: Floats) -> Ints:
        """Convert the file's microseconds, as floats in `micro`, to nanoseconds since `zero`.

        The whole part is subtracted before the fraction is scaled: a float represents nanoseconds since 1970
        to 256 of them only.
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

    def _valid_spans(self, category: str, events: list[Event]) -> tuple[list[Event], Ints, Ints]:
        """Return the events with a usable start and duration, their starts and their ends."""
        micro = np.fromiter(map(_ts, events), np.float64, len(events))
        length = np.fromiter(map(_dur, events), np.float64, len(events))
        good = (length >= 0) & (length < _MAX_TIME_US) & (np.abs(micro) < _MAX_TIME_US)
        if not good.all():
            self._count_unusable(category, [events[row] for row in np.flatnonzero(~good)])
            events = [events[row] for row in np.flatnonzero(good)]
            micro, length = micro[good], length[good]
        start = self._to_nanoseconds(events, micro)
        return events, start, start + np.rint(length * 1000).astype(np.int64)

    def _valid_instants(self, events: list[Event]) -> tuple[list[Event], Ints]:
        micro = np.fromiter(map(_ts, events), np.float64, len(events))
        good = np.abs(micro) < _MAX_TIME_US
        if not good.all():
            self.dropped["without a time"] += int((~good).sum())
            events, micro = [events[row] for row in np.flatnonzero(good)], micro[good]
        return events, self._to_nanoseconds(events, micro)

    def _count_unusable(self, category: str, events: list[Event]) -> None:
        for event in events:
            if event.ph in ("B", "E"):
                self._has_halves = True
            elif event.ph not in ("X", ""):
                self.dropped[f"of category {category} but no span"] += 1
            elif not abs(float(event.ts)) < _MAX_TIME_US:
                self.dropped["without a time"] += 1
            else:
                self.dropped["without a duration"] += 1

    # Events -------------------------------------------------------------------------------------------------

    def add(self, events: Sequence[Event]) -> None:
        """Add these events to the columns."""
        self.events += len(events)
        self._has_halves = False
        self._add_by_category(events)
        if self._has_halves:
            self._add_by_category(self._pair_halves(events))

    def _add_by_category(self, events: Sequence[Event]) -> None:
        buckets: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            buckets[event.cat].append(event)
        for category, members in buckets.items():
            if self._add_category(category, members):
                continue
            folded = category.lower()
            if folded == category or not self._add_category(folded, members):
                self._add_other_events(members)

    def _add_category(self, category: str, events: list[Event]) -> bool:
        """Add events of one category; False where the category is not one that is read."""
        if category in _ARROW_CATEGORIES:  # where both ends are recorded their correlation says the same
            self.arrows.add(*self._valid_instants([event for event in events if event.ph == "f"]))
            return True
        kind = _HOST_KINDS.get(category)
        self.calls_of_unknown_name += len(events) if category in _RUNTIMES_OF_UNKNOWN_NAMES else 0
        if kind is HostKind.OVERHEAD:
            events = [event for event in events if event.name not in _DRIVER_OVERHEADS]
        if kind is not None:
            self._add_host(kind, *self._valid_spans(category, events))
            return True
        work = _WORK_KINDS.get(category)
        if work is not None:
            self._add_work(work, *self._valid_spans(category, events))
            return True
        if category == "fwdbwd":
            self._add_flows(events)
            return True
        if category == "gpu_user_annotation":
            self._add_ranges(*self._valid_spans(category, events))
            return True
        if category == "cuda_sync":
            self._add_syncs(*self._valid_spans(category, events))
            return True
        return False

    def _pair_halves(self, events: Sequence[Event]) -> list[Event]:
        """Return spans built from begin and end events, which nest on each thread."""
        spans: list[Event] = []
        for event in events:
            if event.ph not in ("B", "E") or not abs(float(event.ts)) < _MAX_TIME_US:
                continue
            waiting = self._open_events[str(event.pid), str(event.tid)]
            if event.ph == "B":
                waiting.append(event)
            elif not waiting:
                self.dropped["whose beginning is missing"] += 1
            else:
                begin = waiting.pop()
                length = float(event.ts) - float(begin.ts)
                args = event.args if begin.args is NO_ARGS else begin.args
                fields = (begin.cat, begin.name, begin.pid, begin.tid, begin.ts, length)
                spans.append(type(begin)("X", *fields, begin.id, args))  # type: ignore[arg-type]
        return spans

    def window(self) -> tuple[int, int] | None:
        """Start and end of the recording as the profiler marks them, in ns since `zero`; or None."""
        _, start, end = self._valid_spans("trace", self.window_ends)
        return (int(start.min()), int(end.max())) if len(end) else None

    def stopped(self) -> int | None:
        """When the profiler had stopped all recording, in nanoseconds since `zero`; None: not recorded."""
        _, time = self._valid_instants(self.stops)
        return int(time.max()) if len(time) else None

    def finish(self) -> None:
        """Count the events that never ended."""
        never = sum(map(len, self._open_events.values()))
        if never:
            self.dropped["whose end is missing"] += never

    def _add_other_events(self, events: list[Event]) -> None:
        memory: list[Event] = []
        numbered = [event for event in events if event.args.index != -1 or event.args.index_old != -1]
        if numbered:
            numbered, time = self._valid_instants(numbered)
            self.other_numbers.add(list(map(_args, numbered)), time)
        for event in events:
            if event.ph == "M":
                if event.name == "thread_name":
                    self._thread_names[str(event.pid), str(event.tid)] = event.args.name
            elif event.name == "[memory]":
                memory.append(event)
            elif event.name == "Record Window End":
                self.stops.append(event)
            elif event.ph == "X" and event.name.startswith(_WINDOW_PREFIX):
                self.window_ends.append(event)
            elif event.ph in ("B", "E"):
                self._has_halves = True
            elif event.ph == "X":
                self.unread[event.cat] += 1
        if memory:
            self._add_memory(*self._valid_instants(memory))

    # Rows ---------------------------------------------------------------------------------------------------

    def _add_host(self, kind: HostKind, events: list[Event], start: Ints, end: Ints) -> None:
        count = len(events)
        if not count:
            return
        correlation = external = sequence = forward = np.full(count, -1, np.int64)
        stack = arguments = np.full(count, -1, np.int32)
        name = self._names.of(map(_name, events), count)
        args = list(map(_args, events))
        if kind is HostKind.FRAME:
            self.frame_numbers.add(args, start)
        else:
            external = external_ids(args)
            if kind in _NUMBERED_KINDS:
                self.numbers.add(args, start)
            if kind is HostKind.CALL:
                correlation = column(args, "correlation")
                external = np.where(external == correlation, -1, external)
            elif kind is HostKind.OPERATOR:
                sequence = column(args, "sequence")
                forward = column(args, "forward_thread")
                stack = self._stacks.of(map(attrgetter("call_stack"), args), count) - 1
                arguments = self._encode_arguments(args, name)
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
                arguments=arguments,
            )
        )

    def _encode_arguments(self, args: list[Args], names: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the number of each operator's arguments; -1 for operators that launch nothing.

        Those are skipped because decoding arguments takes time.
        """
        fresh = [name not in SILENT for name in islice(self._names, len(self._may_launch), None)]
        self._may_launch = np.append(self._may_launch, np.array(fresh, bool))
        rows = np.flatnonzero(self._may_launch[names])
        loud_args = [args[row] for row in rows.tolist()]
        get_lists = _arguments_old if loud_args and bytes(loud_args[0].sizes_old) else _arguments
        numbers = np.full(len(args), -1, np.int32)
        numbers[rows] = self._argument_codes.of(map(SEPARATOR.join, map(get_lists, loud_args)), len(rows)) - 1
        return numbers

    def _add_work(self, kind: WorkKind, events: list[Event], start: Ints, end: Ints) -> None:
        count = len(events)
        if not count:
            return
        args = list(map(_args, events))
        device, stream = device_column(args, "device"), device_column(args, "stream")
        bare = [row for row, arg in enumerate(args) if arg.device == -1 and arg.stream == -1]
        for row in bare:  # such files say it only by the row of the event
            device[row], stream[row] = device_number(events[row].pid), device_number(events[row].tid)
        group = np.full(count, -1, np.int32)
        elements = np.full(count, -1, np.int64)
        if kind is WorkKind.KERNEL:
            for row, arg in enumerate(args):
                if arg.collective:
                    group[row] = self._groups[arg.group]
                    elements[row] = to_integer(arg.elements)
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
                blocks_per_sm=to_floats([arg.blocks_per_sm for arg in args]),
                occupancy=to_floats([arg.occupancy for arg in args]),
                group=group,
                elements=elements,
            )
        )

    def _add_ranges(self, events: list[Event], start: Ints, end: Ints) -> None:
        devices, streams = (
            [device_number(event.pid) for event in events],
            [device_number(event.tid) for event in events],
        )
        self.ranges += zip(devices, streams, start.tolist(), end.tolist(), strict=True)

    def _add_syncs(self, events: list[Event], start: Ints, end: Ints) -> None:
        count = len(events)
        if not count:
            return
        args = list(map(_args, events))
        device, stream = device_column(args, "device"), device_column(args, "stream")
        for row, event in enumerate(events):
            if args[row].device == -1 and args[row].stream == -1:
                row_number = device_number(event.tid)
                device[row] = device_number(event.pid)
                stream[row] = row_number - _FIRST_SYNC_ROW if row_number >= _FIRST_SYNC_ROW else row_number
        kinds = (arg.sync_kind or event.name for arg, event in zip(args, events, strict=True))
        self.syncs.append(
            Syncs(
                kind=self._names.of(kinds, count),
                start=start,
                end=end,
                device=device,
                stream=stream,
                correlation=column(args, "correlation"),
                on_stream=device_column(args, "sync_stream"),
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
        events, times = self._valid_instants(events)
        threads = self._threads.of(map(_thread, events), len(events))
        for event, time, thread in zip(events, times.tolist(), threads.tolist(), strict=True):
            if event.ph in self.flows:
                self.flows[event.ph].append((event.id, time, thread))
