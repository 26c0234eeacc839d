"""Iterate over anything that yields batches and record which DataLoaders provide them. In a copied
process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
from torch.utils.data import DataLoader

from gapless.loading import forked
from gapless.loading.clock import Clock
from gapless.loading.hooks import LoaderHooks
from gapless.loading.nested import count_items

OBSERVE_SECONDS = 2.0
"""How long an object is observed to identify what it loads: users wait for it."""
_MAX_BATCHES, _MIN_BATCHES = 128, 3
"""For how many batches it is observed."""

_MAX_DENOMINATOR = 8
"""A ratio with a larger denominator is reported as counted."""


class ObservedLoader(msgspec.Struct, frozen=True):
    """A DataLoader that yielded batches: address, class of its dataset, batches for each of the loop's,
    time.
    """

    place: int
    dataset: str
    each: float
    wall: int


class ObservedFeed(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed: the DataLoaders inside, most time first, and nanoseconds per batch spent elsewhere.
    `batched` is the number of items in a batch, as far as its shapes show.
    """

    sources: tuple[ObservedLoader, ...] = ()
    threaded: bool = False
    total: float = 0.0
    wall: float = 0.0
    cpu: float = 0.0
    batched: int = 0


class SilentListener:
    """Ignores all events."""

    def on_created(self, loader: DataLoader) -> None: ...

    def on_pass_begun(self, loader: DataLoader, iterator: Any) -> None: ...

    def on_batch(self, iterator: Any, batch: Any, request_time: Any, got: Any) -> None: ...

    def on_pass_ended(self, iterator: Any) -> None: ...


class ClockReadings(NamedTuple):
    """Readings of this thread's clocks: wall, processor, and waiting for a core."""

    wall: int
    cpu: int
    delayed: int


class _BatchArrival(NamedTuple):
    at: int
    place: int
    dataset: str
    request: ClockReadings
    got: ClockReadings


class _ArrivalRecorder(SilentListener):
    """Records the batches from DataLoaders while the loop waits for its `number`-th."""

    def __init__(self) -> None:
        self.number = 0
        self.arrivals: list[_BatchArrival] = []
        self.threaded = False
        self._thread = threading.get_ident()
        self._loaders: dict[int, tuple[Any, DataLoader]] = {}

    def on_pass_begun(self, loader: DataLoader, iterator: Any) -> None:
        self._loaders[id(iterator)] = (iterator, loader)

    def on_batch(self, iterator: Any, batch: Any, request_time: Any, got: Any) -> None:
        self.threaded |= threading.get_ident() != self._thread
        _, loader = self._loaders[id(iterator)]
        rows = self.arrivals
        while (
            rows and rows[-1].request.wall >= request_time.wall
        ):  # of a loader within this loader's own dataset
            rows.pop()
        rows.append(
            _BatchArrival(self.number, id(loader), type(loader.dataset).__qualname__, request_time, got)
        )


def observe(make: Callable[[], Any], name: str, tell: forked.Tell) -> ObservedFeed:
    """Iterate over what `make` returns, and report what was observed.

    Raises:
        LoaderError: it yields no batch.
    """
    clock, inside = Clock(), _ArrivalRecorder()

    def now() -> ClockReadings:
        return ClockReadings(clock.wall(), clock.thread(), clock.delayed())

    hooks = LoaderHooks(inside, clock=now)
    hooks.install()
    spans: list[tuple[ClockReadings, ClockReadings]] = []
    batched: list[int] = []
    try:
        begin = time.monotonic()
        iterator = iter(make())
        while len(spans) < _MAX_BATCHES:
            began = now()
            try:
                batch = next(iterator)
            except StopIteration:
                break
            spans.append((began, now()))
            batched.append(count_items(batch))
            inside.number += 1
            passed = time.monotonic() - begin
            tell(min(1.0, passed / OBSERVE_SECONDS))
            if (passed > OBSERVE_SECONDS and len(spans) >= _MIN_BATCHES) or passed > 4 * OBSERVE_SECONDS:
                break
    finally:
        hooks.remove()
    if not spans:
        raise forked.LoaderError(f"{name} yields no batch: it is empty or already exhausted")
    alike_all = batched[0] if len(batched) > 1 and len({*batched[:-1]}) == 1 else 0
    return _summarize(spans, inside, alike_all)


def _summarize(
    spans: Sequence[tuple[ClockReadings, ClockReadings]], inside: _ArrivalRecorder, batched: int
) -> ObservedFeed:
    """Divide the loop's waits into sources and the rest, without the first batch if there are others."""
    rows, first = inside.arrivals, 1 if len(spans) > 1 else 0
    later = [row for row in rows if row.at >= first]
    count = len(spans) - first
    sources = _find_sources(rows)
    if sources:  # the other loaders belong to the code around it
        later = [row for row in later if row.place == sources[0].place]
    wall = sum(_running_time(*span) for span in spans[first:]) - sum(
        _running_time(row.request, row.got) for row in later
    )
    cpu = sum(end.cpu - begin.cpu for begin, end in spans[first:])
    cpu -= sum(row.got.cpu - row.request.cpu for row in later)
    outside = max(wall / count, 0.0)
    return ObservedFeed(
        sources=sources,
        threaded=inside.threaded,
        total=sum(_running_time(*span) for span in spans[first:]) / count,
        wall=outside,
        cpu=min(max(cpu / count, 0.0), outside),
        batched=batched,
    )


def _running_time(begin: ClockReadings, end: ClockReadings) -> int:
    """Return wall time without waiting for a core."""
    return end.wall - begin.wall - (end.delayed - begin.delayed)


def _find_sources(rows: Sequence[_BatchArrival]) -> tuple[ObservedLoader, ...]:
    sources = []
    for place in dict.fromkeys(row.place for row in rows):
        own = [row for row in rows if row.place == place]
        spent = sum(_running_time(row.request, row.got) for row in own)
        sources.append(
            ObservedLoader(place, own[0].dataset, _batches_per_loop_batch([row.at for row in own]), spent)
        )
    return tuple(sorted(sources, key=lambda source: -source.wall))


def _batches_per_loop_batch(numbers: Sequence[int]) -> float:
    """Return how many batches come for each of the loop's, given the numbers of those in which they came.

    Counted from one arrival to another: a loop that reads ahead or fills a buffer takes from there on as many
    as it yields.
    """
    begin = next((at for at in numbers if at > 0), numbers[0])
    if numbers[-1] == begin:
        return float(len(numbers)) / (numbers[-1] + 1)
    span = numbers[-1] - begin
    counted = Fraction(sum(begin < at for at in numbers), span)
    near = counted.limit_denominator(_MAX_DENOMINATOR)  # ending within a turn shifts it by less than one
    return float(near if abs(near - counted) * span < 1 else counted)
