"""``gapless loader``: measure a DataLoader, predict it under other settings, recommend one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import msgspec

from gapless.commands import _output
from gapless.commands._saved import kind_of
from gapless.errors import EXIT_OK, UnreadableInput, UsageError
from gapless.model.loading import Demand, Diagnosis, load, save
from gapless.render import _loader

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min)?")
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, None: 1.0}
_DOING = {
    "cores": "trying the cores",
    "items": "making batches",
    "lines": "looking where the time goes",
    "workers": "trying a worker",
    "loop": "running the loader as it is",
    "advice": "running the setting advised",
}


@click.command("loader")
@click.option(
    "--step-ms", metavar="MS", type=click.FloatRange(0), help="What a step takes without its input."
)
@click.option("--profile", metavar="TRACE", help="Take the step from a profile of the training.")
@click.option("--session", metavar="FILE", help="Take the step from a session of gapless check (estimated).")
@click.option(
    "--step-cpu",
    metavar="PART",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Part of a step in which the host computes: 1 where it launches kernels all the time.",
)
@click.option("--budget", metavar="TIME", default="20s", show_default=True, help="How long to measure.")
@click.option("--verify", is_flag=True, help="Run the recommended setting, too, and compare.")
@click.option(
    "-f", "--format", "form", type=click.Choice(("json", "text")), default="text", show_default=True
)
@click.option("-o", "--output", metavar="FILE", help="Save it; `gapless loader FILE` reports it again.")
@click.option("--all", "unfold", is_flag=True, help="Every setting that was predicted.")
@click.option("--no-color", is_flag=True, help="Plain text; so does the variable NO_COLOR.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("target", metavar="FILE:NAME")
def command(
    target: str,
    step_ms: float | None,
    profile: str | None,
    session: str | None,
    step_cpu: float,
    budget: str,
    verify: bool,
    form: str,
    output: str | None,
    unfold: bool,
    no_color: bool,
    quiet: bool,
) -> int:
    """Measure a DataLoader: what a batch costs, computing or waiting, and how many workers keep up.

    FILE:NAME is a function without arguments that returns a DataLoader or a dataset (train.py:make_loader,
    or package.module:make_loader), or either one itself. What is saved with -o can be given in its place,
    also with another step.

    \b
    Examples:
      gapless loader train.py:make_loader --step-ms 120
      gapless loader train.py:make_loader --profile trace.json.gz --verify
      gapless loader data.py:train_set --budget 60s -o loader.json
      gapless loader loader.json --step-ms 60

    Exit status: 0; 2 usage; 3 no batch can be made.
    """
    demand = _demand(step_ms, profile, session, step_cpu)
    if target.endswith(".json"):
        made = _again(target, demand, verify)
    else:
        made = _measured(target, demand, seconds(budget), verify, quiet)
    if output:
        save(made, output)
    style = _output.style_for(sys.stdout, color=not no_color, unfold=unfold, folder=os.getcwd())
    text = _loader.as_json(made, style) if form == "json" else _loader.as_text(made, style)
    _output.write(sys.stdout, text)
    return EXIT_OK


def seconds(text: str) -> float:
    """``20``, ``20s``, ``500ms``, ``1.5m``.

    Raises:
        UsageError: it is no time, or none at all.
    """
    found = _SECONDS.fullmatch(text.strip())
    value = float(found.group(1)) * _UNITS[found.group(2)] if found else 0.0
    if value <= 0:
        raise UsageError(f"{text!r} is no time: write 20s, 500ms or 2m")
    return value


def _measured(target: str, demand: Demand, budget: float, verify: bool, quiet: bool) -> Diagnosis:
    try:
        from gapless.loading.factory import find
        from gapless.loading.measure import diagnose
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError("gapless loader runs your loader and so needs PyTorch: pip install torch") from None
    loader, remarks = find(target)
    with _progress(quiet) as progress:
        made = diagnose(
            loader,
            budget,
            demand.step / 1e9 if demand.step else None,
            busy=demand.busy,
            source=demand.source,
            verify=verify,
            progress=progress,
        )
    return msgspec.structs.replace(made, notes=(*remarks, *made.notes))


def _again(path: str, demand: Demand, verify: bool) -> Diagnosis:
    """What was saved, and with another step what follows from it then."""
    if kind_of(path) != "loader":
        raise UnreadableInput(
            f"{path} is no saved diagnosis of a loader: gapless loader train.py:make_loader"
        )
    if verify:
        raise UsageError("--verify runs the loader, and a saved diagnosis holds none")
    saved = load(path)
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
        raise UsageError("--step-ms, --profile and --session all say what a step takes: give one of them")
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
        from gapless.analyze.profile.profile import of_file

        found = of_file(path, priced=False)
    if not found.steps.count or found.steps.source == "span":
        raise UnreadableInput(f"{path} has no steps to take a step's length from: give --step-ms")
    loading = sum(phase.host for phase in found.phases if phase.name == "loading")
    return max(found.steps.mean - loading / found.steps.count, 0.0)


def _of_session(path: str) -> float:
    """Nanoseconds of a step as estimated for the GPU."""
    if kind_of(path) != "session":
        raise UnreadableInput(f"{path} is no saved session: gapless check -o run.gapless.json train.py")
    from gapless.analyze import report
    from gapless.model.session import load as load_session

    estimate = report(load_session(path)).estimate
    if estimate is None or not estimate.step.likely:
        raise UnreadableInput(f"{path} holds no estimate of a step: give --step-ms")
    return float(estimate.step.likely)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """A bar of the measurement going on, on a terminal; it leaves nothing behind."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda part, done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("gapless: {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("measuring", total=1.0)

        def told(part: str, done: float) -> None:
            progress.update(task, completed=done, description=_DOING.get(part, part))

        yield told
