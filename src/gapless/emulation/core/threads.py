"""Modes are per thread: enter them in the script's threads, leave them in forked children."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Protocol

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches


class _Emulation(Protocol):
    """The emulator, as threads enter it and forked children leave it."""

    core: EmulationCore

    def modes(self) -> AbstractContextManager[None]: ...

    def leave_in_child(self) -> None: ...


_active: _Emulation | None = None
_is_registered = False


def install(emulator: _Emulation, patches: Patches) -> None:
    """Let threads started from now on use the device; stop recording in forked children.

    A thread's stack continues at the line that started it: that is the user's code.
    """
    global _active, _is_registered
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
    if not _is_registered and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
        _is_registered = True


def uninstall() -> None:
    global _active
    _active = None


def _after_fork() -> None:
    """Leave the emulation in a child: a DataLoader's worker runs on the host, as CUDA cannot be forked."""
    if _active is not None:
        _active.leave_in_child()
