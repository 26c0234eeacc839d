"""The last accesses of each storage, and the races between them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gapless.emulate.races import ranges
from gapless.emulate.races.clocks import Clocks
from gapless.emulate.races.ranges import Range

_MOST = 32
"""Accesses of one kind that are kept of a storage."""


class Use(NamedTuple):
    """One access: work number `mark` of the stream `track`."""

    track: int
    mark: int
    bytes: Range
    what: str
    stack: Any


class Watch(weakref.ref):  # type: ignore[type-arg]  # of a storage
    """Tells when a storage ends."""

    __slots__ = ("key",)
    key: int


class Record:
    """What is known of a storage.

    `home` is the stream that its memory belongs to (-1: not known; -2: pinned memory), `kept` the streams
    that it was given to by ``record_stream``. `alone` says that only `first` has used it so far:
    `home`, where that is known.
    """

    __slots__ = ("alone", "first", "home", "kept", "reads", "watch", "whole", "writes")

    def __init__(self, home: int, size: int) -> None:
        self.home = self.first = home
        self.whole = Range(0, size)
        self.writes: list[Use] = []
        self.reads: list[Use] = []
        self.kept: set[int] = set()
        self.alone = True
        self.watch: Watch | None = None


Found = Callable[[Use, Use, bool, bool], None]
"""Told of a race: both accesses, and whether each of them writes."""


class Books:
    """Who has read and written what, by the key of its storage."""

    def __init__(self, clocks: Clocks, found: Found, ended: Callable[[int, Record], None]) -> None:
        self.clocks = clocks
        self.records: dict[int, Record] = {}
        self._found = found
        self._ended = ended

    def record(self, storage: Any, home: int) -> Record:
        """The record of `storage`; a new one's memory belongs to the stream `home`."""
        key = storage._cdata
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = Record(home, storage.nbytes())
            record.watch = Watch(storage, self._died)
            record.watch.key = key
        return record

    def _died(self, watch: Any) -> None:
        self.ended(watch.key)

    def ended(self, key: int) -> None:
        """The storage with that key has given its memory back."""
        record = self.records.pop(key, None)
        if record is not None and (record.home < 0 or not record.alone):
            self._ended(key, record)

    def touched(
        self, record: Record, tensor: torch.Tensor, track: int, mark: int, writes: bool, what: str, stack: Any
    ) -> None:
        """Work number `mark` of `track` reads or writes `tensor`, whose storage has that record."""
        whole = record.whole
        here = whole if tensor.nbytes == whole.end else ranges.of(tensor)
        use = Use(track, mark, here, what, stack)
        if record.first != track:
            record.alone = record.first < 0
            record.first = track
        own = record.writes if writes else record.reads
        if len(own) == 1 and own[0].track == track and own[0].bytes is here and record.alone:
            own[0] = use  # what nearly always happens: one stream, all of it
            return
        self._check(record, use, writes)
        self._keep(record, use, writes)

    def _check(self, record: Record, use: Use, writes: bool) -> None:
        known, host, track = self.clocks.known[use.track], self.clocks.host, use.track
        for kind, others in ((True, record.writes), (False, record.reads if writes else ())):
            for other in others:
                if (
                    other.track != track
                    and known[other.track] < other.mark
                    and host[other.track] < other.mark
                    and other.bytes.meets(use.bytes)
                ):
                    self._found(other, use, kind, writes)

    @staticmethod
    def _keep(record: Record, use: Use, writes: bool) -> None:
        """Keep `use`, and of those before it what a later access can still race with when not with `use`."""
        if writes:
            record.writes = [one for one in record.writes if not use.bytes.covers(one.bytes)][1 - _MOST :]
            record.writes.append(use)
            if record.reads:
                record.reads = [one for one in record.reads if not use.bytes.covers(one.bytes)]
            return
        record.reads = [
            one for one in record.reads if one.track != use.track or not use.bytes.covers(one.bytes)
        ][1 - _MOST :]
        record.reads.append(use)
