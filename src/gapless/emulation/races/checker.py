"""`Checker`: receives streams, launches, copies and host accesses from the emulation, and finds races."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gapless import trees
from gapless.emulation.races import late, ranges
from gapless.emulation.races.access_log import AccessLog, MemoryAccess, StorageRecord
from gapless.emulation.races.clocks import Clocks, RecordedEvent
from gapless.emulation.races.distances import EventDistances
from gapless.emulation.races.engine import Engine
from gapless.emulation.races.flights import Flight, Flights
from gapless.emulation.races.race_log import CPU, RaceAccess, RaceLog, here
from gapless.emulation.races.ranges import ByteRange
from gapless.emulation.races.reuse import FreedBlock, Reuse
from gapless.emulation.races.thread_order import GeneratorDraws, ThreadHolder
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST, PINNED
from gapless.model.race import Race, RaceKind

Tensor = torch.Tensor
_SINGLE_STREAM_WAITS = ("cudaEventSynchronize", "cudaStreamSynchronize")
"""Explicit waits that streams and events report themselves."""


class _ThreadStreams(threading.local):
    """The tracks of this thread's current streams, by device; missing devices use their default stream."""

    def __init__(self) -> None:
        self.tracks: dict[int, int] = {}


class Checker:
    """Finds races on the emulated device. `where` maps the key of each storage to its place.

    `full` says that every access is recorded: from the first stream besides the default one, or the first
    asynchronous collective; `late`, that copies to the host arrive only when something waits for them.
    """

    def __init__(self, where: dict[int, int]) -> None:
        self.enabled = True
        self.has_streams = False  # whether there was more than one stream
        self.late = False
        self.full = False
        self.waits = 0
        self.clocks = Clocks()
        self.log = RaceLog(self.clocks)
        self.threads = ThreadHolder(self.log)
        self.draws = GeneratorDraws(self.threads, self.log)
        self.reuse = Reuse(self.clocks, self._report_reuse)
        self.books = AccessLog(self.clocks, self._report_race, self._drop_storage)
        self.flights = Flights(self.clocks, self._report_changed_source, late.deliver)
        self.busy = self.flights.busy
        self.distances = EventDistances()
        self._engine = Engine(self.clocks)
        self._groups: dict[tuple[int, int], int] = {}
        self._queried_marks: dict[int, int] = {}
        self._places = where
        self._thread = _ThreadStreams()

    def races(self) -> tuple[Race, ...]:
        """Return the races found so far."""
        return self.log.races()

    # -- streams and events ------------------------------------------------------------------------

    def track(self, index: int) -> int:
        """Return the track of this thread's current stream on device `index`."""
        tracks = self._thread.tracks
        track = tracks.get(index)
        if track is None:
            track = tracks[index] = self.clocks.track(index, 0)
        return track

    def follow_all(self) -> None:
        """Record every access from now on: there is more than one stream."""
        self.full = self.enabled

    def set_stream(self, index: int, stream: int) -> None:
        """Make `stream` this thread's current one on device `index`."""
        if stream:
            self.has_streams = True
            self.follow_all()
        self._thread.tracks[index] = self.clocks.track(index, stream)

    def record_event(self, index: int, stream: int) -> RecordedEvent:
        """Return the moment of an event recorded in a stream now."""
        return self.clocks.record_event(self.clocks.track(index, stream), here() if self.full else None)

    def wait_for_event(self, index: int, stream: int, moment: Any) -> None:
        """Order a stream after an event; None, an event never recorded, orders nothing."""
        track = self.clocks.track(index, stream)
        if moment is None or moment.owner is self.clocks:
            if self.full:
                self.log.record_wait(track, moment)
                self.threads.hold()
            if moment is not None:
                self.clocks.order_after(track, moment.clock)

    def order_host_after(self, moment: Any, queried: bool = False) -> None:
        """Order the host after an event that it waited for, or `queried` about and found done."""
        if not queried:
            self.log.record_wait(CPU, moment)
        if moment is not None and moment.owner is self.clocks:
            self._order_host_after(moment.clock)

    def is_pending(self, moment: Any) -> bool:
        """Whether a query must say that an event is not done: copies are late, and nobody waited for it."""
        if not self.late or moment is None or moment.owner is not self.clocks:
            return False
        host = self.clocks.host
        return any(mark > host[track] for track, mark in enumerate(moment.clock))

    def is_stream_pending(self, index: int, stream: int) -> bool:
        """Whether a query must say that a stream has pending work; not at its second query."""
        track = self.clocks.track(index, stream)
        mark = self.clocks.by_track[track][track]
        again = self._queried_marks.get(track) == mark
        self._queried_marks[track] = mark
        return self.late and not again and mark > self.clocks.host[track]

    def order_host_after_stream(self, index: int, stream: int) -> None:
        """Order the host after all work of a stream."""
        self._order_host_after(self.clocks.by_track[self.clocks.track(index, stream)])

    def record_host_wait(self, operator: str, mechanism: str, call: str) -> None:
        """Order the host after a wait that the emulation counts: for its current streams, or all of them."""
        self.waits += 1
        if mechanism == "free" or (mechanism == "explicit" and operator not in _SINGLE_STREAM_WAITS):
            for clock in tuple(self.clocks.by_track):
                self._order_host_after(clock)
        elif mechanism != "explicit" or call.startswith("torch.distributed"):
            self.order_host_after_current()

    def order_host_after_current(self) -> None:
        """Order the host after all work of this thread's current streams."""
        self.track(local.device)
        for track in tuple(self._thread.tracks.values()):
            self._order_host_after(self.clocks.by_track[track])

    def _order_host_after(self, clock: list[int]) -> None:
        if self.full or self.busy:
            clock = clock.copy()  # what other threads launch meanwhile is not waited for
            self.threads.hold()
        self.clocks.order_host_after(clock)
        if self.busy:
            self.flights.settle()

    def draw(self, generator: Any, index: int, action: str) -> None:
        """Check a draw of random numbers on device `index`, from its default generator if None."""
        if self.enabled and not local.quiet:
            self.draws.draw(generator, index, action)

    def record_stream(self, tensor: Tensor, stream: Any) -> None:
        """Record ``tensor.record_stream(stream)``."""
        storage = _storage(tensor)
        if storage is not None and self.full:
            record = self.books.record(storage, -1)
            record.kept.add(self.clocks.track(stream.device_index, stream.stream_id))

    # -- work on the device ------------------------------------------------------------------------

    def record_operator(self, plan: Any, args: Any, kwargs: dict[str, Any], out: Any, index: int) -> None:
        """Record the accesses of an operator launched on device `index`."""
        if local.quiet or not self.enabled:
            return
        track, stack = self.track(index), here()
        if not plan.launches:
            self._record_results(out, track, 0, "", stack, writes=False)
            return
        mark = self.clocks.launch(track)
        engine = local.backward != HOST and self._engine.runs_elsewhere(index, track)
        written, action = plan.written, plan.name
        for at, value in enumerate(args if plan.reads or written else ()):
            if isinstance(value, Tensor):
                self._record_access(value, track, mark, at in written, action, stack, engine)
            elif type(value) in (list, tuple):
                for item in value:
                    if isinstance(item, Tensor):
                        self._record_access(item, track, mark, at in written, action, stack, engine)
        for name, value in kwargs.items():
            for item in value if type(value) in (list, tuple) else (value,):
                if isinstance(item, Tensor):
                    self._record_access(item, track, mark, name in written, action, stack, engine)
        if not plan.views:
            self._record_results(out, track, mark, action, stack, writes=True)

    def record_launch(
        self, action: str, reads: Iterable[Tensor], writes: Iterable[Tensor], index: int
    ) -> None:
        """Record the accesses of a kernel that is not a torch operator."""
        if local.quiet or not self.enabled:
            return
        track, stack = self.track(index), here()
        mark = self.clocks.launch(track)
        self._record_accesses(reads, writes, track, mark, action, stack)

    def _record_accesses(
        self,
        reads: Iterable[Tensor],
        writes: Iterable[Tensor],
        track: int,
        mark: int,
        action: str,
        stack: Any,
    ) -> None:
        written = list(writes)
        own = {id(tensor) for tensor in written}
        for tensor in reads:
            if id(tensor) not in own:
                self._record_access(tensor, track, mark, False, action, stack, False)
        self._record_results(written, track, mark, action, stack, writes=True)

    def _record_access(
        self, tensor: Tensor, track: int, mark: int, writes: bool, action: str, stack: Any, engine: bool
    ) -> None:
        try:
            storage = tensor.untyped_storage()
        except _NO_STORAGE_ERRORS:
            return
        key = storage._cdata
        record = self.books.records.get(key)
        if record is None or record.home == _PINNED_HOME:
            if self._places.get(key, HOST) < 0:
                if key in self.busy and tensor.dim() == 0:  # a CPU scalar is read at the launch
                    self.check_host_access(tensor, writes, action)
                return
            record = self.books.record(storage, -1)
        if engine and record.home != track:
            record.kept.add(track)  # on a GPU another stream runs this node
        self.books.record_access(record, tensor, track, mark, writes, action, stack)

    def _record_results(
        self, out: Any, track: int, mark: int, action: str, stack: Any, *, writes: bool
    ) -> None:
        """Record the results `out`: new storages belong to the stream `track`."""
        for result in (out,) if isinstance(out, Tensor) else out if isinstance(out, (list, tuple)) else ():
            if not isinstance(result, Tensor):
                if isinstance(result, (list, tuple)):
                    self._record_results(result, track, mark, action, stack, writes=writes)
                continue
            storage = _storage(result)
            if storage is None:
                continue
            record = self.books.records.get(storage._cdata)
            if record is None or record.home == _PINNED_HOME:
                if self._places.get(storage._cdata, HOST) < 0:
                    continue
                record = self.books.record(storage, track)
                if self.reuse.freed.get(track):
                    self._check_reuse(record, track, mark, action or "aten::empty", stack)
            if writes:
                self.books.record_access(record, result, track, mark, True, action, stack)

    def collective(
        self, action: str, reads: Sequence[Tensor], writes: Sequence[Tensor], index: int, group: int
    ) -> Callable[[], None]:
        """Record a collective launched on its group's stream; return what its ``wait()`` must call."""
        number = self._groups.setdefault((index, group), len(self._groups) + 1)
        own, current = self.clocks.track(index, -number), self.track(index)
        self.clocks.order_after(own, self.clocks.record_event(current, None).clock)
        mark, stack = self.clocks.launch(own), here()
        tensors = [*reads, *writes]
        self._record_accesses(reads, writes, own, mark, action, stack)
        for tensor in tensors:  # the work object holds them until somebody waits for it
            storage = _storage(tensor)
            if storage is not None and storage._cdata in self.books.records:
                self.books.records[storage._cdata].kept.add(own)
        clock = self.clocks.record_event(own, None).clock

        def wait() -> None:
            if self.enabled:
                self.clocks.order_after(self.track(index), clock)

        return wait

    def _check_reuse(self, record: StorageRecord, track: int, mark: int, action: str, stack: Any) -> None:
        if self.reuse.freed.get(track):
            self.reuse.check_request(
                track, record.whole.end, MemoryAccess(track, mark, record.whole, action, stack)
            )

    # -- copies ------------------------------------------------------------------------------------

    def record_copy(
        self, source: Tensor, target: Tensor, of: int, to: int, *, asynchronous: bool | None, action: str
    ) -> None:
        """Record a copy of `source` at place `of` to `target` at place `to` (as in `Placement`).

        `asynchronous` is None if the launch carried the host's values, without a copy to wait for.
        """
        if not self.enabled:
            return
        if of < 0 and to < 0:
            if self.busy:
                self.check_host_access(source, False, action)
                self.check_host_access(target, True, action)
            return
        if of >= 0 and to >= 0:
            if self.full:
                self._record_device_copy(source, target, of, to, action)
            return
        index = max(of, to)
        host, device = (source, target) if to >= 0 else (target, source)
        track, stack = self.track(index), here()
        mark = self.clocks.launch(track)
        if self.full:
            if to >= 0:
                self._record_results(device, track, mark, action, stack, writes=True)
            else:
                self._record_access(device, track, mark, False, action, stack, False)
        if asynchronous is None:
            return
        if PINNED in (of, to) or asynchronous:
            self._record_pinned_copy(host, to < 0, track, mark, action, stack, asynchronous)
        if not asynchronous:
            self._order_host_after(self.clocks.by_track[track])

    def _record_pinned_copy(
        self, host: Tensor, arrives: bool, track: int, mark: int, action: str, stack: Any, under_way: bool
    ) -> None:
        """Record that the stream `track` reads or fills pinned memory."""
        storage = _storage(host)
        if storage is None or not host.numel():
            return
        record = self.books.record(storage, _PINNED_HOME)
        self.books.record_access(record, host, track, mark, arrives, action, stack)
        if under_way:
            flight = self.flights.add(host, arrives, track, mark, stack)
            flight.launches = self.distances.launches
            if self.late and arrives:
                late.withhold(flight, host)
                late.drop_overwritten_bytes(self.busy[storage._cdata], flight)

    def show_arrived(self, source: Tensor, index: int) -> AbstractContextManager[None]:
        """Return a context in which a copy of `source` sees late copies its stream is ordered after."""
        storage = _storage(source) if self.late and self.busy else None
        if storage is None or index < 0:
            return nullcontext()
        track = self.track(index)
        behind = [
            flight
            for flight in self.busy.get(storage._cdata, ())
            if self.clocks.ordered(track, flight.track, flight.mark)
        ]
        return late.show_withheld_bytes(behind)

    def _record_device_copy(self, source: Tensor, target: Tensor, of: int, to: int, action: str) -> None:
        """Record a copy between devices, on the source's stream; both streams wait for each other."""
        giving, taking = self.track(of), self.track(to)
        self.clocks.order_after(giving, self.clocks.by_track[taking])
        mark, stack = self.clocks.launch(giving), here()
        self._record_access(source, giving, mark, False, action, stack, True)
        self.clocks.order_after(taking, self.clocks.by_track[giving])
        self._record_results(target, taking, self.clocks.launch(taking), action, stack, writes=True)

    # -- the host ----------------------------------------------------------------------------------

    def check_host_operator(self, plan: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Check the arguments of a host operator against pending copies of pinned memory."""
        if not self.enabled or local.quiet or not (plan.reads or plan.written):
            return
        for at, value in (*enumerate(args), *kwargs.items()):
            for tensor in trees.tensors(value):
                self.check_host_access(tensor, at in plan.written, plan.name)

    def check_host_access(self, tensor: Any, writes: bool, action: str) -> None:
        """Check a read or write of `tensor` by the host against pending copies."""
        storage = _storage(tensor)
        if storage is None or storage._cdata not in self.busy or not self.enabled:
            return
        self._check_flights(storage._cdata, ranges.of(tensor), writes, action)

    def check_result(self, tensor: Tensor, to: str) -> None:
        """Check a result `tensor` that `to` may read at once, at an unknown line."""
        storage = _storage(tensor)
        if storage is not None and storage._cdata in self.busy and self.enabled:
            self._check_flights(storage._cdata, ranges.of(tensor), False, to, None)

    def _check_flights(self, key: int, where: ByteRange, writes: bool, action: str, *place: Any) -> None:
        for flight in self.flights.under_way(key, where):
            if flight.arrives or writes:
                later = RaceAccess(CPU, self.clocks.mark, action, writes, place[0] if place else here())
                kind: RaceKind = "in-flight-read" if flight.arrives and not writes else "in-flight-write"
                self.log.add(kind, _side(flight), later, flight.bytes.meets(where))
                return

    def check_storage_read(self, storage: Any, action: str) -> None:
        """Check a read of a whole storage by the host against pending copies."""
        if self.enabled and storage._cdata in self.busy:
            self._check_flights(storage._cdata, ByteRange(0, storage.nbytes()), False, action)

    def watch_array(self, tensor: Tensor, array: Any) -> Any:
        """Return `array`, a NumPy view of the pinned `tensor`, as one whose accesses are checked."""
        from gapless.emulation.races.arrays import watch_array

        storage = tensor.untyped_storage()
        key, alive = storage._cdata, weakref.ref(storage)

        def listener(where: ByteRange, writes: bool, action: str) -> None:
            if self.enabled and key in self.busy and alive() is not None:
                self._check_flights(key, where, writes, action)

        return watch_array(array, storage.data_ptr(), listener)

    def _report_changed_source(self, flight: Flight) -> None:
        """Report a copy whose source changed before the copy was known to be done."""
        later = RaceAccess(CPU, self.clocks.mark, "", True, None)
        self.log.add("in-flight-write", _side(flight), later, flight.bytes.end - flight.bytes.begin)

    def record_resize(self, storage: Any) -> None:
        """Record a resize of `storage`: its memory is freed, and other memory is allocated."""
        if not (self.enabled and self.full):
            return
        self.books.remove(storage._cdata)
        index = self._places.get(storage._cdata, HOST)
        if index >= 0 and storage.nbytes():
            track = self.track(index)
            self._check_reuse(self.books.record(storage, track), track, 0, "resize_", here())

    # -- autograd ----------------------------------------------------------------------------------

    def record_nodes(self, begin: int, end: int) -> None:
        """Record that this thread created the autograd nodes numbered `begin` to `end`."""
        self._engine.record_nodes(begin, end, self._thread.tracks)

    def begin_backward(self) -> Any:
        """Begin a backward pass in this thread; return what to pass to `end_backward`."""
        return self._engine.begin_backward(self._thread.tracks)

    def end_backward(self, before: Any) -> None:
        """End the backward pass that `begin_backward` began."""
        self._engine.end_backward(before)

    # -- reporting ---------------------------------------------------------------------------------

    def _report_race(self, other: MemoryAccess, use: MemoryAccess, wrote: bool, writes: bool) -> None:
        collective = self._is_collective(other.track) or self._is_collective(use.track)
        self.log.add(
            "collective" if collective else "unordered",
            RaceAccess(other.track, other.mark, other.action, wrote, other.stack),
            RaceAccess(use.track, use.mark, use.action, writes, use.stack),
            other.bytes.meets(use.bytes),
        )

    def _is_collective(self, track: int) -> bool:
        return list(self.clocks.tracks)[track][1] < 0

    def _drop_storage(self, key: int, record: StorageRecord) -> None:
        if record.home < 0:
            self.flights.remove(key)
        elif self.enabled:
            self.reuse.add_freed(record, here())

    def _report_reuse(self, block: FreedBlock, use: MemoryAccess) -> None:
        other = block.use
        self.log.add(
            "freed",
            RaceAccess(other.track, other.mark, other.action, block.writes, other.stack),
            RaceAccess(use.track, use.mark, use.action, True, use.stack),
            block.size,
            block.stack,
        )


_NO_STORAGE_ERRORS = (AttributeError, NotImplementedError, RuntimeError, ValueError)
_PINNED_HOME = -2
"""The `home` of pinned storages, whose allocator frees memory safely."""


def _storage(tensor: Any) -> Any:
    """Return the storage of a tensor; None if it has none."""
    try:
        return tensor.untyped_storage()
    except _NO_STORAGE_ERRORS:
        return None


def _side(flight: Flight) -> RaceAccess:
    action = "copy to the CPU" if flight.arrives else "copy to the GPU"
    return RaceAccess(flight.track, flight.mark, action, flight.arrives, flight.stack)
