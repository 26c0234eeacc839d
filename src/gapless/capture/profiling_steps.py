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

from gapless.emulate import emulator
from gapless.emulate.patches import Patches
from gapless.model import Mark
from gapless.torch_internals import disable_dynamo

Kind = Literal["optimizer", "profiler", "user"]


class StepMarks:
    """Tells ``on_mark(mark)`` of optimizer steps and of `gapless.step()`, from `start` to `stop`.

    Only the thread that marked first counts: a profiler records on the thread that starts it. A forked child
    tells nothing.
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
        self.tick = 0

    def start(self) -> None:
        """Look on from here."""
        self._began, self._pid = self._clock(), os.getpid()

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            self.mark("optimizer", self._name(optimizer))

        # A script may compile its optimizer's step.
        self._hook = register_optimizer_step_post_hook(disable_dynamo(after))
        emulator.step_listeners.append(self._user)
        self._install_scaler()

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
        self._on_mark(Mark(kind=kind, tick=self.tick, time=self._clock() - self._began, name=name))

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
            before = marks.tick
            out = real(self, optimizer, *args, **kwargs)
            if marks.tick == before:
                marks.mark("optimizer", marks._name(optimizer))
            return out

        self._patches.set(GradScaler, "step", step)
