"""`Strands`: numbers a run's threads and asyncio tasks, and tracks which optimizers step in each."""

from __future__ import annotations

import sys
import threading
from typing import Any

from gapless.emulation.support.identities import Identities

MAX_STRANDS = 10_000
"""Threads and tasks told apart at most: a server may start a task for each request."""


class Strand:
    """One thread or asyncio task.

    `depth` counts nested running backward passes, `passes` those that have begun. `thread` is the number of
    the thread that a task runs in.

    Optimizers that step with the gradients of one backward pass make one iteration together: the first ends
    it, and the others step `along`. Those that step inside the pass end it with the pass.
    """

    __slots__ = ("_inside", "_stepped", "depth", "number", "passes", "thread")

    def __init__(self, number: int, thread: int = -1) -> None:
        self.number = number
        self.thread = number if thread < 0 else thread
        self.depth = self.passes = 0
        self._stepped: set[str] = set()
        self._inside: dict[str, None] = {}

    def begin_backward(self) -> None:
        """Note the begin of a backward pass, which makes new gradients."""
        self.passes += 1
        self._stepped.clear()

    def step_kind(self, name: str) -> str:
        """Return the mark's kind for a step of the optimizer `name`; "" inside a backward pass, whose end
        marks it."""
        if self.depth:
            self._inside[name] = None
            return ""
        if self._stepped and name not in self._stepped:
            self._stepped.add(name)
            return "along"
        self._stepped = {name}
        return "optimizer"

    def take_inner_steps(self) -> list[str]:
        """Return, once, the optimizers that stepped in the backward pass that has just ended."""
        names = list(self._inside)
        self._inside.clear()
        return names


class Strands:
    """The strands of a run; `parents` has, for each, the number of the strand that started it.

    The main thread outside of any task is number 0. After `MAX_STRANDS` new strands count as those that
    started them: they are `merged`.
    """

    def __init__(self) -> None:
        self.parents: list[int] = [0]
        self.merged = False
        self._main = Strand(0)
        self._threads = threading.local()
        self._threads.strand = self._main
        self._tasks: Identities[Strand] = Identities()
        self._lock = threading.Lock()

    def here(self) -> Strand:
        """Return the current strand."""
        tasks: Any = sys.modules.get("asyncio")
        if tasks is not None and tasks._get_running_loop() is not None:
            task = tasks.current_task()
            if task is not None:
                return self._tasks.get(task) or self._task_strand(task)
        return self._thread_strand()

    def notes(self) -> tuple[str, ...]:
        """Return a remark on merged strands."""
        if not self.merged:
            return ()
        return (f"after {MAX_STRANDS:,} threads and asyncio tasks, new ones count as those that start them",)

    def started_by(self, number: int) -> None:
        """Note that strand `number` started this thread."""
        self._threads.starter = number

    def _thread_strand(self) -> Strand:
        strand: Strand | None = getattr(self._threads, "strand", None)
        if strand is None:
            strand = self._threads.strand = self._new_strand(getattr(self._threads, "starter", 0))
        return strand

    def _task_strand(self, task: Any) -> Strand:
        thread = self._thread_strand().number
        strand = self._new_strand(thread, thread)
        self._tasks.put(task, strand)
        return strand

    def _new_strand(self, parent: int, thread: int = -1) -> Strand:
        with self._lock:
            if len(self.parents) >= MAX_STRANDS:
                self.merged = True
                return Strand(parent, thread)
            self.parents.append(parent)
            return Strand(len(self.parents) - 1, thread)
