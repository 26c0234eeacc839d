"""``gapless loader``: measure a DataLoader, predict it under other settings, recommend one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
import msgspec

from gapless.analyze import report
from gapless.analyze.loaders import STARVED, own_step
from gapless.commands import _gate, _output
from gapless.commands._bar import bar
from gapless.commands._diagnosed import load_any_diagnosis
from gapless.commands._options import takes
from gapless.errors import EXIT_FINDINGS, EXIT_OK, GaplessError, UnreadableInput, UsageError, require_torch
from gapless.files.kinds import kind_of
from gapless.model import Report
from gapless.model.loading import Demand, Diagnosis, save
from gapless.rules._loader import MIN_SHARE_OF_STEP

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min)?")
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, None: 1.0}
_INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended: 128 and the number of SIGINT."""
_MISTAKES_SHARE, _MIN_MISTAKES_SECONDS = 0.5, 5.0
"""Share of the budget, and minimum seconds, that looking for mistakes takes in addition."""


class _Interrupted(GaplessError):
    """Ctrl-C before anything was measured."""

    exit_code = _INTERRUPTED


class LoaderOptions(msgspec.Struct, frozen=True):
    """The command's options."""

    step_ms: float | None = None
    profile: str | None = None
    session: str | None = None
    step_cpu: float = 1.0
    budget: str = "20s"
    check_advice: bool | None = None
    verify: bool | None = None
    mistakes: bool = True
    ranks: int = 1
    fail_on: tuple[str, ...] = ()
    shown: _output.Shown = _output.Shown()
    output: str | None = None
    quiet: bool = False

    @property
    def tries_advice(self) -> bool | None:
        """Whether to run the recommended setting; None if the user did not say."""
        return self.verify if self.check_advice is None else self.check_advice


