"""A DataLoader and the loop that asks it, simulated: who waits for whom, and for how long.

The workers, the training process and the pinning thread are processes of `scheduler`. The order of events is
that of torch's multi-process loader: batch i goes to worker i mod W, each worker has at most `prefetch`
batches outstanding, batches are handed over in order, and the next index is sent when one is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from gapless.loading.scheduler import CALL, CPU, GET, PASS, Actor, Kernel, Queue, Server
from gapless.model.loading import Machine

_STEADY = 64
"""Steps that are looked at, at least."""
_SLICES = 8
"""Pieces in which a batch's computing and waiting alternate, as its items do, at most."""


@dataclass(frozen=True)
class Pipeline:
    """What each stage takes, in nanoseconds.

    `batches` are the computing and the waiting for each, taken in turn again and again; they alternate as
    many times as there are `items` in one. `step` is the training step without its input, of which the host
    computes for the part `busy`. The other fields are those of `Transfer` and `Fetch`; `pin` is negative
    where nothing is pinned.
    """

    batches: Sequence[tuple[float, float]]
    items: int = 1
    step: float = 0.0
    busy: float = 1.0
    index: float = 0.0
    send: float = 0.0
    receive: float = 0.0
    latency: float = 0.0
    start: float = 0.0
    boot: float = 0.0
    pin: float = -1.0


@dataclass(frozen=True)
class Run:
    """A steady step, of which `wait` passes until the batch is there; the first batch; what was ready."""

    step: float
    wait: float
    first: float
    ready: float


@dataclass
class _Worker(Server):
    """A worker and the indices that it is to fetch."""

    indices: Queue = field(default_factory=Queue)


@dataclass
class _Seen:
    first: float = 0.0
    marks: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)


class _Loader:
    """The training process and what it starts."""

    def __init__(
        self, pipe: Pipeline, machine: Machine, workers: int, prefetch: int, count: int, hasty: int
    ) -> None:
        self.pipe, self.workers, self.prefetch = pipe, workers, prefetch
        self.count, self.hasty = count, hasty
        self.kernel = Kernel(machine)
        self.results, self.pinned = Queue(), Queue()
        self.crew = [_Worker() for _ in range(workers)]
        self.seen = _Seen()
        self.uneven = random.Random(0)
        self.sent = 0

    def run(self) -> _Seen:
        self.kernel.start(self._train())
        self.kernel.run(lambda: len(self.seen.marks) >= self.count)
        return self.seen

    def _fetch(self, number: int) -> Actor:
        computing, waiting = self.pipe.batches[number % len(self.pipe.batches)]
        slices = self.pipe.items if computing > 0 and waiting > 0 else 1
        slices = min(max(slices, 1), _SLICES)
        # Uneven ones: workers whose items are all alike would fall into step, and not meet on a core.
        parts = [self.uneven.uniform(0.5, 1.5) for _ in range(slices)]
        for part in parts:
            yield PASS, waiting * part / sum(parts)
            yield CPU, computing / slices

    def _worker(self, me: _Worker) -> Actor:
        yield CPU, self.pipe.boot
        while True:
            number = yield GET, me.indices
            me.busy = True
            yield from self._fetch(number)
            yield CPU, self.pipe.send
            self.kernel.put(self.results, (number, me))
            if not me.indices.messages:
                self.kernel.idle(me)

    def _pinner(self) -> Actor:
        while True:
            number, sender = yield GET, self.results
            yield from self._receive(sender)
            yield CPU, self.pipe.pin
            self.kernel.put(self.pinned, (number, sender))

    def _receive(self, sender: _Worker) -> Actor:
        yield CPU, self.pipe.receive
        # A worker in the midst of the next batch lets go of Python's lock only now and then; one that has
        # nothing more to do answers at once.
        yield CALL, (sender, self.pipe.latency)

    def _send_index(self) -> None:
        if self.workers:
            self.kernel.put(self.crew[self.sent % self.workers].indices, self.sent)
            self.sent += 1

    def _train(self) -> Actor:
        pipe, seen, kernel = self.pipe, self.seen, self.kernel
        for me in self.crew:
            yield CPU, pipe.start
            kernel.start(self._worker(me))
        if self.workers and pipe.pin >= 0:
            kernel.start(self._pinner())
        for _ in range(self.workers * self.prefetch):
            yield CPU, pipe.index
            self._send_index()
        queue = self.pinned if pipe.pin >= 0 else self.results
        there: set[int] = set()
        asked = 0.0
        for number in range(self.count):
            seen.ready.append(len(there) + len(queue.messages))
            if self.workers:
                while number not in there:
                    got, sender = yield GET, queue
                    if pipe.pin < 0:
                        yield from self._receive(sender)
                    there.add(got)
                there.discard(number)
            else:
                yield from self._fetch(number)
                yield CPU, max(pipe.pin, 0.0)
            yield CPU, pipe.index
            self._send_index()
            seen.waits.append(kernel.now - asked)
            if not number:
                seen.first = kernel.now
            if number >= self.hasty:
                yield CPU, pipe.step * pipe.busy
                yield PASS, pipe.step * (1 - pipe.busy)
            asked = kernel.now
            seen.marks.append(asked)


def simulate(pipe: Pipeline, machine: Machine, workers: int, prefetch: int, count: int = 0) -> Run:
    """`count` steps (0: enough to be steady) on `machine`. `prefetch` is ignored without workers.

    The first ones do not count. They take no time, so that what was made in advance is used up: where workers
    are a little too slow it would otherwise last long, and steps be as short as they will not remain.
    """
    hasty = 2 * workers * max(prefetch, 1)
    warm = hasty + 2 * workers + 2
    count = max(count, warm + max(_STEADY, 12 * workers))
    if machine.together >= 1:  # cores that nobody uses make no difference, but work
        needed = workers + 2 + math.ceil(machine.others)
        machine = msgspec.structs.replace(machine, allowed=min(machine.allowed, needed))
    seen = _Loader(pipe, machine, workers, prefetch, count, hasty).run()
    # Whole turns of the workers: what is made in bursts is asked for in bursts.
    turn = max(workers, 1)
    steady = (len(seen.marks) - warm) // turn * turn
    marks, waits = seen.marks[-steady - 1 :], seen.waits[-steady:]
    return Run(
        step=(marks[-1] - marks[0]) / steady,
        wait=sum(waits) / steady,
        first=seen.first,
        ready=sum(seen.ready[-steady:]) / steady,
    )
