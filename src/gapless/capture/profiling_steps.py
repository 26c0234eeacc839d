"""Where the steps of a script on a real device end: what `emulate.steps` marks on an emulated one."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal

from torch.optim.optimizer import register_optimizer_step_post_hook

from gapless import torch_internals
from gapless.emulation import emulator
from gapless.emulation.recording.strands import Strand
from gapless.emulation.support.patches import Patches
from gapless.model import Mark
from gapless.torch_internals import disable_dynamo

Kind = Literal["optimizer", "profiler", "user"]


class StepMarks:
    """Tells ``on_mark(mark)`` of optimizer steps and of `gapless.step()`, from `start` to `stop`.

    Only the thread that marked first counts: a profiler records on the thread that starts it. Optimizers that
    step inside a backward pass, which the GPU's own thread runs, are marked by who asked for the pass, where
    it ends. A forked child tells nothing.
    """

    def __init__(
        self, on_mark: Callable[[Mark], object], clock: Callable[[], float] = time.perf_counter
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
        """Steps of optimizers, of all that make one iteration each."""

    def start(self) -> None:
        """Look on from here."""
        self._began, self._pid = self._clock(), os.getpid()

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._step(self._name(optimizer))

        # A script may compile its optimizer's step.
        self._hook = register_optimizer_step_post_hook(disable_dynamo(after))
        emulator.step_listeners.append(self._user)
        self._install_scaler()
        self._install_backward()

    def stop(self) -> None:
        """Look away."""
        if self._hook is None:
            return
        self._hook.remove()
        self._hook = None
        emulator.step_listeners.remove(self._user)
        self._patches.undo()

    def mark(self, kind: Kind, name: str) -> None:
        """Something ended a step."""
        if os.getpid() != self._pid:
            return
        self._thread = self._thread or threading.get_ident()
        if threading.get_ident() != self._thread:
            return
        self.tick += 1
        self._tell(kind, name)

    def _tell(self, kind: Literal[Kind, "along"], name: str) -> None:
        self._on_mark(Mark(kind=kind, tick=self.tick, time=self._clock() - self._began, name=name))

    def _step(self, name: str) -> None:
        """The optimizer `name` has stepped: it ends an iteration, or steps along in one."""
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
        """This thread where it is one of autograd's, which runs a pass for the thread that marks."""
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

    def _user(self) -> None:
        self.mark("user", "gapless.step")

    def _name(self, optimizer: Any) -> str:
        """The optimizer's class, numbered as optimizers come along."""
        name = self._names.get(optimizer)
        if name is None:
            number = len(self._counts)
            name = f"{type(optimizer).__name__}.step#{number}"
            self._counts[name] = number
            self._names[optimizer] = name
        return name

    def _install_scaler(self) -> None:
        """A step that GradScaler skips, because gradients overflowed, is a step all the same."""
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
