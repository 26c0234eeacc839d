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
from gapless.commands._diagnosed import diagnosis
from gapless.errors import EXIT_FINDINGS, EXIT_OK, GaplessError, UnreadableInput, UsageError, require_torch
from gapless.files.kinds import kind_of
from gapless.model import Report
from gapless.model.loading import Demand, Diagnosis, save
from gapless.rules._loader import MIN_SHARE_OF_STEP

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min)?")
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, None: 1.0}
_INTERRUPTED = 130
_MISTAKES, _AT_LEAST = 0.5, 5.0
"""Part of the budget, and seconds at least, for looking for mistakes, besides."""


class _Interrupted(GaplessError):
    """Ctrl-C, before anything was found."""

    exit_code = _INTERRUPTED


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
    default=1.0,
    show_default=True,
    help="Share of a step in which the CPU is busy: 1 if it launches kernels the whole time.",
)
@click.option("--budget", metavar="TIME", default="20s", show_default=True, help="How long to measure.")
@click.option(
    "--check-advice/--no-check-advice",
    default=None,
    help="Run the recommended setting within the budget and compare; on by default.",
)
@click.option("--verify/--no-verify", default=None, hidden=True)  # what it was called before
@click.option(
    "--mistakes/--no-mistakes",
    default=True,
    help="Look for items that come twice or never, and for random numbers and orders that repeat; on by "
    "default.",
)
@click.option(
    "--ranks",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    help="Look for mistakes across N ranks, each simulated: the loader is created again for each rank.",
)
@click.option(
    "--fail-on",
    metavar="CODES",
    default="",
    help="Exit with 1 if there are findings with these codes: GAP31 (mistakes), GAP301 (a step waits for "
    "its batch), GAP304 (padding), GAP305 (slow start of epochs), GAP306 (batches larger than their "
    "values).",
)
@_output.report_options
@_output.file_option("-o", "--output", help="Save the results; `gapless loader FILE` shows the report again.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("target", metavar="FILE:NAME")
def command(
    target: str,
    step_ms: float | None,
    profile: str | None,
    session: str | None,
    step_cpu: float,
    budget: str,
    check_advice: bool | None,
    verify: bool | None,
    mistakes: bool,
    ranks: int,
    fail_on: str,
    shown: _output.Shown,
    output: str | None,
    quiet: bool,
) -> int:
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
    check_advice = verify if check_advice is None else check_advice
    codes = _gate.parse_codes(fail_on)
    shown.refuse_terminal(f"gapless loader -f html {target}")
    _output.refuse_inputs(output, [target.partition(":")[0], target, *filter(None, (profile, session))])
    stream = _output.own_copy(sys.stdout)
    saved = target.endswith(".json")
    if shown.alone and not saved:
        _output.give_way()  # the user's code may print, and the page stands alone
    demand = _demand(step_ms, profile, session, step_cpu)
    if saved:
        if check_advice or ranks > 1:
            raise UsageError(
                "--check-advice and --ranks run the loader, but a saved diagnosis does not contain one"
            )
        made = _again(target, demand)
    else:
        wanted = ranks if mistakes else 0
        made = _measured(target, demand, seconds(budget), check_advice is not False, wanted, quiet)
    unsaved = _output.kept(partial(save, made, output)) if output else EXIT_OK
    found = report(made)
    shown.write([found], stream)
    return _INTERRUPTED if made.interrupted else _status(found, made, codes) or unsaved


def _status(report: Report, diagnosis: Diagnosis, codes: tuple[str, ...]) -> int:
    """1 where something is found that a code in `codes` names, which is said."""
    every = {one.code for one in report.findings} | ({STARVED} if _starved(diagnosis) else set())
    named = sorted(code for code in every if codes and code.startswith(codes))
    if named:
        _output.say(f"{', '.join(named)} (--fail-on)")
    return EXIT_FINDINGS if named else EXIT_OK


def _starved(diagnosis: Diagnosis) -> bool:
    """Whether the step that was named waits for its batch: as it was run, or as predicted; not in doubt."""
    if not diagnosis.demand.step or diagnosis.doubt is not None:
        return False
    run = diagnosis.seen if diagnosis.seen is not None else diagnosis.now
    return run is not None and run.wait > MIN_SHARE_OF_STEP * run.step


def seconds(text: str) -> float:
    """``20``, ``20s``, ``500ms``, ``1.5m``.

    Raises:
        UsageError: it is no time, or none at all.
    """
    found = _SECONDS.fullmatch(text.strip())
    value = float(found.group(1)) * _UNITS[found.group(2)] if found else 0.0
    if value <= 0:
        raise UsageError(f"{text!r} is not a time: write 20s, 500ms or 2m")
    return value


def _measured(
    target: str, demand: Demand, budget: float, check_advice: bool, ranks: int, quiet: bool
) -> Diagnosis:
    """Measure the loader that `target` names, and look for mistakes over `ranks` (0: do not)."""
    require_torch("gapless loader runs your loader")
    from gapless.loading.factory import find
    from gapless.loading.measure import diagnose

    feed = find(target)
    with _progress(quiet) as progress:
        made = _diagnosed(
            diagnose,
            feed,
            budget,
            demand.step / 1e9 if demand.step else None,
            busy=demand.busy,
            source=demand.source,
            check_advice=check_advice,
            progress=progress,
        )
        if ranks and feed.loader is not None and not made.interrupted:
            progress("mistakes", 0.0)
            seconds = max(_MISTAKES * budget, _AT_LEAST)
            made = _correct(made, target, feed.loader, ranks, seconds)
    return msgspec.structs.replace(made, line=feed.line)


def _diagnosed(diagnose: Callable[..., Diagnosis], *words: Any, **named: Any) -> Diagnosis:
    """A diagnosis, with what was found until Ctrl-C.

    Raises:
        _Interrupted: nothing was.
    """
    try:
        return diagnose(*words, **named)
    except KeyboardInterrupt:
        raise _Interrupted("interrupted before the first item was made: nothing measured") from None


def _correct(diagnosis: Diagnosis, target: str, loader: Any, ranks: int, seconds: float) -> Diagnosis:
    """`diagnosis` with whether the loader yields what it should."""
    from gapless.loading import verify
    from gapless.loading.factory import maker_of
    from gapless.loading.sentence import DOING

    try:
        found = verify(maker_of(target) if ranks > 1 else loader, ranks=ranks, seconds=seconds)
    except KeyboardInterrupt:
        notes = (*diagnosis.notes, f"interrupted while {DOING['mistakes']}")
        return msgspec.structs.replace(diagnosis, interrupted="mistakes", notes=notes)
    return msgspec.structs.replace(diagnosis, correctness=found)


def _again(path: str, demand: Demand) -> Diagnosis:
    """What was saved, and with another step what follows from it then."""
    saved = diagnosis(path)
    if not demand.step:
        return saved
    from gapless.loading.predict import again

    return again(saved, demand)


def _demand(step_ms: float | None, profile: str | None, session: str | None, busy: float) -> Demand:
    """What a step takes without its input, from the one place that was named.

    Raises:
        UsageError: several were.
    """
    named = [one for one in (step_ms, profile, session) if one is not None]
    if len(named) > 1:
        raise UsageError("--step-ms, --profile and --session all set the step time: give only one of them")
    if profile is not None:
        return Demand(step=_of_profile(profile), busy=busy, source="profile")
    if session is not None:
        return Demand(step=_of_session(session), busy=busy, source="session")
    return Demand(step=(step_ms or 0.0) * 1e6, busy=busy, source="given" if step_ms else "")


def _of_profile(path: str) -> float:
    """Nanoseconds of a step without the host's time in the loader."""
    if kind_of(path) == "profile":
        from gapless.model.profile import load as load_profiles

        found = load_profiles(path)[0]
    else:
        from gapless.analyze.profile.building import profile_file

        found = profile_file(path, priced=False)
    step = own_step(found)
    if not step:
        raise UnreadableInput(f"{path} has no steps to take the step time from: give --step-ms")
    return step


def _of_session(path: str) -> float:
    """Nanoseconds of a step as estimated for the GPU."""
    if kind_of(path) != "session":
        raise UnreadableInput(f"{path} is not a saved session: gapless check -o run.gapless.json train.py")
    from gapless.model.session import load as load_session

    estimate = report(load_session(path)).estimate
    if estimate is None or not estimate.step.likely:
        raise UnreadableInput(f"{path} has no estimate of a step: give --step-ms")
    return float(estimate.step.likely)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """A bar of the measurement going on, on a terminal; it leaves nothing behind."""
    from gapless.loading.sentence import DOING

    with bar("measuring", quiet=quiet) as told:
        yield lambda part, done: told(done, 1.0, DOING.get(part, part))
