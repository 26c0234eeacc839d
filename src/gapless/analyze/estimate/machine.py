"""Run a programme on an imagined machine and write the profile that a profiler would have written.

One host thread, the streams of one GPU, the rules of CUDA that `gapless.replay` implements. The result is a
`Timeline`, so that estimates are priced by the same replay as profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gapless.analyze.estimate.times import HostTimes
from gapless.analyze.estimate.written import NUMBER, CallRow, SyncRow, WorkRow, write_timeline
from gapless.model import copies
from gapless.model.programme import Entry, GpuRates
from gapless.replay.host import CHECKED_LAUNCHES, QUEUE_DEPTH
from gapless.replay.latency import (
    DEFAULT_LAUNCH_NS,
    DEFAULT_RETURN_NS,
    DEFAULT_UNBLOCKED_DEVICE_NS,
    DEFAULT_UNBLOCKED_NS,
)
from gapless.replay.model import ReplayModel, ReplayRefusal, build
from gapless.replay.riders import Rider
from gapless.trace.timeline import HostKind, Timeline, WorkKind

_MAX_TIME = 1 << 58
"""Nanoseconds: replays of longer steps on slower machines would overflow."""
_TOO_LONG = "the times in it are longer than any run"

QUEUE_GAP = 1_200
"""Nanoseconds between a kernel and the one queued behind it (1 to 2.2 µs in profiles of NVIDIA GPUs)."""
MIN_QUEUE_DEPTH = 256
"""Launches that any stream accepts before the next one waits. It is 1,022 in a profile of an A100; a
published run of CogVideoX on an L40S, blocked in syncs for 331 ms of each step, had some 300."""
EVENT_CALL = 1_000
"""Nanoseconds of calls that record or await events."""
BYTES_PER_READ = 8
"""Bytes that reading a value copies."""
_STREAM = 7
"""The number of the default stream: 7 is what the profiler calls it."""


@dataclass(frozen=True)
class TimedEntry:
    """An entry with its times: nanoseconds on the device, kernels, nanoseconds of the host."""

    entry: Entry
    device: int = 0
    kernels: int = 1
    host: float = 0


class EntrySpan(NamedTuple):
    """When the host was busy with an entry, from `begin` to `end`, or with one of its copies before the
    waiting call of number `row`. Its launches have the correlations from `first` to before `last`, take
    `call` of the host each, and `device` in all."""

    begin: int
    end: int
    first: int
    last: int
    row: int = -1
    call: float = 0.0
    device: int = 0


@dataclass
class MachineRun:
    """The result of a run. `waits` holds, for each step, the rows of each site's waiting calls, `spans` when
    the host was busy with each entry (eager operators and waiting copies only), `rows` the host row of each
    call's number, `recorded_entries` the entry of each correlation (None: none), and `besides` for rows of
    waiting calls their time after the wait. `queued` is whether a launch found `MIN_QUEUE_DEPTH` others
    waiting: if none did, the depth of the queues makes no difference."""

    timeline: Timeline
    waits: list[dict[int, list[int]]]
    spans: list[list[list[EntrySpan]]]
    rows: list[int]
    busy: int
    host: int
    recorded_entries: list[Entry | None]
    besides: dict[int, int]
    held: float
    queued: bool


class _Event(NamedTuple):
    """When the recorded work ends, on which stream, and the correlation of the call."""

    until: float
    stream: int
    record: int


@dataclass
class _Machine:
    """The state of the machine. Times stay exact until they are written, so that rounding never shortens."""

    gpu: GpuRates
    host: HostTimes
    depth: int = QUEUE_DEPTH
    now: float = 10_000
    free: dict[int, float] = field(default_factory=dict)
    starts: dict[int, list[float]] = field(default_factory=dict)
    calls: list[CallRow] = field(default_factory=list)
    work: list[WorkRow] = field(default_factory=list)
    syncs: list[SyncRow] = field(default_factory=list)
    stream: int = _STREAM
    events: dict[int, _Event] = field(default_factory=dict)
    awaited: dict[int, _Event] = field(default_factory=dict)
    recorded_entries: list[Entry | None] = field(default_factory=lambda: [None])
    backward: bool = False
    besides: dict[int, int] = field(default_factory=dict)
    busy: int = 0
    working: float = 0
    held: float = 0
    queued: bool = False
    spans: list[EntrySpan] = field(default_factory=list)

    # -- the device ----------------------------------------------------------------------------------

    def begin(self, requested_at: float, length: int, name: str, kind: WorkKind, nbytes: int = -1) -> float:
        """Put work on the current stream and return when it ends."""
        before = self.free.get(self.stream)
        start = (
            requested_at + DEFAULT_LAUNCH_NS
            if before is None
            else max(requested_at + DEFAULT_LAUNCH_NS, before + QUEUE_GAP)
        )
        event = self.awaited.pop(self.stream, None)
        if event is not None:
            start = max(start, event.until + QUEUE_GAP)
        end = start + length
        self.free[self.stream] = end
        self.starts.setdefault(self.stream, []).append(start)
        self.work.append((kind, NUMBER[name], self.stream, start, end, self.correlation, nbytes))
        self.busy += length
        return end

    def call(self, name: str, length: float) -> int:
        """Make a runtime call of this length and return its row."""
        self.calls.append((HostKind.CALL, NUMBER[name], self.now, self.now + length, self.correlation))
        self.now += length
        return len(self.calls) - 1

    @property
    def correlation(self) -> int:
        return len(self.recorded_entries) - 1

    def next(self, entry: Entry | None = None) -> int:
        """Return a correlation for the next call, made for `entry`."""
        self.recorded_entries.append(entry)
        return len(self.recorded_entries) - 1

    # -- what the host does --------------------------------------------------------------------------

    def launch(self, timed: TimedEntry) -> None:
        """Run an operator: the host's own work, then a launch for each kernel."""
        if timed.entry.backward != self.backward:
            self.backward = timed.entry.backward
            self.spend(self.host.handover)
        call = self.host.call
        begin, first = self.now, self.correlation + 1
        self.spend(max(timed.host - timed.kernels * call, 0))
        rest = timed.device
        for number in range(timed.kernels, 0, -1):
            self.next(timed.entry)
            length, requested_at = call, self.now
            queue = self.starts.get(self.stream, [])
            if len(queue) >= MIN_QUEUE_DEPTH and queue[-MIN_QUEUE_DEPTH] > self.now:
                self.queued = True
            if self.is_held(queue):
                requested_at = queue[-self.depth] + 2_000 - call
                length = requested_at + call - self.now
            part = rest // number
            rest -= part
            self.begin(requested_at, part, "kernel", WorkKind.KERNEL)
            self.call("cudaLaunchKernel", length)
            self.working += call
        last = self.correlation + 1
        self.spans.append(EntrySpan(int(begin), int(self.now), first, last, call=call, device=timed.device))

    def is_held(self, queue: Sequence[float]) -> bool:
        """Whether the next launch waits until one of `queue`, its stream's starts, begins.

        As the replay, which scales times in between with the host's speed, only one launch in
        `CHECKED_LAUNCHES` is checked: the others take no longer than the call.
        """
        behind = len(queue) - self.depth
        return behind >= 0 and behind % CHECKED_LAUNCHES == 0 and queue[behind] > self.now

    def graph(self, entries: Sequence[TimedEntry]) -> None:
        """Launch a captured graph: one call, then its entries one after the other on the device."""
        if not entries:
            return
        self.next(max(entries, key=lambda timed_: timed_.device).entry)
        requested_at = self.now
        for timed in entries:
            entry = timed.entry
            if entry.kind == "copy":
                memory: copies.Memory = "pinned" if entry.detail == "pinned" else "pageable"
                length = int(copies.duration(max(entry.reads, BYTES_PER_READ), memory, self.gpu.pcie))
                self.begin(requested_at, length, "kernel", WorkKind.KERNEL)
            for number in range(timed.kernels if entry.kind == "operator" else 0, 0, -1):
                part = timed.device * number // timed.kernels - timed.device * (number - 1) // timed.kernels
                self.begin(requested_at, part, "kernel", WorkKind.KERNEL)
        self.call("cudaGraphLaunch", self.host.call)
        self.working += self.host.call

    def spend(self, time: float) -> None:
        self.now += time
        self.working += time

    def copy(self, entry: Entry, waits: bool) -> list[int]:
        """Copy between host and device; return the rows of its waiting calls."""
        self.next()
        to_device = entry.mechanism == "h2d"
        nbytes = max(entry.reads, BYTES_PER_READ)
        memory: copies.Memory = "pinned" if entry.detail == "pinned" else "pageable"
        length = int(copies.duration(nbytes, memory, self.gpu.pcie))
        side = memory.capitalize()
        name = f"Memcpy HtoD ({side} -> Device)" if to_device else f"Memcpy DtoH (Device -> {side})"
        call, begin = self.host.call, int(self.now)
        self.spend(max(self.host.forward - call, 0))
        if waits:
            first, row = self.correlation, len(self.calls)
            self.spans.append(EntrySpan(begin, int(self.now), first, first + 1, row, call, length))
        end = self.begin(self.now, length, name, WorkKind.MEMCPY, nbytes)
        # What was not measured on such a GPU is attributed to the synchronize, as the replay does.
        blocks = waits and copies.call_blocks(memory, to_device, nbytes) is True
        self.held += max(end + DEFAULT_RETURN_NS - self.now - call, 0) if blocks else 0
        row = self.call("cudaMemcpyAsync", max(call, end + DEFAULT_RETURN_NS - self.now) if blocks else call)
        self.working += call
        return (
            [row, self.synchronize("cudaStreamSynchronize", self.free[self.stream], DEFAULT_UNBLOCKED_NS)]
            if waits
            else []
        )

    def synchronize(self, name: str, until: float, least: int, besides: float = 0) -> int:
        """Wait until `until`, at least `least`; after the wait the call takes `besides`."""
        self.next()
        self.working += least + besides
        self.held += max(until + DEFAULT_RETURN_NS - self.now - least, 0)
        row = self.call(name, max(least, until + DEFAULT_RETURN_NS - self.now) + besides)
        if besides:
            self.besides[row] = round(besides)
        return row

    def wait(self, timed: TimedEntry) -> list[int]:
        """Wait in the way of the entry's mechanism; return the rows of its calls."""
        entry = timed.entry
        rows: list[int] = []
        for _ in range(max(entry.waits, 1)):
            if entry.mechanism in ("explicit", "free"):
                rows.append(self._explicit(timed))
            else:
                rows += self.copy(entry, True)
        return rows

    def _explicit(self, timed: TimedEntry) -> int:
        self.spend(self.host.call)
        whole = max(self.free.values(), default=0)
        if timed.entry.name in ("cudaStreamSynchronize", "cudaEventSynchronize"):
            return self.synchronize(
                "cudaStreamSynchronize", self.free.get(self.stream, 0), DEFAULT_UNBLOCKED_NS
            )
        return self.synchronize("cudaDeviceSynchronize", whole, DEFAULT_UNBLOCKED_DEVICE_NS, timed.host)

    def other(self, entry: Entry) -> None:
        """Choose a stream, record or await an event, or copy without a wait."""
        stream = _STREAM + entry.stream
        if entry.kind == "stream":
            self.stream = stream
        elif entry.kind == "copy":
            self.copy(entry, False)
        elif entry.kind == "record":
            self.next()
            self.events[entry.number] = _Event(self.free.get(stream, 0), stream, self.correlation)
            self.call("cudaEventRecord", EVENT_CALL)
        elif entry.kind == "await" and entry.number in self.events:
            self.next()
            event = self.awaited[stream] = self.events[entry.number]
            self.syncs.append((self.now, stream, self.correlation, event.stream, event.record))
            self.call("cudaStreamWaitEvent", EVENT_CALL)


