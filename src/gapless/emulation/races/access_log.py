"""`AccessLog`: the last accesses of each storage, and the races between them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gapless.emulation.races import ranges
from gapless.emulation.races.clocks import Clocks
from gapless.emulation.races.ranges import ByteRange

_MAX_USES, _MAX_PENDING = 32, 128
"""Accesses kept per storage: of each kind, and of both while only one stream uses it. Bounds the time."""


class MemoryAccess(NamedTuple):
    """One access: work number `mark` of the stream `track`."""

    track: int
    mark: int
    bytes: ByteRange
    action: str
    stack: Any


class StorageRef(weakref.ref):  # type: ignore[type-arg]  # of a storage
    """A weak reference to a storage that carries the storage's key for its callback."""

    __slots__ = ("key",)
    key: int


class StorageRecord:
    """The accesses of one storage.

    `home` is the stream that its memory belongs to (-1: unknown; -2: pinned memory), `kept` the streams
    passed to ``record_stream``. `is_exclusive` says that only the stream `first` has used it so far (`home`,
    if known). Accesses of a single stream cannot race: they stay `pending`, by their bytes, until another
    stream uses the storage.
    """

    __slots__ = ("first", "home", "is_exclusive", "kept", "pending", "reads", "watch", "whole", "writes")

    def __init__(self, home: int, size: int) -> None:
        self.home = self.first = home
        self.whole = ByteRange(0, size)
        self.writes: list[MemoryAccess] = []
        self.reads: list[MemoryAccess] = []
        self.kept: set[int] = set()
        self.is_exclusive = True
        self.pending: dict[Any, tuple[int, str, Any]] = {}
        self.watch: StorageRef | None = None

    def record_pending(self) -> None:
        """Turn pending accesses into kept ones."""
        for key, (mark, action, stack) in sorted(self.pending.items(), key=_by_mark):
            writes, here = (key, self.whole) if type(key) is bool else (key[0], ranges.at(*key[1:]))
            self.keep(MemoryAccess(self.first, mark, here, action, stack), writes)
        self.pending.clear()

    def keep(self, use: MemoryAccess, writes: bool) -> None:
        """Keep `use`, and drop earlier uses whose races a later access would also have with `use`."""
        if writes:
            self.writes = [earlier for earlier in self.writes if not use.bytes.covers(earlier.bytes)][
                1 - _MAX_USES :
            ]
            self.writes.append(use)
            if self.reads:
                self.reads = [read for read in self.reads if not use.bytes.covers(read.bytes)]
            return
        self.reads = [
            read for read in self.reads if read.track != use.track or not use.bytes.covers(read.bytes)
        ][1 - _MAX_USES :]
        self.reads.append(use)


def _by_mark(item: tuple[Any, tuple[int, str, Any]]) -> int:
    return item[1][0]


RaceListener = Callable[[MemoryAccess, MemoryAccess, bool, bool], None]
"""Called with a race: both accesses, and whether each of them writes."""


class AccessLog:
    """The recorded accesses of all storages, by storage key."""

    def __init__(
        self, clocks: Clocks, listener: RaceListener, ended: Callable[[int, StorageRecord], None]
    ) -> None:
        self.clocks = clocks
        self.records: dict[int, StorageRecord] = {}
        self._listener = listener
        self._ended = ended

    def record(self, storage: Any, home: int) -> StorageRecord:
        """Return the record of `storage`, creating one with stream `home` if it has none."""
        key = storage._cdata
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = StorageRecord(home, storage.nbytes())
            record.watch = StorageRef(storage, self._drop_storage)
            record.watch.key = key
        return record

    def _drop_storage(self, watch: Any) -> None:
        self.remove(watch.key)

    def remove(self, key: int) -> None:
        """Remove the record of a storage whose memory was freed."""
        record = self.records.pop(key, None)
        if record is not None and (record.home < 0 or not record.is_exclusive):
            record.record_pending()
            self._ended(key, record)

    def record_access(
        self,
        record: StorageRecord,
        tensor: torch.Tensor,
        track: int,
        mark: int,
        writes: bool,
        action: str,
        stack: Any,
    ) -> None:
        """Record that work number `mark` of `track` reads or writes `tensor`, and report its races."""
        if record.first != track:
            record.record_pending()
            record.is_exclusive = record.first < 0
            record.first = track
        whole = tensor.nbytes == record.whole.end
        if record.is_exclusive:  # the common case
            pending = record.pending
            if not whole:
                where = (writes, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.itemsize)
                pending[where] = mark, action, stack
                if len(pending) > _MAX_PENDING:
                    del pending[next(iter(pending))]
                return
            if writes:
                pending.clear()
            pending[writes] = mark, action, stack
            return
        use = MemoryAccess(track, mark, record.whole if whole else ranges.of(tensor), action, stack)
        self._check(record, use, writes)
        record.keep(use, writes)

    def _check(self, record: StorageRecord, use: MemoryAccess, writes: bool) -> None:
        clock, host, track = self.clocks.by_track[use.track], self.clocks.host, use.track
        for kind, uses in ((True, record.writes), (False, record.reads if writes else ())):
            for earlier in uses:
                if (
                    earlier.track != track
                    and clock[earlier.track] < earlier.mark
                    and host[earlier.track] < earlier.mark
                    and earlier.bytes.meets(use.bytes)
                ):
                    self._listener(earlier, use, kind, writes)
