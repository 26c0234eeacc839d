"""`Timeline`: a profile as columns.

Times are integer nanoseconds since the first event of the file. Names, threads and stacks are numbers:
positions in the tuples that stand beside the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gapless.trace.arguments import Arguments, Written
from gapless.trace.arguments import arguments as taken_apart
from gapless.trace.columns import Bools as Bools
from gapless.trace.columns import Floats as Floats
from gapless.trace.columns import HostKind as HostKind
from gapless.trace.columns import Ints as Ints
from gapless.trace.columns import WorkKind as WorkKind
from gapless.trace.nesting import parents

T = TypeVar("T", bound="Table")
N = TypeVar("N", bound=np.generic)


@dataclass(frozen=True)
class Table:
    """Columns of equal length; a subclass declares them as fields."""

    def __len__(self) -> int:
        first = fields(self)[0].name
        return len(getattr(self, first))

    def take(self: T, rows: Any) -> T:
        """The table of these rows (positions or a mask)."""
        return type(self)(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})


@dataclass(frozen=True)
class Host(Table):
    """What ran on the host, ordered by thread, then start; of two that start together the longer is first.

    `kind` is a :class:`HostKind`, `name` a position in `Timeline.names`, `thread` one in `Timeline.threads`.
    `correlation` ties a call to the device work it launched, `external` to the operator around it (-1: none).
    `sequence` is autograd's number of an operator, `forward_thread` is above 0 for operators of backward,
    `stack` a position in `Timeline.stacks` (-1: no ``Call stack`` recorded), `given` one in `Timeline.given`
    (-1: no arguments recorded, or an operator that launches nothing).
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
    given: NDArray[np.int32]


@dataclass(frozen=True)
class Work(Table):
    """What ran on the devices, ordered by start.

    `kind` is a :class:`WorkKind`. `stream` and `device` are the profiler's own numbers. `bytes` is what a
    copy moved (-1: unknown). `blocks_per_sm` and `occupancy` (percent) are -1 where they were not recorded.
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
class Syncs(Table):
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
class Memory(Table):
    """Allocations (`bytes` above 0) and frees, ordered by time.

    `device_type` is torch's number (0 CPU, 1 CUDA and what stands for it). `allocated` and `reserved` are
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
class Links(Table):
    """Forward operators and the backward operators made from them: positions in `Host`."""

    forward: Ints
    backward: Ints


class Thread(NamedTuple):
    """A thread of the host, by the ids of the file and the name it was given there."""

    pid: str
    tid: str
    name: str = ""


class Gpu(NamedTuple):
    """A device of the profile: its number, its name and what it has."""

    number: int
    name: str = ""
    multiprocessors: int = 0
    memory: int = 0


@dataclass(frozen=True)
class Losses:
    """What reading the file met of damage.

    `broken` events could not be understood (or have no time), `corrupted` bytes belong to them or to none.
    The file holds `lists` profiles one after the other. The profiler numbers the CPU's events: `numbered` of
    them are there, of `numbers`, and others begin in the `gaps`, from and to nanoseconds; `before` those are
    more, in an excerpt; `dense` says that the first one is there, and all up to the last of them. `arrows`
    lead to work of a device that is not there, and those at `uncaused` to such whose call is not there
    either. Where the profiler says that an annotation's work begins or ends there is none in the `bare`
    spans, and `beyond` operations run across its end. `astray` events lie days away. The profiler recorded in
    its `window`, from and to nanoseconds, where that is `marked`, and calls of other threads until it had
    `stopped` (0: not known); an `endless` file does not say when that was.
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
    """What the file says of the run.

    `origin` is the first event's time in nanoseconds, as the file gives it (since 1970 in most, since the
    machine started in others). `rank` is -1 and `world_size` 0 where not recorded. `vendor` is ``nvidia``,
    ``amd`` or "" where there is no device work to tell by. `unread` are categories of spans that are not
    read, the most frequent first.
    """

    path: str = ""
    size: int = 0
    events: int = 0
    origin: int = 0
    rank: int = -1
    world_size: int = 0
    backend: str = ""
    gpus: tuple[Gpu, ...] = ()
    vendor: str = ""
    with_stack: bool = False
    with_memory: bool = False
    with_shapes: bool = False
    truncated: bool = False
    unread: tuple[str, ...] = ()
    losses: Losses = field(default_factory=Losses)


@dataclass(frozen=True)
class Timeline:
    """A profile of one process.

    `notes` say what was repaired or dropped on reading, a sentence each.
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
    given: tuple[Written, ...] = ()
    facts: Facts = field(default_factory=Facts)
    notes: tuple[str, ...] = ()

    @property
    def span(self) -> tuple[int, int]:
        """From the first start to the last end of anything on host or device; (0, 0) when empty."""
        starts = [int(table.start.min()) for table in (self.host, self.work) if len(table)]
        ends = [int(table.end.max()) for table in (self.host, self.work) if len(table)]
        return (min(starts), max(ends)) if starts else (0, 0)

    def named(self, *wanted: str) -> Ints:
        """The numbers of exactly these names, of those that occur."""
        numbers = self._numbers
        return np.array([numbers[name] for name in wanted if name in numbers], np.int64)

    def names_where(self, test: Any) -> Bools:
        """For each name whether `test` holds of it: index with a column of names to ask of rows."""
        return np.fromiter((bool(test(name)) for name in self.names), bool, len(self.names))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def parents(self) -> Ints:
        """For each host span the position of the one right around it on its thread, or -1."""
        return parents(self.host.thread, self.host.start, self.host.end, self.host.kind)

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
        """What the operator in `row` of the host was given; nothing where that was not recorded."""
        number = int(self.host.given[row])
        return taken_apart(self.given[number]) if number >= 0 else Arguments()

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

    def chain(self, row: int) -> list[int]:
        """`row` and the spans around it, innermost first."""
        found = []
        while row >= 0:
            found.append(row)
            row = int(self.parents[row])
        return found


def distinct(numbers: NDArray[N]) -> NDArray[N]:
    """Each of these numbers once, in order. `numpy.unique` hashes, which takes longer."""
    numbers = np.sort(numbers)
    first = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    return numbers[first]


def percentile(numbers: NDArray[N], percent: float) -> float:
    """Below it so many percent of `numbers` lie, as `numpy.percentile` says it, which loads `numpy.ma`."""
    at = (len(numbers) - 1) * (percent / 100)
    low = int(at)
    high = min(low + 1, len(numbers) - 1)
    part = np.partition(numbers, (low, high))
    between, apart = at - low, part[high] - part[low]
    # From the nearer one, as numpy does: the product's error grows with the distance.
    return float(part[low] + between * apart if between < 0.5 else part[high] - (1 - between) * apart)


def among(numbers: Ints, some: Ints) -> Bools:
    """Which of `numbers` are among `some`, as `numpy.isin` says it, which hashes too."""
    some = distinct(some)
    at = np.searchsorted(some, numbers)
    found = at < len(some)
    found[found] = some[at[found]] == numbers[found]
    return found


def union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """These spans merged where they touch or overlap, in order."""
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
    """The rows of all tables (at least one), in order."""
    kind = type(tables[0])
    return kind(
        **{c.name: np.concatenate([getattr(one, c.name) for one in tables]) for c in fields(tables[0])}
    )
