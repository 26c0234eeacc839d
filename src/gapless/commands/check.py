"""``gapless check``: run a script on an emulated CUDA device and report its waits."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gapless.analyze import WARM_UP
from gapless.analyze.run.enough import MAX_EXTRA_SECONDS
from gapless.analyze.run.inference import waits_end_iterations
from gapless.analyze.run.turns import are_in_turn
from gapless.capture import children
from gapless.capture.finishing import Finishing
from gapless.capture.run import run
from gapless.capture.signals import TERMINATED
from gapless.capture.stopping import Stopper
from gapless.capture.target import Target
from gapless.commands import _gate, _host, _output, _ranks
from gapless.commands._again import Rerun
from gapless.commands._checking import CheckOptions, CheckWatcher, Conclusion
from gapless.commands._compiled import compile_options
from gapless.commands._fit import fit_options
from gapless.commands._leaving import exit_despite_threads
from gapless.commands._options import takes
from gapless.commands._script import WORDS, ScriptCommand
from gapless.commands._steps import StepsOption
from gapless.errors import EXIT_FINDINGS, UsageError, require_torch
from gapless.files.kinds import kind_of

if TYPE_CHECKING:
    from gapless.emulation.emulator import Emulator

_CHILD = "gapless.commands._child:start"
"""The function that child processes of the script run."""


def _parse_assumptions(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, float]:
    """Return the values given with --assume by line.

    Raises:
        UsageError: one is not written as ``train.py:120=0.3``.
    """
    values = {}
    for text in texts:
        place, _, value = text.rpartition("=")
        file, _, line = place.rpartition(":")
        try:
            values[place] = {"true": 1.0, "false": 0.0}[value.lower()] if value.isalpha() else float(value)
        except (KeyError, ValueError):
            file = ""
        if not file or not line.isdigit():
            raise UsageError(f"--assume {text}: expected FILE:LINE=VALUE, for example train.py:120=0.3")
    return values


@takes(CheckOptions())
@click.command("check", cls=ScriptCommand)
@click.option("-m", "--module", metavar="MODULE", help="Run a module, as python -m does.")
@click.option(
    "--steps",
    type=StepsOption(),
    show_default=True,
    help=f"Stop after N steady training steps (the first {WARM_UP} do not count), or run the whole script. "
    f"By default the run continues for up to {MAX_EXTRA_SECONDS:g} s to reach the next evaluation, "
    "checkpoint, rollout or epoch end, and for as long within it.",
)
@click.option(
    "--gpu",
    "gpus",
    metavar="NAME,...",
    help="The GPU to emulate: A100 (default), H100, L4, T4, ... With several names, the first is emulated, "
    "and a table shows for each whether the run fits and how fast it would be.",
)
@click.option(
    "--devices",
    metavar="N",
    type=click.IntRange(1),
    help="Number of GPUs in the machine (default: 1; under torchrun one for each process; with "
    "--world-size up to 8).",
)
@click.option(
    "--world-size",
    metavar="N",
    type=click.IntRange(1),
    help="Run SCRIPT as one of N ranks, as torchrun would start it, without the others: sharded models "
    "have this rank's sizes, and the report shows what this rank sends and receives.",
)
@click.option(
    "--rank",
    metavar="R",
    type=click.IntRange(0),
    help="Which rank to run as (default: 0); with --world-size.",
)
@click.option(
    "--max-waits", metavar="N", type=click.FloatRange(0), help="Exit with 1 above N syncs per steady step."
)
@_gate.fail_on_option("Exit with 1 if a step has findings with these codes: GAP101,GAP12.")
@_output.file_option("-o", "--output", help="Save the session; `gapless show FILE` shows the report again.")
@click.option(
    "--prices/--no-prices",
    "programme",
    help="Estimate how long a step and each sync in it take on the GPU; on by default.",
)
@click.option(
    "--memory",
    is_flag=True,
    help=(
        "Record the script's GPU memory requests; if you also save with -o, `gapless memory FILE` shows "
        "the details."
    ),
)
@click.option(
    "--calibrate",
    metavar="TRACE",
    help="Estimate with times from a real profile of this script instead of the data sheet's.",
)
@click.option(
    "--loader/--no-loader",
    help="After the script has run, measure the DataLoaders that feed the steps; on by default.",
)
@click.option(
    "--loader-budget",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    show_default=True,
    help="Time limit for measuring the loaders.",
)
@compile_options
@click.option(
    "--dry/--values",
    default=None,
    help="--dry runs without computing values: at full size, without using memory; a value that is read on "
    "the CPU is assumed, and the report lists it. --values computes every value. Default: compute "
    "values unless that takes too long.",
)
@click.option(
    "--assume",
    metavar="FILE:LINE=VALUE",
    multiple=True,
    callback=_parse_assumptions,
    help="In a run without values: what to assume for a value read at that line: train.py:120=0.3, =true, "
    "=17. For a size: the number of elements, or their share.",
)
@click.option(
    "--standins/--no-standins",
    default=None,
    help="Let the script and all libraries, or nobody, find flash-attn, apex and others where they are not "
    "installed. Default: the script, if it imports or asks for them.",
)
@click.option(
    "--late-copies",
    is_flag=True,
    help="Let copies to the CPU with non_blocking=True arrive only when the script waits for them.",
)
@click.option(
    "--graphs", is_flag=True, help="Show how much of a step a CUDA graph could hold, and what prevents it."
)
@click.option(
    "--own",
    metavar="PATH|PACKAGE",
    multiple=True,
    help="Installed code that is your own: findings are placed in it, not where you call it. "
    "Default: what the project around SCRIPT or the current folder installs.",
)
@click.option(
    "--standin",
    "standin_files",
    metavar="FILE",
    multiple=True,
    type=click.Path(dir_okay=False, resolve_path=True),
    help="A Python file with @gapless.standin functions for your own CUDA code; runs before SCRIPT.",
)
@fit_options
@_output.report_options
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("script", metavar="SCRIPT [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(script: tuple[str, ...], module: str | None, options: CheckOptions) -> int:
    """Run SCRIPT unmodified on an emulated CUDA device and report each line that makes the CPU wait for it.

    No GPU is needed. Options come before SCRIPT; everything after it is passed to the script. With -f html,
    sarif or another whole document, the script's standard output goes to standard error.

    \b
    Examples:
      gapless check train.py --epochs 1 --batch-size 8
      gapless check --steps all -m mypackage.train
      gapless check -f html train.py > report.html  a page for the browser
      gapless check --max-waits 0 train.py          a CI gate
      gapless check --calibrate trace.json train.py prices from a real profile
      gapless check --values train.py               compute every value
      gapless check --memory --gpu l4 train.py      will it fit?
      gapless check --find batch_size:8..256 train.py    largest that fits
      gapless check --gpu l4,a100,h100 --price l4=0.8,a100=1.8,h100=3 train.py
      torchrun --nproc-per-node 2 -m gapless check train.py
      gapless check --world-size 128 train.py       as rank 0 of 128, alone

    Exit status: 0 within the limits; 1 over a limit; 2 usage error; if the script fails, its own status.
    """
    if module is None and not script:
        raise UsageError("no script given. Example: gapless check train.py")
    require_torch("gapless check runs your script")
    if options.emulator.assume and options.emulator.dry is False:
        raise UsageError("--assume needs a run without values: remove --values")
    context = click.get_current_context()
    explicit = context.get_parameter_source("steps") is not ParameterSource.DEFAULT
    options = options.decide(longer=0.0 if explicit else MAX_EXTRA_SECONDS)
    _ranks.refuse_rank(options.emulator)
    options.shown.refuse_terminal(f"gapless check -f html {module or script[0]}")
    own, words = context.meta[WORDS]
    again = Rerun(own, words, module=module is not None)
    if options.fit.find:
        return find(module, script, options, again)
    return check(module, script, options, again)


OPTIONS = frozenset(name for param in command.params for name in (*param.opts, *param.secondary_opts))


def find(module: str | None, words: tuple[str, ...], options: CheckOptions, again: Rerun) -> int:
    """Run the script with different values of its argument, and return the exit status."""
    from gapless.commands._find import search_argument

    Target.of(module, words)
    watch = CheckWatcher(options)
    session = search_argument(options.fit.find, again, watch.progress)
    if session is None:
        return TERMINATED
    conclusion = Conclusion(options, watch)
    conclusion(session)
    none = session.search is not None and session.search.found < 0
    return conclusion.status or (EXIT_FINDINGS if none else 0)


def check(module: str | None, words: tuple[str, ...], options: CheckOptions, again: Rerun) -> int:
    """Run the script, report, and return the exit status."""
    target = Target.of(module, words)
    options = options.with_own_code(target.folder)
    if options.emulator.world_size is not None:
        _ranks.refuse_launcher(module or words[0])
    _host.parse_host_speed(options.fit.host)
    if options.calibrate is not None:
        _check_trace(options)
    watch = CheckWatcher(options)
    watch.progress.warn_misplaced_options(target.find_misplaced_options(OPTIONS), target.name)
    finishing = Finishing(watch.progress.write_unbuffered)
    conclusion = Conclusion(options, watch, again, finishing)
    if options.shown.alone:
        _output.redirect_to_stderr()
    children.stand_down()
    stopper = Stopper(watch)
    emulator = _make_emulator(options, stopper, watch)
    emulator.on_fork = children.record_processes
    atexit.register(emulator.stop)  # first in, so last out: the script's own handlers still find the device
    watch.begin(os.path.basename(target.name), emulator.gpu.name)
    with (
        children.environment_for_children(children.ChildPlan(_CHILD, capture=options.capture)) as folder,
        finishing,
    ):
        session = run(
            target,
            emulator,
            stopper,
            children=folder,
            before_hard_exit=conclusion,
            own_frames=options.shown.verbose,
            one_of_several=_ranks.several(),
            finishing=finishing,
        )
        conclusion(session, emulator)
    exit_despite_threads(watch.progress, session.ending, conclusion.status)
    return conclusion.status


def _check_trace(options: CheckOptions) -> None:
    """Refuse a --calibrate file that is no profile, before the script runs.

    Raises:
        UsageError: it is no profile, or estimates are off.
    """
    if not options.emulator.programme:
        raise UsageError("--calibrate needs prices: remove --no-prices")
    path = options.calibrate or ""
    if kind_of(path) != "trace":
        raise UsageError(
            f"{path} is not a profile to calibrate with: pass the JSON that torch.profiler wrote"
        )


def _make_emulator(options: CheckOptions, stopper: Stopper, watch: CheckWatcher) -> Emulator:
    emulator = options.capture.make_emulator(
        stopper, stopper.between if options.longer else None, watch.announce_switch
    )
    emulator.in_turn = are_in_turn
    emulator.core.recorder.ends_iteration = waits_end_iterations
    emulator.compiled.ending = lambda: stopper.requests > 0
    if options.fit.changes:
        from gapless.emulation.changes import install

        install(options.fit.changes)
    return emulator
