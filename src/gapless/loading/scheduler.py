"""Processes on the cores of a machine, simulated: who computes when, and beside whom.

Linux gives those on one core equal parts of it, and each core has its own queue. A process that wakes goes
to an idle core, or stays where it was woken; a core with nothing to do takes one from another; and where
that leaves two on one core and one on the next, they change places now and then. So three processes on two
cores do not each get two thirds all the time, but a half for a while and then a whole: who waits for all of
them waits for the slowest.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from gapless.model.loading import Machine

Actor = Generator[tuple[str, Any], Any, None]
"""A process: asks for processor time, lets time pass, or waits for a message or for somebody."""
CPU, PASS, GET, CALL = "cpu", "pass", "get", "call"

_TURN = 32e6
"""Nanoseconds until processes that share a core and one that has its own change places: the interval of
Linux's balancing between two cores that are busy."""
_PERIOD = 10e6
"""Nanoseconds in which another's process computes for a part of the time."""


@dataclass
class Queue:
    """Messages, in order, and those who wait for one."""

    messages: deque[Any] = field(default_factory=deque)
    waiting: deque[_Process] = field(default_factory=deque)


@dataclass
class Server:
    """Somebody who is called, and answers when nothing else is to be done."""

    busy: bool = False
    callers: list[_Call] = field(default_factory=list)


@dataclass(eq=False)
class _Process:
    actor: Actor
    core: int = 0
    left: float = 0.0


@dataclass(eq=False)
class _Call:
    """A process that waits for an answer, but not longer than until a certain time."""

    process: _Process
    answered: bool = False


class Kernel:
    """Runs processes. `now` is in nanoseconds."""

    def __init__(self, machine: Machine) -> None:
        self.now = 0.0
        self._machine = machine
        self._queues: list[list[_Process]] = [[] for _ in range(machine.allowed)]
        self._timers: list[tuple[float, int, _Process | _Call, Any]] = []
        self._count = 0
        self._turn = _TURN
        self._uneven = random.Random(0)
        self._at = 0  # the core of whoever does something now
        for _ in range(int(machine.others)):
            self.start(_computing())
        if machine.others % 1 > 0.01:
            self.start(_computing(machine.others % 1))

    def start(self, actor: Actor) -> None:
        """A new process."""
        self._resume(_Process(actor, core=self._at), None)

    def put(self, queue: Queue, message: Any) -> None:
        """Send a message; whoever waits for it goes on."""
        if queue.waiting:
            self._wake(queue.waiting.popleft(), message)
        else:
            queue.messages.append(message)

    def idle(self, server: Server) -> None:
        """The server has nothing more to do: whoever has called it goes on."""
        server.busy = False
        calls, server.callers = server.callers, []
        for call in calls:
            if not call.answered:
                call.answered = True
                self._wake(call.process, None)

    def run(self, done: Callable[[], bool]) -> None:
        """Until it is done, or nobody has anything left to do."""
        while not done() and (self._timers or any(self._queues)):
            self._advance()

    def _advance(self) -> None:
        queues = self._queues
        speed = self._speed()
        next_one: _Process | None = None
        until = math.inf
        for queue in queues:
            if queue:
                first = min(queue, key=_left)
                at = self.now + first.left * len(queue) / speed
                if at < until:
                    until, next_one = at, first
        timer = self._timers[0][0] if self._timers else math.inf
        event = min(until, timer)
        if self._turn < event:
            self._pass(self._turn, speed)
            self._change_places()
            return
        self._pass(event, speed)
        if timer <= until:
            _, _, what, message = heapq.heappop(self._timers)
            if isinstance(what, _Call):
                if what.answered:
                    return
                what.answered = True
                what = what.process
            self._at = what.core
            self._resume(what, message)
        elif next_one is not None:
            next_one.left = 0.0
            queues[next_one.core].remove(next_one)
            self._at = next_one.core
            self._resume(next_one, None)
            self._pull()

    def _pass(self, until: float, speed: float) -> None:
        passed = until - self.now
        self.now = until
        if passed > 0:
            for queue in self._queues:
                if queue:
                    work = passed * speed / len(queue)
                    for one in queue:
                        one.left -= work

    def _speed(self) -> float:
        """Of each core, as a part of its speed when items were measured."""
        machine = self._machine
        if machine.together >= 1 and machine.quota < 0:
            return 1.0
        others = int(machine.others)
        ours = sum(len(queue) for queue in self._queues) - others
        busy = sum(1 for queue in self._queues if queue)
        speed = machine.speed(max(busy - others, 1)) / machine.speed(1)
        return speed * min(1.0, machine.quota / max(min(busy, ours), 1)) if machine.quota >= 0 else speed

    def _wake(self, process: _Process, message: Any) -> None:
        """Now, on an idle core; where there is none, on the core of whoever wakes it."""
        if self._queues[process.core]:
            process.core = self._at
        self._after(0.0, process, message)

    def _after(self, delay: float, what: _Process | _Call, message: Any) -> None:
        self._count += 1
        heapq.heappush(self._timers, (self.now + delay, self._count, what, message))

    def _run(self, process: _Process, work: float) -> None:
        """Have it compute, on its core or an idle one."""
        if self._queues[process.core]:
            free = next((core for core, queue in enumerate(self._queues) if not queue), None)
            process.core = process.core if free is None else free
        process.left = work
        self._queues[process.core].append(process)

    def _pull(self) -> None:
        """An idle core takes a process from the one that has the most, and one with two less does, too."""
        self._move(2, newest=True)

    def _change_places(self) -> None:
        self._turn += _TURN * self._uneven.uniform(0.5, 1.5)  # or it would keep time with the batches
        self._move(1, newest=False)

    def _move(self, difference: int, *, newest: bool) -> None:
        """From the core that has the most to that with the least, where they differ by so many."""
        lengths = [len(queue) for queue in self._queues]
        least, most = lengths.index(min(lengths)), lengths.index(max(lengths))
        if lengths[most] - lengths[least] >= difference:
            moved = self._queues[most].pop(-1 if newest else 0)
            moved.core = least
            self._queues[least].append(moved)

    def _resume(self, process: _Process, message: Any) -> None:
        while True:
            try:
                verb, what = process.actor.send(message)
            except StopIteration:
                return
            message = None
            if verb == GET:
                if not what.messages:
                    what.waiting.append(process)
                    return
                message = what.messages.popleft()
            elif verb == CALL:
                server, longest = what
                if server.busy and longest > 0:
                    call = _Call(process)
                    server.callers.append(call)
                    self._after(longest, call, None)
                    return
            elif what <= 0:
                continue
            elif verb == CPU:
                self._run(process, what)
                return
            else:
                self._after(what, process, None)
                return


def _left(process: _Process) -> float:
    return process.left


def _computing(part: float = 1.0) -> Actor:
    """Somebody else's process, which computes for a part of the time."""
    while part < 1:
        yield CPU, part * _PERIOD
        yield PASS, (1 - part) * _PERIOD
    while True:
        yield CPU, 1e18
