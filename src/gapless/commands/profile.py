"""``gapless profile``: take a script's profile on a GPU, and explain it at once."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click
import msgspec

from gapless.analyze.run.boundary import StepEnds
from gapless.capture.run import run
from gapless.capture.stopping import Stopper, Watcher
from gapless.capture.target import Target
from gapless.commands import _gate, _output, _ranks
from gapless.commands._leaving import exit_despite_threads
from gapless.commands._options import takes
from gapless.commands._progress import Progress
from gapless.commands._script import ScriptCommand
from gapless.errors import EXIT_FINDINGS, EXIT_UNREADABLE, UnreadableInput, UsageError, require_torch
from gapless.files.kinds import kind_of
from gapless.model import Session, StepMark
from gapless.model.wording import count
from gapless.render import together

if TYPE_CHECKING:
    from gapless.capture.profiling import Profiling, Recipe

SAVED_PROFILE = "profile.gapless.json"
"""File in the traces' folder with the profiles of all ranks, for ``gapless show``."""

_MAX_SECONDS_FOR_RANKS = 60.0
"""Seconds that rank 0 waits for the files of the other ranks."""
_MAX_SECONDS_IN_A_HURRY = 10.0
"""The same after SIGTERM: torchrun kills what lives 30 seconds later."""


class ProfileOptions(msgspec.Struct, frozen=True):
    """The command's options."""

    wait: int = 5
    warmup: int = 2
    active: int = 6
    repeat: int = 1
    stacks: bool = True
    memory: bool = False
    shapes: bool = False
    output: str = "gapless-profile"
    shown: _output.Shown = _output.Shown()
    quiet: bool = False
    prices: bool = True
    fail_on: tuple[str, ...] = ()


