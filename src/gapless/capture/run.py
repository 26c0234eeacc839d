"""Run a script in this process as ``python SCRIPT`` would, and record how it ended."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from gapless.capture import failure, hard_exit
from gapless.capture.children import collect, merge
from gapless.capture.definitions import describe_definitions_only
from gapless.capture.finishing import Finishing
from gapless.capture.signals import INTERRUPTED, TERMINATED, Terminated, terminable
from gapless.capture.stopping import EnoughSteps, Stopper, comes_from_stopping, hide_in_threads
from gapless.capture.target import Target, prepare
from gapless.capture.threads import lingering_threads
from gapless.emulation.support import faults
from gapless.errors import EmulationDefect, NotEmulated, UsageError
from gapless.model import Ending, Session


class Capture(Protocol):
    """What records while the script runs: the emulated device, or a profiler."""

    def start(self) -> object: ...

    def session(self, *, script: tuple[str, ...], ending: Ending) -> Session: ...


def run(
    target: Target,
    capture: Capture,
    stopper: Stopper | None = None,
    *,
    children: str | os.PathLike[str] | None = None,
    before_hard_exit: Callable[[Session], object] | None = None,
    own_frames: bool = False,
    one_of_several: bool = False,
    finishing: Finishing | None = None,
) -> Session:
    """Run `target` while `capture` records, to its end or until `stopper` stops it.

    `capture` must call `stopper` after each step mark. The session includes those that child processes saved
    in the folder `children`.

    The script keeps its output, working directory, traceback and exit status (`Ending.status`). The process
    is the script's from here on: `sys.argv`, ``__main__`` and the capture stay in place for threads and
    `atexit` handlers that outlive the script. `own_frames` keeps Gapless's frames in tracebacks.
    `one_of_several` says that a launcher may end this process while it waits for another rank.

    `before_hard_exit` receives the session in the two cases in which nothing can be returned. `finishing`
    begins when the script has ended.

    Raises:
        UsageError: there is no such script or module.
        SystemExit: in a forked child that reached the script's end.
    """
    runner = _Runner(target, capture, stopper or Stopper(), children, own_frames)
    hide_in_threads()
    capture.start()

    # Neither can raise its way out of the script: `os._exit` runs no `finally` and is caught by no `except`,
    # in whichever thread it is called, and a rank that is stuck in a collective executes no Python.
    def conclude(ending: Ending) -> None:
        if runner.here and finishing is not None:
            finishing.begin()
        if runner.here and before_hard_exit is not None:
            before_hard_exit(runner.session(ending))
        if runner.here and children is not None:
            shutil.rmtree(children, ignore_errors=True)  # no `with` block of the caller's ends

    def when_stuck() -> None:
        conclude(Ending(how="interrupted", status=TERMINATED, message="SIGTERM"))
        exit_now(TERMINATED)

    with (
        hard_exit.preceding(
            lambda status: conclude(Ending(how="exit", status=status & 0xFF, message="os._exit"))
        ) as exit_now,
        terminable(when_stuck if one_of_several else None),
    ):
        ending = runner.execute()
    if finishing is not None and runner.here:
        finishing.begin()
    if not runner.here:
        raise SystemExit(ending.status)
    return runner.session(ending)


class _Runner:
    def __init__(
        self,
        target: Target,
        capture: Capture,
        stopper: Stopper,
        children: str | os.PathLike[str] | None,
        own_frames: bool,
    ) -> None:
        self.target = target
        self.capture = capture
        self.stopper = stopper
        self.children = children
        self.own_frames = own_frames
        self.pid = os.getpid()
        self.folder = os.getcwd()
        self.threads = frozenset(threading.enumerate())
        self.defined = ""

    @property
    def here(self) -> bool:
        """Whether this is the original process, not a fork of it."""
        return os.getpid() == self.pid

    def session(self, ending: Ending) -> Session:
        if ending.how == "finished" and self.defined:
            ending = msgspec.structs.replace(ending, message=self.defined)
        session = self.capture.session(script=self.target.command, ending=ending)
        stopper, notes = self.stopper, session.notes
        if stopper.ignored:
            notes += (
                "the script catches every exception (a bare `except:`?) and could not be stopped: it ran "
                "on, and all its steps are counted",
            )
        session = msgspec.structs.replace(
            session,
            notes=notes,
            phases=stopper.watcher.phases(),
            planned=stopper.watcher.planned(),
            cut=stopper.cut,
        )
        return session if self.children is None else merge(session, collect(self.children))

    def execute(self) -> Ending:
        """Run the script, then wait for the threads it leaves behind, as Python does before it exits."""
        ending = self._run_action(self._run_main)
        if ending.how != "enough-steps" and self.here:
            waited = self._run_action(self._join_threads)
            if waited.how != "finished":
                return waited
        return ending

    def _run_main(self) -> None:
        main, code = prepare(self.target)
        self.defined = describe_definitions_only(code.co_filename)
        exec(code, vars(main))

    def _join_threads(self) -> None:
        for thread in lingering_threads(self.threads):
            thread.join()

    def _run_action(self, action: Callable[[], None]) -> Ending:
        try:
            action()
        except EnoughSteps:
            return Ending(how="enough-steps")
        except SystemExit as request:
            return self._ending_of_exit(request)
        except UsageError:
            raise
        except NotEmulated as error:
            return self._not_emulated_ending(error)
        except Terminated as signaled:
            return Ending(how="interrupted", status=signaled.status, message=str(signaled))
        except BaseException as error:
            return self._ending_of_error(error)
        # The script may have caught EnoughSteps and come to an orderly end.
        return Ending(
            how="enough-steps" if self.stopper.requests and not self.stopper.ignored else "finished"
        )

    def _not_emulated_ending(self, error: NotEmulated) -> Ending:
        if isinstance(error, EmulationDefect) and self.own_frames:
            failure.show(error, own_frames=True)
        where = failure.place(error, self.folder)
        message = f"{where}: {error}" if where else str(error)
        return Ending(how="not-emulated", status=error.exit_code, message=message)

    def _ending_of_exit(self, request: SystemExit) -> Ending:
        if comes_from_stopping(request):
            return Ending(how="enough-steps")
        code = request.code
        if code is None or isinstance(code, int):
            # The status of a process has eight bits.
            return Ending(how="exit", status=(code or 0) & 0xFF)
        with suppress(Exception):  # the script may have closed it
            sys.stderr.write(f"{code}\n")
        return Ending(how="exit", status=1, message=str(code))

    def _ending_of_error(self, error: BaseException) -> Ending:
        if comes_from_stopping(error):
            return Ending(how="enough-steps", message=failure.message(error))
        if faults.find_failure(error):
            defect = faults.make_defect(error, faults.running_operator(error) or "what this line requests")
            defect.__cause__ = error
            return self._not_emulated_ending(defect.with_traceback(error.__traceback__))
        failure.show(error, self.own_frames)
        if isinstance(error, KeyboardInterrupt):
            return Ending(how="interrupted", status=INTERRUPTED)
        return failure.ending(error, failure.place(error, self.folder))
