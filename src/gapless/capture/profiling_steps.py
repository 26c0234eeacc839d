"""Find where a script's steps end on a real device, as `emulation` does on an emulated one."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from torch.optim.optimizer import register_optimizer_step_post_hook

from gapless import torch_internals
from gapless.emulation import emulator
from gapless.emulation.recording.strands import Strand
from gapless.emulation.support.patches import Patches
from gapless.model import StepMark
from gapless.torch_internals import disable_dynamo

Kind = Literal["optimizer", "profiler", "user"]
_MIN_EVENTS = 3
"""Fewer events are of one step at most, which may be slow by chance."""


class StepMarkHooks:
    """Calls ``on_mark(mark)`` for optimizer steps and `gapless.step()`, from `start` to `stop`.

    Only the thread that marked first counts: a profiler records the thread that starts it. Optimizers that
    step inside a backward pass, on autograd's own thread, are marked when the pass ends, by the thread that
    requested it. A forked child marks nothing.
    """

    def __init__(
        self, on_mark: Callable[[StepMark], object], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._on_mark = on_mark
        self._clock = clock
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._counts: dict[str, int] = {}
        self._patches = Patches()
        self._hook: Any = None
        self._began = 0.0
        self._thread = 0
        self._pid = 0
        self._strand = Strand(0)
        self._asking = 0
        self.tick = 0
        self.stepped = 0
        """Optimizer steps so far, also of several optimizers in one iteration."""

    def start(self) -> None:
        """Start marking."""
        self._began, self._pid = self._clock(), os.getpid()

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._step(self._name(optimizer))

        # A script may compile its optimizer's step.
        self._hook = register_optimizer_step_post_hook(disable_dynamo(after))
        emulator.step_listeners.append(self._mark_user_step)
        self._install_scaler()
        self._install_backward()

    def stop(self) -> None:
        """Stop marking."""
        if self._hook is None:
            return
        self._hook.remove()
        self._hook = None
        emulator.step_listeners.remove(self._mark_user_step)
        self._patches.undo()

    def mark(self, kind: Kind, name: str) -> None:
        """Mark the end of a step."""
        if os.getpid() != self._pid:
            return
        self._thread = self._thread or threading.get_ident()
        if threading.get_ident() != self._thread:
            return
        self.tick += 1
        self._tell(kind, name)

    def _tell(self, kind: Literal[Kind, "along"], name: str) -> None:
        self._on_mark(StepMark(kind=kind, tick=self.tick, time=self._clock() - self._began, name=name))

    def _step(self, name: str) -> None:
        """Handle a step of the optimizer `name`: it ends an iteration, or belongs to one."""
        here, own = threading.get_ident(), self._thread or threading.get_ident()
        if os.getpid() != self._pid or here not in (own, *self._running_nodes()):
            return
        self.stepped += 1
        kind = self._strand.step_kind(name)
        if kind == "optimizer":
            self.mark("optimizer", name)
        elif kind == "along":
            self._tell("along", name)

    def _running_nodes(self) -> tuple[int, ...]:
        """Return this thread if it is autograd's and runs a pass for the marking thread."""
        ours = self._asking and isinstance(threading.current_thread(), threading._DummyThread)
        return (threading.get_ident(),) if ours else ()

    def _install_backward(self) -> None:
        real = torch_internals.run_backward

        @wraps(real)
        def run(*args: Any, **kwargs: Any) -> Any:
            here, strand = threading.get_ident(), self._strand
            if strand.depth or (self._thread and here != self._thread):
                return real(*args, **kwargs)
            strand.begin_backward()
            strand.depth, self._asking = 1, here
            try:
                out = real(*args, **kwargs)
            finally:
                strand.depth = self._asking = 0
            for name in strand.take_inner_steps():
                self._step(name)
            return out

        self._patches.set_everywhere(*torch_internals.place("run_backward"), run)

    def _mark_user_step(self) -> None:
        self.mark("user", "gapless.step")

    def _name(self, optimizer: Any) -> str:
        """Return the optimizer's class with a number in order of appearance."""
        name = self._names.get(optimizer)
        if name is None:
            number = len(self._counts)
            name = f"{type(optimizer).__name__}.step#{number}"
            self._counts[name] = number
            self._names[optimizer] = name
        return name

    def _install_scaler(self) -> None:
        """Count a step that GradScaler skips because gradients overflowed."""
        from torch.amp.grad_scaler import GradScaler

        real = GradScaler.step
        marks = self

        @wraps(real)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = marks.stepped
            out = real(self, optimizer, *args, **kwargs)
            if marks.stepped == before:
                marks._step(marks._name(optimizer))
            return out

        self._patches.set(GradScaler, "step", step)


class StepClock:
    """Marks the end of steps with events of the GPU, which cost the CPU nothing and wait for nothing.

    The CPU may run ahead of the GPU, so that the time between its own marks says nothing about a step.
    """

    def __init__(self, make_event: Callable[[], Any] | None) -> None:
        self._make_event = make_event
        self._events: list[Any] = []

    def mark(self) -> None:
        """Mark the end of a step, at which the GPU has not arrived yet."""
        if self._make_event is not None:
            event = self._make_event()
            event.record()
            self._events.append(event)

    def read(self) -> int:
        """Return the median length of the marked steps in nanoseconds, and forget them; 0 if there are few.

        The first two end the warm-up. Waits for the GPU.
        """
        events, self._events = self._events[1:], []
        if len(events) < _MIN_EVENTS:
            return 0
        events[-1].synchronize()
        lengths = [first.elapsed_time(second) for first, second in pairwise(events)]
        return int(1e6 * median(lengths))
