"""`Track`: the memory of a run thin enough to be drawn, some hundred kilobytes for a run of any length."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.source import SourceLine

Call = Literal["malloc", "free", "map", "unmap", "retry", "collect", "failed"]
"""What is marked: ``cudaMalloc`` and ``cudaFree``, mapping and unmapping, a request that found the device
full, a collection of garbage, a request that could not be met."""


class Layer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who asked for memory: tensors of one `kind`, or one `line` (or `operator`) of the program.

    `before` says that it was asked for before recording began; with none of these it is all the rest.
    """

    kind: str = ""
    line: SourceLine | None = None
    operator: str = ""
    before: bool = False


class Points(msgspec.Struct, frozen=True, array_like=True):
    """Memory over a stretch of events, in columns of equal length.

    Each point stands for the events behind the one before it, up to its `event`: `allocated` and `reserved`
    are the most bytes in them, `time` is when it ends (nanoseconds; empty where it is not known), `layers`
    the bytes asked for in each of `Track.layers`, at the event in which these are the most together.
    """

    event: tuple[int, ...]
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    time: tuple[int, ...] = ()
    layers: tuple[tuple[int, ...], ...] = ()


class Calls(msgspec.Struct, frozen=True, array_like=True):
    """Calls to the driver, in columns: at which event, what, how many there, their bytes, for which line.

    `place` is a position in `Track.places`, -1 where it is not known.
    """

    event: tuple[int, ...] = ()
    what: tuple[Call, ...] = ()
    count: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    place: tuple[int, ...] = ()


class Course(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The run under other settings: reserved memory over the events, the most of each stretch."""

    name: str
    event: tuple[int, ...] = ()
    reserved: tuple[int, ...] = ()


class Track(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A replay's memory over its events, thinned.

    The first of `windows` is the whole run, the others lie in it and are finer: around the peaks, and where
    the driver was called. `finest` is how many events a point of theirs stands for. `steps` are the events
    with which steps end (thinned where there are very many), `others` the run under other settings.
    """

    windows: tuple[Points, ...] = ()
    finest: int = 1
    layers: tuple[Layer, ...] = ()
    calls: Calls = Calls()
    places: tuple[SourceLine, ...] = ()
    steps: tuple[int, ...] = ()
    others: tuple[Course, ...] = ()
