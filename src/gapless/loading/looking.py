"""Going through whatever yields batches, noting which DataLoader's come meanwhile. In a copied process."""

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
from gapless.loading.hooks import Hooks
from gapless.loading.nested import batched_as

SECONDS = 2.0
_MOST, _FEW = 128, 3
"""How long, and for how many batches at most and at least, a thing is looked at to tell what it is."""

_SIMPLE = 8
"""A ratio of larger numbers than this is taken as it was counted."""


class Source(msgspec.Struct, frozen=True):
    """A DataLoader whose batches came: where it is in memory, its dataset, how many, and for how long."""

    place: int
    dataset: str
    each: float
    wall: int


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a thing: the DataLoaders behind it, the one that the most time went to first, and what
    a batch took besides, in nanoseconds. `batched` is how many items one has, as far as its shapes tell."""

    sources: tuple[Source, ...] = ()
    threaded: bool = False
    total: float = 0.0
    wall: float = 0.0
    cpu: float = 0.0
    batched: int = 0


class Silent:
    """Listens to nothing."""

    def made(self, loader: DataLoader) -> None: ...

    def begun(self, loader: DataLoader, iterator: Any) -> None: ...

    def came(self, iterator: Any, batch: Any, asked: Any, got: Any) -> None: ...

    def ended(self, iterator: Any) -> None: ...


class Moment(NamedTuple):
    """Readings of the clocks of this thread: of the wall, of the processor, and of waiting for one."""

    wall: int
    cpu: int
    delayed: int


class _Came(NamedTuple):
    at: int
    place: int
    dataset: str
    asked: Moment
    got: Moment


class _Inside(Silent):
    """Notes the batches that come from DataLoaders while the loop waits for its `number`-th."""

    def __init__(self) -> None:
        self.number = 0
        self.came_here: list[_Came] = []
        self.threaded = False
        self._thread = threading.get_ident()
        self._loaders: dict[int, tuple[Any, DataLoader]] = {}

    def begun(self, loader: DataLoader, iterator: Any) -> None:
        self._loaders[id(iterator)] = (iterator, loader)

    def came(self, iterator: Any, batch: Any, asked: Any, got: Any) -> None:
        self.threaded |= threading.get_ident() != self._thread
        _, loader = self._loaders[id(iterator)]
        rows = self.came_here
        while rows and rows[-1].asked.wall >= asked.wall:  # of a loader within this loader's own dataset
            rows.pop()
        rows.append(_Came(self.number, id(loader), type(loader.dataset).__qualname__, asked, got))


def look(make: Callable[[], Any], name: str, tell: forked.Tell) -> Looked:
    """Go through what `make` gives, and tell what was seen.

    Raises:
        LoaderError: no batch comes.
    """
    clock, inside = Clock(), _Inside()

    def now() -> Moment:
        return Moment(clock.wall(), clock.thread(), clock.delayed())

    hooks = Hooks(inside, clock=now)
    hooks.install()
    spans: list[tuple[Moment, Moment]] = []
    batched: list[int] = []
    try:
        begin = time.monotonic()
        iterator = iter(make())
        while len(spans) < _MOST:
            asked = now()
            try:
                batch = next(iterator)
            except StopIteration:
                break
            spans.append((asked, now()))
            batched.append(batched_as(batch))
            inside.number += 1
            passed = time.monotonic() - begin
            tell(min(1.0, passed / SECONDS))
            if (passed > SECONDS and len(spans) >= _FEW) or passed > 4 * SECONDS:
                break
    finally:
        hooks.remove()
    if not spans:
        raise forked.LoaderError(f"{name} yields no batch: it is empty or already exhausted")
    alike_all = batched[0] if len(batched) > 1 and len({*batched[:-1]}) == 1 else 0
    return _looked(spans, inside, alike_all)


def _looked(spans: Sequence[tuple[Moment, Moment]], inside: _Inside, batched: int) -> Looked:
    """What the loop's waits were made of, those for the first batch left out where there are others."""
    rows, first = inside.came_here, 1 if len(spans) > 1 else 0
    later = [row for row in rows if row.at >= first]
    count = len(spans) - first
    sources = _sources(rows)
    if sources:  # the others belong to what is around it
        later = [row for row in later if row.place == sources[0].place]
    wall = sum(_passed(*span) for span in spans[first:]) - sum(_passed(row.asked, row.got) for row in later)
    cpu = sum(end.cpu - begin.cpu for begin, end in spans[first:])
    cpu -= sum(row.got.cpu - row.asked.cpu for row in later)
    outside = max(wall / count, 0.0)
    return Looked(
        sources=sources,
        threaded=inside.threaded,
        total=sum(_passed(*span) for span in spans[first:]) / count,
        wall=outside,
        cpu=min(max(cpu / count, 0.0), outside),
        batched=batched,
    )


def _passed(begin: Moment, end: Moment) -> int:
    """Time on the wall without waiting for a core."""
    return end.wall - begin.wall - (end.delayed - begin.delayed)


def _sources(rows: Sequence[_Came]) -> tuple[Source, ...]:
    found = []
    for place in dict.fromkeys(row.place for row in rows):
        own = [row for row in rows if row.place == place]
        spent = sum(_passed(row.asked, row.got) for row in own)
        found.append(Source(place, own[0].dataset, _each([row.at for row in own]), spent))
    return tuple(sorted(found, key=lambda one: -one.wall))


def _each(numbers: Sequence[int]) -> float:
    """How many come for each of the loop's batches, by the `numbers` of those in which they came.

    Counted from one that came to another one: from there on a loop that has looked ahead, or filled a
    buffer, takes as many as it gives.
    """
    begin = next((at for at in numbers if at > 0), numbers[0])
    if numbers[-1] == begin:
        return float(len(numbers)) / (numbers[-1] + 1)
    span = numbers[-1] - begin
    seen = Fraction(sum(begin < at for at in numbers), span)
    near = seen.limit_denominator(_SIMPLE)  # where it ends within a turn, it is off by a part of one
    return float(near if abs(near - seen) * span < 1 else seen)
