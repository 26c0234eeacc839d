"""Record the processes that a script starts: each gets the emulated device, and their sessions are merged.

``torchrun``, ``torch.multiprocessing.spawn`` and the launchers of Accelerate and Lightning start a new
Python. Only the environment reaches such a process: a folder on ``PYTHONPATH`` whose ``sitecustomize.py``
Python runs at startup, and a variable with the plan. Each child saves its session when it ends, unless it is
empty.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from gapless.capture.options import CaptureOptions
from gapless.errors import GaplessError, UnreadableInput
from gapless.model import Ending, Session, Site
from gapless.model.session import load, save
from gapless.model.tally import ADVANCING
from gapless.model.wording import count

VARIABLE = "GAPLESS_CHILDREN"
ENDING = ".gapless.json"
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
_RUNNING = ".running"
_STOPPED = "stopped"
_LOST_CONNECTION_TEXTS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
_MAX_PLACES_NAMED = 3
"""Places that a note names; of more only the number is given."""
_POLL_SECONDS = 0.05
"""Short beside `MAX_SECONDS_TO_END`, long enough to cost nothing."""

MAX_SECONDS_TO_END = 5.0
"""Seconds that children still running at the script's end get to finish."""


class ChildPlan(msgspec.Struct, frozen=True):
    """The instructions for a child process, passed on in its environment.

    `start` names the function ``module:function`` that begins the capture there once torch is imported; it
    receives the plan. `directory` is where sessions are saved, and `capture` how the script is captured.
    """

    start: str
    directory: str = ""
    capture: CaptureOptions = CaptureOptions()


# -- in the parent ---------------------------------------------------------------------------------


@contextmanager
def environment_for_children(plan: ChildPlan) -> Iterator[Path]:
    """Make processes started in this block follow `plan`; yields the folder for their sessions.

    The folder and the two environment variables are removed after the block.
    """
    with tempfile.TemporaryDirectory(prefix="gapless-", ignore_cleanup_errors=True) as folder:
        encoded_plan = msgspec.json.encode(msgspec.structs.replace(plan, directory=folder)).decode()
        path = os.pathsep.join(filter(None, (_FOLDER, os.environ.get("PYTHONPATH"))))
        before = {name: os.environ.get(name) for name in (VARIABLE, "PYTHONPATH")}
        os.environ.update({VARIABLE: encoded_plan, "PYTHONPATH": path})
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def collect(directory: str | os.PathLike[str], seconds: float = MAX_SECONDS_TO_END) -> list[Session]:
    """Load the sessions that children saved in `directory`, by rank; unreadable ones are skipped.

    Children that are still running get `seconds` to end.
    """
    deadline = time.monotonic() + seconds
    while (
        any(_is_running(path) for path in Path(directory).glob(f"*{_RUNNING}"))
        and time.monotonic() < deadline
    ):
        time.sleep(_POLL_SECONDS)
    sessions = []
    for path in sorted(Path(directory).glob(f"*{ENDING}")):
        try:
            sessions.append(load(path))
        except UnreadableInput:
            continue
    return sorted(sessions, key=lambda session: session.environment.rank)


def _is_running(marker: Path) -> bool:
    """Whether the process that wrote `marker` is still running and has not removed it."""
    try:
        os.kill(int(marker.name.removesuffix(_RUNNING)), 0)
    except (ValueError, OSError):
        return False
    return marker.exists()


def merge(own: Session, children: Sequence[Session]) -> Session:
    """Merge sessions into the one to report: this process's, or the lowest rank's that made the steps.

    Notes list the other processes and where they waited although the reported one did not.
    """
    if not children:
        return own
    everyone = [own, *children]
    speaker = next((session for session in everyone if _count_steps(session)), None) or max(
        everyone, key=lambda session: len(session.events)
    )
    ending = own.ending if own.ending.status or speaker is own else speaker.ending
    if ending is own.ending and ending.how == "error":
        ending = next((_ending_with_rank(child) for child in children if child.ending.how == "error"), ending)
    other_sessions = [
        session
        for session in everyone
        if session is not speaker and (session is not own or _count_steps(own))
    ]
    notes = [*speaker.notes]
    if other_sessions:
        notes.append(_roll_call(speaker, other_sessions))
        notes += _differences(speaker, other_sessions)
    notes += [note for session in (own, *other_sessions) for note in session.notes]
    return msgspec.structs.replace(
        speaker,
        script=speaker.script or own.script,
        ending=ending,
        notes=tuple(dict.fromkeys(notes)),
        unknown=tuple(dict.fromkeys(name for session in everyone for name in session.unknown)),
        duration=own.duration,
    )


def _ending_with_rank(failed: Session) -> Ending:
    """Return a failed child's own ending, with its rank; its launcher only says that it failed."""
    ending = failed.ending
    return msgspec.structs.replace(ending, message=f"{ending.message}, on rank {failed.environment.rank}")


