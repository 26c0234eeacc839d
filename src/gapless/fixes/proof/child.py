"""The process that runs scripts for a proof: ``python -m gapless.fixes.proof.child``.

It reads plans from standard input, a line each, and runs each in a fork of itself, so that torch is imported
once. Where processes cannot be forked safely it runs the first plan itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gapless.capture.child import Child, ChildWatcher
from gapless.capture.children import ChildPlan, environment_for_children
from gapless.capture.run import run
from gapless.capture.stopping import Stopper, Watcher
from gapless.capture.target import Target
from gapless.capture.threads import abandon
from gapless.fixes.proof.reached_lines import LineMap, LineTracer
from gapless.fixes.proof.run_record import ProcessRecord, RunPlan, RunRecord
from gapless.fixes.proof.writes import LinkGuard
from gapless.model import Session, StepMark
from gapless.model.session import save

if TYPE_CHECKING:
    from gapless.emulation.emulator import Emulator

FORKS = sys.platform == "linux"
"""Elsewhere system libraries that torch has loaded do not survive a fork."""
_SECONDS_FOR_THREADS = 5.0
"""Seconds that threads of a stopped script get to end."""
_STATES = ".states"
"""Ending of the files that processes of the script leave for it."""
CHILD_START = "gapless.fixes.proof.child:begin_in_rank"
"""What processes started by the script run."""


class StepLimit(Watcher):
    """Stops the script after so many step marks, or at the first one after so many seconds."""

    def __init__(self, max_steps: int | None, seconds: float | None) -> None:
        self._max_steps = max_steps
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self.marks = 0

    def enough(self, mark: StepMark) -> bool:
        if mark.kind == "wait":  # an edit may remove it
            return False
        self.marks += 1
        return (self._max_steps is not None and self.marks >= self._max_steps) or (
            self._deadline is not None and time.monotonic() > self._deadline
        )


class _Recording:
    """One run under observation."""

    def __init__(self, plan: RunPlan) -> None:
        from gapless.fixes.proof.states import StateRecorder, ValueStore

        self.plan = plan
        self.guard = LinkGuard(plan.root, plan.original)
        self.states = StateRecorder(ValueStore(os.path.join(plan.results, "values")), _printed_bytes)
        self.limit = StepLimit(plan.max_steps, plan.seconds)
        self.began = time.monotonic()
        self.children = ""

    def run(self) -> None:
        """Run the script, and save what was recorded."""
        from gapless.fixes.proof.states import seed_everything

        plan = self.plan
        stopper = Stopper(self.limit)
        self.states.install()
        emulator = plan.capture.make_emulator(stopper)
        script = os.path.relpath(os.path.join(plan.root, plan.script), os.path.join(plan.root, plan.folder))
        target = Target(script, plan.arguments)
        lines = LineMap(os.path.join(plan.results, "lines"), plan.root, plan.sources)
        os.chdir(os.path.join(plan.root, plan.folder))
        with environment_for_children(ChildPlan(CHILD_START, capture=plan.capture)) as folder:
            self.children = str(folder)
            seed_everything(plan.seed)
            self.guard.install(self.states.record_checkpoint)
            LineTracer(lines, plan.root).install()
            session = run(target, emulator, stopper, children=folder, before_hard_exit=self.save)
            sys.settrace(None)
            threading.settrace(None)
            self.save(session)
        if session.ending.how == "enough-steps" and abandon(_SECONDS_FOR_THREADS):
            atexit._run_exitfuncs()
            os._exit(0)

    def _processes(self) -> tuple[ProcessRecord, ...]:
        """Return what the processes that the script started recorded, by rank."""
        files = Path(self.children).glob(f"*{_STATES}") if self.children else ()
        records = [msgspec.msgpack.decode(file.read_bytes(), type=ProcessRecord) for file in files]
        return tuple(sorted(records, key=lambda record: record.rank))

    def save(self, session: Session) -> None:
        """Save the session and the record; the record's file comes last and says that both are complete."""
        from gapless.fixes.proof.states import random_states

        states = self.states
        save(session, os.path.join(self.plan.results, "session.gapless.json"))
        record = RunRecord(
            ending=session.ending,
            steps=tuple(states.steps),
            marks=self.limit.marks,
            results=tuple(states.results),
            final=states.final_states(),
            saved=tuple(states.saved),
            random=random_states(),
            outside=tuple(path for path in self.guard.outside if not path.startswith(self.plan.results)),
            processes=self._processes(),
            seconds=time.monotonic() - self.began,
        )
        path = Path(self.plan.results, "record")
        path.with_suffix(".part").write_bytes(msgspec.msgpack.encode(record))
        path.with_suffix(".part").rename(path)


class _RankWatcher(ChildWatcher):
    """Adds the steps of a process that the script started."""

    def __init__(self, plan: ChildPlan) -> None:
        from gapless.fixes.proof.states import StateRecorder, ValueStore

        self._plan = plan
        self.states = StateRecorder(ValueStore(None), _printed_bytes)

    def complete_session(self, session: Session, emulator: Emulator) -> Session:
        record = ProcessRecord(session.environment.rank, tuple(self.states.steps))
        path = Path(self._plan.directory, f"{os.getpid()}{_STATES}")
        with suppress(OSError):  # the parent is gone
            path.write_bytes(msgspec.msgpack.encode(record))
        return session


def begin_in_rank(plan: ChildPlan) -> None:
    """Emulate the device in this process, which the script started, and record its steps."""
    from gapless.fixes.proof.states import seed_everything

    warn_in_one_line()
    watcher = _RankWatcher(plan)
    watcher.states.install()
    seed_everything(0)
    Child(plan, watcher).start()


def warn_in_one_line() -> None:
    """Format warnings as one line, so that they can be told from what the script prints."""

    def formatwarning(
        message: object, category: type, filename: str, lineno: int, line: object = None
    ) -> str:
        return f"{filename}:{lineno}: {category.__name__}: {' '.join(str(message).split())}\n"

    warnings.formatwarning = formatwarning


def _printed_bytes() -> tuple[int, int]:
    """Return how many bytes this process and its children have printed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the script may have replaced or closed it
            stream.flush()
    return os.fstat(1).st_size, os.fstat(2).st_size


def follow(plan: RunPlan) -> None:
    """Run `plan` in this process, which is the script's from here on."""
    for number, name in enumerate(("output", "errors"), 1):
        file = os.open(os.path.join(plan.results, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the script's standard input
    sys.dont_write_bytecode = True
    warn_in_one_line()
    _Recording(plan).run()


def serve() -> None:
    """Follow each plan that arrives, and answer with the process's id and then with its exit status."""
    import torch  # noqa: F401 - so that forks have it

    import gapless.emulation.emulator
    import gapless.fixes.proof.states  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        plan = msgspec.json.decode(line, type=RunPlan)
        if not FORKS:
            _answer(answers, os.getpid())
            follow(plan)
            return
        pid = os.fork()
        if pid == 0:
            answers.close()
            os.setsid()
            follow(plan)
            return
        _answer(answers, pid)
        _answer(answers, os.waitstatus_to_exitcode(_wait(pid)))


def _wait(pid: int) -> int:
    """Wait for a child, and return its status; its group is killed if the parent of this process is gone."""
    parent = os.getppid()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if os.getppid() != parent:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)


def _answer(answers: Any, number: int) -> None:
    try:
        answers.write(f"{number}\n")
        answers.flush()
    except BrokenPipeError:  # whoever asked is gone
        os._exit(1)


if __name__ == "__main__":
    serve()
