"""Simulate processes on the cores of a machine: which one computes when, beside which others.

Linux gives the processes of a core equal shares of it, and each core has its own queue. A process that wakes
goes to an idle core, or stays where it was woken; an idle core takes a process from another; and if that
leaves two on one core and one on the next, they are swapped now and then. So three processes on two cores do
not each get two thirds all the time, but a half for a while and then a whole: who waits for all of them waits
for the slowest.
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
"""A process: requests processor time, lets time pass, or waits for a message or an answer."""
CPU, PASS, GET, CALL = "cpu", "pass", "get", "call"

_BALANCE_NS = 32e6
"""Time until a process that shares a core swaps with one that does not: the interval in which Linux balances
two busy cores.
"""
_LOAD_PERIOD_NS = 10e6
"""Period of another program's process that computes for a share of the time."""


@dataclass
class MessageQueue:
    """Messages in order, and the processes waiting for one."""

    messages: deque[Any] = field(default_factory=deque)
    waiting: deque[_Process] = field(default_factory=deque)


@dataclass
class AnsweringServer:
    """A process that others call, and that answers when it is idle."""

    busy: bool = False
    callers: list[_PendingCall] = field(default_factory=list)


@dataclass(eq=False)
class _Process:
    actor: Actor
    core: int = 0
    left: float = 0.0


@dataclass(eq=False)
class _PendingCall:
    """A process waiting for an answer, at most until a certain time."""

    process: _Process
    answered: bool = False


class SimulatedKernel:
    """Runs the processes. `now` is in nanoseconds."""

    def __init__(self, machine: Machine) -> None:
        self.now = 0.0
        self._machine = machine
        self._queues: list[list[_Process]] = [[] for _ in range(machine.allowed)]
        self._timers: list[tuple[float, int, _Process | _PendingCall, Any]] = []
        self._count = 0
        self._turn = _BALANCE_NS
        self._uneven = random.Random(0)
        self._at = 0  # the core of the current process
        for _ in range(int(machine.others)):
            self.start(_other_program())
        if machine.others % 1 > 0.01:
            self.start(_other_program(machine.others % 1))

    def start(self, actor: Actor) -> None:
        """Start a new process."""
        self._resume(_Process(actor, core=self._at), None)

    def put(self, queue: MessageQueue, message: Any) -> None:
        """Send a message; a process waiting for it continues."""
        if queue.waiting:
            self._wake(queue.waiting.popleft(), message)
        else:
            queue.messages.append(message)

    def idle(self, server: AnsweringServer) -> None:
        """Mark the server as idle: processes that have called it continue."""
        server.busy = False
        calls, server.callers = server.callers, []
        for call in calls:
            if not call.answered:
                call.answered = True
                self._wake(call.process, None)

    def run(self, done: Callable[[], bool]) -> None:
        """Run until `done` returns true, or no process has anything left to do."""
        while not done() and (self._timers or any(self._queues)):
            self._advance()

    def _advance(self) -> None:
        queues = self._queues
        speed = self._speed()
        next_process: _Process | None = None
        until = math.inf
        for queue in queues:
            if queue:
                first = min(queue, key=_left)
                at = self.now + first.left * len(queue) / speed
                if at < until:
                    until, next_process = at, first
        timer = self._timers[0][0] if self._timers else math.inf
        event = min(until, timer)
        if self._turn < event:
            self._pass(self._turn, speed)
            self._swap_processes()
            return
        self._pass(event, speed)
        if timer <= until:
            _, _, waiter, message = heapq.heappop(self._timers)
            if isinstance(waiter, _PendingCall):
                if waiter.answered:
                    return
                waiter.answered = True
                waiter = waiter.process
            self._at = waiter.core
            self._resume(waiter, message)
        elif next_process is not None:
            next_process.left = 0.0
            queues[next_process.core].remove(next_process)
            self._at = next_process.core
            self._resume(next_process, None)
            self._balance_idle()

    def _pass(self, until: float, speed: float) -> None:
        passed = until - self.now
        if passed > 0:  # rounding leaves some work just below 0, which ended before now
            self.now = until
            for queue in self._queues:
                if queue:
                    work = passed * speed / len(queue)
                    for process in queue:
                        process.left -= work

    def _speed(self) -> float:
        """The speed of each core, relative to its speed when items were measured."""
        machine = self._machine
        if machine.together >= 1 and machine.quota < 0:
            return 1.0
        other_processes = int(machine.others)
        ours = sum(len(queue) for queue in self._queues) - other_processes
        busy = sum(1 for queue in self._queues if queue)
        speed = machine.speed(max(busy - other_processes, 1)) / machine.speed(1)
        return speed * min(1.0, machine.quota / max(min(busy, ours), 1)) if machine.quota >= 0 else speed

    def _wake(self, process: _Process, message: Any) -> None:
        """Schedule `process` now on an idle core; if there is none, on the core of the waking process."""
        if self._queues[process.core]:
            process.core = self._at
        self._after(0.0, process, message)

    def _after(self, delay: float, waiter: _Process | _PendingCall, message: Any) -> None:
        self._count += 1
        heapq.heappush(self._timers, (self.now + delay, self._count, waiter, message))

    def _compute(self, process: _Process, work: float) -> None:
        """Let the process compute for `work`, on its core or an idle one."""
        if self._queues[process.core]:
            free = next((core for core, queue in enumerate(self._queues) if not queue), None)
            process.core = process.core if free is None else free
        process.left = work
        self._queues[process.core].append(process)

    def _balance_idle(self) -> None:
        """Let a core take a process from the fullest one if that has two more."""
        self._move(2, newest=True)

    def _swap_processes(self) -> None:
        self._turn += _BALANCE_NS * self._uneven.uniform(
            0.5, 1.5
        )  # an exact period would stay in step with the batches
        self._move(1, newest=False)

    def _move(self, difference: int, *, newest: bool) -> None:
        """Move a process from the fullest core to the emptiest if they differ by `difference`."""
        lengths = [len(queue) for queue in self._queues]
        least, most = lengths.index(min(lengths)), lengths.index(max(lengths))
        if lengths[most] - lengths[least] >= difference:
            moved = self._queues[most].pop(-1 if newest else 0)
            moved.core = least
            self._queues[least].append(moved)

    def _resume(self, process: _Process, message: Any) -> None:
        while True:
            try:
                verb, argument = process.actor.send(message)
            except StopIteration:
                return
            message = None
            if verb == GET:
                if not argument.messages:
                    argument.waiting.append(process)
                    return
                message = argument.messages.popleft()
            elif verb == CALL:
                server, longest = argument
                if server.busy and longest > 0:
                    call = _PendingCall(process)
                    server.callers.append(call)
                    self._after(longest, call, None)
                    return
            elif argument <= 0:
                continue
            elif verb == CPU:
                self._compute(process, argument)
                return
            else:
                self._after(argument, process, None)
                return


def _left(process: _Process) -> float:
    return process.left


def _other_program(part: float = 1.0) -> Actor:
    """A process of another program, which computes for a share of the time."""
    while part < 1:
        yield CPU, part * _LOAD_PERIOD_NS
        yield PASS, (1 - part) * _LOAD_PERIOD_NS
    while True:
        yield CPU, 1e18
