"""`Track`: a run's memory thinned for drawing: some hundred kilobytes for a run of any length."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.source import SourceLine

Call = Literal["malloc", "free", "map", "unmap", "retry", "collect", "failed"]
"""Events that are marked: ``cudaMalloc`` and ``cudaFree``, mapping and unmapping, a request that found the
device full, a garbage collection, a request that failed."""


class Layer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who requested memory: tensors of one `kind`, or one `line` (or `operator`) of the program.

    `before`: requested before recording began. Without any of these the layer is all the rest.
    """

    kind: str = ""
    line: SourceLine | None = None
    operator: str = ""
    before: bool = False


class Points(msgspec.Struct, frozen=True, array_like=True):
    """Memory over a range of events, in columns of equal length.

    Each point covers the events after the previous point, up to `event`: `allocated` and `reserved` are the
    maxima in bytes, `time` is its end (nanoseconds; empty if unknown), `layers` the bytes requested by each
    of `Track.layers` at the event with the largest total.
    """

    event: tuple[int, ...]
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    time: tuple[int, ...] = ()
    layers: tuple[tuple[int, ...], ...] = ()


class Calls(msgspec.Struct, frozen=True, array_like=True):
    """Calls to the driver in columns: event, kind, number of calls, bytes, and line.

    `place` is a position in `Track.places`, -1 if unknown.
    """

    event: tuple[int, ...] = ()
    what: tuple[Call, ...] = ()
    count: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    place: tuple[int, ...] = ()


class Course(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The run under other settings: reserved memory over the events, the maximum of each group of
    neighbours."""

    name: str
    event: tuple[int, ...] = ()
    reserved: tuple[int, ...] = ()


class Track(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A replay's memory over its events, thinned.

    The first of `windows` is the whole run; the others lie in it and are finer: around the peaks and the
    driver calls. `finest` is how many events their points cover. `steps` are the events that end steps
    (thinned if there are very many), `others` the run under other settings.
    """

    windows: tuple[Points, ...] = ()
    finest: int = 1
    layers: tuple[Layer, ...] = ()
    calls: Calls = Calls()
    places: tuple[SourceLine, ...] = ()
    steps: tuple[int, ...] = ()
    others: tuple[Course, ...] = ()