@takes(LoaderOptions())
@click.command("loader")
@click.option(
    "--step-ms", metavar="MS", type=click.FloatRange(0), help="How long a step takes without its input."
)
@click.option("--profile", metavar="TRACE", help="Take the step time from a profile of the training.")
@click.option(
    "--session", metavar="FILE", help="Take the (estimated) step time from a session of gapless check."
)
@click.option(
    "--step-cpu",
    metavar="PART",
    type=click.FloatRange(0, 1),
    show_default=True,
    help="Share of a step in which the CPU is busy: 1 if it launches kernels the whole time.",
)
@click.option("--budget", metavar="TIME", show_default=True, help="How long to measure.")
@click.option(
    "--check-advice/--no-check-advice",
    default=None,
    help="Run the recommended setting within the budget and compare; on by default.",
)
@click.option("--verify/--no-verify", default=None, hidden=True)  # what it was called before
@click.option(
    "--mistakes/--no-mistakes",
    help="Look for items that come twice or never, and for random numbers and orders that repeat; on by "
    "default.",
)
@click.option(
    "--ranks",
    metavar="N",
    type=click.IntRange(1),
    help="Look for mistakes across N ranks, each simulated: the loader is created again for each rank.",
)
@_gate.fail_on_option(
    "Exit with 1 if there are findings with these codes: GAP31 (mistakes), GAP301 (a step waits for "
    "its batch), GAP304 (padding), GAP305 (slow start of epochs), GAP306 (batches larger than their "
    "values)."
)
@_output.report_options
@_output.file_option("-o", "--output", help="Save the results; `gapless loader FILE` shows the report again.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("target", metavar="FILE:NAME")
def command(target: str, options: LoaderOptions) -> int:
    """Measure a DataLoader: what a batch costs, how much of that is waiting, and how many workers keep up.

    FILE:NAME is a DataLoader, a dataset, or a function without arguments that returns one
    (train.py:make_loader, or package.module:make_loader). You can also pass a file saved with -o, with the
    same step time or another one.

    \b
    Examples:
      gapless loader train.py:make_loader --step-ms 120
      gapless loader train.py:make_loader --profile trace.json.gz
      gapless loader data.py:train_set --budget 60s -o loader.json
      gapless loader train.py:make_loader --ranks 2 --fail-on GAP31
      gapless loader loader.json --step-ms 60
      gapless loader loader.json -f html > loader.html    a page

    Ctrl-C ends the measurement and reports the results so far.

    Exit status: 0; 1 found what --fail-on names; 2 usage error; 3 no batch can be made; 130 interrupted.
    """
    shown = options.shown
    shown.refuse_terminal(f"gapless loader -f html {target}")
    inputs = filter(None, (target.partition(":")[0], target, options.profile, options.session))
    _output.refuse_inputs(options.output, list(inputs))
    stream = _output.own_copy(sys.stdout)
    saved = target.endswith(".json")
    if shown.alone and not saved:
        _output.redirect_to_stderr()  # the user's code may print, and the page stands alone
    demand = _demand(options)
    if saved:
        if options.tries_advice or options.ranks > 1:
            raise UsageError(
                "--check-advice and --ranks run the loader, but a saved diagnosis does not contain one"
            )
        result = _load_for_step(target, demand)
    else:
        result = _measure(target, demand, options)
    unsaved = _output.save_or_explain(partial(save, result, options.output)) if options.output else EXIT_OK
    document = report(result)
    shown.write([document], stream)
    return _INTERRUPTED if result.interrupted else _status(document, result, options.fail_on) or unsaved


def _status(report: Report, diagnosis: Diagnosis, codes: tuple[str, ...]) -> int:
    """Return 1, after naming them, if there are findings whose codes start with one of `codes`; else 0."""
    every = {finding.code for finding in report.findings} | ({STARVED} if _is_starved(diagnosis) else set())
    named = sorted(code for code in every if codes and code.startswith(codes))
    if named:
        _output.say(f"{', '.join(named)} (--fail-on)")
    return EXIT_FINDINGS if named else EXIT_OK


def _is_starved(diagnosis: Diagnosis) -> bool:
    """Whether the step waits for its batch, as run or as predicted, without doubt."""
    if not diagnosis.demand.step or diagnosis.doubt is not None:
        return False
    run = diagnosis.seen if diagnosis.seen is not None else diagnosis.now
    return run is not None and run.wait > MIN_SHARE_OF_STEP * run.step


def seconds(text: str) -> float:
    """Parse ``20``, ``20s``, ``500ms`` or ``1.5m`` into seconds.

    Raises:
        UsageError: it is no time, or not positive.
    """
    match = _SECONDS.fullmatch(text.strip())
    value = float(match.group(1)) * _UNITS[match.group(2)] if match else 0.0
    if value <= 0:
        raise UsageError(f"{text!r} is not a time: write 20s, 500ms or 2m")
    return value


def _measure(target: str, demand: Demand, options: LoaderOptions) -> Diagnosis:
    """Measure the loader that `target` names, and look for mistakes."""
    require_torch("gapless loader runs your loader")
    from gapless.loading.factory import find_feed
    from gapless.loading.measure import diagnose

    budget = seconds(options.budget)
    feed = find_feed(target)
    with _progress(options.quiet) as progress:
        result = _diagnose(
            diagnose,
            feed,
            budget,
            demand.step / 1e9 if demand.step else None,
            busy=demand.busy,
            source=demand.source,
            check_advice=options.tries_advice is not False,
            progress=progress,
        )
        if options.mistakes and feed.loader is not None and not result.interrupted:
            progress("mistakes", 0.0)
            limit = max(_MISTAKES_SHARE * budget, _MIN_MISTAKES_SECONDS)
            result = _add_correctness(result, target, feed.loader, options.ranks, limit)
    return msgspec.structs.replace(result, line=feed.line)


def _diagnose(diagnose: Callable[..., Diagnosis], *words: Any, **named: Any) -> Diagnosis:
    """Return a diagnosis; after Ctrl-C, with what was measured so far.

    Raises:
        _Interrupted: nothing was measured.
    """
    try:
        return diagnose(*words, **named)
    except KeyboardInterrupt:
        raise _Interrupted("interrupted before the first item was made: nothing measured") from None


def _add_correctness(diagnosis: Diagnosis, target: str, loader: Any, ranks: int, seconds: float) -> Diagnosis:
    """Return `diagnosis` with whether the loader yields what it should."""
    from gapless.loading import verify
    from gapless.loading.factory import loader_factory
    from gapless.loading.sentence import DOING

    try:
        correctness = verify(loader_factory(target) if ranks > 1 else loader, ranks=ranks, seconds=seconds)
    except KeyboardInterrupt:
        notes = (*diagnosis.notes, f"interrupted while {DOING['mistakes']}")
        return msgspec.structs.replace(diagnosis, interrupted="mistakes", notes=notes)
    return msgspec.structs.replace(diagnosis, correctness=correctness)


def _load_for_step(path: str, demand: Demand) -> Diagnosis:
    """Load a saved diagnosis, predicted for the step in `demand` if it has one."""
    saved = load_any_diagnosis(path)
    if not demand.step:
        return saved
    from gapless.loading.predict import predict_again

    return predict_again(saved, demand)


def _demand(options: LoaderOptions) -> Demand:
    """Return the time of a step without its input, from the one option that was given.

    Raises:
        UsageError: several were given.
    """
    step_ms, profile, session, busy = options.step_ms, options.profile, options.session, options.step_cpu
    named = [option for option in (step_ms, profile, session) if option is not None]
    if len(named) > 1:
        raise UsageError("--step-ms, --profile and --session all set the step time: give only one of them")
    if profile is not None:
        return Demand(step=_step_of_profile(profile), busy=busy, source="profile")
    if session is not None:
        return Demand(step=_step_of_session(session), busy=busy, source="session")
    return Demand(step=(step_ms or 0.0) * 1e6, busy=busy, source="given" if step_ms else "")


def _step_of_profile(path: str) -> float:
    """Return nanoseconds per step in a profile, without the host's time in the loader."""
    if kind_of(path) == "profile":
        from gapless.model.profile import load as load_profiles

        recorded = load_profiles(path)[0]
    else:
        from gapless.analyze.profile.building import profile_file

        recorded = profile_file(path, priced=False)
    step = own_step(recorded)
    if not step:
        raise UnreadableInput(f"{path} has no steps to take the step time from: give --step-ms")
    return step


def _step_of_session(path: str) -> float:
    """Return nanoseconds per step as estimated for the GPU in a session."""
    if kind_of(path) != "session":
        raise UnreadableInput(f"{path} is not a saved session: gapless check -o run.gapless.json train.py")
    from gapless.model.session import load as load_session

    estimate = report(load_session(path)).estimate
    if estimate is None or not estimate.step.likely:
        raise UnreadableInput(f"{path} has no estimate of a step: give --step-ms")
    return float(estimate.step.likely)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Show a bar of the measurement on a terminal, and yield how to update it."""
    from gapless.loading.sentence import DOING

    with bar("measuring", quiet=quiet) as update_bar:
        yield lambda part, done: update_bar(done, 1.0, DOING.get(part, part))
