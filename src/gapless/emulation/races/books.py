"""The last accesses of each storage, and the races between them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gapless.emulation.races import ranges
from gapless.emulation.races.clocks import Clocks
from gapless.emulation.races.ranges import Range

_MOST, _PENDING = 32, 128
"""Accesses of one kind that are kept of a storage, and of both kinds while one stream alone uses it."""


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
    `home`, where that is known. What one stream alone has done races with nothing: it is `pending`, by where
    it was, until another stream comes.
    """

    __slots__ = ("alone", "first", "home", "kept", "pending", "reads", "watch", "whole", "writes")

    def __init__(self, home: int, size: int) -> None:
        self.home = self.first = home
        self.whole = Range(0, size)
        self.writes: list[Use] = []
        self.reads: list[Use] = []
        self.kept: set[int] = set()
        self.alone = True
        self.pending: dict[Any, tuple[int, str, Any]] = {}
        self.watch: Watch | None = None

    def record_pending(self) -> None:
        """Make accesses of what is pending."""
        for key, (mark, what, stack) in sorted(self.pending.items(), key=_by_mark):
            writes, here = (key, self.whole) if type(key) is bool else (key[0], ranges.at(*key[1:]))
            self.keep(Use(self.first, mark, here, what, stack), writes)
        self.pending.clear()

    def keep(self, use: Use, writes: bool) -> None:
        """Keep `use`, and of those before it what a later access can still race with when not with `use`."""
        if writes:
            self.writes = [one for one in self.writes if not use.bytes.covers(one.bytes)][1 - _MOST :]
            self.writes.append(use)
            if self.reads:
                self.reads = [one for one in self.reads if not use.bytes.covers(one.bytes)]
            return
        self.reads = [one for one in self.reads if one.track != use.track or not use.bytes.covers(one.bytes)][
            1 - _MOST :
        ]
        self.reads.append(use)


def _by_mark(item: tuple[Any, tuple[int, str, Any]]) -> int:
    return item[1][0]


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
            record.record_pending()
            self._ended(key, record)

    def touched(
        self, record: Record, tensor: torch.Tensor, track: int, mark: int, writes: bool, what: str, stack: Any
    ) -> None:
        """Work number `mark` of `track` reads or writes `tensor`, whose storage has that record."""
        if record.first != track:
            record.record_pending()
            record.alone = record.first < 0
            record.first = track
        whole = tensor.nbytes == record.whole.end
        if record.alone:  # what nearly always happens
            pending = record.pending
            if not whole:
                where = (writes, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.itemsize)
                pending[where] = mark, what, stack
                if len(pending) > _PENDING:
                    del pending[next(iter(pending))]
                return
            if writes:
                pending.clear()
            pending[writes] = mark, what, stack
            return
        use = Use(track, mark, record.whole if whole else ranges.of(tensor), what, stack)
        self._check(record, use, writes)
        record.keep(use, writes)

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