def _count_steps(session: Session) -> int:
    return sum(mark.kind in ADVANCING for mark in session.marks)


def _roll_call(speaker: Session, other_sessions: Sequence[Session]) -> str:
    return f"{len(other_sessions) + 1} processes were recorded; this is rank {speaker.environment.rank}"


def _place(site: Site) -> tuple[str, str]:
    line = site.line
    return (line.where if line is not None else "", site.operator)


def _differences(speaker: Session, other_sessions: Sequence[Session]) -> Iterator[str]:
    """Yield a note for each other process that waited where the reported one did not."""
    known_places = {_place(site) for site in speaker.sites}
    for other in other_sessions:
        places = dict.fromkeys(_place(site) for site in other.sites if site.line is not None)
        new = [place for place in places if place not in known_places]
        known_places.update(new)
        if new:
            named = ", ".join(
                f"{_relative(where)} ({operator})" for where, operator in new[:_MAX_PLACES_NAMED]
            )
            more = (
                f" and {count(len(new) - _MAX_PLACES_NAMED, 'other place')}"
                if len(new) > _MAX_PLACES_NAMED
                else ""
            )
            yield f"rank {other.environment.rank} syncs elsewhere too: {named}{more}"


def _relative(where: str) -> str:
    folder = os.getcwd() + os.sep
    return where.removeprefix(folder)


# -- in a child ------------------------------------------------------------------------------------


def plan_for_this_process() -> ChildPlan | None:
    """Return the plan that the parent left for this process, if any."""
    encoded_plan = os.environ.get(VARIABLE)
    if not encoded_plan:
        return None
    try:
        return msgspec.json.decode(encoded_plan, type=ChildPlan)
    except msgspec.DecodeError:
        return None


def stand_down() -> None:
    """Cancel the capture that would begin when torch is imported: another run of Gapless takes over."""
    for finder in list(sys.meta_path):
        if type(finder).__name__ == "_AfterTorch" and type(finder).__module__ == "sitecustomize":
            sys.meta_path.remove(finder)


def begin() -> None:
    """Begin the capture that the parent planned; called once torch is imported.

    A failure is reported in one line and must not stop the script, which then goes on unrecorded.
    """
    plan = plan_for_this_process()
    if plan is None:
        return
    module, _, function = plan.start.partition(":")
    with suppress(OSError):
        _marker(plan.directory).touch()
    try:
        getattr(importlib.import_module(module), function)(plan)
    except (GaplessError, ImportError) as error:
        sys.stderr.write(f"gapless: process {os.getpid()} is not recorded: {error}\n")


def record_processes() -> None:
    """In a forked child: begin the capture if it is a process of `multiprocessing`.

    A DataLoader's worker is left alone: it does not use the device.
    """
    real = BaseProcess._bootstrap  # type: ignore[attr-defined]

    @wraps(real)
    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        BaseProcess._bootstrap = real  # type: ignore[attr-defined]
        if getattr(self._target, "__name__", "") != "_worker_loop":
            begin()
        return real(self, *args, **kwargs)

    BaseProcess._bootstrap = _bootstrap  # type: ignore[attr-defined]


def remove_marker(directory: str) -> None:
    """Tell the parent that this process will save no further session."""
    with suppress(OSError):
        _marker(directory).unlink(missing_ok=True)


def record_stop(directory: str) -> None:
    """Record that this process was stopped: other ranks may then lose their connections to it."""
    with suppress(OSError):
        (Path(directory) / _STOPPED).touch()


def lost_connection(error: BaseException, directory: str) -> bool:
    """Whether `error` is the loss of a connection to a rank that was stopped."""
    is_connection_error = isinstance(error, RuntimeError) and any(
        word in str(error) for word in _LOST_CONNECTION_TEXTS
    )
    return is_connection_error and (Path(directory) / _STOPPED).exists()


def _marker(directory: str) -> Path:
    return Path(directory) / f"{os.getpid()}{_RUNNING}"


def save_for_parent(session: Session, directory: str) -> None:
    """Save `session` into the parent's folder, unless it is empty or the parent is gone."""
    if not session.events and not _count_steps(session):
        return
    name = f"{session.environment.rank:05d}-{os.getpid()}{ENDING}"
    if os.path.isdir(directory):
        save(session, os.path.join(directory, name))


def ending_of(error: BaseException | None, *, enough: bool) -> Ending:
    """Return how a child ended, given its uncaught exception."""
    from gapless.capture import failure
    from gapless.errors import NotEmulated

    if enough:
        return Ending(how="enough-steps")
    if error is None:
        return Ending()
    if isinstance(error, NotEmulated):
        where = failure.place(error, os.getcwd())
        return Ending(
            how="not-emulated", status=error.exit_code, message=f"{where}: {error}" if where else str(error)
        )
    if isinstance(error, KeyboardInterrupt):
        return Ending(how="interrupted", status=128 + signal.SIGINT)
    return failure.ending(error)
