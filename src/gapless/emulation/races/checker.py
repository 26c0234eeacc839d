"""`Checker`: what the rest of the emulation tells of streams, work, copies and reads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gapless import trees
from gapless.emulation.races import late, ranges
from gapless.emulation.races.books import Books, Record, Use
from gapless.emulation.races.clocks import Clocks, Moment
from gapless.emulation.races.engine import Engine
from gapless.emulation.races.flights import Flight, Flights
from gapless.emulation.races.found import CPU, Races, Side, here
from gapless.emulation.races.ranges import Range
from gapless.emulation.races.reuse import Freed, Reuse
from gapless.emulation.races.threads import Draws, Threads
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST, PINNED
from gapless.model.race import Race, RaceKind

Tensor = torch.Tensor
_NOT_A_STREAM = ("cudaEventSynchronize", "cudaStreamSynchronize")
"""Explicit waits of which streams and events tell themselves."""


class _Thread(threading.local):
    """The tracks of this thread's current streams, by device; where one is missing, it is the default one."""

    def __init__(self) -> None:
        self.tracks: dict[int, int] = {}


class Checker:
    """Finds races on the emulated device. `where` tells of each storage's key where it is.

    `full` says that every access is booked: from the first stream besides the default one, or the first
    asynchronous collective; `late`, that copies to the host arrive when something makes them.
    """

    def __init__(self, where: dict[int, int]) -> None:
        self.on = True
        self.wanted = False  # whether there was more than one stream
        self.late = False
        self.full = False
        self.waits = 0
        self.clocks = Clocks()
        self.found = Races(self.clocks)
        self.threads = Threads(self.found)
        self.draws = Draws(self.threads, self.found)
        self.reuse = Reuse(self.clocks, self._reused)
        self.books = Books(self.clocks, self._unordered, self._ended)
        self.flights = Flights(self.clocks, self._changed, late.put)
        self.busy = self.flights.busy
        self._engine = Engine(self.clocks)
        self._groups: dict[tuple[int, int], int] = {}
        self._asked: dict[int, int] = {}
        self._where = where
        self._thread = _Thread()

    def races(self) -> tuple[Race, ...]:
        """What was found so far."""
        return self.found.races()

    # -- streams and events ------------------------------------------------------------------------

    def track(self, index: int) -> int:
        """The track of this thread's current stream on device `index`."""
        tracks = self._thread.tracks
        track = tracks.get(index)
        if track is None:
            track = tracks[index] = self.clocks.track(index, 0)
        return track

    def begin(self) -> None:
        """There is more than one stream from here on: keep all books."""
        self.full = self.on

    def streamed(self, index: int, stream: int) -> None:
        """`stream` is this thread's current one on device `index`."""
        if stream:
            self.wanted = True
            self.begin()
        self._thread.tracks[index] = self.clocks.track(index, stream)

    def recorded(self, index: int, stream: int) -> Moment:
        """An event is recorded in that stream."""
        return self.clocks.recorded(self.clocks.track(index, stream), here() if self.full else None)

    def awaited(self, index: int, stream: int, moment: Any) -> None:
        """That stream waits for an event; one that was never recorded holds nothing up."""
        track = self.clocks.track(index, stream)
        if moment is None or moment.owner is self.clocks:
            if self.full:
                self.found.waited(track, moment)
                self.threads.hold()
            if moment is not None:
                self.clocks.awaits(track, moment.clock)

    def reached(self, moment: Any, asked: bool = False) -> None:
        """The host has waited for an event, or `asked` for it and heard that it is done."""
        if not asked:
            self.found.waited(CPU, moment)
        if moment is not None and moment.owner is self.clocks:
            self._host_awaits(moment.clock)

    def not_yet(self, moment: Any) -> bool:
        """Whether an event that is asked for is under way: copies are late, and nobody has waited."""
        if not self.late or moment is None or moment.owner is not self.clocks:
            return False
        host = self.clocks.host
        return any(mark > host[track] for track, mark in enumerate(moment.clock))

    def not_yet_stream(self, index: int, stream: int) -> bool:
        """The same of all that a stream has been given; asked again for the same work, it is done."""
        track = self.clocks.track(index, stream)
        mark = self.clocks.known[track][track]
        again = self._asked.get(track) == mark
        self._asked[track] = mark
        return self.late and not again and mark > self.clocks.host[track]

    def reached_stream(self, index: int, stream: int) -> None:
        """The host has waited for that stream."""
        self._host_awaits(self.clocks.known[self.clocks.track(index, stream)])

    def waited(self, operator: str, mechanism: str, call: str) -> None:
        """The host waits where the emulation counts it: for its current streams, or for everything."""
        self.waits += 1
        if mechanism == "free" or (mechanism == "explicit" and operator not in _NOT_A_STREAM):
            for known in tuple(self.clocks.known):
                self._host_awaits(known)
        elif mechanism != "explicit" or call.startswith("torch.distributed"):
            self.done()

    def done(self) -> None:
        """The host has waited for the streams that are current in this thread."""
        self.track(local.device)
        for track in tuple(self._thread.tracks.values()):
            self._host_awaits(self.clocks.known[track])

    def _host_awaits(self, clock: list[int]) -> None:
        if self.full or self.busy:
            clock = clock.copy()  # what other threads launch now comes behind
            self.threads.hold()
        self.clocks.host_awaits(clock)
        if self.busy:
            self.flights.host_waited()

    def drawn(self, generator: Any, index: int, what: str) -> None:
        """Random numbers are drawn on device `index`, from its default generator where none is given."""
        if self.on and not local.quiet:
            self.draws.drawn(generator, index, what)

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """``tensor.record_stream(stream)``."""
        storage = _storage(tensor)
        if storage is not None and self.full:
            record = self.books.record(storage, -1)
            record.kept.add(self.clocks.track(stream.device_index, stream.stream_id))

    # -- work on the device ------------------------------------------------------------------------

    def operator(self, plan: Any, args: Any, kwargs: dict[str, Any], out: Any, index: int) -> None:
        """An operator has been launched on device `index`."""
        if local.quiet or not self.on:
            return
        track, stack = self.track(index), here()
        if not plan.launches:
            self._made(out, track, 0, "", stack, writes=False)
            return
        mark = self.clocks.launch(track)
        engine = local.backward != HOST and self._engine.elsewhere(index, track)
        written, what = plan.written, plan.name
        for at, value in enumerate(args if plan.reads or written else ()):
            if isinstance(value, Tensor):
                self._use(value, track, mark, at in written, what, stack, engine)
            elif type(value) in (list, tuple):
                for one in value:
                    if isinstance(one, Tensor):
                        self._use(one, track, mark, at in written, what, stack, engine)
        for name, value in kwargs.items():
            for one in value if type(value) in (list, tuple) else (value,):
                if isinstance(one, Tensor):
                    self._use(one, track, mark, name in written, what, stack, engine)
        if not plan.views:
            self._made(out, track, mark, what, stack, writes=True)

    def launched(self, what: str, reads: Iterable[Tensor], writes: Iterable[Tensor], index: int) -> None:
        """A kernel that is no operator of torch's, or a call that counts as one, has been launched."""
        if local.quiet or not self.on:
            return
        track, stack = self.track(index), here()
        mark = self.clocks.launch(track)
        self._uses(reads, writes, track, mark, what, stack)

    def _uses(
        self, reads: Iterable[Tensor], writes: Iterable[Tensor], track: int, mark: int, what: str, stack: Any
    ) -> None:
        written = list(writes)
        own = {id(one) for one in written}
        for one in reads:
            if id(one) not in own:
                self._use(one, track, mark, False, what, stack, False)
        self._made(written, track, mark, what, stack, writes=True)

    def _use(
        self, tensor: Tensor, track: int, mark: int, writes: bool, what: str, stack: Any, engine: bool
    ) -> None:
        try:
            storage = tensor.untyped_storage()
        except _NO_STORAGE:
            return
        key = storage._cdata
        record = self.books.records.get(key)
        if record is None or record.home == _PINNED_HOME:
            if self._where.get(key, HOST) < 0:
                if key in self.busy and tensor.dim() == 0:  # a number that goes along with the launch
                    self.touched(tensor, writes, what)
                return
            record = self.books.record(storage, -1)
        if engine and record.home != track:
            record.kept.add(track)  # on a GPU another stream does this
        self.books.touched(record, tensor, track, mark, writes, what, stack)

    def _made(self, out: Any, track: int, mark: int, what: str, stack: Any, *, writes: bool) -> None:
        """`out` are results: new storages belong to the stream `track`."""
        for one in (out,) if isinstance(out, Tensor) else out if isinstance(out, (list, tuple)) else ():
            if not isinstance(one, Tensor):
                if isinstance(one, (list, tuple)):
                    self._made(one, track, mark, what, stack, writes=writes)
                continue
            storage = _storage(one)
            if storage is None:
                continue
            record = self.books.records.get(storage._cdata)
            if record is None or record.home == _PINNED_HOME:
                if self._where.get(storage._cdata, HOST) < 0:
                    continue
                record = self.books.record(storage, track)
                if self.reuse.freed.get(track):
                    self._taken(record, track, mark, what or "aten::empty", stack)
            if writes:
                self.books.touched(record, one, track, mark, True, what, stack)

    def collective(
        self, what: str, reads: Sequence[Tensor], writes: Sequence[Tensor], index: int, group: int
    ) -> Callable[[], None]:
        """A collective has been launched on the stream of its group; what is given back is its ``wait()``."""
        number = self._groups.setdefault((index, group), len(self._groups) + 1)
        own, current = self.clocks.track(index, -number), self.track(index)
        self.clocks.awaits(own, self.clocks.recorded(current, None).clock)
        mark, stack = self.clocks.launch(own), here()
        taken = [*reads, *writes]
        self._uses(reads, writes, own, mark, what, stack)
        for one in taken:  # which the work holds until somebody waits for it
            storage = _storage(one)
            if storage is not None and storage._cdata in self.books.records:
                self.books.records[storage._cdata].kept.add(own)
        clock = self.clocks.recorded(own, None).clock

        def awaited() -> None:
            if self.on:
                self.clocks.awaits(self.track(index), clock)

        return awaited

    def _taken(self, record: Record, track: int, mark: int, what: str, stack: Any) -> None:
        if self.reuse.freed.get(track):
            self.reuse.taken(track, record.whole.end, Use(track, mark, record.whole, what, stack))

    # -- copies ------------------------------------------------------------------------------------

    def copied(
        self, source: Tensor, target: Tensor, of: int, to: int, *, asynchronous: bool | None, what: str
    ) -> None:
        """`source` at `of` has been copied to `target` at `to` (places as in `Placement`).

        With `asynchronous` None the call took the host's values along, and waited for nothing.
        """
        if not self.on:
            return
        if of < 0 and to < 0:
            if self.busy:
                self.touched(source, False, what)
                self.touched(target, True, what)
            return
        if of >= 0 and to >= 0:
            if self.full:
                self._between(source, target, of, to, what)
            return
        index = max(of, to)
        host, device = (source, target) if to >= 0 else (target, source)
        track, stack = self.track(index), here()
        mark = self.clocks.launch(track)
        if self.full:
            if to >= 0:
                self._made(device, track, mark, what, stack, writes=True)
            else:
                self._use(device, track, mark, False, what, stack, False)
        if asynchronous is None:
            return
        if PINNED in (of, to) or asynchronous:
            self._pinned(host, to < 0, track, mark, what, stack, asynchronous)
        if not asynchronous:
            self._host_awaits(self.clocks.known[track])

    def _pinned(
        self, host: Tensor, arrives: bool, track: int, mark: int, what: str, stack: Any, under_way: bool
    ) -> None:
        """The stream `track` reads or fills pinned memory."""
        storage = _storage(host)
        if storage is None or not host.numel():
            return
        record = self.books.record(storage, _PINNED_HOME)
        self.books.touched(record, host, track, mark, arrives, what, stack)
        if under_way:
            flight = self.flights.began(host, arrives, track, mark, stack)
            if self.late and arrives:
                late.take(flight, host)
                late.superseded(self.busy[storage._cdata], flight)

    def there(self, source: Tensor, index: int) -> AbstractContextManager[None]:
        """A block in which a copy from `source` to device `index` sees what its stream comes behind."""
        storage = _storage(source) if self.late and self.busy else None
        if storage is None or index < 0:
            return nullcontext()
        track = self.track(index)
        behind = [
            one
            for one in self.busy.get(storage._cdata, ())
            if self.clocks.ordered(track, one.track, one.mark)
        ]
        return late.there(behind)

    def _between(self, source: Tensor, target: Tensor, of: int, to: int, what: str) -> None:
        """From device to device: on the source's stream, and each stream waits for the other."""
        giving, taking = self.track(of), self.track(to)
        self.clocks.awaits(giving, self.clocks.known[taking])
        mark, stack = self.clocks.launch(giving), here()
        self._use(source, giving, mark, False, what, stack, True)
        self.clocks.awaits(taking, self.clocks.known[giving])
        self._made(target, taking, self.clocks.launch(taking), what, stack, writes=True)

    # -- the host ----------------------------------------------------------------------------------

    def on_host(self, plan: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """An operator is about to run on the host, while copies of pinned memory are under way."""
        if not self.on or local.quiet or not (plan.reads or plan.written):
            return
        for at, value in (*enumerate(args), *kwargs.items()):
            for one in trees.tensors(value):
                self.touched(one, at in plan.written, plan.name)

    def touched(self, tensor: Any, writes: bool, what: str) -> None:
        """The host reads `tensor`, or writes it."""
        storage = _storage(tensor)
        if storage is None or storage._cdata not in self.busy or not self.on:
            return
        self._touched(storage._cdata, ranges.of(tensor), writes, what)

    def returned(self, tensor: Tensor, to: str) -> None:
        """`tensor` is a result, which `to` may read at once, at a line that nobody knows."""
        storage = _storage(tensor)
        if storage is not None and storage._cdata in self.busy and self.on:
            self._touched(storage._cdata, ranges.of(tensor), False, to, None)

    def _touched(self, key: int, where: Range, writes: bool, what: str, *place: Any) -> None:
        for flight in self.flights.under_way(key, where):
            if flight.arrives or writes:
                later = Side(CPU, self.clocks.mark, what, writes, place[0] if place else here())
                kind: RaceKind = "in-flight-read" if flight.arrives and not writes else "in-flight-write"
                self.found.add(kind, _side(flight), later, flight.bytes.meets(where))
                return

    def storage_read(self, storage: Any, what: str) -> None:
        """The host reads all of a storage."""
        if self.on and storage._cdata in self.busy:
            self._touched(storage._cdata, Range(0, storage.nbytes()), False, what)

    def viewed(self, tensor: Tensor, array: Any) -> Any:
        """`array`, a NumPy view of the pinned `tensor`, in a form that tells when it is read or written."""
        from gapless.emulation.races.arrays import watched

        storage = tensor.untyped_storage()
        key, alive = storage._cdata, weakref.ref(storage)

        def told(where: Range, writes: bool, what: str) -> None:
            if self.on and key in self.busy and alive() is not None:
                self._touched(key, where, writes, what)

        return watched(array, storage.data_ptr(), told)

    def _changed(self, flight: Flight) -> None:
        """The source of a copy has another content when the copy is known to be done."""
        later = Side(CPU, self.clocks.mark, "", True, None)
        self.found.add("in-flight-write", _side(flight), later, flight.bytes.end - flight.bytes.begin)

    def resized(self, storage: Any) -> None:
        """`storage` has another size: its memory is given back, and other memory is taken."""
        if not (self.on and self.full):
            return
        self.books.ended(storage._cdata)
        index = self._where.get(storage._cdata, HOST)
        if index >= 0 and storage.nbytes():
            track = self.track(index)
            self._taken(self.books.record(storage, track), track, 0, "resize_", here())

    # -- autograd ----------------------------------------------------------------------------------

    def nodes(self, begin: int, end: int) -> None:
        """This thread has made the autograd nodes of these numbers."""
        self._engine.made(begin, end, self._thread.tracks)

    def backward(self) -> Any:
        """A backward pass begins in this thread: what to hand to `backward_over`."""
        return self._engine.begins(self._thread.tracks)

    def backward_over(self, before: Any) -> None:
        """It has ended."""
        self._engine.ends(before)

    # -- what is found -----------------------------------------------------------------------------

    def _unordered(self, other: Use, use: Use, wrote: bool, writes: bool) -> None:
        collective = self._of_group(other.track) or self._of_group(use.track)
        self.found.add(
            "collective" if collective else "unordered",
            Side(other.track, other.mark, other.what, wrote, other.stack),
            Side(use.track, use.mark, use.what, writes, use.stack),
            other.bytes.meets(use.bytes),
        )

    def _of_group(self, track: int) -> bool:
        return list(self.clocks.tracks)[track][1] < 0

    def _ended(self, key: int, record: Record) -> None:
        if record.home < 0:
            self.flights.ended(key)
        elif self.on:
            self.reuse.ended(record, here())

    def _reused(self, block: Freed, use: Use) -> None:
        other = block.use
        self.found.add(
            "freed",
            Side(other.track, other.mark, other.what, block.writes, other.stack),
            Side(use.track, use.mark, use.what, True, use.stack),
            block.size,
            block.stack,
        )


_NO_STORAGE = (AttributeError, NotImplementedError, RuntimeError, ValueError)
_PINNED_HOME = -2
"""The home of pinned storages, whose memory is given back safely."""


def _storage(tensor: Any) -> Any:
    """The storage of a strided tensor; None of others."""
    try:
        return tensor.untyped_storage()
    except _NO_STORAGE:
        return None


def _side(flight: Flight) -> Side:
    what = "copy to the CPU" if flight.arrives else "copy to the GPU"
    return Side(flight.track, flight.mark, what, flight.arrives, flight.stack)
