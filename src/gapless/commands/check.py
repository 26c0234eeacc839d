"""``gapless check``: run a script on an emulated CUDA device and report its waits."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import msgspec
from click.core import ParameterSource

from gapless.analyze import WARM_UP, StepTally, report
from gapless.analyze.enough import LONGER, Enough
from gapless.commands import _gate, _output, _ranks
from gapless.commands._leaving import leave_behind
from gapless.commands._loaders import BUDGET, Loaders
from gapless.commands._progress import Progress
from gapless.commands._saved import kind_of
from gapless.commands._script import ScriptCommand
from gapless.errors import UsageError
from gapless.model import Mark, Report, Session
from gapless.model.session import save
from gapless.render import ALONE, renderer

if TYPE_CHECKING:
    from gapless.capture.children import Plan
    from gapless.capture.stopping import Stopper
    from gapless.emulate.emulator import Emulator

_CHILD = "gapless.commands._child:start"
"""What processes run that the script starts."""


class Steps(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """A positive number, or ``all``."""

    name = "N|all"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value == "all":
            return None
        try:
            steps = int(str(value))
        except ValueError:
            steps = 0
        if steps < 1:
            self.fail(f"{value!r} is neither a positive number nor 'all'", param, ctx)
        return steps


@dataclass(frozen=True)
class Wishes:
    """The command's options."""

    steps: int | None
    gpu: str | None
    devices: int | None
    max_waits: float | None
    fail_on: tuple[str, ...]
    output: str | None
    form: str
    unfold: bool
    verbose: bool
    no_color: bool
    quiet: bool
    prices: bool
    calibrate: str | None
    memory: bool
    loader: bool
    loader_budget: float
    standins: bool
    given: tuple[str, ...]
    longer: float = 0.0


