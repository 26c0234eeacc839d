"""The processes a script starts: each has the emulated device too, and what each has seen is gathered.

``torchrun``, ``torch.multiprocessing.spawn`` and the launchers of Accelerate and Lightning start Python anew.
What reaches such a process is its environment: a folder on ``PYTHONPATH`` whose ``sitecustomize.py`` Python
runs at its start, and a variable that says what to do. Each child saves its session when it ends, if there is
anything in it.
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
from typing import TYPE_CHECKING, Any

import msgspec

from gapless.errors import GaplessError, UnreadableInput
from gapless.model import Ending, Session, Site
from gapless.model.session import load, save
from gapless.model.tally import ADVANCING
from gapless.model.wording import count

if TYPE_CHECKING:
    from gapless.emulation.emulator import Emulator

VARIABLE = "GAPLESS_CHILDREN"
ENDING = ".gapless.json"
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
_RUNNING = ".running"
_STOPPED = "stopped"
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
_FEW = 3
_POLL = 0.05

PATIENCE = 5.0
"""Seconds for children that still run when the script has ended."""


class Plan(msgspec.Struct, frozen=True):
    """What a child process is told.

    `start` names the function ``module:function`` that begins the capture there, once torch is imported;
    it receives the plan. `directory` is where sessions are put. The rest is as in ``gapless check``: the name
    of the GPU, how many (None: one per rank on this machine), how many steady steps (None: all), and whether
    what the steps ask of the device, and of its memory, is recorded; `loader` is for how many seconds the
    first rank measures its loaders (0: not at all), `compiled` whether it compiles what was compiled again.
    `dry` says that there are no values, and `assume` what
    those at some lines are. `standins` says for whom packages that are not installed have stand-ins,
    `late_copies` whether copies to the host arrive only when they are waited for, `graphs` whether entries
    have their lines, `given` the files with the user's own. With a `world_size` the process is `rank` of so
    many, without the others, unless its environment says which one it is.
    """

    start: str
    directory: str = ""
    gpu: str | None = None
    devices: int | None = None
    steps: int | None = None
    programme: bool = False
    memory: bool = False
    loader: float = 0.0
    compiled: bool = False
    dry: bool = False
    assume: dict[str, float] = {}
    standins: bool | None = None
    late_copies: bool = False
    graphs: bool = False
    given: tuple[str, ...] = ()
    world_size: int | None = None
    rank: int = 0

    def emulator(self, **more: Any) -> Emulator:
        """The device that is planned; what is in `more`, as :class:`Emulator` takes it, comes first.

        Raises:
            ModuleNotFoundError: torch is not installed.
        """
        from gapless.emulation.emulator import Emulator
        from gapless.emulation.standins.given import read

        read(self.given)
        names = ("programme", "memory", "dry", "assume", "standins", "late_copies", "graphs", "compiled")
        planned = {name: getattr(self, name) for name in names}
        return Emulator(self.gpu, self.devices, lasting=True, inference=True, **{**planned, **more})


# -- in the parent ---------------------------------------------------------------------------------


@contextmanager
def environment_for_children(plan: Plan) -> Iterator[Path]:
    """Have processes started in this block follow `plan`; yields the folder for their sessions.

    The folder and the two environment variables are gone after the block.
    """
    with tempfile.TemporaryDirectory(prefix="gapless-", ignore_cleanup_errors=True) as folder:
        told = msgspec.json.encode(msgspec.structs.replace(plan, directory=folder)).decode()
        path = os.pathsep.join(filter(None, (_FOLDER, os.environ.get("PYTHONPATH"))))
        before = {name: os.environ.get(name) for name in (VARIABLE, "PYTHONPATH")}
        os.environ.update({VARIABLE: told, "PYTHONPATH": path})
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def collect(directory: str | os.PathLike[str], seconds: float = PATIENCE) -> list[Session]:
    """The sessions that children have put into `directory`, by rank; what cannot be read is left out.

    Children that are still at work get `seconds` to end.
    """
    deadline = time.monotonic() + seconds
    while any(_alive(path) for path in Path(directory).glob(f"*{_RUNNING}")) and time.monotonic() < deadline:
        time.sleep(_POLL)
    found = []
    for path in sorted(Path(directory).glob(f"*{ENDING}")):
        try:
            found.append(load(path))
        except UnreadableInput:
            continue
    return sorted(found, key=lambda session: session.environment.rank)


def _alive(marker: Path) -> bool:
    """Whether the process that put `marker` there still runs and has not taken it away."""
    try:
        os.kill(int(marker.name.removesuffix(_RUNNING)), 0)
    except (ValueError, OSError):
        return False
    return marker.exists()


def merge(own: Session, children: Sequence[Session]) -> Session:
    """One session to report: of this process, or of the child of the lowest rank where the steps were made.

    Notes say which others there were and where they waited when the reported one did not.
    """
    if not children:
        return own
    everyone = [own, *children]
    speaker = next((one for one in everyone if _steps(one)), None) or max(
        everyone, key=lambda one: len(one.events)
    )
    ending = own.ending if own.ending.status or speaker is own else speaker.ending
    if ending is own.ending and ending.how == "error":
        ending = next((_named(one) for one in children if one.ending.how == "error"), ending)
    others = [one for one in everyone if one is not speaker and (one is not own or _steps(own))]
    notes = [*speaker.notes]
    if others:
        notes.append(_roll_call(speaker, others))
        notes += _differences(speaker, others)
    notes += [note for one in (own, *others) for note in one.notes]
    return msgspec.structs.replace(
        speaker,
        script=speaker.script or own.script,
        ending=ending,
        notes=tuple(dict.fromkeys(notes)),
        unknown=tuple(dict.fromkeys(name for one in everyone for name in one.unknown)),
        duration=own.duration,
    )


def _named(failed: Session) -> Ending:
    """How a child failed; what its launcher says of it is that it failed."""
    ending = failed.ending
    return msgspec.structs.replace(ending, message=f"{ending.message}, on rank {failed.environment.rank}")


def _steps(session: Session) -> int:
    return sum(mark.kind in ADVANCING for mark in session.marks)


def _roll_call(speaker: Session, others: Sequence[Session]) -> str:
    return f"{len(others) + 1} processes were recorded; this is rank {speaker.environment.rank}"


def _place(site: Site) -> tuple[str, str]:
    line = site.line
    return (line.where if line is not None else "", site.operator)


def _differences(speaker: Session, others: Sequence[Session]) -> Iterator[str]:
    """Where another process waited and the reported one did not."""
    known = {_place(site) for site in speaker.sites}
    for other in others:
        places = dict.fromkeys(_place(site) for site in other.sites if site.line is not None)
        new = [place for place in places if place not in known]
        known.update(new)
        if new:
            named = ", ".join(f"{_short(where)} ({operator})" for where, operator in new[:_FEW])
            more = f" and {count(len(new) - _FEW, 'other place')}" if len(new) > _FEW else ""
            yield f"rank {other.environment.rank} syncs elsewhere too: {named}{more}"


def _short(where: str) -> str:
    folder = os.getcwd() + os.sep
    return where.removeprefix(folder)


# -- in a child ------------------------------------------------------------------------------------


def plan_for_this_process() -> Plan | None:
    """What the parent has asked of this process, if anything."""
    told = os.environ.get(VARIABLE)
    if not told:
        return None
    try:
        return msgspec.json.decode(told, type=Plan)
    except msgspec.DecodeError:
        return None


def stand_down() -> None:
    """Begin nothing in this process when torch is imported: another run of Gapless takes over here."""
    for finder in list(sys.meta_path):
        if type(finder).__name__ == "_AfterTorch" and type(finder).__module__ == "sitecustomize":
            sys.meta_path.remove(finder)


def begin() -> None:
    """Begin the capture the parent asked for; called when torch has been imported.

    The script must not suffer: what goes wrong here is said in one line, and the process goes on without.
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
    """In a child that was forked: begin the capture if it is a process of `multiprocessing`.

    Not for a DataLoader's worker, which has nothing to do with the device.
    """
    real = BaseProcess._bootstrap  # type: ignore[attr-defined]

    @wraps(real)
    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        BaseProcess._bootstrap = real  # type: ignore[attr-defined]
        if getattr(self._target, "__name__", "") != "_worker_loop":
            begin()
        return real(self, *args, **kwargs)

    BaseProcess._bootstrap = _bootstrap  # type: ignore[attr-defined]


def leave(directory: str) -> None:
    """Say that this process will put nothing more into the parent's folder."""
    with suppress(OSError):
        _marker(directory).unlink(missing_ok=True)


def stop(directory: str) -> None:
    """Say that this process has been stopped; others may then lose their connections to it."""
    with suppress(OSError):
        (Path(directory) / _STOPPED).touch()


def lost_connection(error: BaseException, directory: str) -> bool:
    """Whether `error` comes from a rank that was stopped while this one still wanted something from it."""
    told = isinstance(error, RuntimeError) and any(word in str(error) for word in _LOST)
    return told and (Path(directory) / _STOPPED).exists()


def _marker(directory: str) -> Path:
    return Path(directory) / f"{os.getpid()}{_RUNNING}"


def put(session: Session, directory: str) -> None:
    """Put `session` into the parent's folder, unless nothing happened or the parent is gone."""
    if not session.events and not _steps(session):
        return
    name = f"{session.environment.rank:05d}-{os.getpid()}{ENDING}"
    if os.path.isdir(directory):
        save(session, os.path.join(directory, name))


def ending_of(error: BaseException | None, *, enough: bool) -> Ending:
    """How a child ended, from the exception that nobody caught."""
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
    return Ending(how="error", status=1, message=failure.message(error))
