"""Modes are per thread: threads the script starts enter them too; forked children leave them."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Protocol

from gapless.emulation.core.core import Core
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches


class Emulation(Protocol):
    """What threads enter and forked children leave: the emulator."""

    core: Core

    def modes(self) -> AbstractContextManager[None]: ...

    def leave_in_child(self) -> None: ...


_active: Emulation | None = None
_registered = False


def install(emulator: Emulation, patches: Patches) -> None:
    """Threads started from now on see the device; children forked from now on do not record.

    A thread's stack goes on at the line that started it: that is where the user's code is.
    """
    global _active, _registered
    _active = emulator
    real_start, real_run = threading.Thread.start, threading.Thread.run

    @wraps(real_start)
    def start(self: Any) -> None:
        self._gapless_starter = stacks.capture() + local.above, emulator.core.recorder.strands.here().number
        real_start(self)

    @wraps(real_run)
    def run(self: Any) -> None:
        if _active is not emulator or not emulator.core.enabled:
            real_run(self)
            return
        local.above, starter = getattr(self, "_gapless_starter", ((), 0))
        emulator.core.recorder.strands.started_by(starter)
        with emulator.modes():
            real_run(self)

    patches.set(threading.Thread, "start", start)
    patches.set(threading.Thread, "run", run)
    if not _registered and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
        _registered = True


def uninstall() -> None:
    global _active
    _active = None


def _after_fork() -> None:
    """A DataLoader's worker runs on the host alone: CUDA cannot be used in a forked child either."""
    if _active is not None:
        _active.leave_in_child()
