"""`Timeline`: a profile as columns.

Times are integer nanoseconds since the first event of the file. Names, threads and stacks are numbers:
positions in the tuples beside the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gapless.trace.arguments import Arguments, EncodedArguments, parse_arguments
from gapless.trace.columns import Bools as Bools
from gapless.trace.columns import Floats as Floats
from gapless.trace.columns import HostKind as HostKind
from gapless.trace.columns import Ints as Ints
from gapless.trace.columns import WorkKind as WorkKind
from gapless.trace.nesting import find_parents

T = TypeVar("T", bound="ColumnTable")
N = TypeVar("N", bound=np.generic)


@dataclass(frozen=True)
class ColumnTable:
    """Columns of equal length; a subclass declares them as fields."""

    def __len__(self) -> int:
        first = fields(self)[0].name
        return len(getattr(self, first))

    def take(self: T, rows: Any) -> T:
        """Return a table of these rows (positions or a mask)."""
        return type(self)(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})


@dataclass(frozen=True)
class Host(ColumnTable):
    """Spans on the host, ordered by thread, then start; of two that start together the longer is first.

    `kind` is a :class:`HostKind`, `name` a position in `Timeline.names`, `thread` one in `Timeline.threads`.
    `correlation` ties a call to the device work it launched, `external` to the operator around it (-1: none).
    `sequence` is autograd's number of an operator, `forward_thread` is above 0 for operators of backward,
    `stack` a position in `Timeline.stacks` (-1: no ``Call stack`` recorded), `arguments` one in
    `Timeline.encoded_arguments` (-1: not recorded, or an operator that launches nothing).
    """

    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    start: Ints
    end: Ints
    correlation: Ints
    external: Ints
    sequence: Ints
    forward_thread: Ints
    stack: NDArray[np.int32]
    arguments: NDArray[np.int32]


@dataclass(frozen=True)
class Work(ColumnTable):
    """Operations of the devices, ordered by start.

    `kind` is a :class:`WorkKind`. `stream` and `device` are the profiler's own numbers. `bytes` is the size
    of a copy (-1: unknown). `blocks_per_sm` and `occupancy` (percent) are -1 where they were not recorded.
    `group` is a position in `Timeline.groups` for kernels of a recorded collective, else -1; `elements` the
    length of its message.
    """

    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    device: Ints
    stream: Ints
    start: Ints
    end: Ints
    correlation: Ints
    external: Ints
    bytes: Ints
    blocks_per_sm: Floats
    occupancy: Floats
    group: NDArray[np.int32]
    elements: Ints


@dataclass(frozen=True)
class Syncs(ColumnTable):
    """Waits as the driver reports them (``enable_cuda_sync_events``), ordered by start.

    `kind` is a position in `Timeline.names` (``Stream Sync``, ``Event Sync``, ``Context Sync``, ``Stream Wait
    Event``). `stream` is the stream that waits or is waited for, `on_stream` the one where the event was
    recorded, by the call with correlation `record`.
    """

    kind: NDArray[np.int32]
    start: Ints
    end: Ints
    device: Ints
    stream: Ints
    correlation: Ints
    on_stream: Ints
    record: Ints


@dataclass(frozen=True)
class Memory(ColumnTable):
    """Allocations (`bytes` above 0) and frees, ordered by time.

    `device_type` is torch's number (0 CPU, 1 CUDA and its substitutes). `allocated` and `reserved` are
    totals of that device after it, -1 where they were not recorded.
    """

    time: Ints
    thread: NDArray[np.int32]
    device_type: Ints
    device: Ints
    address: Ints
    bytes: Ints
    allocated: Ints
    reserved: Ints


@dataclass(frozen=True)
class Links(ColumnTable):
    """Forward operators and the backward operators made from them: positions in `Host`."""

    forward: Ints
    backward: Ints


class Thread(NamedTuple):
    """A host thread: process and thread id as in the file, and its name."""

    pid: str
    tid: str
    name: str = ""


class TraceGpu(NamedTuple):
    """A GPU of the profile: number, name, multiprocessors and memory in bytes."""

    number: int
    name: str = ""
    multiprocessors: int = 0
    memory: int = 0


@dataclass(frozen=True)
class Losses:
    """Damage found on reading the file.

    `broken`: events that could not be decoded or have no time; `corrupted`: bytes given up; `lists`: profiles
    in the file, one after the other. Of the CPU events that the profiler numbers, `numbered` of `numbers` are
    recorded, the missing ones begin in `gaps` (nanoseconds, from and to); `before`: events before an excerpt;
    `dense`: the first event is recorded and all up to the last of them. `arrows`: arrows to missing device
    work; `uncaused`: starts of device work whose call is missing as well. `bare`: spans at the ends of device
    annotations without work; `beyond`: operations that run past such an end; `astray`: events days away from
    the rest. `window`: when the profiler recorded (nanoseconds), by its own mark if `marked`; `stopped`: when
    calls of other threads ended (0: unknown); `endless`: the file does not say when recording ended.
    """

    broken: int = 0
    corrupted: int = 0
    lists: int = 1
    numbered: int = 0
    numbers: int = 0
    before: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    dense: bool = False
    arrows: int = 0
    uncaused: tuple[int, ...] = ()
    bare: tuple[tuple[int, int], ...] = ()
    beyond: int = 0
    astray: int = 0
    window: tuple[int, int] = (0, 0)
    marked: bool = False
    stopped: int = 0
    endless: bool = False


@dataclass(frozen=True)
class Facts:
    """What the file says about the run.

    `origin` is the first event's time in nanoseconds, as in the file (since 1970 in most, since the machine
    started in others). `rank` is -1 and `world_size` 0 where not recorded. `vendor` is ``nvidia``, ``amd``,
    or "" without device work. `waits_known` is False if there are calls of a runtime whose names say nothing
    about waiting. `unread` are categories of spans that are not read, the most frequent first. `by_gapless`:
    `gapless profile` recorded it, after steps of `unrecorded_step` nanoseconds (0: not measured).
    """

    path: str = ""
    size: int = 0
    events: int = 0
    origin: int = 0
    rank: int = -1
    world_size: int = 0
    backend: str = ""
    gpus: tuple[TraceGpu, ...] = ()
    vendor: str = ""
    with_stack: bool = False
    with_memory: bool = False
    with_shapes: bool = False
    truncated: bool = False
    waits_known: bool = True
    unread: tuple[str, ...] = ()
    losses: Losses = field(default_factory=Losses)
    by_gapless: bool = False
    unrecorded_step: int = 0


@dataclass(frozen=True)
class Timeline:
    """The profile of one process.

    `notes` describe what was repaired or dropped on reading, a sentence each.
    """

    host: Host
    work: Work
    syncs: Syncs
    memory: Memory
    links: Links
    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    stacks: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    encoded_arguments: tuple[EncodedArguments, ...] = ()
    facts: Facts = field(default_factory=Facts)
    notes: tuple[str, ...] = ()

    @cached_property
    def span(self) -> tuple[int, int]:
        """From the first start to the last end of anything on host or device; (0, 0) when empty."""
        starts = [int(table.start.min()) for table in (self.host, self.work) if len(table)]
        ends = [int(table.end.max()) for table in (self.host, self.work) if len(table)]
        return (min(starts), max(ends)) if starts else (0, 0)

    def positions_of_names(self, *wanted: str) -> Ints:
        """Return the position in `names` of each of `wanted` that occurs there."""
        numbers = self._numbers
        return np.array([numbers[name] for name in wanted if name in numbers], np.int64)

    def names_where(self, test: Any) -> Bools:
        """Return for each name whether `test` holds; index the result with a column of names to test rows."""
        return np.fromiter((bool(test(name)) for name in self.names), bool, len(self.names))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def parents(self) -> Ints:
        """For each host span the position of the one directly around it on its thread, or -1."""
        return find_parents(self.host.thread, self.host.start, self.host.end, self.host.kind)

    @cached_property
    def launchers(self) -> Ints:
        """For each row of `work` the row of `host` that launched it (same correlation), or -1."""
        calls = np.flatnonzero((self.host.kind == HostKind.CALL) & (self.host.correlation > 0))
        if not len(calls) or not len(self.work):
            return np.full(len(self.work), -1, np.int64)
        order = np.argsort(self.host.correlation[calls], kind="stable")
        calls = calls[order]
        numbers = self.host.correlation[calls]
        at = np.minimum(np.searchsorted(numbers, self.work.correlation), len(calls) - 1)
        return np.where(numbers[at] == self.work.correlation, calls[at], -1)

    def arguments(self, row: int) -> Arguments:
        """Return the arguments of the operator in this row of the host; empty where not recorded."""
        number = int(self.host.arguments[row])
        return parse_arguments(self.encoded_arguments[number]) if number >= 0 else Arguments()

    @cached_property
    def thread_rows(self) -> tuple[tuple[int, int], ...]:
        """For each thread where its rows in `host` begin and end."""
        bounds = np.searchsorted(self.host.thread, np.arange(len(self.threads) + 1))
        return tuple((int(a), int(b)) for a, b in pairwise(bounds))

    def enclosing(self, thread: int, time: int) -> int:
        """The innermost host span of `thread` that covers `time`; -1 where there is none."""
        begin, end = self.thread_rows[thread]
        row = begin + int(np.searchsorted(self.host.start[begin:end], time, side="right")) - 1
        while row >= begin and self.host.end[row] < time:
            row = int(self.parents[row])
        return row if row >= begin else -1

    def with_ancestors(self, row: int) -> list[int]:
        """Return `row` and the spans around it, innermost first."""
        rows = []
        while row >= 0:
            rows.append(row)
            row = int(self.parents[row])
        return rows


def distinct(numbers: NDArray[N]) -> NDArray[N]:
    """Return each of these numbers once, sorted. `numpy.unique` hashes, which takes longer."""
    numbers = np.sort(numbers)
    first = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    return numbers[first]


def percentile(numbers: NDArray[N], percent: float) -> float:
    """Return the percentile of `numbers` as `numpy.percentile` does, which would load `numpy.ma`."""
    at = (len(numbers) - 1) * (percent / 100)
    low = int(at)
    high = min(low + 1, len(numbers) - 1)
    part = np.partition(numbers, (low, high))
    between, apart = at - low, part[high] - part[low]
    # From the nearer one, as numpy does: the product's error grows with the distance.
    return float(part[low] + between * apart if between < 0.5 else part[high] - (1 - between) * apart)


def is_among(numbers: Ints, members: Ints) -> Bools:
    """Return which of `numbers` are in `members`, as `numpy.isin` does, which hashes and is slower."""
    members = distinct(members)
    at = np.searchsorted(members, numbers)
    result = at < len(members)
    result[result] = members[at[result]] == numbers[result]
    return result


def union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return these spans merged where they touch or overlap, sorted."""
    if not len(start):
        return start.astype(np.int64), end.astype(np.int64)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    fresh = np.empty(len(start), bool)
    fresh[0] = True
    fresh[1:] = start[1:] > reach[:-1]
    heads = np.flatnonzero(fresh)
    tails = np.append(heads[1:] - 1, len(start) - 1)
    return start[heads], reach[tails]


def concatenate(tables: Sequence[T]) -> T:
    """Return the rows of all tables (at least one), in order."""
    table_type = type(tables[0])
    return table_type(
        **{c.name: np.concatenate([getattr(table, c.name) for table in tables]) for c in fields(tables[0])}
    )
