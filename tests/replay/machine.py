"""A small machine: one host thread, some streams, the rules of CUDA. It runs programs and profiles them.

What the replay predicts from the profile of a program is compared with what the machine does when the
program itself is changed. Times are microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from trace_builder import Trace

from gapless.trace.timeline import Timeline

LAUNCH, CALL, GAP, RETURN, UNBLOCKED, COPY = 6, 5, 1, 5, 4, 3
"""From a launch to its work, the length of its call, between kernels, from work to host, a call with nothing
to wait for, a copy."""

Verb = Literal["host", "launch", "sync", "read", "send", "device"]


class Step(NamedTuple):
    """Host work, a kernel, a synchronize, a pageable copy to the host or to the device, or a wait for all.

    `length` is that of the host work or of the kernel.
    """

    verb: Verb
    length: int = 0
    stream: int = 7


@dataclass
class Machine:
    """Runs steps; those whose positions are in `without` do not wait."""

    without: Collection[int] = ()
    depth: int = 1022
    trace: Trace = field(default_factory=Trace)
    now: float = 10
    free: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    starts: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    places: dict[int, float] = field(default_factory=dict)
    """Where each step's waiting call began, by its position in the program."""

    def __post_init__(self) -> None:
        self.trace.operator("aten::empty", 0, 1)  # where the profile begins

    def run(self, steps: Collection[Step]) -> float:
        """Runs these and the profiler's stop; returns when everything has ended."""
        for position, step in enumerate(steps):
            self.places[position] = self.now
            getattr(self, f"_{step.verb}")(step, position not in self.without)
        self._device(Step("device"), True)
        return max(self.now, *self.free.values())

    def _host(self, step: Step, _: bool) -> None:
        self.now += step.length

    def _begin(self, stream: int, requested: float, length: float) -> float:
        after = self.free[stream] + GAP if self.free[stream] else 0
        begin = max(requested + LAUNCH, after)
        self.free[stream] = begin + length
        self.starts[stream].append(begin)
        return begin

    def _launch(self, step: Step, _: bool) -> None:
        queue = self.starts[step.stream]
        length = float(CALL)
        moment = self.now
        if len(queue) >= self.depth and queue[-self.depth] > self.now:
            moment = queue[-self.depth] + 2 - CALL
            length = queue[-self.depth] + 2 - self.now
        begin = self._begin(step.stream, moment, step.length)
        self.trace.launch("kernel", self.now, length, kernel=(begin, step.length), stream=step.stream)
        self.now += length

    def _sync(self, step: Step, waits: bool) -> None:
        if waits:
            self._blocked(self.free[step.stream], "cudaStreamSynchronize")

    def _device(self, step: Step, waits: bool) -> None:
        if waits:
            self._blocked(max(self.free.values(), default=0), "cudaDeviceSynchronize", 20)

    def _blocked(self, until: float, call: str, least: float = UNBLOCKED) -> None:
        end = max(self.now + least, until + RETURN)
        self.trace.call(call, self.now, end - self.now)
        self.now = end

    def _read(self, step: Step, waits: bool) -> None:
        begin = self._begin(step.stream, self.now, COPY)
        length = begin + COPY + RETURN - self.now if waits else UNBLOCKED
        kind = "DtoH (Device -> Pageable)" if waits else "DtoH (Device -> Pinned)"
        self.trace.copy(kind, self.now, length, copy=(begin, COPY), stream=step.stream)
        self.now += length
        self._sync(step, waits)

    def _send(self, step: Step, waits: bool) -> None:
        begin = self._begin(step.stream, self.now, COPY)
        kind = "HtoD (Pageable -> Device)" if waits else "HtoD (Pinned -> Device)"
        self.trace.copy(kind, self.now, CALL, copy=(begin, COPY), stream=step.stream)
        self.now += CALL
        self._sync(step, waits)


def profiled(steps: Collection[Step]) -> tuple[Timeline, dict[int, int]]:
    """The profile of a program, and the host row of each of its waiting calls, by position."""
    machine = Machine()
    machine.run(steps)
    timeline = machine.trace.timeline()
    rows = {}
    for position, step in enumerate(steps):
        if step.verb in ("sync", "read", "send", "device"):
            begins = timeline.host.start == round(machine.places[position] * 1000)
            (rows[position],) = np.flatnonzero(begins).tolist()
    return timeline, rows


def takes(steps: Collection[Step], without: Collection[int] = ()) -> int:
    """How long the machine takes for a program, in nanoseconds."""
    return round(Machine(without).run(steps) * 1000)
