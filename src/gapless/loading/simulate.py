"""A DataLoader and the loop that asks it, simulated: who waits for whom, and for how long.

Workers, the training process and the pinning thread are generators that ask for processor time, let time
pass or wait for a message. Those that compute share the machine's capacity evenly. The order of events is
that of torch's multi-process loader: batch i goes to worker i mod W, each worker has at most `prefetch`
batches outstanding, batches are handed over in order, and the next index is sent when one is.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

Capacity = Callable[[int], float]
"""Cores' worth of work per unit of time that n processes get done together."""
Actor = Generator[tuple[str, Any], Any, None]

_CPU, _PASS, _GET = "cpu", "pass", "get"
_LEAST = 1e-3
"""Cores that are always there: time goes on."""
_SLICES = 4
"""Pieces in which a batch's computing and waiting alternate, as its items do."""


@dataclass(frozen=True)
class Pipeline:
    """What each stage takes, in one unit of time.

    `batches` are the computing and the waiting for each, taken in turn again and again. `step` is the
    training step without its input, of which the host computes for the part `busy`. The other fields are
    those of `Transfer` and `Fetch`; `pin` is negative where nothing is pinned.
    """

    batches: Sequence[tuple[float, float]]
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
class _Queue:
    messages: deque[Any] = field(default_factory=deque)
    waiting: deque[Actor] = field(default_factory=deque)


@dataclass
class _Seen:
    began: float = 0.0
    first: float = 0.0
    marks: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)


class _Kernel:
    """Runs actors. Those that compute get equal parts of what the machine has."""

    def __init__(self, capacity: Capacity) -> None:
        self.now = 0.0
        self._capacity = capacity
        self._computing: list[list[Any]] = []  # [what is left, actor]
        self._timers: list[tuple[float, int, Actor, Any]] = []
        self._count = 0

    def start(self, actor: Actor) -> None:
        self._resume(actor, None)

    def put(self, queue: _Queue, message: Any) -> None:
        if queue.waiting:
            actor = queue.waiting.popleft()
            self._after(0.0, actor, message)
        else:
            queue.messages.append(message)

    def run(self, done: Callable[[], bool]) -> None:
        while not done() and (self._computing or self._timers):
            rate = self._rate()
            least = min((one[0] for one in self._computing), default=0.0)
            computed = self.now + least / rate if self._computing else float("inf")
            timer = self._timers[0][0] if self._timers else float("inf")
            until = min(computed, timer)
            work = (until - self.now) * rate if until < computed else least
            self.now = until
            for one in self._computing:
                one[0] -= work
            if timer <= computed:
                _, _, actor, message = heapq.heappop(self._timers)
                self._resume(actor, message)
            else:
                rest, computing = 1e-9 * max(1.0, work), self._computing
                self._computing = [one for one in computing if one[0] > rest]
                for one in computing:
                    if one[0] <= rest:
                        self._resume(one[1], None)

    def _rate(self) -> float:
        count = len(self._computing)
        return min(1.0, max(self._capacity(count), _LEAST) / count) if count else 1.0

    def _after(self, delay: float, actor: Actor, message: Any) -> None:
        self._count += 1
        heapq.heappush(self._timers, (self.now + delay, self._count, actor, message))

    def _resume(self, actor: Actor, message: Any) -> None:
        while True:
            try:
                verb, what = actor.send(message)
            except StopIteration:
                return
            message = None
            if verb == _GET:
                if not what.messages:
                    what.waiting.append(actor)
                    return
                message = what.messages.popleft()
            elif what <= 0:
                continue
            elif verb == _CPU:
                self._computing.append([what, actor])
                return
            else:
                self._after(what, actor, None)
                return


class _Loader:
    """The training process and what it starts."""

    def __init__(self, pipe: Pipeline, capacity: Capacity, workers: int, prefetch: int, count: int) -> None:
        self.pipe, self.workers, self.prefetch, self.count = pipe, workers, prefetch, count
        self.kernel = _Kernel(capacity)
        self.results, self.pinned = _Queue(), _Queue()
        self.indices = [_Queue() for _ in range(workers)]
        self.busy = [False] * workers
        self.seen = _Seen()
        self.sent = 0

    def run(self) -> _Seen:
        self.kernel.start(self._train())
        self.kernel.run(lambda: len(self.seen.marks) >= self.count)
        return self.seen

    def _fetch(self, number: int) -> Actor:
        computing, waiting = self.pipe.batches[number % len(self.pipe.batches)]
        slices = _SLICES if computing > 0 and waiting > 0 else 1
        for _ in range(slices):
            yield _PASS, waiting / slices
            yield _CPU, computing / slices

    def _worker(self, me: int) -> Actor:
        yield _CPU, self.pipe.boot
        while True:
            number = yield _GET, self.indices[me]
            self.busy[me] = True
            yield from self._fetch(number)
            yield _CPU, self.pipe.send
            self.busy[me] = bool(self.indices[me].messages)
            self.kernel.put(self.results, (number, me))

    def _pinner(self) -> Actor:
        while True:
            number, me = yield _GET, self.results
            yield from self._receive(me)
            yield _CPU, self.pipe.pin
            self.kernel.put(self.pinned, (number, me))

    def _receive(self, sender: int) -> Actor:
        yield _CPU, self.pipe.receive
        for _ in range(_SLICES):  # a worker that has nothing more to do answers at once
            if not self.busy[sender]:
                return
            yield _PASS, self.pipe.latency / _SLICES

    def _send_index(self) -> None:
        if self.workers:
            self.kernel.put(self.indices[self.sent % self.workers], self.sent)
            self.sent += 1

    def _train(self) -> Actor:
        pipe, seen, kernel = self.pipe, self.seen, self.kernel
        for me in range(self.workers):
            yield _CPU, pipe.start
            kernel.start(self._worker(me))
        if self.workers and pipe.pin >= 0:
            kernel.start(self._pinner())
        for _ in range(self.workers * self.prefetch):
            yield _CPU, pipe.index
            self._send_index()
        queue = self.pinned if pipe.pin >= 0 else self.results
        there: set[int] = set()
        asked = 0.0
        for number in range(self.count):
            seen.ready.append(len(there) + len(queue.messages))
            if self.workers:
                while number not in there:
                    got, sender = yield _GET, queue
                    if pipe.pin < 0:
                        yield from self._receive(sender)
                    there.add(got)
                there.discard(number)
            else:
                yield from self._fetch(number)
                yield _CPU, max(pipe.pin, 0.0)
            yield _CPU, pipe.index
            self._send_index()
            seen.waits.append(kernel.now - asked)
            if not number:
                seen.first = kernel.now
            yield _CPU, pipe.step * pipe.busy
            yield _PASS, pipe.step * (1 - pipe.busy)
            asked = kernel.now
            seen.marks.append(asked)


def simulate(pipe: Pipeline, capacity: Capacity, workers: int, prefetch: int, count: int = 0) -> Run:
    """`count` steps (0: enough to be steady) on a machine with `capacity`.

    The first ones, in which the queue fills, do not count. `prefetch` is ignored without workers.
    """
    warm = 2 * workers * max(prefetch, 1) + 2
    count = max(count, warm + max(32, 6 * workers))
    seen = _Loader(pipe, capacity, workers, prefetch, count).run()
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
