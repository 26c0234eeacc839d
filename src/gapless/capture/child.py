"""The capture in a child process: it stops after enough steps and leaves its session for the parent."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from functools import wraps
from types import TracebackType
from typing import Any

from gapless import torch_internals
from gapless.capture import hard_exit
from gapless.capture.children import (
    ChildPlan,
    ending_of,
    lost_connection,
    record_processes,
    record_stop,
    remove_marker,
    save_for_parent,
)
from gapless.capture.options import CaptureOptions
from gapless.capture.signals import TERMINATED, raise_on_signals
from gapless.capture.stopping import EnoughSteps, Stopper, Watcher, comes_from_stopping, hide_in_threads
from gapless.emulation.emulator import Emulator, current
from gapless.model import Ending, Session, StepMark


class Leave(EnoughSteps, SystemExit):
    """`EnoughSteps` for a process whose main program is not Gapless: uncaught, it ends it with status 0."""


class ChildWatcher(Watcher):
    """A watcher in a child process, which can also add to the child's session before it is saved."""

    def complete_session(self, session: Session, emulator: Emulator) -> Session:
        return session


class Child:
    """The capture in this process, from now until it ends."""

    def __init__(self, plan: ChildPlan, watcher: ChildWatcher) -> None:
        self.plan = plan
        self.watcher = watcher
        self.stopper = Stopper(watcher)
        self.forked = current()
        self.emulator = self.forked or _options_here(plan.capture).make_emulator(self._mark)
        self.script = tuple(sys.argv)
        self.pid = os.getpid()
        self.error: BaseException | None = None
        self.saved = False
        self.signaled: Ending | None = None

    def _save_on_signals(self) -> None:
        """Save on SIGTERM and SIGHUP too: a launcher sends them to the other ranks when one failed."""

        def leave_script(number: int) -> SystemExit | None:
            if self.saved:  # about to end anyway
                return None
            self.signaled = Ending(
                how="interrupted", status=128 + number, message=signal.Signals(number).name
            )
            return SystemExit(128 + number)

        def when_stuck() -> None:  # the main thread is in a collective, and executes no Python
            self.signaled = Ending(how="interrupted", status=TERMINATED, message="SIGTERM")
            os._exit(TERMINATED)  # which saves first

        raise_on_signals(leave_script, when_stuck)

    def start(self) -> None:
        """Start the emulated device, and ensure that the session is saved however the process ends."""
        if self.forked is not None:
            self.emulator.record_afresh(self._mark)
        else:
            self.emulator.start()
        self.emulator.on_fork = record_processes
        hide_in_threads()
        atexit.register(self.save)
        self._watch_uncaught()
        hard_exit.precede(lambda status: self.save())
        self._leave_workers_alone()
        self._save_on_signals()

    def _mark(self, mark: StepMark) -> None:
        try:
            self.stopper(mark)
        except EnoughSteps:
            record_stop(self.plan.directory)
            raise Leave(0) from None

    def save(self) -> None:
        """Save the session once, and only in the process that recorded it."""
        if self.saved or os.getpid() != self.pid:
            return
        self.saved = True
        enough = bool(self.stopper.requests) and not self.stopper.ignored
        ending = self.signaled or ending_of(self.error, enough=enough)
        session = self.emulator.session(script=self.script, ending=ending)
        save_for_parent(self.watcher.complete_session(session, self.emulator), self.plan.directory)
        remove_marker(self.plan.directory)

    def _watch_uncaught(self) -> None:
        shown = sys.excepthook

        @wraps(shown)
        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if not comes_from_stopping(error) and not lost_connection(error, self.plan.directory):
                self.error = error
                shown(kind, error, trace)
                return
            # An error that comes from stopping, this rank or another, is no failure of the script.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

        sys.excepthook = excepthook

    def _leave_workers_alone(self) -> None:
        """Stop recording in a spawned DataLoader worker: it runs at full speed and leaves no session."""
        real = torch_internals.worker_loop

        @wraps(real)
        def _worker_loop(*args: Any, **kwargs: Any) -> Any:
            self.saved = True
            remove_marker(self.plan.directory)
            if self.emulator.core.enabled:  # one that was forked has left it already
                self.emulator.stop()
            return real(*args, **kwargs)

        setattr(*torch_internals.place("worker_loop"), _worker_loop)


def _options_here(options: CaptureOptions) -> CaptureOptions:
    """Return the options of this process: its rank of a simulated world, and whether it computes values.

    All processes must agree whether the data that they exchange has values, so none decides by itself.
    """
    options = options.emulating(dry=bool(options.emulator.dry))
    size, rank = options.emulator.world_size, os.environ.get("RANK", "")
    if size is None:
        return options
    mine = int(rank) if rank.isdecimal() and int(rank) < size else options.emulator.rank
    return options.emulating(rank=mine, launched=True)