@click.command("check", cls=ScriptCommand)
@click.option("-m", "--module", metavar="MODULE", help="Run a module, as python -m does.")
@click.option(
    "--steps",
    type=Steps(),
    default="10",
    show_default=True,
    help=f"Stop after N steady training steps (the first {WARM_UP} do not count), or run it all. Where this "
    f"is not given, up to {LONGER:g} s more are spent on coming to the next evaluation, checkpoint, rollout "
    "or end of an epoch, and as many in it.",
)
@click.option("--gpu", metavar="NAME", help="The GPU to emulate: A100 (default), H100, L4, T4, ...")
@click.option(
    "--devices",
    metavar="N",
    type=click.IntRange(1),
    help="How many of them (default: 1, under torchrun one for each process).",
)
@click.option(
    "--max-waits", metavar="N", type=click.FloatRange(0), help="Exit with 1 above N waits per steady step."
)
@click.option(
    "--fail-on", metavar="CODES", default="", help="Exit with 1 if a step meets these: GAP101,GAP12."
)
@click.option(
    "-o", "--output", metavar="FILE", help="Save the session; `gapless show FILE` reports it again."
)
@click.option(
    "--prices/--no-prices",
    default=True,
    help="Estimate what a step and each wait in it take on the GPU; on by default.",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Record what is asked of the GPU's memory: `gapless memory FILE` says more of what -o saves.",
)
@click.option(
    "--calibrate",
    metavar="TRACE",
    help="Estimate with the times of a real profile of this script instead of a data sheet's.",
)
@click.option(
    "--loader/--no-loader",
    default=True,
    help="Measure the DataLoaders that feed the steps, once the script has run; on by default.",
)
@click.option(
    "--loader-budget",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    default=BUDGET,
    show_default=True,
    help="How long that may take.",
)
@click.option(
    "--standins/--no-standins",
    default=True,
    help="Let flash-attn, apex and others be imported where they are not installed; on by default.",
)
@click.option(
    "--standin",
    "given",
    metavar="FILE",
    multiple=True,
    type=click.Path(dir_okay=False, resolve_path=True),
    help="A Python file with @gapless.standin functions for your own CUDA code; runs before SCRIPT.",
)
@_output.report_options
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("script", metavar="SCRIPT [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(script: tuple[str, ...], module: str | None, fail_on: str, **options: object) -> int:
    """Run SCRIPT unmodified on an emulated CUDA device and report each line that makes the host wait for it.

    No GPU is needed. Options come before SCRIPT; everything after it is the script's. With -f html, sarif,
    junit and markdown, what the script writes to standard output goes to standard error.

    \b
    Examples:
      gapless check train.py --epochs 1 --batch-size 8
      gapless check --steps all -m mypackage.train
      gapless check -f html train.py > report.html  a page to look at
      gapless check --max-waits 0 train.py          a gate for CI
      gapless check --calibrate trace.json train.py prices from a real profile
      torchrun --nproc-per-node 2 -m gapless check train.py

    Exit status: 0 nothing over a bound; 1 over a bound; 2 usage; a script that fails keeps its own.
    """
    if module is None and not script:
        raise UsageError("which script? gapless check train.py")
    given = click.get_current_context().get_parameter_source("steps")
    longer = LONGER if given is ParameterSource.DEFAULT and not _ranks.several() else 0.0
    wishes = Wishes(fail_on=_gate.parse_codes(fail_on), longer=longer, **options)  # type: ignore[arg-type]
    _output.refuse_terminal(wishes.form, sys.stdout, f"gapless check -f html {module or script[0]}")
    return check(module, script, wishes)


def check(module: str | None, words: tuple[str, ...], wishes: Wishes) -> int:
    """Run it, say what was seen, and return the exit status."""
    from gapless.capture import children
    from gapless.capture.run import run
    from gapless.capture.stopping import Stopper, variables
    from gapless.capture.target import Target

    target = Target(words[0], words[1:]) if module is None else Target(module, words, module=True)
    target.check()
    if wishes.calibrate is not None:
        _check_trace(wishes)
    progress = Progress(
        _output.own_copy(sys.stderr),
        wishes.steps and wishes.steps + WARM_UP,
        quiet=wishes.quiet,
        color=not wishes.no_color,
    )
    tally = StepTally()
    seen = Enough(
        (wishes.steps or 0) + WARM_UP, lambda at: variables(at.file, at.first, at.last), wishes.longer
    )

    def enough(mark: Mark) -> bool:
        tally.add(mark)
        progress.step(tally.count)
        if conclusion.loaders is not None:
            conclusion.loaders.step()
        if wishes.steps is None or not seen(mark, tally.count):
            if tally.count == seen.steps and wishes.steps is not None:
                progress.longer(seen.waiting_for(), seen.longer)
            return False
        return True

    stopper = Stopper(enough, seen.overdue)
    conclusion = Conclusion(wishes, progress, tally)
    if wishes.form in ALONE:
        _output.give_way()
    children.stand_down()
    emulator = _emulator(wishes, stopper)
    conclusion.look_on()
    emulator.on_fork = children.record_processes
    atexit.register(emulator.stop)  # first in, so last out: the script's own handlers still find the device
    if conclusion.rank == 0:
        progress.begin(os.path.basename(target.name), emulator.gpu.name, wishes.steps)
    with children.environment_for_children(_plan(wishes)) as folder:

        def with_children(session: Session) -> Session:
            session = msgspec.structs.replace(session, phases=seen.phases(), cut=stopper.cut)
            return conclusion(children.merge(session, children.collect(folder)))

        session = with_children(
            run(
                target,
                emulator,
                stopper,
                with_children,
                own_frames=wishes.verbose,
                one_of_several=_ranks.several(),
            )
        )
    if session.ending.how in ("enough-steps", "interrupted"):
        leave_behind(progress, conclusion.status)
    return conclusion.status


def _plan(wishes: Wishes) -> Plan:
    """What processes that the script starts record."""
    from gapless.capture.children import Plan

    return Plan(
        start=_CHILD,
        gpu=wishes.gpu,
        devices=wishes.devices,
        steps=wishes.steps,
        programme=wishes.prices,
        memory=wishes.memory,
        loader=wishes.loader_budget if wishes.loader else 0.0,
        standins=wishes.standins,
        given=wishes.given,
    )


def _check_trace(wishes: Wishes) -> None:
    """That the profile to calibrate with is one, before the script has run for it.

    Raises:
        UsageError: it is none, or prices are not wanted.
    """
    if not wishes.prices:
        raise UsageError("--calibrate is for the prices that --no-prices turns off")
    path = wishes.calibrate or ""
    if kind_of(path) != "trace":
        raise UsageError(f"{path} is no profile to calibrate with: give the JSON that torch.profiler wrote")


def _emulator(wishes: Wishes, stopper: Stopper) -> Emulator:
    try:
        from gapless.emulate.emulator import Emulator
        from gapless.emulate.given import read
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError("gapless check runs your script and so needs PyTorch: pip install torch") from None
    read(wishes.given)
    return Emulator(
        wishes.gpu,
        wishes.devices or _ranks.here(),
        on_mark=stopper,
        between_marks=stopper.between if wishes.longer else None,
        programme=wishes.prices,
        memory=wishes.memory,
        standins=wishes.standins,
        lasting=True,
    )


class Conclusion:
    """Saves and reports a session, once, and remembers the exit status that follows from it."""

    def __init__(self, wishes: Wishes, progress: Progress, tally: StepTally) -> None:
        self.wishes = wishes
        self.progress = progress
        self.tally = tally
        self.rank = _ranks.rank()
        self.status = 0
        self.loaders: Loaders | None = None
        self._stream = _output.own_copy(sys.stdout)
        self._style = _output.style_for(
            self._stream,
            color=not wishes.no_color,
            unfold=wishes.unfold,
            frames=wishes.verbose,
            folder=os.getcwd(),
            hints=() if wishes.output else ("-o FILE saves it",),
        )
        self._calibration = os.path.abspath(wishes.calibrate) if wishes.calibrate else ""
        self._output = wishes.output and os.path.abspath(_ranks.path_for(wishes.output, self.rank))

    def look_on(self) -> None:
        """From now on take note of the loaders that are gone through; one rank does it for all."""
        if self.wishes.loader and self.rank == 0 and "torch" in sys.modules:
            self.loaders = Loaders(self.wishes.loader_budget, self.progress.loader)

    def __call__(self, session: Session) -> Session:
        self.status = session.ending.status
        if not self.tally.count:  # the steps were made in a child
            for mark in session.marks:
                self.tally.add(mark)
        if self.rank == 0:
            self.progress.end(session, self.tally.count)
        session = self._calibrated(session)
        if self._output:
            save(session, self._output)
        # One rank speaks for all: they run the same steps.
        found = report(session, priced=self.wishes.prices) if self.rank == 0 else None
        if found is not None and self.loaders is not None:
            session, found = self.loaders.examined(session, found, self.tally.count)
            self.status = self.status or self.loaders.status
        if self._output:
            if session.loaders:
                save(session, self._output)
            self.progress.saved(self._style.path(self._output))
        if found is not None:
            self._report(found)
        return session

    def _calibrated(self, session: Session) -> Session:
        """The session with the times of the profile that the user named; they are saved with it."""
        programme = session.programme
        if not self._calibration or programme is None:
            return session
        from gapless.analyze.estimate.measure import calibration

        measured = msgspec.structs.replace(programme, calibration=calibration(self._calibration, programme))
        return msgspec.structs.replace(session, programme=measured)

    def _report(self, found: Report) -> None:
        # The script may have left the cursor anywhere.
        start = "" if self.wishes.form in ALONE else "\n"
        _output.write(self._stream, start + renderer(self.wishes.form)(found, self._style))
        over = _gate.exceeded(found, self.wishes.max_waits, self.wishes.fail_on)
        for reason in over:
            self.progress.problem(reason)
        if over and not self.status:
            self.status = 1
