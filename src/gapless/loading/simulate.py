"""Simulate a DataLoader and the loop that uses it: which waits for the other, and for how long.

The workers, the training process and the pinning thread are processes of `scheduler`. The order of events is
that of torch's multi-process loader: batch i goes to worker i mod W, each worker has at most `prefetch`
batches outstanding, batches are delivered in order, and the next index is sent with each.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from gapless.loading.scheduler import (
    CALL,
    CPU,
    GET,
    PASS,
    Actor,
    AnsweringServer,
    MessageQueue,
    SimulatedKernel,
)
from gapless.model.loading import Machine

_MIN_STEADY_STEPS = 64
"""Steps that are averaged, at least."""
_MAX_SLICES = 8
"""Pieces in which computing and waiting for a batch's items alternate, at most."""


@dataclass(frozen=True)
class PipelineCosts:
    """The time of each stage, in nanoseconds.

    `batches` are pairs of computing and waiting, used in turn; these alternate as many times as a batch has
    `items`. `step` is the training step without its input, of which the host computes for the share `busy`.
    The other fields are those of `Transfer` and `Fetch`; a negative `pin` means no pinning.
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
class SimulatedRun:
    """A steady step, its `wait` for the batch, the time of the first batch, and the ready batches."""

    step: float
    wait: float
    first: float
    ready: float


@dataclass
class _SimulatedWorker(AnsweringServer):
    """A worker and the indices that it is to fetch."""

    indices: MessageQueue = field(default_factory=MessageQueue)


@dataclass
class _Timeline:
    first: float = 0.0
    marks: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)


class _SimulatedLoader:
    """The training process and the processes it starts."""

    def __init__(
        self, pipe: PipelineCosts, machine: Machine, workers: int, prefetch: int, count: int, hasty: int
    ) -> None:
        self.pipe, self.workers, self.prefetch = pipe, workers, prefetch
        self.count, self.hasty = count, hasty
        self.kernel = SimulatedKernel(machine)
        self.results, self.pinned = MessageQueue(), MessageQueue()
        self.crew = [_SimulatedWorker() for _ in range(workers)]
        self.timeline = _Timeline()
        self.uneven = random.Random(0)
        self.sent = 0

    def run(self) -> _Timeline:
        self.kernel.start(self._train())
        self.kernel.run(lambda: len(self.timeline.marks) >= self.count)
        return self.timeline

    def _fetch(self, number: int) -> Actor:
        computing, waiting = self.pipe.batches[number % len(self.pipe.batches)]
        slices = self.pipe.items if computing > 0 and waiting > 0 else 1
        slices = min(max(slices, 1), _MAX_SLICES)
        # uneven: workers with equal items would fall into step, and never meet on a core
        parts = [self.uneven.uniform(0.5, 1.5) for _ in range(slices)]
        for part in parts:
            yield PASS, waiting * part / sum(parts)
            yield CPU, computing / slices

    def _worker(self, me: _SimulatedWorker) -> Actor:
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

    def _receive(self, sender: _SimulatedWorker) -> Actor:
        yield CPU, self.pipe.receive
        # A worker that makes the next batch releases Python's lock only now and then; an idle one answers
        # at once.
        yield CALL, (sender, self.pipe.latency)

    def _send_index(self) -> None:
        if self.workers:
            self.kernel.put(self.crew[self.sent % self.workers].indices, self.sent)
            self.sent += 1

    def _train(self) -> Actor:
        pipe, timeline, kernel = self.pipe, self.timeline, self.kernel
        for me in self.crew:
            yield CPU, pipe.start
            kernel.start(self._worker(me))
        if self.workers and pipe.pin >= 0:
            kernel.start(self._pinner())
        for _ in range(self.workers * self.prefetch):
            yield CPU, pipe.index
            self._send_index()
        queue = self.pinned if pipe.pin >= 0 else self.results
        received: set[int] = set()
        request_time = 0.0
        for number in range(self.count):
            timeline.ready.append(len(received) + len(queue.messages))
            if self.workers:
                while number not in received:
                    got, sender = yield GET, queue
                    if pipe.pin < 0:
                        yield from self._receive(sender)
                    received.add(got)
                received.discard(number)
            else:
                yield from self._fetch(number)
                yield CPU, max(pipe.pin, 0.0)
            yield CPU, pipe.index
            self._send_index()
            timeline.waits.append(kernel.now - request_time)
            if not number:
                timeline.first = kernel.now
            if number >= self.hasty:
                yield CPU, pipe.step * pipe.busy
                yield PASS, pipe.step * (1 - pipe.busy)
            request_time = kernel.now
            timeline.marks.append(request_time)


def simulate(
    pipe: PipelineCosts, machine: Machine, workers: int, prefetch: int, count: int = 0
) -> SimulatedRun:
    """Simulate `count` steps (0: enough to be steady) on `machine`; `prefetch` is ignored without workers.

    The first steps are not counted. They take no time, so that batches made in advance are used up: if
    workers are slightly too slow, these would otherwise last long and shorten the measured steps.
    """
    hasty = 2 * workers * max(prefetch, 1)
    warm = hasty + 2 * workers + 2
    count = max(count, warm + max(_MIN_STEADY_STEPS, 12 * workers))
    if machine.together >= 1:  # idle cores make no difference, but cost simulation time
        needed = workers + 2 + math.ceil(machine.others)
        machine = msgspec.structs.replace(machine, allowed=min(machine.allowed, needed))
    timeline = _SimulatedLoader(pipe, machine, workers, prefetch, count, hasty).run()
    # whole turns of the workers, as bursts of batches are followed by bursts of requests
    turn = max(workers, 1)
    steady = (len(timeline.marks) - warm) // turn * turn
    marks, waits = timeline.marks[-steady - 1 :], timeline.waits[-steady:]
    return SimulatedRun(
        step=(marks[-1] - marks[0]) / steady,
        wait=sum(waits) / steady,
        first=timeline.first,
        ready=sum(timeline.ready[-steady:]) / steady,
    )
