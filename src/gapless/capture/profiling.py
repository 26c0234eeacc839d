"""`Profiling`: profile a script's steps, first without Python stacks for times, then with stacks for
lines."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.profiler

from gapless._version import __version__
from gapless.capture.memory_history import memory_snapshot
from gapless.capture.profiling_others import DisabledProfilers
from gapless.capture.profiling_steps import StepClock, StepMarkHooks
from gapless.errors import UnreadableInput, UsageError
from gapless.files.input import read_beginning
from gapless.files.output import write_whole, writing_file
from gapless.model import Ending, Environment, Session, StepMark
from gapless.model.wording import count
from gapless.torch_internals import ProfilerConfig, profiler_enabled

Pass = Literal["times", "stacks"]
PASSES: tuple[Pass, ...] = ("times", "stacks")
"""The passes of a window, which are also the folders of their files."""
ENDING = ".pt.trace.json.gz"
"""File ending by which the TensorBoard plugin recognises a trace."""
_LIST = "Written by gapless profile, which removes these files when it records here again:"
_MAX_LIST_BYTES = 1 << 20
"""Longest list of files that is read; a real one has a few hundred bytes."""


@dataclass(frozen=True)
class Schedule:
    """Numbers of steps: `wait` before each of `repeat` windows, then `warmup` and `active` for each pass."""

    wait: int = 5
    warmup: int = 2
    active: int = 6
    repeat: int = 1

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 1), ("active", 1), ("repeat", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}, but must be at least {least}")

    def steps(self, passes: int = len(PASSES)) -> int:
        """Return the total number of steps."""
        return self.repeat * (self.wait + passes * (self.warmup + self.active))


@dataclass(frozen=True)
class ProfiledDevice:
    """The device to profile and the profiler's activities; `make_event` makes an event that takes times."""

    device: str
    activities: tuple[torch.profiler.ProfilerActivity, ...]
    profiler: Callable[..., Any] = torch.profiler.profile
    history: Callable[..., Any] = memory_snapshot
    make_event: Callable[[], Any] | None = None


def machine(instead: str = "gapless check SCRIPT") -> ProfiledDevice:
    """Return this machine's GPU; without one the error suggests to run `instead`.

    Raises:
        UsageError: there is no GPU, or this torch cannot record it.
    """
    if not torch.cuda.is_available():
        raise UsageError(
            "a profile needs an NVIDIA or AMD GPU and a matching build of PyTorch, and this machine has "
            f"none;\nwithout a GPU, {instead} finds the lines that sync and estimates what they cost"
        )
    device = torch.profiler.ProfilerActivity.CUDA
    supported = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]  # torch's own
    if device not in supported:
        raise UsageError(
            "this build of PyTorch cannot record GPU activity: it lacks CUPTI (or roctracer);\ninstall one "
            f"of PyTorch's official builds, or run {instead}"
        )
    return ProfiledDevice(
        torch.cuda.get_device_name(),
        (torch.profiler.ProfilerActivity.CPU, device),
        make_event=partial(torch.cuda.Event, enable_timing=True),
    )


@dataclass(frozen=True)
class Recipe:
    """What to record and where the files go: ``folder/times/name.pt.trace.json.gz`` and so on.

    With `memory` the first steps are recorded by the allocator alone, in ``folder/memory``. Shapes and memory
    are recorded only in the last pass, so that they do not slow down the times.
    """

    folder: Path
    name: str = "rank0"
    schedule: Schedule = field(default_factory=Schedule)
    passes: tuple[Pass, ...] = PASSES
    memory: bool = False
    shapes: bool = False

    @property
    def first(self) -> int:
        """Steps at the beginning that record memory requests only."""
        return self.schedule.warmup + self.schedule.active if self.memory else 0

    @property
    def steps(self) -> int:
        """The total number of steps."""
        return self.first + self.schedule.steps(len(self.passes))

    @property
    def snapshot(self) -> Path:
        """The file for the memory requests."""
        return self.folder / "memory" / f"{self.name}.pickle"

    def path(self, which: Pass, window: int) -> Path:
        """Return the file of a pass of a window; several windows are numbered."""
        span = f".{window + 1}" if self.schedule.repeat > 1 else ""
        return self.folder / which / f"{self.name}{span}{ENDING}"

    @property
    def paths(self) -> list[Path]:
        """All files that may be written."""
        windows = range(self.schedule.repeat)
        traces = [self.path(which, window) for which in self.passes for window in windows]
        return [*traces, self.snapshot] if self.memory else traces

    def clear(self) -> None:
        """Remove files that an earlier run listed as its own, and nothing else.

        Raises:
            UsageError: a file that would be overwritten was not written by a profile.
        """
        for path in list_own_files(self.folder, self.name):
            path.unlink(missing_ok=True)
        own = _list_path(self.folder, self.name)
        foreign = [own] if os.path.lexists(own) and _read_list(own)[:1] != [_LIST] else []
        kept = next((path for path in (*foreign, *self.paths) if os.path.lexists(path)), None)
        if kept is not None:
            raise UsageError(
                f"{os.path.relpath(kept)} is in the way, and gapless profile did not write it: name another "
                "folder (-o DIR)"
            )
        self.note(self.paths)

    def note(self, paths: Sequence[Path]) -> None:
        """List these files as this run's own; a full disk does not fail the script."""
        names = [str(path.relative_to(self.folder)) for path in paths]
        with suppress(UnreadableInput):
            self.folder.mkdir(parents=True, exist_ok=True)
            lines = "".join(f"{line}\n" for line in (_LIST, *names))
            write_whole(lines.encode(), _list_path(self.folder, self.name))


