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
from gapless.capture import children
from gapless.capture.run import TERMINATED, run
from gapless.capture.stopping import Stopper, variables
from gapless.capture.target import Target
from gapless.commands import _gate, _gpus, _host, _output, _ranks
from gapless.commands._again import Again
from gapless.commands._compiled import compile_options, with_compiled
from gapless.commands._fit import Fit, fit_options
from gapless.commands._leaving import leave_behind
from gapless.commands._loaders import BUDGET, Loaders
from gapless.commands._progress import Progress
from gapless.commands._saved import kind_of
from gapless.commands._script import WORDS, ScriptCommand
from gapless.commands._steps import Steps
from gapless.errors import EXIT_FINDINGS, UsageError
from gapless.model import Mark, Report, Session
from gapless.model.assumption import Switch
from gapless.model.offer import Wanted
from gapless.model.session import save
from gapless.render import renderer

if TYPE_CHECKING:
    from gapless.emulate.emulator import Emulator
    from gapless.emulate.world.world import World

_CHILD = "gapless.commands._child:start"
"""What processes run that the script starts."""


@dataclass(frozen=True)
class Wishes:
    """The command's options."""

    steps: int | None
    gpu: str | None
    devices: int | None
    max_waits: float | None
    fail_on: tuple[str, ...]
    output: str | None
    shown: _output.Shown
    quiet: bool
    prices: bool
    calibrate: str | None
    memory: bool
    loader: bool
    loader_budget: float
    compile_pass: bool
    what_if: tuple[str, ...]
    dry: bool | None
    assume: tuple[str, ...]
    standins: bool
    late_copies: bool
    graphs: bool
    given: tuple[str, ...]
    fit: Fit
    world_size: int | None = None
    rank: int | None = None
    longer: float = 0.0
    wanted: Wanted | None = None

    def world(self) -> World | None:
        """The ranks that are said to be there besides this process, if any."""
        return _ranks.simulated(self.world_size, self.rank, self.devices)


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
@click.option(
    "--gpu",
    metavar="NAME,...",
    help="The GPU to emulate: A100 (default), H100, L4, T4, ... Of several the first is, and a table says of "
    "each whether the run fits it and how fast it would be there.",
)
@click.option(
    "--devices",
    metavar="N",
    type=click.IntRange(1),
    help="How many of them a machine has (default: 1, under torchrun one for each process, with --world-size "
    "8 or as many as ranks).",
)
@click.option(
    "--world-size",
    metavar="N",
    type=click.IntRange(1),
    help="Run SCRIPT as one of N ranks, as torchrun would start it, without the others: sharded models have "
    "this rank's sizes, and the report says what it sends and receives.",
)
@click.option(
    "--rank", metavar="R", type=click.IntRange(0), help="Which of them (default: 0); with --world-size."
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
@compile_options
@click.option(
    "--dry/--values",
    default=None,
    help="Run without values: at its real size, in no memory; what is read on the CPU is assumed, and told. "
    "Or compute all of them. Neither: values, unless they take too long to compute.",
)
@click.option(
    "--assume",
    metavar="FILE:LINE=VALUE",
    multiple=True,
    help="In a run without values: what a value that is read at that line is: train.py:120=0.3, =true, =17. "
    "For a size, how many elements there are, or which share.",
)
@click.option(
    "--standins/--no-standins",
    default=True,
    help="Let flash-attn, apex and others be imported where they are not installed; on by default.",
)
@click.option(
    "--late-copies",
    is_flag=True,
    help="Let copies to the CPU with non_blocking=True arrive only when something waits for them.",
)
@click.option("--graphs", is_flag=True, help="Say what of a step a CUDA graph could hold, and what stops it.")
@click.option(
    "--standin",
    "given",
    metavar="FILE",
    multiple=True,
    type=click.Path(dir_okay=False, resolve_path=True),
    help="A Python file with @gapless.standin functions for your own CUDA code; runs before SCRIPT.",
)
@fit_options
@_output.report_options
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("script", metavar="SCRIPT [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(
    script: tuple[str, ...], module: str | None, fail_on: str, gpu: str | None, fit: Fit, **options: object
) -> int:
    """Run SCRIPT unmodified on an emulated CUDA device and report each line that makes the host wait for it.

    No GPU is needed. Options come before SCRIPT; everything after it is the script's. With -f of a whole
    document, such as html or sarif, what the script writes to standard output goes to standard error.

    \b
    Examples:
      gapless check train.py --epochs 1 --batch-size 8
      gapless check --steps all -m mypackage.train
      gapless check -f html train.py > report.html  a page to look at
      gapless check --max-waits 0 train.py          a gate for CI
      gapless check --calibrate trace.json train.py prices from a real profile
      gapless check --values train.py               compute all, however long
      gapless check --memory --gpu l4 train.py      will it fit?
      gapless check --find batch_size:8..256 train.py    the largest that fits
      gapless check --gpu l4,a100,h100 --price l4=0.8,a100=1.8,h100=3 train.py
      torchrun --nproc-per-node 2 -m gapless check train.py
      gapless check --world-size 128 train.py       as rank 0 of 128, alone

    Exit status: 0 nothing over a bound; 1 over a bound; 2 usage; a script that fails keeps its own.
    """
    if module is None and not script:
        raise UsageError("which script? gapless check train.py")
    given = click.get_current_context().get_parameter_source("steps")
    longer = LONGER if given is ParameterSource.DEFAULT and not _ranks.several() else 0.0
    gpu, wanted = _gpus.chosen(gpu, fit.price)
    options["memory"] = options["memory"] or wanted is not None
    wishes = Wishes(
        fail_on=_gate.parse_codes(fail_on),
        longer=longer,
        gpu=gpu,
        wanted=wanted,
        fit=fit,
        **options,  # type: ignore[arg-type]
    )
    wishes.shown.refuse_terminal(f"gapless check -f html {module or script[0]}")
    own, words = click.get_current_context().meta[WORDS]
    again = Again(own, words, module=module is not None)
    return find(module, script, wishes, again) if wishes.fit.find else check(module, script, wishes, again)


def find(module: str | None, words: tuple[str, ...], wishes: Wishes, again: Again) -> int:
    """Run the script with one value of its argument after the other, and return the exit status."""
    from gapless.commands._find import searched

    Target.of(module, words)
    watch = Watch(wishes)
    session = searched(wishes.fit.find, again, watch.progress)
    if session is None:
        return TERMINATED
    conclusion = Conclusion(wishes, watch)
    conclusion(session)
    none = session.search is not None and session.search.found < 0
    return conclusion.status or (EXIT_FINDINGS if none else 0)


def check(module: str | None, words: tuple[str, ...], wishes: Wishes, again: Again | None = None) -> int:
    """Run it, say what was seen, and return the exit status."""
    target = Target.of(module, words)
    _assumed(wishes)
    if wishes.world_size is not None:
        _ranks.refuse_launcher(module or words[0])
    _host.known(wishes.fit.host)
    if wishes.calibrate is not None:
        _check_trace(wishes)
    watch = Watch(wishes)
    conclusion = Conclusion(wishes, watch, again)
    if wishes.shown.alone:
        _output.give_way()
    children.stand_down()
    stopper = Stopper(watch, watch.enough.overdue, watch.enough.phases)
    emulator = _emulator(wishes, stopper, watch)
    conclusion.emulator = emulator
    emulator.on_fork = children.record_processes
    atexit.register(emulator.stop)  # first in, so last out: the script's own handlers still find the device
    watch.begin(os.path.basename(target.name), emulator.gpu.name)
    with children.environment_for_children(_plan(wishes)) as folder:
        session = run(
            target,
            emulator,
            stopper,
            children=folder,
            at_hard_exit=conclusion,
            own_frames=wishes.shown.verbose,
            one_of_several=_ranks.several(),
        )
        conclusion(session)
    leave_behind(watch.progress, session.ending, conclusion.status)
    return conclusion.status


class Watch:
    """Follows the script from one step mark to the next: counts, tells, and says when steps are enough.

    One rank speaks for all, and looks at the loaders for all: they run the same steps.
    """

    def __init__(self, wishes: Wishes) -> None:
        steps = wishes.steps or 0
        self.progress = Progress(
            _output.own_copy(sys.stderr),
            wishes.steps and steps + WARM_UP,
            quiet=wishes.quiet,
            color=not wishes.shown.no_color,
        )
        self.tally = StepTally()
        self.enough = Enough(steps + WARM_UP, lambda at: variables(at.file, at.first, at.last), wishes.longer)
        self.speaks = _ranks.rank() == 0
        self.loaders: Loaders | None = None
        self._wishes = wishes

    def begin(self, name: str, gpu: str) -> None:
        """The script is about to run: from now on its loaders are taken note of."""
        if not self.speaks:
            return
        world = self._wishes.world()
        self.progress.begin(name, gpu, self._wishes.steps, world[1::-1] if world is not None else None)
        if self._wishes.loader and "torch" in sys.modules:
            self.loaders = Loaders(self._wishes.loader_budget, self.progress.loader)

    def __call__(self, mark: Mark) -> bool:
        self.tally.add(mark)
        self.progress.step(self.tally.count)
        if self.loaders is not None:
            self.loaders.step()
        if self._wishes.steps is None:
            return False
        if self.enough(mark, self.tally.count):
            return True
        if self.tally.count == self.enough.steps:
            self.progress.longer(self.enough.waiting_for(), self.enough.longer)
        return False

    def switched(self, switch: Switch) -> None:
        """What the script prints from now on is assumed: it is told before it does."""
        self.progress.without_values(switch)

    def end(self, session: Session) -> None:
        """The script has ended; its steps may have been made in a child."""
        if not self.tally.count:
            for mark in session.marks:
                self.tally.add(mark)
        if self.speaks:
            self.progress.end(session, self.tally.count)


def _plan(wishes: Wishes) -> children.Plan:
    """What processes that the script starts record."""
    return children.Plan(
        start=_CHILD,
        gpu=wishes.gpu,
        devices=wishes.devices,
        steps=wishes.steps,
        programme=wishes.prices,
        memory=wishes.memory,
        loader=wishes.loader_budget if wishes.loader else 0.0,
        compiled=wishes.compile_pass,
        dry=bool(wishes.dry),  # what several processes send each other has values, or has none
        assume=_assumed(wishes),
        standins=wishes.standins,
        late_copies=wishes.late_copies,
        graphs=wishes.graphs,
        given=wishes.given,
        world_size=wishes.world_size,
        rank=wishes.rank or 0,
    )


def _assumed(wishes: Wishes) -> dict[str, float]:
    """What the user says that values are, by line.

    Raises:
        UsageError: it is not written as ``train.py:120=0.3``, or the run has its values.
    """
    if wishes.assume and wishes.dry is False:
        raise UsageError("--assume is for runs without values: leave out --values")
    found = {}
    for text in wishes.assume:
        place, _, value = text.rpartition("=")
        file, _, line = place.rpartition(":")
        try:
            found[place] = {"true": 1.0, "false": 0.0}[value.lower()] if value.isalpha() else float(value)
        except (KeyError, ValueError):
            file = ""
        if not file or not line.isdigit():
            raise UsageError(f"--assume {text}: it is written FILE:LINE=VALUE, as train.py:120=0.3")
    return found


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


def _emulator(wishes: Wishes, stopper: Stopper, watch: Watch) -> Emulator:
    try:
        from gapless.emulate.emulator import Emulator
        from gapless.emulate.given import read
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError("gapless check runs your script and so needs PyTorch: pip install torch") from None
    read(wishes.given)
    if wishes.fit.changes:
        from gapless.emulate.changes import install

        install(wishes.fit.changes)
    return Emulator(
        wishes.gpu,
        wishes.devices if wishes.world_size else wishes.devices or _ranks.here(),
        on_mark=stopper,
        between_marks=stopper.between if wishes.longer else None,
        programme=wishes.prices,
        memory=wishes.memory,
        dry=bool(wishes.dry) if _ranks.several() else wishes.dry,
        on_switch=watch.switched,
        assume=_assumed(wishes),
        standins=wishes.standins,
        late_copies=wishes.late_copies,
        graphs=wishes.graphs,
        lasting=True,
        world=wishes.world(),
    )


class Conclusion:
    """Saves and reports a session, and remembers the exit status that follows from it."""

    def __init__(self, wishes: Wishes, watch: Watch, again: Again | None = None) -> None:
        self.wishes = wishes
        self.watch = watch
        self.status = 0
        self.emulator: Emulator | None = None
        self._again = again
        self._stream = _output.own_copy(sys.stdout)
        hints = () if wishes.output else ("-o FILE saves it",)
        self._style = wishes.shown.style(self._stream, hints=hints)
        self._calibration = os.path.abspath(wishes.calibrate) if wishes.calibrate else ""
        self._output = wishes.output and os.path.abspath(_ranks.path_for(wishes.output, _ranks.rank()))
        asked = wishes.prices and not wishes.calibrate and watch.speaks
        self._host = _host.speed(wishes.fit.host) if asked else None  # now, before the script uses torch

    def __call__(self, session: Session) -> None:
        self.status = session.ending.status
        self.watch.end(session)
        asked = {"wanted": self.wishes.wanted, "what_if": self.wishes.what_if}
        session = msgspec.structs.replace(self._calibrated(session), **asked)
        if self.emulator is not None and self.wishes.compile_pass and self.watch.speaks:
            session = with_compiled(session, self.emulator, self.watch.progress.tried)
        self._save(session)
        told = self.watch.speaks and not self.wishes.fit.silent
        found = report(session, priced=self.wishes.prices) if told else None
        loaders = self.watch.loaders
        if found is not None and loaders is not None:
            session, found = loaders.examined(session, found, self.watch.tally.count)
            self.status = self.status or loaders.status
            if session.loaders:
                self._save(session)
        if found is not None and self._again is not None and self.wishes.fit.tries:
            from gapless.commands._remedies import with_remedies

            session, found = with_remedies(session, found, self._again, self.watch.progress)
            self._save(session)
        if self._output:
            self.watch.progress.saved(self._style.path(self._output))
        if found is not None:
            self._report(found)

    def _save(self, session: Session) -> None:
        if self._output:
            save(session, self._output)

    def _calibrated(self, session: Session) -> Session:
        """The session with the times of the profile that the user named, or the host's speed; they are saved
        with it."""
        programme = session.programme
        if programme is None:
            return session
        programme = self.wishes.fit.joined(programme)
        if not self._calibration:
            paced = msgspec.structs.replace(programme, host=self._host)
            return msgspec.structs.replace(session, programme=paced)
        from gapless.analyze.estimate.measure import calibrated

        return msgspec.structs.replace(session, programme=calibrated(self._calibration, programme))

    def _report(self, found: Report) -> None:
        shown = self.wishes.shown
        _output.write(self._stream, shown.lead + renderer(shown.form)(found, self._style))
        over = _gate.exceeded(found, self.wishes.max_waits, self.wishes.fail_on)
        for reason in over:
            self.watch.progress.problem(reason)
        if over and not self.status:
            self.status = EXIT_FINDINGS