def _steps_option(
    name: str, least: int, help_text: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make an option for a number of steps, at least `least`."""
    return click.option(name, metavar="N", type=click.IntRange(least), show_default=True, help=help_text)


@takes(ProfileOptions())
@click.command("profile", cls=ScriptCommand)
@click.option("-m", "--module", metavar="MODULE", help="Run a module, as python -m does.")
@_steps_option("--wait", 0, "Number of steps to skip before recording starts.")
@_steps_option("--warmup", 1, "Number of steps in which the profiler warms up.")
@_steps_option("--active", 1, "Number of steps to record, first without Python stacks and then with them.")
@_steps_option("--repeat", 1, "Repeat all of this N times.")
@click.option(
    "--stacks/--no-stacks",
    help="Also record steps with Python stacks, to find the lines; on by default.",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Also record memory allocations: first for gapless memory, and again with the stacks.",
)
@click.option("--shapes", is_flag=True, help="Also record the shapes of operator inputs, with the stacks.")
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    show_default=True,
    help="Folder for the traces, in the layout that TensorBoard and Perfetto read.",
)
@_gate.fail_on
@click.option("--prices/--no-prices", help="Replay the trace to price each sync; on by default.")
@_output.report_options
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("script", metavar="SCRIPT [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(script: tuple[str, ...], module: str | None, options: ProfileOptions) -> int:
    """Run SCRIPT unmodified on this machine's GPU, record some of its training steps, and explain them.

    A step ends with the optimizer's step, the script's own profiler.step() or gapless.step(). Steps are
    recorded twice: without Python stacks for accurate times, and with them to find the lines. Then the script
    is stopped. Options come before SCRIPT; everything after it is passed to the script.

    \b
    Examples:
      gapless profile train.py --epochs 1
      gapless profile --wait 50 --active 10 -o profiles -m mypackage.train
      torchrun --nproc-per-node 8 -m gapless profile train.py    all ranks
      gapless show gapless-profile/profile.gapless.json          the same again

    Exit status: 0 explained; 1 over a limit; 2 usage error, or no GPU; 3 nothing was recorded; if the script
    fails, its own status.
    """
    if module is None and not script:
        raise UsageError("no script given. Example: gapless profile train.py")
    return profile(module, script, options)


def profile(module: str | None, words: tuple[str, ...], options: ProfileOptions) -> int:
    """Run the script, explain what was recorded, and return the exit status."""
    named = shlex.join(words) if module is None else shlex.join(("-m", module, *words))
    profiling_of, recipe = _prepare(options, f"gapless check {named}")
    target = Target.of(module, words)
    progress = ProfileProgress(
        _output.own_copy(sys.stderr),
        recipe.steps,
        quiet=options.quiet or _ranks.rank() > 0,
        color=not options.shown.no_color,
    )
    stopper = Stopper()
    profiling = profiling_of(stopper)
    stopper.watcher = RecordingWatcher(profiling, progress)
    conclusion = ProfileConclusion(options, progress, profiling)
    if options.shown.alone:
        _output.redirect_to_stderr()
    progress.starting(os.path.basename(target.name), profiling)
    session = run(
        target,
        profiling,
        stopper,
        before_hard_exit=conclusion,
        own_frames=options.shown.verbose,
        one_of_several=_ranks.several(),
    )
    conclusion(session)
    exit_despite_threads(progress, session.ending, conclusion.status)
    return conclusion.status


def _prepare(options: ProfileOptions, instead: str) -> tuple[Callable[..., Profiling], Recipe]:
    """Return a factory for the capture, and what to record; without a GPU the error suggests `instead`.

    Raises:
        UsageError: there is no GPU, no torch, or no writable folder.
    """
    require_torch("gapless profile runs your script")
    from gapless.capture import profiling

    gpu_machine = profiling.machine(instead)
    folder = Path(os.path.abspath(options.output))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write traces to {options.output}: {error.strerror} (-o DIR)") from None
    saved = folder / SAVED_PROFILE
    if os.path.lexists(saved) and not (saved.is_file() and kind_of(str(saved)) == "profile"):
        raise UsageError(f"{os.path.relpath(saved)} is in the way, and is no saved profile (-o DIR)")
    recipe = profiling.Recipe(
        folder,
        f"rank{_ranks.rank()}",
        profiling.Schedule(options.wait, options.warmup, options.active, options.repeat),
        profiling.PASSES if options.stacks else ("times",),
        options.memory,
        options.shapes,
    )
    return partial(profiling.Profiling, recipe, gpu_machine, StepEnds()), recipe


class ProfileProgress(Progress):
    """Progress while a profile is recorded."""

    def starting(self, name: str, profiling: Profiling) -> None:
        steps = count(profiling.recipe.steps, "step")
        self._say(f"profiling {name} on {profiling.machine.device} for {steps}")

    def waiting(self, missing: int) -> None:
        self._say(f"waiting for {count(missing, 'other rank')}")

    def announce_traces(self, path: str) -> None:
        self._say(f"traces saved in {path}")


class RecordingWatcher(Watcher):
    """Reports how far the recording is, and stops the script when it is complete."""

    def __init__(self, profiling: Profiling, progress: ProfileProgress) -> None:
        self._profiling = profiling
        self._progress = progress

    def enough(self, mark: StepMark) -> bool:
        self._progress.step(self._profiling.steps)
        return self._profiling.done


class ProfileConclusion:
    """Explains the recording once, and keeps the exit status that follows."""

    def __init__(self, options: ProfileOptions, progress: ProfileProgress, profiling: Profiling) -> None:
        self.options = options
        self.progress = progress
        self.profiling = profiling
        self.recipe = profiling.recipe
        self.rank = _ranks.rank()
        self.status = 0
        self._done = False
        self._stream = _output.own_copy(sys.stdout)
        self._style = options.shown.style(self._stream)
        self._end_marker(self.rank).unlink(missing_ok=True)

    def __call__(self, session: Session) -> None:
        if self._done:
            return
        self._done = True
        self.status = session.ending.status
        self._end_marker(self.rank).touch()
        if self.rank:  # rank 0 speaks for all, unless it is gone
            self._name_own_file(_ranks.describe_end(self.rank, session.ending))
            return
        self.progress.end(session, self.profiling.steps)
        try:
            self._explain(session)
        except UnreadableInput as error:
            self.progress.problem(str(error))
            self.status = self.status or EXIT_UNREADABLE

    def _name_own_file(self, early: str) -> None:
        """Say where the profile of this rank is, if it ended `early` and recorded one."""
        from gapless.capture.profiling import list_own_files

        own = list_own_files(self.recipe.folder, f"rank{self.rank}") if early else []
        traces = [self._style.path(str(path)) for path in own if path.parent.name == self.recipe.passes[0]]
        if traces:
            self.progress.problem(f"{early}; its profile is saved: gapless trace {' '.join(traces)}")

    def _explain(self, session: Session) -> None:
        from gapless.analyze.profile.profile_report import report_runs as of_runs
        from gapless.capture.profiling import list_own_files
        from gapless.commands._passes import ReadTask, find_pairs, profiles_of_pairs, source_reader
        from gapless.commands.trace import MAX_PRICED_TRACES

        hurried = session.ending.how == "interrupted"
        missing = self._wait_for_others(_MAX_SECONDS_IN_A_HURRY if hurried else _MAX_SECONDS_FOR_RANKS)
        ranks = range(_ranks.world())
        files = [path for rank in ranks for path in list_own_files(self.recipe.folder, f"rank{rank}")]
        pairs = find_pairs(files, self.recipe.passes)
        if not pairs:
            raise UnreadableInput(self.profiling.why_nothing())
        priced = self.options.prices and len(pairs) <= MAX_PRICED_TRACES
        # A rank that was not heard of may have left files of an earlier launch.
        launch = "" if missing else uuid4().hex
        profiles = profiles_of_pairs(
            ReadTask(
                pairs,
                str(self.recipe.folder / SAVED_PROFILE),
                _ranks.world(),
                launch,
                priced,
                self.options.quiet,
            )
        )
        self.progress.announce_traces(self._style.path(str(self.recipe.folder)))
        notes = [f"{note[:1].upper()}{note[1:]}" for note in (*session.notes, *missing)]
        reports = of_runs(profiles, notes, source_reader(self._style.folder))
        shown = self.options.shown
        _output.write(self._stream, shown.lead + together(shown.form, reports, self._style))
        incomplete = _gate.describe_incomplete(profiles) if self.options.fail_on else []
        for reason in incomplete:
            self.progress.problem(reason)
            self.status = EXIT_UNREADABLE
        for report in reports:
            for reason in (
                _gate.find_exceeded_limits(report, None, self.options.fail_on) if not incomplete else ()
            ):
                self.progress.problem(reason)
                self.status = self.status or EXIT_FINDINGS

    # Other ranks ----------------------------------------------------------------------------------------

    def _end_marker(self, rank: int) -> Path:
        return self.recipe.folder / f".rank{rank}.ended"

    def _wait_for_others(
        self,
        seconds: float,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> list[str]:
        """Wait up to `seconds` until all ranks have written their files; return a note on those that did
        not."""
        until = clock() + seconds
        said = False
        while missing := [rank for rank in range(_ranks.world()) if not self._end_marker(rank).exists()]:
            if not said:
                self.progress.waiting(len(missing))
                said = True
            if clock() > until:
                break
            sleep(0.1)
        for rank in range(_ranks.world()):
            self._end_marker(rank).unlink(missing_ok=True)
        named = ", ".join(map(str, missing))
        return [f"no word from {count(len(missing), 'rank')}: {named}"] if missing else []