def list_own_files(folder: Path, name: str) -> list[Path]:
    """Return the files in `folder` that a profile called `name` listed as its own.

    Anybody may have written the list, so names that such files cannot have are ignored.
    """
    trace = rf"(?:{'|'.join(PASSES)})/{re.escape(name)}(?:\.\d+)?{re.escape(ENDING)}"
    own = re.compile(rf"{trace}|memory/{re.escape(name)}\.pickle")
    head, *names = _read_list(_list_path(folder, name)) or [""]
    return [folder / each for each in names if own.fullmatch(each)] if head == _LIST else []


def _read_list(path: Path) -> list[str]:
    """Return the lines of a list of files; none if it cannot be read."""
    try:
        return read_beginning(path, _MAX_LIST_BYTES).decode(errors="replace").splitlines()
    except UnreadableInput:
        return []


def _list_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.files"


@dataclass
class _RecordingPhase:
    """A number of steps in which `which` is recorded, or nothing; `left` steps remain."""

    left: int
    which: Pass | Literal["memory"] | None = None
    window: int = 0


class Profiling:
    """Records what `recipe` says on `machine`; a step ends at each mark for which ``ends_step(mark)`` is
    true.

    `on_mark` is called after each mark and may raise to stop the script. `saved` lists the files, in order.
    """

    def __init__(
        self,
        recipe: Recipe,
        machine: ProfiledDevice,
        ends_step: Callable[[StepMark], bool],
        on_mark: Callable[[StepMark], object] = lambda mark: None,
    ) -> None:
        self.recipe = recipe
        self.machine = machine
        self.saved: list[Path] = []
        self._snapshots: list[Path] = []
        self.notes: list[str] = []
        self.steps = 0
        self._ends_step = ends_step
        self._on_mark = on_mark
        self._marks = StepMarkHooks(self._handle_mark)
        self._others = DisabledProfilers(lambda: self._marks.mark("profiler", "profiler.step"))
        self._phases = _phases(recipe)
        self._clock = StepClock(machine.make_event)
        self._unrecorded = 0
        self._profiler: Any = None
        self._history: Any = None
        self._pid = os.getpid()
        self._on = False
        self._keep = True
        self._unwritten = ""

    @property
    def done(self) -> bool:
        """Whether everything in the recipe is recorded."""
        return not self._phases

    # On and off -----------------------------------------------------------------------------------------

    def start(self) -> Profiling:
        """Start; the first step begins here.

        Raises:
            UsageError: a profiler is already running, or a file is in the way.
        """
        if profiler_enabled():
            raise UsageError("a profiler is already running, and only one can run at a time: end it first")
        self._pid = os.getpid()
        self.recipe.clear()
        self._others.__enter__()
        self._marks.start()
        self._on = True
        self._begin()
        return self

    def stop(self) -> None:
        """Stop, and save the part of a pass that was recorded. Stopping twice does nothing."""
        if not self._on or os.getpid() != self._pid:
            return
        self._on = False
        self._marks.stop()
        self._end_history()
        if self._profiler is not None:
            self._break_off(self._phases[0])
        self.recipe.note(self.saved + self._snapshots)
        self._others.__exit__(None, None, None)

    def _break_off(self, phase: _RecordingPhase) -> None:
        """End a pass early; less than one whole step is not saved."""
        active = self.recipe.schedule.active
        whole = active - phase.left
        self._keep = whole > 0
        if self._keep and phase.which == "times":
            self.notes.append(
                f"the script ended after {count(whole, 'recorded step')} of {active}; the last one "
                "includes everything after it"
            )
        self._end()

    def session(self, *, script: tuple[str, ...] = (), ending: Ending | None = None) -> Session:
        """Stop, and return how the run went as a `Session` without events, as its files are elsewhere."""
        self.stop()
        environment = Environment(
            gapless=__version__,
            python=platform.python_version(),
            torch=str(torch.__version__),
            platform=f"{platform.system()} {platform.machine()}",
            device=self.machine.device,
        )
        notes = list(self.notes)
        if self._others.met:
            notes.append("the script's own profiler recorded nothing: only one profiler can run at a time")
        return Session(script=script, environment=environment, ending=ending or Ending(), notes=tuple(notes))

    def why_nothing(self) -> str:
        """Return why no file was written."""
        if self._unwritten:
            return self._unwritten
        if not self.steps:
            return (
                "nothing was recorded: no step was seen. If no optimizer steps, call gapless.step() at the "
                "end of each step"
            )
        first = self.recipe.first + self.recipe.schedule.wait + self.recipe.schedule.warmup
        return (
            f"nothing was recorded: the script ended after {count(self.steps, 'step')}, but recording "
            f"starts after {first} (wait and warmup)"
        )

    # Steps ----------------------------------------------------------------------------------------------

    def _handle_mark(self, mark: StepMark) -> None:
        if self._on and self._ends_step(mark):
            self.steps += 1
            self._advance()
        self._on_mark(mark)

    def _advance(self) -> None:
        """Go on to the next step, and to the next phase when this one is complete."""
        if self.done:
            return
        if self._profiler is not None:
            self._profiler.step()
        elif self._phases[0].which is None:
            self._clock.mark()
        self._phases[0].left -= 1
        if self._profiler is not None and self._phases[0].left == self.recipe.schedule.active:
            # The profiler has begun to record: before, it drops what it is told.
            self._profiler.add_metadata_json("gapless", json.dumps({"unrecorded_step": self._unrecorded}))
        if self._phases[0].left <= 0:
            self._end()
            self._end_history()
            self._phases.pop(0)
            self._begin()

    def _begin(self) -> None:
        """Start the recording of the current phase, if it has one."""
        while self._phases and self._phases[0].left <= 0:
            self._phases.pop(0)
        if not self._phases:
            return
        phase, schedule = self._phases[0], self.recipe.schedule
        which = phase.which
        if which == "memory":
            self._history = self.machine.history(self.recipe.snapshot, ranked=False).start()
            return
        if which is None:
            return
        self._unrecorded = self._clock.read() or self._unrecorded
        self._profiler = self.machine.profiler(
            activities=list(self.machine.activities),
            schedule=torch.profiler.schedule(
                wait=0, warmup=schedule.warmup, active=schedule.active, repeat=1
            ),
            on_trace_ready=partial(self._save, which, phase.window),
            with_stack=which == "stacks",
            # The pass that times are taken from records nothing that costs the host more.
            record_shapes=self.recipe.shapes and which == self.recipe.passes[-1],
            profile_memory=self.recipe.memory and which == self.recipe.passes[-1],
            **_profiler_options(),
        )
        self._others.ours.append(self._profiler)
        with _without_warnings():
            self._profiler.start()

    def _end(self) -> None:
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        with _without_warnings():
            profiler.stop()
        self._others.ours.remove(profiler)

    def _end_history(self) -> None:
        """Write the memory requests; a file that a failed request wrote stays."""
        if self._history is None:
            return
        history, self._history = self._history, None
        history.stop(save=not history.out_of_memory)
        if history.saved:
            self._snapshots.append(self.recipe.snapshot)
            shown = os.path.relpath(self.recipe.snapshot)
            self.notes.append(f"to see what holds the GPU's memory: gapless memory {shlex.quote(shown)}")

    def _save(self, which: Pass, window: int, profiler: Any) -> None:
        """Write a pass to its file, whole or not at all; a full disk does not fail the script."""
        if not self._keep:
            return
        path = self.recipe.path(which, window)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with writing_file(path, ENDING) as part:
                profiler.export_chrome_trace(part)
        except (OSError, UnreadableInput) as error:
            self._unwritten = str(error)
            self.notes.append(self._unwritten)
        else:
            self.saved.append(path)


def _phases(recipe: Recipe) -> list[_RecordingPhase]:
    schedule = recipe.schedule
    first = [_RecordingPhase(recipe.first, "memory")] if recipe.memory else []
    return first + [
        phase
        for window in range(schedule.repeat)
        for phase in (
            _RecordingPhase(schedule.wait),
            *(_RecordingPhase(schedule.warmup + schedule.active, which, window) for which in recipe.passes),
        )
    ]


def _profiler_options() -> dict[str, Any]:
    """Return options of newer torch versions: the driver's events about what waits for what."""
    try:
        return {"experimental_config": ProfilerConfig(enable_cuda_sync_events=True)}
    except TypeError:
        return {}


class _without_warnings(warnings.catch_warnings):  # noqa: N801 - used like a function
    """Suppresses the profiler's warnings about being restarted and stopped early."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.filterwarnings("ignore", module=r"torch\.profiler.*|torch\.autograd\.profiler.*")
        return entered