def run_and_model(
    steps: Sequence[Iterable[TimedEntry]],
    gpu: GpuRates,
    host: HostTimes,
    riders: Callable[[MachineRun], Sequence[Rider]] = lambda _: (),
) -> tuple[MachineRun, ReplayModel] | ReplayRefusal:
    """Run the steps and build the replay model of the run, or say why there is none. `riders` returns what
    goes with the waits of a run."""
    try:
        ran = run_steps(steps, gpu, host)
    except OverflowError:
        return ReplayRefusal(_TOO_LONG)
    if max(ran.timeline.span) > _MAX_TIME:
        return ReplayRefusal(_TOO_LONG)
    model = build(ran.timeline, ran.besides, riders(ran))
    return model if isinstance(model, ReplayRefusal) else (ran, model)


def run_steps(
    steps: Sequence[Iterable[TimedEntry]], gpu: GpuRates, host: HostTimes, depth: int = QUEUE_DEPTH
) -> MachineRun:
    """Run these steps one after the other; streams accept `depth` launches before the next one waits.

    Raises:
        OverflowError: the times are too long to add up.
    """
    machine = _Machine(gpu, host, depth)
    machine.calls.append((HostKind.OPERATOR, NUMBER["ProfilerStep#"], 0, 1_000, -1))
    waits: list[dict[int, list[int]]] = []
    spans: list[list[list[EntrySpan]]] = []
    marks = []
    for step in steps:
        rows: dict[int, list[int]] = {}
        begin = machine.now
        items = list(step)
        spans.append([])
        for at, timed in enumerate(items):
            kind = timed.entry.kind
            machine.spans = []
            spans[-1].append(machine.spans)
            if kind == "graph":
                machine.graph(items[at + 1 : at + 1 + timed.entry.tensors])
            elif timed.entry.graph:
                continue  # it was launched with its graph
            elif kind == "operator":
                machine.launch(timed)
            elif kind == "update":
                machine.spend(timed.host)
            elif kind == "wait":
                rows.setdefault(timed.entry.site, []).extend(machine.wait(timed))
            else:
                machine.other(timed.entry)
        marks.append((begin, machine.now))
        waits.append(rows)
    held = machine.held
    machine.synchronize(
        "cudaDeviceSynchronize", max(machine.free.values(), default=0), DEFAULT_UNBLOCKED_DEVICE_NS
    )
    timeline, place = write_timeline(machine.calls, machine.work, machine.syncs, marks, gpu.name)
    moved = [{site: [place[row] for row in rows] for site, rows in step.items()} for step in waits]
    besides = {place[row]: time for row, time in machine.besides.items()}
    return MachineRun(
        timeline,
        moved,
        spans,
        place,
        machine.busy,
        int(machine.working),
        machine.recorded_entries,
        besides,
        held,
        machine.queued,
    )
